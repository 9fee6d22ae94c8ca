//! The library creates no threads. Alone in its program: other tests would create some meanwhile.

mod support;

use verbless_doca::dma::Dma;
use verbless_doca::rdma::Rdma;
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{DevInfo, WorkQ};

use support::plain;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn library_starts_no_threads() {
    let infos = DevInfo::list_of(&support::backend("bluefield3")).unwrap();
    // Threads of the model and of the test.
    let before = threads();
    let dev = infos[0].open().unwrap();
    let (map, inventory) = plain(&dev, 4096, 8);
    let dma = Dma::builder(&dev).start().unwrap();
    let sha = Sha::builder(&dev).start().unwrap();
    let rdma = Rdma::builder(&dev).start().unwrap();
    for event_driven in [false, true] {
        let builder = WorkQ::builder(8);
        let builder = if event_driven { builder.event_driven() } else { builder };
        let mut workq = builder.build().unwrap();
        workq.add(&dma).unwrap();
        workq.add(&sha).unwrap();
        if event_driven {
            workq.add(&rdma).unwrap();
            rdma.connect(rdma.export().unwrap()).unwrap();
            workq.submit(rdma.receive(None)).unwrap();
            workq.submit(rdma.send(None)).unwrap();
        }
        let from = || inventory.buf_by_data(&map, map.address(), 64).unwrap();
        let to = || inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
        workq.submit(dma.memcpy(from(), to())).unwrap();
        workq.submit(sha.hash(Algorithm::Sha256, from(), to())).unwrap();
        while workq.in_flight() > 0 {
            workq.retrieve_within(None).unwrap();
            assert_eq!(threads(), before);
        }
    }
    drop((dma, sha, rdma, map, inventory, dev));
    assert_eq!(threads(), before);
}
