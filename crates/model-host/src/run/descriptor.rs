//! Calls on a device's descriptor that the underlying memfd would answer differently: duplicates,
//! mappings, its size.

use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};

use nix::errno::Errno;

use super::answer::{Answer, Answerer};
use super::call_threads::in_program;
use super::filter::DESCRIPTORS;
use super::open::{OpenFile, ServedFile};
use super::process;
use super::sys::Notification;
use verbless_model_kernel::remote::FileId;

impl Answerer {
    /// Descriptor numbers from `at_least` on that are free in the caller and that the filter traps.
    pub(super) fn numbers(&self, call: &Notification, at_least: u32) -> impl Iterator<Item = u32> {
        let tid = call.tid;
        let free = move |number: &u32| process::identify(tid, *number as i32) == Err(Errno::EBADF);
        DESCRIPTORS
            .into_iter()
            .filter_map(move |numbers| (numbers.start.max(at_least)..numbers.end).find(free))
    }

    /// The open device behind a descriptor. The table of opens is unlocked on return.
    pub(super) fn opened(&self, call: &Notification, descriptor: u64) -> Option<Arc<OpenFile>> {
        self.opened_as(call, descriptor).map(|(_, open)| open)
    }

    /// As [`Self::opened`], with the file's identity.
    fn opened_as(&self, call: &Notification, descriptor: u64) -> Option<(FileId, Arc<OpenFile>)> {
        let id = process::identify(call.tid, descriptor as i32).ok()?;
        // Proves that the thread's number was not reused.
        let open = self.gate.is_waiting(call.id).then(|| self.shared.opens().get(id))??;
        Some((id, open))
    }

    /// Duplicates a descriptor to a number that the filter traps. `dup2` and `dup3` name their
    /// number, and are not trapped.
    pub(super) fn duplicate(
        &self,
        call: &Notification,
        at_least: u64,
        close_on_exec: bool,
    ) -> Answer {
        let [descriptor, ..] = call.arguments;
        let Ok(at_least) = u32::try_from(at_least) else { return Answer::Kernel };
        let Some((id, _)) = self.opened_as(call, descriptor) else { return Answer::Kernel };
        let taken = self.caller(call).and_then(|caller| {
            let file = caller.process.take(descriptor as i32, |fd| process::is_file(fd, id))?;
            Ok((file, self.shared.descriptor_lock(caller.process.pid)))
        });
        let Ok((file, room)) = taken else { return Answer::Kernel };
        // Another thread of the process may hold the lock while it waits for the program.
        let _alone = in_program(|| room.lock().unwrap_or_else(PoisonError::into_inner));
        for number in self.numbers(call, at_least) {
            let given =
                self.gate.install_fd(call.id, file.as_fd(), Some(number), close_on_exec, true);
            if given.is_ok() {
                return Answer::Installed;
            }
        }
        // The kernel picks the lowest free number.
        Answer::Kernel
    }

    /// Checks the mapping; the kernel then executes the program's own `mmap`.
    pub(super) fn mmap(&self, call: &Notification) -> Answer {
        let [_, length, protection, flags, descriptor, offset] = call.arguments;
        let flags = flags as i32;
        if flags & libc::MAP_ANONYMOUS != 0 {
            return Answer::Kernel;
        }
        let Some(open) = self.opened(call, descriptor) else { return Answer::Kernel };
        // Linux's fwctl has no mmap.
        let ServedFile::Verbs(file) = &open.file else { return Errno::ENODEV.into() };
        if flags & libc::MAP_TYPE == libc::MAP_PRIVATE {
            return Errno::EINVAL.into();
        }
        match open.calls.alone(|| file.map(offset, length, protection as i32)) {
            Ok(()) => Answer::Kernel,
            Err(errno) => errno.into(),
        }
    }

