//! A peer outside this process at a model's Ethernet switch: a datagram socket that carries a frame
//! in each datagram, as QEMU's `-netdev dgram` does, or RoCE v2 packets ([`roce`]).
//!
//! Any datagram may arrive. The switch drops bytes that are not a frame; the receiving port checks
//! the frame's contents. A frame that the socket cannot send at once, because no peer listens or
//! the peer is slow, is lost, as on a wire.

mod option;
mod roce;

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use self::roce::RoceUplink;
use crate::fabric::{Gateway, PhysicalPort};
use crate::model::Model;
use crate::profile::Link;
use crate::shared_model::SharedModel;

/// Two ends of a datagram socket: the local end is bound; frames go to the remote end. As text it
/// is `LOCAL,REMOTE`, each the path of a Unix socket (with a `/`), or `ADDRESS:PORT`.
///
/// QEMU's command line swaps the ends: `-netdev dgram,id=n,local.type=unix,local.path=REMOTE,`
/// `remote.type=unix,remote.path=LOCAL`, or with `type=inet`, `host` and `port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// Unix datagram sockets.
    Unix {
        /// The local end; the file must not exist.
        local: PathBuf,
        /// The remote end.
        remote: PathBuf,
    },
    /// UDP sockets.
    Inet {
        /// The local end.
        local: SocketAddr,
        /// The remote end.
        remote: SocketAddr,
    },
}

impl FromStr for Uplink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "'{text}' {why}: give LOCAL,REMOTE, each the path of a Unix socket as /tmp/a, or \
                 an address and a port as 127.0.0.1:5000"
            )
        };
        let (local, remote) = text.split_once(',').ok_or_else(|| wrong("has no comma"))?;
        match [local, remote].map(|end| end.contains('/')) {
            [true, true] => Ok(Self::Unix { local: local.into(), remote: remote.into() }),
            [false, false] => {
                let address = |end: &str| {
                    end.parse().map_err(|_| wrong(&format!("has no address and port in '{end}'")))
                };
                Ok(Self::Inet { local: address(local)?, remote: address(remote)? })
            }
            _ => Err(wrong("names a path and an address")),
        }
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { local, remote } => write!(f, "{},{}", local.display(), remote.display()),
            Self::Inet { local, remote } => write!(f, "{local},{remote}"),
        }
    }
}

/// A socket at the switch; dropping this removes it.
#[must_use = "the socket leaves the switch when this is dropped"]
#[derive(Debug)]
pub struct External {
    port: PhysicalPort,
    shared: Weak<SharedModel>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    /// The file of a Unix socket.
    file: Option<PathBuf>,
}

/// A socket that blocks neither to send nor to receive, as the switch uses it.
trait ExternalSocket: Send + Sync + 'static {
    /// Sends a frame. `scratch` keeps a buffer from call to call.
    fn send(&self, frame: &[u8], scratch: &mut Vec<u8>);
    /// Receives a datagram; `None` if it holds no frame.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Vec<u8>>>;
    fn file(&self) -> BorrowedFd<'_>;
}

/// A socket that carries raw frames.
enum Socket {
    Unix(UnixDatagram, PathBuf),
    Inet(UdpSocket, SocketAddr),
}

/// Bytes of the longest datagram.
const MAX_DATAGRAM_BYTES: usize = 0xffff;
/// Maximum number of frames that the reader passes to the fabric under one lock.
const BATCH: usize = 64;
/// Milliseconds after which the reader checks whether it must stop.
const STOP_CHECK_MS: u8 = 100;

impl Socket {
    fn bind(uplink: &Uplink) -> io::Result<Self> {
        match uplink {
            Uplink::Unix { local, remote } => {
                let socket = UnixDatagram::bind(local)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Unix(socket, remote.clone()))
            }
            Uplink::Inet { local, remote } => {
                let socket = UdpSocket::bind(local)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Inet(socket, *remote))
            }
        }
    }
}

