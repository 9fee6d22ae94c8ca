//! A queue pair whose number becomes another's as soon as the device has destroyed it.
#![allow(
    unsafe_code,
    reason = "the trait's method is unsafe to call; the request is passed on unchanged"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use verbless_command::Device;
use verbless_devx::abi::method::DEVX_OBJ_DESTROY;
use verbless_devx::{Backend, DeviceInfo, Errno, Error, Mapping, OpenDevice, Protection};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::Nop;
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig};

/// Time limit for each step on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The thread whose first destroyed object is held.
const DROPPER: &str = "dropper";

/// Holds the thread [`DROPPER`] after the device has destroyed an object of it, and before the
/// destroying call returns.
struct Gate {
    passed: AtomicBool,
    destroyed: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl Gate {
    fn after(&self, request: &[u64]) {
        // Length, object and method, 16 bits each, as the kernel's header has them.
        let header = request[0].to_ne_bytes();
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let destroys = (half(2), half(4)) == (DEVX_OBJ_DESTROY.object, DEVX_OBJ_DESTROY.method);
        let dropper = thread::current().name() == Some(DROPPER);
        if destroys && dropper && !self.passed.swap(true, Ordering::AcqRel) {
            self.destroyed.send(()).expect("the test waits");
            let go = self.go.lock().expect("no thread panics here");
            go.recv_timeout(TIMEOUT).expect("the test goes on");
        }
    }
}

/// A backend with a gate.
struct Gated {
    backend: InProcess,
    gate: Arc<Gate>,
}

impl Backend for Gated {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.backend.enumerate()
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let device = self.backend.open(device)?;
        Ok(Arc::new(GatedDevice { device, gate: self.gate.clone() }))
    }
}

struct GatedDevice {
    device: Arc<dyn OpenDevice>,
    gate: Arc<Gate>,
}

// SAFETY: requests and answers are those of the device inside.
unsafe impl OpenDevice for GatedDevice {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: the caller promises the same.
        let result = unsafe { self.device.ioctl(request) };
        self.gate.after(request);
        result
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.device.mmap(offset, length, protection)
    }

    fn page_size(&self) -> usize {
        self.device.page_size()
    }
}

/// A queue pair that is connected to itself and has a CQE in `cq`, the `count`th there.
fn with_cqe(domain: &Domain, mut qp: Qp, cq: &Cq, count: u32) -> Qp {
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    qp.post(&Nop::new().signaled(), count.into()).expect("there is room");
    let end = Instant::now() + TIMEOUT;
    while cq.object().query().expect("the device answers").producer_counter() < count {
        assert!(Instant::now() < end, "no completion comes");
    }
    qp
}

#[test]
fn dropped_qp_keeps_cqes_of_next_qp_of_its_number() {
    let model = Model::builder().device(Profile::load("connectx6dx").unwrap()).threaded().build();
    let (destroyed_from, destroyed) = channel();
    let (go, go_to) = channel();
    let (passed, go_to) = (AtomicBool::new(false), Mutex::new(go_to));
    let gate = Arc::new(Gate { passed, destroyed: destroyed_from, go: go_to });
    let backend = Gated { backend: InProcess::of(&model), gate };
    let info = backend.enumerate().unwrap().remove(0);
    let domain = Domain::new(&Device::open(&backend, &info).unwrap()).unwrap();
    let mut cq = domain.completion_queue(&CqConfig::new(64)).unwrap();
    let make = || domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).expect("a queue pair");
    let old = with_cqe(&domain, make(), &cq, 1);
    let number = old.qpn();
    let mut new = thread::scope(|scope| {
        let builder = thread::Builder::new().name(DROPPER.into());
        let dropper = builder.spawn_scoped(scope, move || drop(old)).expect("a thread");
        destroyed.recv_timeout(TIMEOUT).expect("the QP is destroyed");
        let mut others = Vec::new();
        let new = loop {
            let qp = make();
            if qp.qpn() == number {
                break qp;
            }
            others.push(qp);
            assert!(others.len() < 4, "QPN {number} does not come again");
        };
        let new = with_cqe(&domain, new, &cq, 2);
        go.send(()).expect("the dropper waits");
        dropper.join().expect("the drop does not panic");
        new
    });
    let done = new.poll(&mut cq).expect("its CQE is still there").expect("the NOP succeeds");
    assert_eq!(done.cookie, 2);
    assert!(new.poll(&mut cq).is_none(), "the CQE of the dropped QP is removed");
}
