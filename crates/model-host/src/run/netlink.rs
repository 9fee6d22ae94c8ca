//! NETLINK_RDMA sockets. The program gets a NETLINK_USERSOCK socket instead, on which the answers
//! of the modelled devices arrive (`nldev`).
//!
//! `bind`, `getsockname`, `recvmsg` and `poll` on it are the kernel's own. Only `sendto` and
//! `sendmsg` trap, by the descriptor's number; messages to the kernel (port 0) are answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::PoisonError;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname,
    sendto, socket,
};

use super::answer::{Answer, Answerer};
use super::call_threads::in_program;
use super::sys::{self, Notification};
use super::{namespaces, nldev};

/// Longest datagram that is read; requests have fewer than a hundred bytes.
const MAX_DATAGRAM: u64 = 1 << 16;
/// Maximum number of iovec entries of a datagram.
const MAX_IOVECS: u64 = 64;
/// Bytes of `struct sockaddr_nl`, and the offset of its port.
const ADDRESS: usize = 12;
const PORT: usize = 4;
/// Mask of a socket's type without flags.
const TYPE: i32 = 0xf;

impl Answerer {
    /// socket(AF_NETLINK, …, NETLINK_RDMA).
    pub(super) fn socket(&self, call: &Notification) -> Answer {
        let kind = call.arguments[1] as i32;
        let typed = match kind & TYPE {
            libc::SOCK_RAW => SockType::Raw,
            libc::SOCK_DGRAM => SockType::Datagram,
            _ => return Errno::ESOCKTNOSUPPORT.into(),
        };
        // The supervisor's socket would belong to another network namespace. EPROTONOSUPPORT: the
        // answer of a kernel without RDMA.
        if !namespaces::has_our_network_namespace(call.tid) {
            return Errno::EPROTONOSUPPORT.into();
        }
        // Without pidfd_getfd the supervisor cannot answer messages: fail as above.
        let Ok(caller) = self.caller(call) else { return Errno::EPROTONOSUPPORT.into() };
        let Some(reach) = caller.process.reach() else { return Errno::EPROTONOSUPPORT.into() };
        if !matches!(sys::take_descriptor(&reach.pidfd, -1), Err(Errno::EBADF)) {
            return Errno::EPROTONOSUPPORT.into();
        }
        let number_lock = self.shared.descriptor_lock(caller.process.pid);
        let mut flags = SockFlag::SOCK_CLOEXEC;
        if kind & libc::SOCK_NONBLOCK != 0 {
            flags |= SockFlag::SOCK_NONBLOCK;
        }
        let made = socket(AddressFamily::Netlink, typed, flags, SockProtocol::NetlinkUserSock);
        let Ok(made) = made else { return Errno::EPROTONOSUPPORT.into() };
        let close_on_exec = kind & libc::SOCK_CLOEXEC != 0;
        // Another thread of the process may hold the lock while it waits for the program.
        let _alone = in_program(|| number_lock.lock().unwrap_or_else(PoisonError::into_inner));
        for number in self.numbers(call, 0) {
            let given =
                self.gate.install_fd(call.id, made.as_fd(), Some(number), close_on_exec, true);
            if given.is_ok() {
                return Answer::Installed;
            }
        }
        Errno::EMFILE.into()
    }

    /// sendto and sendmsg on a trapped descriptor.
    pub(super) fn send(&self, call: &Notification) -> Answer {
        let Ok(fd) = i32::try_from(call.arguments[0]) else { return Answer::Kernel };
        let is_ours = |socket: &OwnedFd| {
            sys::socket_kind(socket) == Ok((libc::AF_NETLINK, libc::NETLINK_USERSOCK))
        };
        let taken = self.caller(call).and_then(|caller| caller.process.take_unknown(fd, is_ours));
        let Ok(socket) = taken else { return Answer::Kernel };
        let datagram = match self.datagram(call) {
            Ok(Some(datagram)) => datagram,
            // To another user process.
            Ok(None) => return Answer::Kernel,
            Err(errno) => return errno.into(),
        };
        let sent = self.reply(&socket, &datagram);
        Answer::Ours(sent.map(|()| datagram.len() as i64))
    }

