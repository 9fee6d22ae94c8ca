//! Export descriptors of a hostile peer, at the device that imports them: an import is refused, or
//! is a map within the limits of its format, and copies out of it end. RDMA instances connect by
//! connection descriptors. The first byte selects the use of the rest: changes of a good
//! descriptor, or a descriptor.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::rdma::{Rdma, RdmaState};
use verbless_doca::{
    AccessFlags, Dev, DevInfo, DynamicMmap, Inventory, Memory, MemoryMap, Mmap, WorkQ,
};
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;

/// Bytes of the checksum at the end.
const SUM: usize = 8;
/// Access flags of peers: an import has at least one of them.
const REMOTE: u32 = 0x3e;

/// A host and its DPU, and the host's exports.
struct Card {
    host: Dev,
    dpu: Dev,
    _maps: [Mmap; 2],
    /// Exports for a peer and for the DPU, and the connection descriptor for a peer.
    good: [Vec<u8>; 3],
    near: Mmap,
    inventory: Inventory,
    dma: Dma,
    workq: WorkQ,
}

impl Card {
    fn new() -> Self {
        let card = Profile::load("bluefield3").expect("a built-in profile");
        let model = Model::builder().device_with_sides(card).build();
        let [host, dpu] = [Side::Host, Side::Dpu].map(|side| {
            let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model).on_side(side));
            let list = DevInfo::list_of(&backend).expect("there are devices");
            list[0].open().expect("the device opens")
        });
        let map = |dev: &Dev, access| {
            let memory = Memory::allocate(4096).expect("there is memory");
            let map = Mmap::builder().memrange(memory).permissions(access).add_dev(dev);
            map.start().expect("the object starts")
        };
        let rdma = map(&host, AccessFlags::RDMA_READ | AccessFlags::RDMA_WRITE);
        let lent = map(&host, AccessFlags::DPU_READ_WRITE);
        let peer = Rdma::builder(&host).start().expect("the object starts");
        let good = [
            rdma.export_rdma(&host).expect("the map is for peers").as_bytes().to_vec(),
            lent.export_dpu(&host).expect("the map is for the DPU").as_bytes().to_vec(),
            peer.export().expect("the instance has a queue pair").as_bytes().to_vec(),
        ];
        let near = map(&dpu, AccessFlags::LOCAL_READ_WRITE);
        let inventory = Inventory::builder(2).start().expect("the object starts");
        let dma = Dma::builder(&dpu).start().expect("the device has DMA");
        let mut workq = WorkQ::new(1).expect("there is room");
        workq.add(&dma).expect("the context is added");
        Self { host, dpu, _maps: [rdma, lent], good, near, inventory, dma, workq }
    }

    /// Copies from an imported map; the job ends, whatever is wrong with the map.
    fn copy(&mut self, from: &impl MemoryMap, at: u64, length: u64) {
        let length = length.min(64);
        let Ok(source) = self.inventory.buf_by_data(from, at, length) else { return };
        let to = self.inventory.buf_by_addr(&self.near, self.near.address(), 64);
        let job = self.dma.memcpy(source, to.expect("a buffer is left"));
        if self.workq.submit(job).is_ok() {
            // The job comes back whether or not it failed.
            for event in self.workq.drain() {
                drop(event);
            }
        }
    }
}

thread_local! {
    static CARD: RefCell<Card> = RefCell::new(Card::new());
}

/// Corrects the checksum, which no fuzzer guesses, and perhaps the length.
fn seal(bytes: &mut [u8], length: bool) {
    let Some(end) = bytes.len().checked_sub(SUM) else { return };
    if length && end >= 12 {
        let all = (bytes.len() as u32).to_be_bytes();
        bytes[8..12].copy_from_slice(&all);
    }
    let sum = Sha256::digest(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum[..SUM]);
}

fuzz_target!(|data: &[u8]| {
    let Some((&what, rest)) = data.split_first() else { return };
    CARD.with_borrow_mut(|card| {
        let mut bytes = match what & 3 {
            kind @ 0..=2 => {
                let mut good = card.good[usize::from(kind)].clone();
                for change in rest.chunks_exact(2) {
                    let at = usize::from(change[0]) % good.len();
                    good[at] = change[1];
                }
                good
            }
            _ => rest.to_vec(),
        };
        if what & 4 != 0 {
            seal(&mut bytes, what & 8 != 0);
        }
        let dev = if what & 16 != 0 { card.host.clone() } else { card.dpu.clone() };
        if verbless_doca::rdma::blob::check(&bytes).is_ok() {
            let rdma = Rdma::builder(&dev).start().expect("the object starts");
            match rdma.connect(&bytes) {
                Ok(()) => assert_eq!(rdma.state(), RdmaState::Connected),
                Err(_) => assert_ne!(rdma.state(), RdmaState::Connected),
            }
        }
        if let Ok(map) = Mmap::create_from_export(&bytes, &dev) {
            assert!(map.is_from_export() && !map.is_empty());
            assert!(map.address().checked_add(map.len()).is_some(), "{map:?}");
            assert_ne!(map.permissions().bits() & REMOTE, 0, "{map:?}");
            assert!(map.read_at(0, &mut [0]).is_err(), "memory of another program");
            card.copy(&map, map.address(), map.len());
        }
        let _ = DynamicMmap::create_from_export("fuzzed", &bytes, &dev);
    });
});
