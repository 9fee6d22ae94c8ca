//! The eventfds that a client's subscriptions signal.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::errno::Errno;

use super::account::Charge;
use super::aio;
use super::client::Client;
use super::refused::refused;

/// Maximum number of eventfds of one client that subscriptions signal at one time. Linux holds a
/// reference to each; here each takes a descriptor of the process that all clients share.
pub(super) const MAX_EVENTFDS: usize = 512;

/// The eventfds that a client's subscriptions signal, each held once. The key is the number that
/// the kernel gives each eventfd (Linux 5.2; before that a duplicate counts as another).
#[derive(Debug, Default)]
pub struct Eventfds(Mutex<BTreeMap<u64, Weak<Eventfd>>>);

/// An eventfd of a client, charged to it as one descriptor.
#[derive(Debug)]
pub(super) struct Eventfd {
    fd: OwnedFd,
    _claim: Charge,
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Eventfds {
    /// Holds the eventfd of a client's duplicated descriptor as long as the returned value lives.
    /// EINVAL: it is not an eventfd. ENOMEM: the client has [`MAX_EVENTFDS`] others. EMFILE,
    /// ENFILE: the client's charge of descriptors is at its limit. Others: eventfds cannot be
    /// signalled here.
    pub(super) fn hold(&self, fd: OwnedFd, client: &dyn Client) -> Result<Arc<Eventfd>, Errno> {
        check_eventfd(&fd)?;
        aio::check().map_err(|errno| {
            let words = "eventfds cannot be signalled without asynchronous I/O (io_setup): allow \
                         it, raise fs.aio-max-nr, or read events from their channel";
            refused(errno, words)
        })?;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // No eventfd number: use the descriptor's, above all eventfd numbers.
        let number = eventfd_id(&fd).unwrap_or(1 << 63 | fd.as_raw_fd() as u64);
        if let Some(known) = held.get(&number).and_then(Weak::upgrade) {
            return Ok(known);
        }
        if held.len() >= MAX_EVENTFDS {
            held.retain(|_, fd| fd.strong_count() != 0);
        }
        if held.len() >= MAX_EVENTFDS {
            let words = format!(
                "subscriptions of this process signal {MAX_EVENTFDS} eventfds, which is the \
                 maximum: end some, or share eventfds"
            );
            return Err(refused(Errno::ENOMEM, words));
        }
        let claim = client.claim().map_err(|errno| {
            let words = "the limit of descriptors kept for the process is reached, and each \
                         eventfd counts as one: raise `ulimit -n`, or end subscriptions";
            refused(errno, words)
        })?;
        let fd = Arc::new(Eventfd { fd, _claim: claim });
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
        _ => Err(refused(Errno::EINVAL, "the descriptor is not an eventfd")),
    }
}
