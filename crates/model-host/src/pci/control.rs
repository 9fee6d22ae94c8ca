//! `verbless-model ctl NAME` for devices served over vfio-user.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbless_model::Model;

use crate::run::{Host, Peer, Request};

/// Milliseconds between two checks whether the thread must stop.
const STOP_CHECK_MS: u8 = 100;
/// Time limit for a client's request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The refusal of requests to join.
const NO_PROGRAMS: &str = "it serves PCI devices to virtual machines, which no program can join";

/// Answers clients that show or change the devices, until dropped.
pub(super) struct Controller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    pub(super) fn new(host: Host, model: Model) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("verbless-ctl".into()).spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Ordering::Acquire) {
                    wait(host.as_fd());
                    while let Some(peer) = host.accept() {
                        answer(&peer, &model);
                    }
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The model has reported its panic.
            let _ = thread.join();
        }
    }
}

/// Answers a client's request. Other clients, of the same user, wait.
fn answer(peer: &Peer, model: &Model) {
    let start = Instant::now();
    while start.elapsed() < REQUEST_TIMEOUT {
        let answered = match peer.request() {
            Ok(Request::Control(control)) => peer.send_result(control.execute(model)),
            Ok(Request::Join(_) | Request::Program(_)) => peer.send_result(Err(NO_PROGRAMS.into())),
            Err(Errno::EAGAIN | Errno::EINTR) => {
                wait(peer.as_fd());
                continue;
            }
            Err(errno) => Err(errno),
        };
        if let Err(errno) = answered {
            tracing::debug!(%errno, "a ctl request cannot be read or answered");
        }
        return;
    }
}

/// Waits for input, at most `STOP_CHECK_MS`.
fn wait(file: BorrowedFd<'_>) {
    let _ = poll(&mut [PollFd::new(file, PollFlags::POLLIN)], PollTimeout::from(STOP_CHECK_MS));
}
