//! The eventfds that a client's subscriptions signal.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::errno::Errno;

use super::aio;
use super::refused::refused;

/// Eventfds of one client that subscriptions may signal at one time. Linux holds them by a
/// reference each; here each takes a descriptor of the process that all clients share.
pub(super) const MOST_EVENTFDS: usize = 512;

/// The eventfds that a client's subscriptions signal: each once, however many signal it. They are
/// known by the number that the kernel gives each (Linux 5.2; before that a duplicate counts as
/// another).
#[derive(Debug, Default)]
pub struct Eventfds(Mutex<BTreeMap<u64, Weak<OwnedFd>>>);

impl Eventfds {
    /// Holds what a duplicate of a client's descriptor refers to, as long as the answer lives.
    /// EINVAL: it is no eventfd. ENOMEM: the client has so many others here. Others: eventfds
    /// cannot be signalled here.
    pub(super) fn hold(&self, fd: OwnedFd) -> Result<Arc<OwnedFd>, Errno> {
        check_eventfd(&fd)?;
        aio::check().map_err(|errno| {
            let words = "eventfds cannot be signalled without asynchronous I/O (io_setup): allow \
                         it, raise fs.aio-max-nr, or read events from their channel";
            refused(errno, words)
        })?;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a number of its own: the descriptor's, above those of eventfds.
        let number = eventfd_id(&fd).unwrap_or(1 << 63 | fd.as_raw_fd() as u64);
        if let Some(known) = held.get(&number).and_then(Weak::upgrade) {
            return Ok(known);
        }
        if held.len() >= MOST_EVENTFDS {
            held.retain(|_, fd| fd.strong_count() != 0);
        }
        if held.len() >= MOST_EVENTFDS {
            let words = format!(
                "subscriptions of this process signal {MOST_EVENTFDS} eventfds, which is the most: \
                 end some, or share eventfds"
            );
            return Err(refused(Errno::ENOMEM, words));
        }
        let fd = Arc::new(fd);
        held.insert(number, Arc::downgrade(&fd));
        Ok(fd)
    }
}

/// The number by which the kernel identifies an eventfd.
fn eventfd_id(fd: &OwnedFd) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?.trim().parse().ok()
}

/// Checks that a descriptor of ours is an eventfd; EINVAL otherwise.
fn check_eventfd(fd: &OwnedFd) -> Result<(), Errno> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    match link {
        Ok(target) if target.as_os_str() == "anon_inode:[eventfd]" => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}
