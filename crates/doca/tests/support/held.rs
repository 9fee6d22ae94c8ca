//! Devices whose kernel requests can be held.
#![allow(
    unsafe_code,
    reason = "the trait's method is unsafe to call; the request is passed on unchanged"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use verbless_devx::{
    Backend, DeviceInfo, Errno, Error, Mapping, OpenDevice, Protection, RepresentorInfo,
};

/// Requests of a thread of this name can be held.
pub(crate) const HELD: &str = "held";

/// Holds the next request of the thread [`HELD`] until it is released.
pub(crate) struct Hold {
    gate: Arc<Gate>,
    reached: Receiver<()>,
    go: Sender<()>,
}

struct Gate {
    armed: AtomicBool,
    /// A held request was not released in time.
    expired: AtomicBool,
    reached: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl Hold {
    /// A backend whose requests can be held.
    pub(crate) fn of(backend: Arc<dyn Backend>) -> (Self, Arc<dyn Backend>) {
        let (reached_from, reached) = channel();
        let (go, go_to) = channel();
        let gate = Arc::new(Gate {
            armed: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            reached: reached_from,
            go: Mutex::new(go_to),
        });
        (Self { gate: gate.clone(), reached, go }, Arc::new(Held { backend, gate }))
    }

    /// Runs `run` in a thread whose next request is held, runs `meanwhile` here during the hold,
    /// and then releases it; returns the result of `run`.
    pub(crate) fn during<T: Send>(
        &self,
        run: impl FnOnce() -> T + Send,
        meanwhile: impl FnOnce(),
    ) -> T {
        self.gate.armed.store(true, Ordering::Release);
        let ended = thread::scope(|scope| {
            let builder = thread::Builder::new().name(HELD.into());
            let running = builder.spawn_scoped(scope, run).expect("a thread more");
            self.reached.recv_timeout(Duration::from_secs(60)).expect("the thread makes a request");
            meanwhile();
            self.go.send(()).expect("the gate is there");
            running.join().expect("the thread does not panic")
        });
        assert!(!self.gate.expired.load(Ordering::Acquire), "what came meanwhile waited for it");
        ended
    }
}

impl Gate {
    fn pass(&self) {
        let ours = thread::current().name() == Some(HELD);
        if ours && self.armed.swap(false, Ordering::AcqRel) {
            self.reached.send(()).expect("the test waits");
            let go = self.go.lock().expect("no thread panics here");
            if go.recv_timeout(Duration::from_secs(10)) == Err(RecvTimeoutError::Timeout) {
                self.expired.store(true, Ordering::Release);
            }
        }
    }
}

struct Held {
    backend: Arc<dyn Backend>,
    gate: Arc<Gate>,
}

impl Backend for Held {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.backend.enumerate()
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        self.backend.representors(device)
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let device = self.backend.open(device)?;
        Ok(Arc::new(HeldDevice { device, gate: self.gate.clone() }))
    }
}

struct HeldDevice {
    device: Arc<dyn OpenDevice>,
    gate: Arc<Gate>,
}

// SAFETY: requests and answers are those of the device inside.
unsafe impl OpenDevice for HeldDevice {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        self.gate.pass();
        // SAFETY: the caller promises the same.
        unsafe { self.device.ioctl(request) }
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.device.mmap(offset, length, protection)
    }

    fn page_size(&self) -> usize {
        self.device.page_size()
    }
}
