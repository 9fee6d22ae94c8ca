//! Calls on the descriptor of a device that a memfd, which it is, would answer otherwise:
//! duplicates, mappings, a size.

use std::os::fd::AsFd;

use nix::errno::Errno;

use super::answer::{Answer, Answerer};
use super::filter::DESCRIPTORS;
use super::open::{Open, Served};
use super::process;
use super::sys::{self, Notification};

impl Answerer {
    /// A number for a device, from `at_least` on: free in the caller, and known to the filter.
    pub(super) fn numbers(&self, call: &Notification, at_least: u32) -> impl Iterator<Item = u32> {
        let tid = call.tid;
        let free = move |number: &u32| process::identify(tid, *number as i32) == Err(Errno::EBADF);
        DESCRIPTORS
            .into_iter()
            .filter_map(move |numbers| (numbers.start.max(at_least)..numbers.end).find(free))
    }

    fn opened(&self, call: &Notification, descriptor: u64) -> Option<std::sync::Arc<Open>> {
        let id = process::identify(call.tid, descriptor as i32).ok()?;
        self.shared.opens().get(id)
    }

    /// Duplicates a descriptor to a number that the filter knows too. `dup2` and `dup3` state their
    /// number, and are not trapped.
    pub(super) fn duplicate(
        &self,
        call: &Notification,
        at_least: u64,
        close_on_exec: bool,
    ) -> Answer {
        let [descriptor, ..] = call.arguments;
        let (Some(_), Ok(at_least)) = (self.opened(call, descriptor), u32::try_from(at_least))
        else {
            return Answer::Kernel;
        };
        let file = self
            .caller(call)
            .and_then(|caller| sys::take_descriptor(&caller.process.pidfd, descriptor as i32));
        let Ok(file) = file else { return Answer::Kernel };
        for number in self.numbers(call, at_least) {
            let given = self.gate.give(call.id, file.as_fd(), Some(number), close_on_exec, true);
            if given.is_ok() {
                return Answer::Given;
            }
        }
        // As the kernel would: the lowest that is free.
        Answer::Kernel
    }

    /// The program maps a page by itself, if there is one.
    pub(super) fn mmap(&self, call: &Notification) -> Answer {
        let [_, length, protection, flags, descriptor, offset] = call.arguments;
        let flags = flags as i32;
        if flags & libc::MAP_ANONYMOUS != 0 {
            return Answer::Kernel;
        }
        let Some(open) = self.opened(call, descriptor) else { return Answer::Kernel };
        // Linux's fwctl maps nothing.
        let Served::Verbs(file) = &open.file else { return Errno::ENODEV.into() };
        if flags & libc::MAP_TYPE == libc::MAP_PRIVATE {
            return Errno::EINVAL.into();
        }
        match file.map(offset, length, protection as i32) {
            Ok(()) => Answer::Kernel,
            Err(errno) => errno.into(),
        }
    }

    /// A call that does not suit a device.
    pub(super) fn unsuitable(&self, call: &Notification, errno: Errno) -> Answer {
        match self.opened(call, call.arguments[0]) {
            Some(_) => errno.into(),
            None => Answer::Kernel,
        }
    }
}
