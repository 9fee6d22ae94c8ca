//! Two RDMA instances, connected or not yet.
#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::Arc;
use std::time::Duration;

use verbless_devx::Backend;
use verbless_doca::context::Retrieve;
use verbless_doca::rdma::{Rdma, RdmaBuilder, RdmaDone};
use verbless_doca::{
    AccessFlags, Buf, Dev, DevInfo, Error, ErrorKind, Event, Extensions, Inventory, Mmap, WorkQ,
};

use super::{backend, map};

pub(crate) const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// Profiles with Ethernet and with InfiniBand ports.
pub(crate) const NETWORKS: [&str; 2] = ["connectx6dx", "bluefield3"];

/// All permissions of a local map for a peer.
pub(crate) const ALL: [AccessFlags; 4] = [
    AccessFlags::LOCAL_READ_WRITE,
    AccessFlags::RDMA_READ,
    AccessFlags::RDMA_WRITE,
    AccessFlags::RDMA_ATOMIC,
];

pub(crate) fn all() -> AccessFlags {
    ALL.into_iter().fold(AccessFlags::default(), |all, flag| all | flag)
}

/// One end of a connection, with memory that the peer imports as a map.
pub(crate) struct End {
    pub(crate) dev: Dev,
    pub(crate) map: Mmap,
    /// The peer's memory.
    pub(crate) there: Mmap,
    pub(crate) inventory: Inventory,
    pub(crate) workq: WorkQ,
    /// `None` only while it is stopped.
    pub(crate) rdma: Option<Rdma>,
}

impl End {
    pub(crate) fn rdma(&self) -> &Rdma {
        self.rdma.as_ref().expect("the context is started")
    }

    /// A buffer of its own memory whose dataroom is the whole buffer.
    pub(crate) fn data(&self, at: u64, length: u64) -> Option<Buf> {
        Some(self.inventory.buf_by_data(&self.map, self.map.address() + at, length).unwrap())
    }

    /// A buffer of its own memory with an empty dataroom.
    pub(crate) fn room(&self, at: u64, length: u64) -> Option<Buf> {
        Some(self.inventory.buf_by_addr(&self.map, self.map.address() + at, length).unwrap())
    }

    /// A buffer of the peer's memory with an empty dataroom.
    pub(crate) fn remote(&self, at: u64, length: u64) -> Option<Buf> {
        Some(self.inventory.buf_by_addr(&self.there, self.there.address() + at, length).unwrap())
    }

    /// Bytes of its own memory.
    pub(crate) fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.map.read_at(at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn fill(&self, at: usize, length: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..length).map(|n| (n as u8).wrapping_mul(7) ^ seed).collect();
        self.map.write_at(at, &bytes).unwrap();
        bytes
    }

    /// The next job, which must have succeeded.
    pub(crate) fn done(&mut self) -> RdmaDone {
        match self.workq.retrieve_within(TIMEOUT).unwrap().expect("a minute is enough") {
            Event::Rdma(done) => done,
            other => panic!("{other:?}"),
        }
    }

    /// The next job, which must have failed.
    pub(crate) fn failed(&mut self) -> RdmaDone {
        match self.workq.retrieve_within(TIMEOUT) {
            Err(Retrieve::IoFailed(Event::Rdma(done))) => done,
            other => panic!("{other:?}"),
        }
    }

    /// Stops the instance and starts it again.
    pub(crate) fn restart(&mut self) {
        let stopped = self.rdma.take().expect("the context is started").stop().unwrap();
        self.rdma = Some(stopped.start().unwrap());
    }
}

/// Both devices of a new model of this profile.
pub(crate) fn devices(profile: &str) -> [Dev; 2] {
    opened(&backend(profile))
}

/// Both devices of a backend.
pub(crate) fn opened(backend: &Arc<dyn Backend>) -> [Dev; 2] {
    let infos = DevInfo::list_of(backend).unwrap();
    [infos[0].open().unwrap(), infos[1].open().unwrap()]
}

/// Two instances that are not connected, each on a work queue.
pub(crate) fn ends(
    profile: &str,
    set: impl Fn(RdmaBuilder) -> RdmaBuilder,
    access: AccessFlags,
) -> [End; 2] {
    ends_of(devices(profile), set, access, 1 << 16)
}

/// Two instances on these devices that are not connected, each with `length` bytes of memory.
pub(crate) fn ends_of(
    devices: [Dev; 2],
    set: impl Fn(RdmaBuilder) -> RdmaBuilder,
    access: AccessFlags,
    length: usize,
) -> [End; 2] {
    let maps = devices.each_ref().map(|dev| map(dev, length, access));
    let mut theirs = [1, 0].map(|other: usize| {
        let export = match access.is_rdma() {
            true => maps[other].export_rdma(&devices[other]).unwrap(),
            // An export of unreachable memory.
            false => map(&devices[other], 4096, all()).export_rdma(&devices[other]).unwrap(),
        };
        Some(Mmap::create_from_export(export.as_ref(), &devices[1 - other]).unwrap())
    });
    let mut maps = maps.map(Some);
    [0, 1].map(|side: usize| {
        let dev = devices[side].clone();
        let rdma = set(Rdma::builder(&dev).permissions(all())).start().unwrap();
        let mut workq = WorkQ::new(64).unwrap();
        workq.add(&rdma).unwrap();
        let inventory = Inventory::builder(256).extensions(Extensions::LINKED_LIST);
        End {
            dev,
            map: maps[side].take().unwrap(),
            there: theirs[side].take().unwrap(),
            inventory: inventory.start().unwrap(),
            workq,
            rdma: Some(rdma),
        }
    })
}

/// Connects both to each other.
pub(crate) fn connect(ends: &[End; 2]) {
    let [a, b] = ends;
    let blobs = [a.rdma().export().unwrap(), b.rdma().export().unwrap()];
    a.rdma().connect(blobs[1]).unwrap();
    b.rdma().connect(blobs[0]).unwrap();
}

/// Two connected instances with access to each other's memory.
pub(crate) fn pair(profile: &str) -> [End; 2] {
    let ends = ends(profile, |builder| builder, all());
    connect(&ends);
    ends
}

/// The kind of an expected error.
pub(crate) fn kind<T, E: Into<Error>>(result: Result<T, E>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.into().kind(),
    }
}