impl ExternalSocket for Socket {
    fn send(&self, frame: &[u8], _scratch: &mut Vec<u8>) {
        let sent = match self {
            Self::Unix(socket, to) => socket.send_to(frame, to),
            Self::Inet(socket, to) => socket.send_to(frame, to),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "a frame for an external peer is lost");
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Vec<u8>>> {
        let length = match self {
            Self::Unix(socket, _) => socket.recv(buffer),
            Self::Inet(socket, _) => socket.recv(buffer),
        }?;
        Ok(Some(buffer[..length].to_vec()))
    }

    fn file(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket, _) => socket.as_fd(),
            Self::Inet(socket, _) => socket.as_fd(),
        }
    }
}

impl Model {
    /// Joins a datagram socket to the Ethernet switch, until the guard is dropped. The socket gets
    /// frames for destinations outside the model, and broadcast and multicast frames. Its own
    /// frames go to the ports of the model with their destination address. While a socket is
    /// joined, all messages travel in packets.
    ///
    /// The switch knows no protocol: the model's ports answer no ARP or neighbour discovery, so a
    /// peer needs static entries for their MACs.
    ///
    /// # Errors
    /// The socket cannot be bound: a Unix socket's file exists, an address is in use or not of this
    /// machine.
    pub fn join_ethernet(&self, uplink: &Uplink) -> io::Result<External> {
        let socket = Socket::bind(uplink)?;
        let file = match uplink {
            Uplink::Unix { local, .. } => Some(local.clone()),
            Uplink::Inet { .. } => None,
        };
        self.join(socket, None, file)
    }

    fn join(
        &self,
        socket: impl ExternalSocket,
        gateway: Option<Gateway>,
        file: Option<PathBuf>,
    ) -> io::Result<External> {
        let socket = Arc::new(socket);
        let (sender, mut scratch) = (socket.clone(), Vec::new());
        let send = Box::new(move |frame: &[u8]| sender.send(frame, &mut scratch));
        let port = self.shared.common.fabric.lock().add_external(Link::Ethernet, gateway, send);
        let (shared, stop) = (Arc::downgrade(&self.shared), Arc::new(AtomicBool::new(false)));
        let mut external = External { port, shared, stop, reader: None, file };
        let (shared, stop) = (external.shared.clone(), external.stop.clone());
        let reader = std::thread::Builder::new()
            .name("verbless-uplink".into())
            .spawn(move || read(&*socket, port, &shared, &stop))?;
        external.reader = Some(reader);
        Ok(external)
    }
}

/// Passes arriving frames to the fabric until `stop` is set or the model ends.
fn read(
    socket: &impl ExternalSocket,
    port: PhysicalPort,
    shared: &Weak<SharedModel>,
    stop: &AtomicBool,
) {
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES + 1];
    let mut batch: Vec<Vec<u8>> = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let mut events = [PollFd::new(socket.file(), PollFlags::POLLIN)];
        let _ = poll(&mut events, PollTimeout::from(STOP_CHECK_MS));
        // An error of a datagram socket belongs to an earlier send: no peer listened.
        for _ in 0..BATCH {
            match socket.receive(&mut buffer) {
                Ok(frame) => batch.extend(frame),
                Err(_) => break,
            }
        }
        let Some(shared) = shared.upgrade() else { return };
        if !batch.is_empty() {
            let now = shared.clock().now;
            let mut fabric = shared.common.fabric.lock();
            batch.drain(..).for_each(|bytes| fabric.receive_external(now, port, &bytes));
            drop(fabric);
            shared.notify();
        }
    }
}

impl Drop for External {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            // The model has reported its own panic.
            let _ = reader.join();
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.common.fabric.lock().remove_external(self.port);
        }
        if let Some(file) = &self.file {
            remove(file);
        }
    }
}

