//! Sockets of NETLINK_RDMA: the program gets one of the protocol that is for users among
//! themselves, on which the answers of the modelled devices arrive (`nldev`).
//!
//! Such a socket is a netlink socket for all that a program does with it: `bind`, `getsockname`,
//! `recvmsg` and `poll` are the kernel's own. Only what is sent to the kernel (port 0) stops, by
//! the descriptor's number, and is answered.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname,
    sendto, socket,
};

use super::answer::{Answer, Answerer, thread};
use super::sys::{self, Notification};
use super::{nldev, process};

/// The longest datagram that is read; requests take less than a hundred bytes.
const LONGEST: u64 = 1 << 16;
/// The most pieces that one is gathered from.
const PIECES: u64 = 64;
/// Bytes of `struct sockaddr_nl`, and where the port is.
const ADDRESS: usize = 12;
const PORT: usize = 4;
/// The bits of a socket's type that are no flags.
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
        // Without its descriptor nothing that is sent can be answered: as if the kernel had no such
        // protocol.
        let reached = self.caller(call).map(|it| sys::take_descriptor(&it.process.pidfd, -1));
        if !matches!(reached, Ok(Err(Errno::EBADF))) {
            return Errno::EPROTONOSUPPORT.into();
        }
        let mut flags = SockFlag::SOCK_CLOEXEC;
        if kind & libc::SOCK_NONBLOCK != 0 {
            flags |= SockFlag::SOCK_NONBLOCK;
        }
        let made = socket(AddressFamily::Netlink, typed, flags, SockProtocol::NetlinkUserSock);
        let Ok(made) = made else { return Errno::EPROTONOSUPPORT.into() };
        let close_on_exec = kind & libc::SOCK_CLOEXEC != 0;
        for number in self.numbers(call, 0) {
            let given = self.gate.give(call.id, made.as_fd(), Some(number), close_on_exec, true);
            if given.is_ok() {
                return Answer::Given;
            }
        }
        Errno::EMFILE.into()
    }

    /// sendto and sendmsg on a descriptor of those numbers.
    pub(super) fn send(&self, call: &Notification) -> Answer {
        let Ok(tid) = i32::try_from(call.arguments[0]) else { return Answer::Kernel };
        let taken =
            self.caller(call).and_then(|caller| sys::take_descriptor(&caller.process.pidfd, tid));
        let Ok(socket) = taken else { return Answer::Kernel };
        if sys::socket_kind(&socket) != Ok((libc::AF_NETLINK, libc::NETLINK_USERSOCK)) {
            return Answer::Kernel;
        }
        let datagram = match self.datagram(call) {
            Ok(Some(datagram)) => datagram,
            // To another user.
            Ok(None) => return Answer::Kernel,
            Err(errno) => return errno.into(),
        };
        let sent = self.reply(&socket, &datagram);
        Answer::Ours(sent.map(|()| datagram.len() as i64))
    }

    /// The message that the caller sends to the kernel.
    fn datagram(&self, call: &Notification) -> Result<Option<Vec<u8>>, Errno> {
        let [_, second, third, _, fifth, sixth] = call.arguments;
        let is_message = i64::from(call.number) == libc::SYS_sendmsg;
        let (pieces, address, length) = if is_message {
            let mut words = [[0; 8]; 4];
            process::read(thread(call), second, words.as_flattened_mut())?;
            let [address, length, vectors, count] = words.map(u64::from_ne_bytes);
            if count > PIECES {
                return Err(Errno::EMSGSIZE);
            }
            let mut pieces = Vec::new();
            for index in 0..count {
                let mut words = [[0; 8]; 2];
                let at = vectors.wrapping_add(16 * index);
                process::read(thread(call), at, words.as_flattened_mut())?;
                let [base, length] = words.map(u64::from_ne_bytes);
                pieces.push((base, length));
            }
            (pieces, address, length & u64::from(u32::MAX))
        } else {
            (vec![(second, third)], fifth, sixth)
        };
        if address != 0 && length >= ADDRESS as u64 {
            let mut to = [0; ADDRESS];
            process::read(thread(call), address, &mut to)?;
            if to[PORT..PORT + 4] != [0; 4] {
                return Ok(None);
            }
        }
        let mut datagram = Vec::new();
        for (base, length) in pieces {
            if length > LONGEST - datagram.len() as u64 {
                return Err(Errno::EMSGSIZE);
            }
            let begin = datagram.len();
            datagram.resize(begin + length as usize, 0);
            process::read(thread(call), base, &mut datagram[begin..])?;
        }
        Ok(Some(datagram))
    }

    /// Answers a datagram from the socket.
    fn reply(&self, theirs: &OwnedFd, datagram: &[u8]) -> Result<(), Errno> {
        let descriptor = theirs.as_raw_fd();
        let mut own: NetlinkAddr = getsockname(descriptor)?;
        if own.pid() == 0 {
            // As the kernel does with the first message that is sent.
            bind(descriptor, &NetlinkAddr::new(0, 0))?;
            own = getsockname(descriptor)?;
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkUserSock;
        let ours = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        for answer in nldev::answers(&self.view.shown, own.pid(), datagram) {
            // Its receive buffer may be full: then answers are lost, as the kernel's are.
            match sendto(ours.as_raw_fd(), &answer, &own, MsgFlags::empty()) {
                Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
