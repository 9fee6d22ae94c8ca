//! Errors of a process without a free file descriptor. Alone in its program: the limit is the whole
//! process's.

mod support;

use std::fs::File;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use verbless_doca::dma::Dma;
use verbless_doca::{AsyncWorkQ, Context, Error, ErrorKind, WorkQ};

use support::{dev, plain};

#[test]
fn emfile_is_reported_and_workq_recovers() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 2);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::builder(2).event_driven().build().unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(256), hard).unwrap();
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();

    let of = |error: Error| {
        assert!(std::error::Error::source(&error).is_some(), "{error}");
        (
            error.kind(),
            error.to_string().contains("os error 24") || error.to_string().contains("EMFILE"),
        )
    };
    let no_file = (ErrorKind::OperatingSystem, true);
    assert_eq!(of(WorkQ::new(1).map(drop).unwrap_err()), no_file);
    assert_eq!(of(workq.add(&dma).unwrap_err()), no_file, "an event channel");
    let refused = AsyncWorkQ::new(workq).map(drop).unwrap_err();
    assert_eq!(of(refused.error), no_file);

    // The refused call has taken nothing, and works once there is room.
    let mut workq = refused.given;
    files.truncate(files.len() - 8);
    assert_eq!(dma.workqs(), 0);
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let destination = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    workq.submit(dma.memcpy(source, destination)).unwrap();
    assert!(workq.retrieve_within(None).unwrap().is_some());
}
