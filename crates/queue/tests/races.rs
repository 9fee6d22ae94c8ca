//! Safe accesses to a region while a device uses it for a request: each byte is old or new, and the
//! thread sanitizer, under which `cargo xtask test` runs this file, finds no race.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::{Read, Write};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region};

const BYTES: usize = 64 << 10;
/// Time limit for a completion on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A queue pair connected to itself, on a model whose devices work on threads of their own.
struct Loop {
    _model: Model,
    domain: Domain,
    cq: Cq,
    qp: Qp,
}

impl Loop {
    fn new() -> Self {
        let profile = Profile::load("connectx6dx").unwrap();
        let model = Model::builder().device(profile).threaded().build();
        let backend = InProcess::of(&model);
        let info = backend.enumerate().unwrap().remove(0);
        let domain = Domain::new(&Device::open(&backend, &info).unwrap()).unwrap();
        let cq = domain.completion_queue(&CqConfig::new(16)).unwrap();
        let mut qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).unwrap();
        let options = ConnectOptions::default();
        let itself = domain.address(&qp, &options).unwrap();
        domain.connect(&mut qp, &itself, &options).unwrap();
        Self { _model: model, domain, cq, qp }
    }

    fn region(&self) -> Region {
        self.domain.region(BYTES, KeyAccess::ALL).unwrap()
    }

    /// Does `meanwhile` until the posted request has completed, at least once.
    fn until_completion(&mut self, mut meanwhile: impl FnMut()) {
        let end = Instant::now() + TIMEOUT;
        loop {
            meanwhile();
            if let Some(done) = self.qp.poll(&mut self.cq) {
                done.unwrap();
                return;
            }
            assert!(Instant::now() < end, "no completion comes");
        }
    }
}

/// The safe functions that can set all bytes of a region to 2.
const WRITES: [fn(&Region); 4] = [
    |region| region.write_at(0, &[2; BYTES]).unwrap(),
    |region| region.write_slice(0, &[0x0202_0202u32; BYTES / 4]).unwrap(),
    |region| region.fill(0, BYTES, 2).unwrap(),
    |region| region.bytes().iter().for_each(|byte| byte.store(2, Relaxed)),
];

/// The safe functions that can read all bytes of a region.
const READS: [fn(&Region) -> Vec<u8>; 3] = [
    |region| {
        let mut bytes = vec![0; BYTES];
        region.read_at(0, &mut bytes).unwrap();
        bytes
    },
    |region| {
        let mut words = vec![0u32; BYTES / 4];
        region.read_slice(0, &mut words).unwrap();
        words.into_iter().flat_map(u32::to_ne_bytes).collect()
    },
    |region| region.bytes().iter().map(|byte| byte.load(Relaxed)).collect(),
];

fn old_or_new(bytes: &[u8]) {
    assert_eq!(bytes.iter().find(|byte| !(1..=2).contains(*byte)), None);
}

#[test]
fn safe_writes_race_with_request_that_reads() {
    let mut it = Loop::new();
    let (from, to) = (it.region(), it.region());
    for write in WRITES {
        from.fill(0, BYTES, 1).unwrap();
        let request = Write::new(from.sge(0, BYTES).unwrap(), to.remote(0, BYTES).unwrap());
        it.qp.post(&request.signaled(), 7).unwrap();
        it.until_completion(|| write(&from));
        old_or_new(&READS[0](&to));
    }
}

#[test]
fn safe_reads_race_with_request_that_writes() {
    let mut it = Loop::new();
    let (from, to) = (it.region(), it.region());
    from.fill(0, BYTES, 2).unwrap();
    for read in READS {
        to.fill(0, BYTES, 1).unwrap();
        let request = Read::new(to.sge(0, BYTES).unwrap(), from.remote(0, BYTES).unwrap());
        it.qp.post(&request.signaled(), 7).unwrap();
        it.until_completion(|| old_or_new(&read(&to)));
        assert_eq!(read(&to), vec![2; BYTES]);
    }
}
