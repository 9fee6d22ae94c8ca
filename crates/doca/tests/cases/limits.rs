//! The device's limits are exact: one byte more is refused.
//!
//! With a copy of 2 GiB: `cargo test --release -p verbless-doca --test cases two_gigabytes`.

use std::sync::Arc;
use std::time::Duration;

use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::{Buf, Dev, DevInfo, ErrorKind, Event, Inventory, Mmap, WorkQ};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;

use crate::support::{dev, plain};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// A BlueField-3 whose copies have at most 2^`log` bytes.
fn limited_to(log: u32) -> Dev {
    let text = include_str!("../../../model/profiles/bluefield3.toml");
    let own = "log_dma_mmo_size = 31";
    assert!(text.contains(own));
    let profile = Profile::from_toml(&text.replace(own, &format!("log_dma_mmo_size = {log}")));
    let model = Model::builder().device(profile.unwrap()).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    DevInfo::list_of(&backend).unwrap()[0].open().unwrap()
}

/// A chain of buffers over the same bytes, whose rooms have `length` bytes in total.
fn chain(inventory: &Inventory, map: &Mmap, at: u64, each: u64, length: u64, full: bool) -> Buf {
    let make = |length| match full {
        true => inventory.buf_by_data(map, map.address() + at, length).unwrap(),
        false => inventory.buf_by_addr(map, map.address() + at, length).unwrap(),
    };
    let mut chain = make(each.min(length));
    let mut left = length - each.min(length);
    while left > 0 {
        chain.link(make(each.min(left))).unwrap();
        left -= each.min(left);
    }
    chain
}

/// Submits a copy and waits for it; returns the copied bytes.
fn copy(workq: &mut WorkQ, dma: &Dma, source: Buf, into: Buf) -> Result<u64, ErrorKind> {
    if let Err(refused) = workq.submit(dma.memcpy(source, into)) {
        assert!(refused.error.to_string().contains("max_buf_size"), "{}", refused.error);
        return Err(refused.error.kind());
    }
    match workq.retrieve_within(TIMEOUT) {
        Ok(Some(Event::Dma(done))) => Ok(done.destination.chain_data_len()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn copy_length_is_limited_by_max_buf_size() {
    for log in [12, 16, 20] {
        let dev = limited_to(log);
        let most = Dma::max_buf_size(&dev).unwrap();
        assert_eq!(most, 1 << log);
        let (map, inventory) = plain(&dev, 4 << 20, 140);
        let dma = Dma::builder(&dev).start().unwrap();
        let mut workq = WorkQ::new(2).unwrap();
        workq.add(&dma).unwrap();
        let bytes: Vec<u8> = (0..=most).map(|at| (at ^ (at >> 8)) as u8).collect();
        map.write_at(0, &bytes).unwrap();
        // In one buffer, and in chains of several.
        for each in [most + 1, most / 2, most / 32] {
            for (length, expected) in [
                (most - 1, Ok(most - 1)),
                (most, Ok(most)),
                (most + 1, Err(ErrorKind::InvalidValue)),
            ] {
                map.write_at(2 << 20, &vec![0xff; most as usize + 1]).unwrap();
                let source = chain(&inventory, &map, 0, each, length, true);
                let into = chain(&inventory, &map, 2 << 20, most + 1, most + 1, false);
                let copied = copy(&mut workq, &dma, source, into);
                assert_eq!(copied, expected, "{length} bytes of {most}, {each} a buffer");
                let mut there = vec![0; most as usize + 1];
                map.read_at(2 << 20, &mut there).unwrap();
                // The chain repeats the same bytes.
                let repeated = bytes[..each.min(length) as usize].iter().cycle();
                let written = copied.unwrap_or(0) as usize;
                assert!(there[..written].iter().eq(repeated.take(written)));
                assert!(there[written..].iter().all(|&byte| byte == 0xff), "no byte more");
                assert_eq!(inventory.num_free_elements(), 140, "refused or done, all came back");
            }
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes 12 s unless it is optimized")]
fn two_gib_copy_fits_one_job() {
    const EACH: u64 = 32 << 20;
    let dev = dev();
    let most = Dma::max_buf_size(&dev).unwrap();
    assert_eq!(most / EACH, Dma::max_list_buf_num_elem(&dev).unwrap().into());
    let (map, inventory) = plain(&dev, 2 * EACH as usize + 1, 200);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::builder(1).event_driven().build().unwrap();
    workq.add(&dma).unwrap();
    map.write_at(EACH as usize - 4, b"last").unwrap();
    // The same 32 MiB 64 times: a large copy of little memory.
    let [source, into] =
        [(0, true), (EACH, false)].map(|(at, full)| chain(&inventory, &map, at, EACH, most, full));
    assert_eq!(copy(&mut workq, &dma, source, into), Ok(most));
    let mut there = [0; 4];
    map.read_at(2 * EACH as usize - 4, &mut there).unwrap();
    assert_eq!(&there, b"last");
    // One byte more; the last buffers have room for it.
    let source = chain(&inventory, &map, 0, EACH + 1, most + 1, true);
    let into = chain(&inventory, &map, EACH, EACH + 1, most + 1, false);
    assert_eq!(copy(&mut workq, &dma, source, into), Err(ErrorKind::InvalidValue));
    assert_eq!(inventory.num_free_elements(), 200);
}