    /// The message that the caller sends; `None`: its destination is not the kernel.
    fn datagram(&self, call: &Notification) -> Result<Option<Vec<u8>>, Errno> {
        let [_, second, third, _, fifth, sixth] = call.arguments;
        let is_message = i64::from(call.number) == libc::SYS_sendmsg;
        let (iovecs, address, length) = if is_message {
            let mut words = [[0; 8]; 4];
            self.read(call, second, words.as_flattened_mut())?;
            let [address, length, vectors, count] = words.map(u64::from_ne_bytes);
            if count > MAX_IOVECS {
                return Err(Errno::EMSGSIZE);
            }
            let mut iovecs = Vec::new();
            for index in 0..count {
                let mut words = [[0; 8]; 2];
                let at = vectors.wrapping_add(16 * index);
                self.read(call, at, words.as_flattened_mut())?;
                let [base, length] = words.map(u64::from_ne_bytes);
                iovecs.push((base, length));
            }
            (iovecs, address, length & u64::from(u32::MAX))
        } else {
            (vec![(second, third)], fifth, sixth)
        };
        if address != 0 && length >= ADDRESS as u64 {
            let mut to = [0; ADDRESS];
            self.read(call, address, &mut to)?;
            if to[PORT..PORT + 4] != [0; 4] {
                return Ok(None);
            }
        }
        let mut datagram = Vec::new();
        for (base, length) in iovecs {
            if length > MAX_DATAGRAM - datagram.len() as u64 {
                return Err(Errno::EMSGSIZE);
            }
            let begin = datagram.len();
            datagram.resize(begin + length as usize, 0);
            self.read(call, base, &mut datagram[begin..])?;
        }
        Ok(Some(datagram))
    }