fn remove(file: &Path) {
    if let Err(error) = std::fs::remove_file(file) {
        tracing::debug!(%error, file = %file.display(), "the file of a socket cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fabric::Buffers;
    use crate::{Profile, SeenFrame};

    fn model() -> Model {
        let profile = Profile::load("connectx6dx").unwrap().with_link(Link::Ethernet);
        Model::builder().device(profile).threaded().build()
    }

    fn mac(model: &Model) -> [u8; 6] {
        model.shared.peek(0, |function| function.hca.addresses(1).macs[0].0)
    }

    fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
        let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
        frame.resize(60, 7);
        frame
    }

    fn arrived(model: &Model) -> u64 {
        model.traffic(0, 1)[1].frames
    }

    /// Waits until a condition holds.
    fn wait(what: &str, mut is: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Exchanges frames in both directions, with junk datagrams in between; then the socket leaves.
    fn exchange(uplink: &Uplink, peer: &Socket) {
        let model = model();
        let (sender, received) = std::sync::mpsc::channel();
        let external = model.join_ethernet(uplink).unwrap();
        let watch = model.watch_frames(move |seen: &SeenFrame| {
            sender.send((seen.name.to_string(), seen.leaving, seen.bytes.len())).unwrap();
        });
        let here = mac(&model);
        for hostile in [vec![], vec![0; 13], vec![0xff; 65000], frame(here, [4; 6])] {
            peer.send(&hostile, &mut Vec::new());
        }
        wait("the frame for the port arrives", || arrived(&model) >= 2);
        assert!(model.device(0).is_alive());
        // A reply goes back to the sender of the frame.
        let answer = Buffers::default().of_bytes(Link::Ethernet, &frame([4; 6], here));
        let from = crate::fabric::Vport { function: 0, port: 1 };
        model.shared.common.fabric.lock().transmit(0, from, answer);
        let mut buffer = [0; 100];
        let answer = frame([4; 6], here);
        wait("the answer arrives", || {
            peer.receive(&mut buffer).is_ok_and(|it| it.as_ref() == Some(&answer))
        });
        drop(watch);
        let seen: Vec<_> = received.iter().collect();
        let (outside, port) = ("external 0".to_string(), "device 0 port 1".to_string());
        let all = [
            (outside.clone(), true, 65000),
            (port.clone(), false, 65000),
            (outside.clone(), true, 60),
            (port.clone(), false, 60),
            (port, true, 60),
            (outside, false, 60),
        ];
        assert_eq!(seen, all);
        drop(external);
        wait("it has left", || model.shared.common.fabric.is_undisturbed());
    }

    #[test]
    fn frames_cross_unix_sockets_both_ways() {
        let path =
            |name| std::env::temp_dir().join(format!("verbless-{}-{name}", std::process::id()));
        let (local, remote) = (path("uplink"), path("peer"));
        let peer = Uplink::Unix { local: remote.clone(), remote: local.clone() };
        let peer = Socket::bind(&peer).unwrap();
        let uplink = Uplink::Unix { local: local.clone(), remote: remote.clone() };
        exchange(&uplink, &peer);
        assert!(!local.exists(), "its file is removed with it");
        std::fs::write(&local, "").unwrap();
        let error = model().join_ethernet(&uplink).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        for path in [local, remote] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn frames_cross_udp_sockets_both_ways() {
        let free = || UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (local, remote) = (free(), free());
        let peer = Socket::bind(&Uplink::Inet { local: remote, remote: local }).unwrap();
        exchange(&Uplink::Inet { local, remote }, &peer);
    }

    #[test]
    fn socket_thread_ends_with_model() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let model = model();
        let external = model.join_ethernet(&Uplink::Inet { local: free, remote: free }).unwrap();
        drop(model);
        wait("the thread ends", || external.reader.as_ref().unwrap().is_finished());
    }

    #[test]
    fn uplink_parses_or_names_the_mistake() {
        let unix = "/tmp/a,./b".parse::<Uplink>();
        assert_eq!(unix, Ok(Uplink::Unix { local: "/tmp/a".into(), remote: "./b".into() }));
        let inet = "127.0.0.1:5000,[::1]:6000".parse::<Uplink>().unwrap();
        assert_eq!(inet.to_string(), "127.0.0.1:5000,[::1]:6000");
        for (text, why) in [
            ("/tmp/a", "'/tmp/a' has no comma: give LOCAL,REMOTE"),
            ("/tmp/a,b:1", "'/tmp/a,b:1' names a path and an address: "),
            ("127.0.0.1:1,host", "'127.0.0.1:1,host' has no address and port in 'host': "),
        ] {
            let error = text.parse::<Uplink>().unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