    /// A call that fails on a device.
    pub(super) fn refuse_on_device(&self, call: &Notification, errno: Errno) -> Answer {
        match self.opened(call, call.arguments[0]) {
            Some(_) => errno.into(),
            None => Answer::Kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, O_RDWR, PROT_READ, PROT_WRITE};
    use nix::fcntl::{FcntlArg, fcntl};

    use super::super::rig::Program;
    use super::*;

    const REFUSED: Answer = Answer::Ours(Err(Errno::EINVAL));

    #[test]
    fn dup_of_device_gets_filtered_descriptor() {
        // If duplicating is forbidden here, the kernel duplicates.
        let Some(program) = Program::open_to_all() else { return };
        let device = program.open(c"/dev/infiniband/uverbs0", O_RDWR);
        let fd = device.descriptor();
        let plain = [fd, libc::F_DUPFD as u64];
        let closing = [fd, libc::F_DUPFD_CLOEXEC as u64];
        let fcntl_ = libc::SYS_fcntl;
        for (number, call, at_least, closes) in [
            (libc::SYS_dup, vec![fd], 960, false),
            (fcntl_, [&plain[..], &[0]].concat(), 960, false),
            (fcntl_, [&plain[..], &[1000]].concat(), 1000, false),
            (fcntl_, [&closing[..], &[1000]].concat(), 1000, true),
        ] {
            assert_eq!(program.call(number, &call), Answer::Installed, "{call:?}");
            let given = program.last_installed();
            assert!(given.number.is_some_and(|it| it >= at_least && it < 1024), "{given:?}");
            assert_eq!((given.close_on_exec, given.answer), (closes, true), "{call:?}");
        }
        for call in [[&plain[..], &[1024]].concat(), [&plain[..], &[1 << 32]].concat()] {
            assert_eq!(program.call(fcntl_, &call), Answer::Kernel, "{call:?}");
        }
        let other = std::fs::File::open("/dev/null").expect("/dev/null exists");
        let call = [other.as_raw_fd() as u64];
        assert_eq!(
            program.call(libc::SYS_dup, &call),
            Answer::Kernel,
            "the descriptor is no device"
        );
        // Numbers in use are skipped.
        let taken = fcntl(&other, FcntlArg::F_DUPFD_CLOEXEC(1010)).expect("the descriptor is free");
        let call = [&plain[..], &[taken as u64]].concat();
        assert_eq!(program.call(fcntl_, &call), Answer::Installed);
        assert_eq!(program.last_installed().number, Some(taken as u32 + 1));
        nix::unistd::close(taken).expect("the descriptor is open");
        program.gate.refuse(&[Errno::EMFILE]);
        assert_eq!(program.call(libc::SYS_dup, &[fd]), Answer::Installed);
        assert!(program.last_installed().number.is_some_and(|number| (48..64).contains(&number)));
        program.gate.refuse(&[Errno::EMFILE; 2]);
        assert_eq!(program.call(libc::SYS_dup, &[fd]), Answer::Kernel);
    }

    /// Creates a context on an open device, as libibverbs does.
    fn context(program: &Program, fd: u64) {
        let attribute = u64::from(0x1000_u16) | 8 << 16 | 1 << 32;
        let request = [40 | 3 << 32 | 1 << 48, 0, 1, attribute, 0x4_0000_0010];
        let call = [fd, 0xc018_1b01, request.as_ptr() as u64];
        assert_eq!(program.call(libc::SYS_ioctl, &call), Answer::Ours(Ok(0)));
    }

    #[test]
    fn mmap_of_device_checks_access_and_offset() {
        let program = Program::new();
        let verbs = program.open(c"/dev/infiniband/uverbs0", O_RDWR);
        let control = program.open(c"/dev/fwctl/fwctl0", O_RDWR);
        let other = std::fs::File::open("/dev/null").expect("/dev/null exists");
        context(&program, verbs.descriptor());
        let clock = 0x70_0000;
        let nodev = Answer::Ours(Err(Errno::ENODEV));
        for (fd, access, flags, offset, expected) in [
            (verbs.descriptor(), PROT_READ, MAP_SHARED, clock, Answer::Kernel),
            (verbs.descriptor(), PROT_READ, MAP_PRIVATE, clock, REFUSED),
            (verbs.descriptor(), PROT_READ, MAP_SHARED, 0x90_0000, REFUSED),
            (verbs.descriptor(), PROT_READ, MAP_SHARED | MAP_ANONYMOUS, 0x90_0000, Answer::Kernel),
            (
                verbs.descriptor(),
                PROT_READ | PROT_WRITE,
                MAP_SHARED,
                clock,
                Answer::Ours(Err(Errno::EPERM)),
            ),
            (control.descriptor(), PROT_READ, MAP_SHARED, 0, nodev),
            (other.as_raw_fd() as u64, PROT_READ, MAP_PRIVATE, 0, Answer::Kernel),
        ] {
            let call = [0, 4096, access as u64, flags as u64, fd, offset];
            assert_eq!(program.call(libc::SYS_mmap, &call), expected, "{flags:#x} {offset:#x}");
        }
    }

    #[test]
    fn truncate_and_fallocate_of_device_fail() {
        let program = Program::new();
        let device = program.open(c"/dev/infiniband/uverbs0", O_RDWR).descriptor();
        let null = std::fs::File::open("/dev/null").expect("/dev/null exists");
        let null = null.as_raw_fd() as u64;
        for (number, errno) in
            [(libc::SYS_ftruncate, Errno::EINVAL), (libc::SYS_fallocate, Errno::ENODEV)]
        {
            assert_eq!(program.call(number, &[null]), Answer::Kernel);
            assert_eq!(program.call(number, &[device]), Answer::Kernel, "the device was closed");
            let device = program.open(c"/dev/infiniband/uverbs0", O_RDWR);
            let answer = program.call(number, &[device.descriptor()]);
            assert_eq!(answer, Answer::Ours(Err(errno)));
        }
    }

    #[test]
    fn ioctl_is_dispatched_by_descriptor() {
        let program = Program::new();
        let verbs = program.open(c"/dev/infiniband/uverbs0", O_RDWR);
        let control = program.open(c"/dev/fwctl/fwctl0", O_RDWR);
        let null = std::fs::File::open("/dev/null").expect("/dev/null exists");
        let ioctl = |fd: u64, request: u64, argument: u64| {
            program.call(libc::SYS_ioctl, &[fd, request, argument])
        };
        let request = 0xc018_1b01;
        assert_eq!(ioctl(null.as_raw_fd() as u64, request, 0), Answer::Kernel);
        context(&program, verbs.descriptor());
        let fault = Answer::Ours(Err(Errno::EFAULT));
        let no_such = Answer::Ours(Err(Errno::ENOTTY));
        assert_eq!(ioctl(verbs.descriptor(), request, 16), fault);
        assert_eq!(ioctl(verbs.descriptor(), 0x9a00, 16), no_such);
        // The header's length says 40 bytes; without attributes it is 24.
        let told = [40_u64, 0, 0];
        assert_eq!(ioctl(verbs.descriptor(), request, told.as_ptr() as u64), REFUSED);
        let info = [24_u64, 0, 0];
        let answer = ioctl(control.descriptor(), 0x9a00, info.as_ptr() as u64);
        assert_eq!(answer, Answer::Ours(Ok(0)));
        assert_eq!(ioctl(control.descriptor(), request, info.as_ptr() as u64), no_such);
        program.gate.end();
        assert_eq!(ioctl(verbs.descriptor(), request, told.as_ptr() as u64), Answer::Kernel);
        let over = Answer::Ours(Err(Errno::EINTR));
        // The caller is killed after its descriptor is identified, after it is identified itself,
        // and while its arguments are read.
        for looks in 1..=3 {
            program.gate.end_after(looks);
            let answer = ioctl(verbs.descriptor(), request, told.as_ptr() as u64);
            assert_eq!(&answer, if looks < 3 { &over } else { &REFUSED }, "{looks}");
        }
        program.gate.end_after(1);
        assert_eq!(ioctl(control.descriptor(), 0x9a00, info.as_ptr() as u64), over);
    }
}