    /// Answers a datagram from the socket.
    fn reply(&self, theirs: &OwnedFd, datagram: &[u8]) -> Result<(), Errno> {
        let descriptor = theirs.as_raw_fd();
        let mut own: NetlinkAddr = getsockname(descriptor)?;
        if own.pid() == 0 {
            // The kernel binds the socket at the first send too.
            bind(descriptor, &NetlinkAddr::new(0, 0))?;
            own = getsockname(descriptor)?;
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkUserSock;
        let ours = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // In another network namespace, the port is another program's.
        if sys::network_of(&ours)? != sys::network_of(theirs)? {
            return Err(Errno::ECONNREFUSED);
        }
        // One snapshot of the objects serves all messages of the datagram.
        let snapshots = RefCell::new(BTreeMap::new());
        let resources = |device| {
            let mut snapshots = snapshots.borrow_mut();
            let take = || Rc::new(self.shared.resources(device));
            Rc::clone(snapshots.entry(device).or_insert_with(take))
        };
        for answer in nldev::answers(&self.view.shown, &resources, own.pid(), datagram) {
            match sendto(ours.as_raw_fd(), &answer, &own, MsgFlags::empty()) {
                Ok(_) => {}
                // The receive buffer is full: the remaining answers are lost, as in the kernel.
                Err(Errno::EAGAIN | Errno::ENOBUFS) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use libc::{SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_RAW, SOCK_STREAM};
    use nix::fcntl::{FcntlArg, fcntl};

    use super::super::rig::{InstalledFd, Program};
    use super::*;

    const NETLINK: u64 = libc::AF_NETLINK as u64;
    const RDMA: u64 = 20;

    fn opened(program: &Program, kind: i32) -> InstalledFd {
        let answer = program.call(libc::SYS_socket, &[NETLINK, kind as u64, RDMA]);
        assert_eq!(answer, Answer::Installed, "{kind:#x}");
        program.last_installed()
    }

    #[test]
    fn netlink_socket_keeps_type_and_flags() {
        let Some(program) = Program::open_to_all() else { return };
        for (kind, waits, closes) in [
            (SOCK_RAW, true, false),
            (SOCK_DGRAM, true, false),
            (SOCK_RAW | SOCK_NONBLOCK, false, false),
            (SOCK_DGRAM | SOCK_CLOEXEC, true, true),
        ] {
            let given = opened(&program, kind);
            let flags = fcntl(&given.file, FcntlArg::F_GETFL).expect("the file is open");
            assert_eq!(flags & libc::O_NONBLOCK == 0, waits, "{kind:#x}");
            assert_eq!((given.close_on_exec, given.answer), (closes, true), "{kind:#x}");
            assert!(given.number.is_some_and(|number| (960..1024).contains(&number)));
            let kind_of =
                nix::sys::socket::getsockopt(&given.file, nix::sys::socket::sockopt::SockType);
            let expected = if kind & 0xf == SOCK_RAW { SockType::Raw } else { SockType::Datagram };
            assert_eq!(kind_of, Ok(expected));
            assert_eq!(sys::socket_kind(&given.file), Ok((16, libc::NETLINK_USERSOCK)));
        }
        let call = [NETLINK, SOCK_STREAM as u64, RDMA];
        let refused = program.call(libc::SYS_socket, &call);
        assert_eq!(refused, Answer::Ours(Err(Errno::ESOCKTNOSUPPORT)));
        program.gate.refuse(&[Errno::EMFILE; 2]);
        let call = [NETLINK, SOCK_RAW as u64, RDMA];
        let refused = program.call(libc::SYS_socket, &call);
        assert_eq!(refused, Answer::Ours(Err(Errno::EMFILE)));
        program.gate.end();
        let refused = program.call(libc::SYS_socket, &call);
        assert_eq!(refused, Answer::Ours(Err(Errno::EPROTONOSUPPORT)));
    }

    /// A GET dump; two messages answer it.
    const REQUEST: [u32; 4] = [16, 5 << 10 | 1 | 0x301 << 16, 7, 0];

    fn answered(given: &InstalledFd) -> usize {
        let mut file = File::from(given.file.try_clone().expect("a duplicate"));
        let mut room = [0; 4096];
        std::iter::from_fn(|| file.read(&mut room).ok()).count()
    }

    #[test]
    fn sendto_kernel_address_is_answered() {
        let Some(program) = Program::open_to_all() else { return };
        let (kernel, group) = ([16_u32, 0, 0], [16_u32, 0, 9]);
        let user = [16_u32, 77, 0];
        let place = |address: &[u32; 3]| address.as_ptr() as u64;
        for (address, length, ours) in [
            (0, 0, true),
            (0, 12, true),
            (place(&kernel), 12, true),
            (place(&group), 12, true),
            (place(&user), 12, false),
            (place(&user), 13, false),
            // Too short for an address, which is ignored.
            (place(&user), 11, true),
            (place(&user), 0, true),
        ] {
            let given = opened(&program, SOCK_RAW | SOCK_NONBLOCK);
            let request = REQUEST.as_ptr() as u64;
            let call = [given.descriptor(), request, 16, 0, address, length];
            let answer = program.call(libc::SYS_sendto, &call);
            let (expected, count) =
                if ours { (Answer::Ours(Ok(16)), 2) } else { (Answer::Kernel, 0) };
            assert_eq!((answer, answered(&given)), (expected, count), "{address:#x} {length}");
        }
        let given = opened(&program, SOCK_RAW | SOCK_NONBLOCK);
        for (buffer, address) in [(16, 0), (REQUEST.as_ptr() as u64, 16)] {
            let call = [given.descriptor(), buffer, 16, 0, address, 12];
            assert!(matches!(program.call(libc::SYS_sendto, &call), Answer::Ours(Err(_))));
        }
        // Other sockets, and an invalid descriptor.
        let kinds = [None, Some(SockProtocol::NetlinkRoute)];
        let families = [AddressFamily::Unix, AddressFamily::Netlink];
        for (family, protocol) in families.into_iter().zip(kinds) {
            let other = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol);
            let fd = other.as_ref().expect("a socket").as_raw_fd() as u64;
            let call = [fd, REQUEST.as_ptr() as u64, 16];
            assert_eq!(program.call(libc::SYS_sendto, &call), Answer::Kernel, "{family:?}");
        }
        let call = [u64::MAX, REQUEST.as_ptr() as u64, 16];
        assert_eq!(program.call(libc::SYS_sendto, &call), Answer::Kernel);
    }

    #[test]
    #[allow(unsafe_code, reason = "the thread unshares its network namespace")]
    fn socket_of_another_network_is_not_answered() {
        let Some(program) = Program::open_to_all() else { return };
        // SAFETY: this changes the calling thread only, which ends.
        let made = std::thread::spawn(|| match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
            0 => {
                let kind = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                let protocol = SockProtocol::NetlinkUserSock;
                socket(AddressFamily::Netlink, SockType::Raw, kind, protocol)
            }
            _ => Err(Errno::last()),
        });
        let made = match made.join().expect("the thread ends") {
            Ok(made) => made,
            Err(errno) => {
                let line = format!("skipped: run::netlink: no other network: {errno}\n");
                let mut output = std::io::stderr();
                return std::io::Write::write_all(&mut output, line.as_bytes())
                    .expect("the socket is open");
            }
        };
        let call = [made.as_raw_fd() as u64, REQUEST.as_ptr() as u64, 16];
        let refused = Answer::Ours(Err(Errno::ECONNREFUSED));
        assert_eq!(program.call(libc::SYS_sendto, &call), refused);
    }

    #[test]
    fn sendmsg_accepts_64_iovecs_and_64_kib() {
        let Some(program) = Program::open_to_all() else { return };
        let given = opened(&program, SOCK_RAW | SOCK_NONBLOCK);
        // As in `struct msghdr`: name and length, vectors and count.
        let send = |address: u64, length: u64, iovecs: &[[u64; 2]]| {
            let header = [address, length, iovecs.as_ptr() as u64, iovecs.len() as u64, 0, 0, 0];
            program.call(libc::SYS_sendmsg, &[given.descriptor(), header.as_ptr() as u64])
        };
        let request = REQUEST.as_ptr() as u64;
        let parts = [[request, 4], [request + 4, 0], [request + 4, 12]];
        assert_eq!(send(0, 0, &parts), Answer::Ours(Ok(16)));
        assert_eq!(answered(&given), 2);
        // The length has four bytes; the padding after it is ignored.
        let user = [16_u32, 77, 0];
        assert_eq!(send(user.as_ptr() as u64, 7 << 32, &parts), Answer::Ours(Ok(16)));
        assert_eq!(send(user.as_ptr() as u64, 7 << 32 | 12, &parts), Answer::Kernel);
        let zeros = vec![0_u8; 1 << 17];
        let zeros = zeros.as_ptr() as u64;
        let too_long = Answer::Ours(Err(Errno::EMSGSIZE));
        assert_eq!(send(0, 0, &[[zeros, 1]; 64]), Answer::Ours(Ok(64)));
        assert_eq!(send(0, 0, &[[zeros, 1]; 65]), too_long);
        assert_eq!(send(0, 0, &[[zeros, 1 << 16]]), Answer::Ours(Ok(1 << 16)));
        assert_eq!(send(0, 0, &[[zeros, (1 << 16) + 1]]), too_long);
        assert_eq!(send(0, 0, &[[zeros, 1 << 15]; 2]), Answer::Ours(Ok(1 << 16)));
        assert_eq!(send(0, 0, &[[zeros, 1 << 15], [zeros, (1 << 15) + 1]]), too_long);
    }

    #[test]
    fn message_of_a_killed_caller_is_not_answered() {
        let Some(program) = Program::open_to_all() else { return };
        let request = REQUEST.as_ptr() as u64;
        let kernel = [16_u32, 0, 0];
        let parts = [[request, 4], [request + 4, 8], [request + 12, 4]];
        let header = [kernel.as_ptr() as u64, 12, parts.as_ptr() as u64, 3, 0, 0, 0];
        // The check for the caller, then one after each read: header, vectors, address, data.
        let looks = 1 + 1 + 3 + 1 + 3;
        for alive in 0..=looks {
            program.gate.end_after(-1);
            let given = opened(&program, SOCK_RAW | SOCK_NONBLOCK);
            program.gate.end_after(alive);
            let call = [given.descriptor(), header.as_ptr() as u64];
            let answer = program.call(libc::SYS_sendmsg, &call);
            let (expected, count) = match alive {
                0 => (Answer::Kernel, 0),
                _ if alive < looks => (Errno::EINTR.into(), 0),
                _ => (Answer::Ours(Ok(16)), 2),
            };
            assert_eq!((answer, answered(&given)), (expected, count), "{alive}");
        }
    }

    #[test]
    fn first_message_binds_netlink_port() {
        let Some(program) = Program::open_to_all() else { return };
        for bound in [false, true] {
            let given = opened(&program, SOCK_RAW | SOCK_NONBLOCK);
            let port = || {
                let own: NetlinkAddr =
                    getsockname(given.file.as_raw_fd()).expect("the socket has an address");
                own.pid()
            };
            if bound {
                bind(given.file.as_raw_fd(), &NetlinkAddr::new(0, 0)).expect("a port");
            }
            let before = port();
            assert_eq!(before != 0, bound);
            let call = [given.descriptor(), REQUEST.as_ptr() as u64, 16];
            assert_eq!(program.call(libc::SYS_sendto, &call), Answer::Ours(Ok(16)));
            assert!(if bound { port() == before } else { port() != 0 });
            assert_eq!(answered(&given), 2);
        }
    }

    #[test]
    fn unread_answers_are_dropped_without_blocking() {
        let Some(program) = Program::open_to_all() else { return };
        let given = opened(&program, SOCK_RAW | SOCK_NONBLOCK);
        let call = [given.descriptor(), REQUEST.as_ptr() as u64, 16];
        for _ in 0..2000 {
            assert_eq!(program.call(libc::SYS_sendto, &call), Answer::Ours(Ok(16)));
        }
        assert!(answered(&given) < 4000, "the buffer holds them all");
    }
}
