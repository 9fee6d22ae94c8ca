//! The ordinary IP network of this machine: RoCE v2 packets as UDP datagrams of port 4791.
//!
//! It acts as a router for the device. The network device of port 1 has the address `local`, and
//! every peer has the router's MAC: a frame to that MAC leaves as a datagram, and a datagram
//! arrives as a frame from it. [`datagram`] describes the conversion of the headers.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{External, ExternalSocket, option};
use crate::fabric::Gateway;
use crate::model::Model;
use crate::profile::Link;
use verbless_wire::{Mac, ROCE_PORT, datagram, gid_of};

/// An IP address of this machine, by which a device reaches hosts on the network: RoCE v2 in UDP
/// datagrams of port 4791. As text it is `LOCAL,PEER`, or with more peers `LOCAL,PEER,PEER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoceUplink {
    local: IpAddr,
    peers: Vec<IpAddr>,
}

impl RoceUplink {
    /// An address of this machine, and those of the hosts that it reaches, the peers. The uplink
    /// takes the peers' datagrams only.
    ///
    /// # Errors
    /// There is no peer, they are not all IPv4 or all IPv6, or one is not a host's address; the
    /// text says which.
    pub fn new(local: IpAddr, peers: Vec<IpAddr>) -> Result<Self, String> {
        if peers.is_empty() {
            return Err(format!("there is no peer behind {local}: give the address of one"));
        }
        for address in peers.iter().copied().chain([local]) {
            if !is_of_a_host(address) {
                return Err(format!(
                    "{address} is not an address of a host: give a unicast \
                     address that is neither link-local nor IPv4 in IPv6"
                ));
            }
        }
        if let Some(peer) = peers.iter().find(|peer| peer.is_ipv4() != local.is_ipv4()) {
            return Err(format!("{local} and {peer} are not both IPv4 or both IPv6"));
        }
        if peers.contains(&local) {
            return Err(format!("{local} is both the local address and a peer's"));
        }
        Ok(Self { local, peers })
    }

    /// The address of this machine.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// The router's MAC: locally administered, and unlike any MAC of a model.
    fn mac(&self) -> Mac {
        let (kind, [.., a, b, c, d]) = (u8::from(self.local.is_ipv6()), gid_of(self.local));
        Mac([0x06, kind, a, b, c, d])
    }
}

fn is_of_a_host(address: IpAddr) -> bool {
    let own = match address {
        IpAddr::V4(address) => !address.is_broadcast(),
        IpAddr::V6(address) => {
            !address.is_unicast_link_local() && address.to_ipv4_mapped().is_none()
        }
    };
    own && !address.is_unspecified() && !address.is_multicast()
}

impl FromStr for RoceUplink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("'{text}' {why}: give LOCAL,PEER as IP addresses, 192.0.2.1,192.0.2.2")
        };
        let addresses: Result<Vec<IpAddr>, _> = text
            .split(',')
            .map(|it| it.parse().map_err(|_| wrong(&format!("has no IP address in '{it}'"))))
            .collect();
        match &addresses?[..] {
            [local, peers @ ..] if !peers.is_empty() => Self::new(*local, peers.to_vec()),
            _ => Err(wrong("has no comma")),
        }
    }
}

impl fmt::Display for RoceUplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.local)?;
        self.peers.iter().try_for_each(|peer| write!(f, ",{peer}"))
    }
}

/// Bytes of the socket's receive buffer.
const RECEIVE_BUFFER: usize = 4 << 20;

/// A non-blocking socket on port 4791.
struct Socket {
    socket: UdpSocket,
    uplink: RoceUplink,
    /// MAC of the device's port.
    mac: Mac,
    /// Whether a packet that is too long was logged.
    logged: AtomicBool,
}

impl Socket {
    fn bind(uplink: &RoceUplink, mac: Mac) -> io::Result<Self> {
        let socket = UdpSocket::bind((uplink.local, ROCE_PORT))?;
        socket.set_nonblocking(true)?;
        // A burst that exceeds the buffer is lost.
        let room = set_receive_buffer(&socket, RECEIVE_BUFFER)?;
        if room < RECEIVE_BUFFER {
            tracing::warn!(
                bytes = room,
                wanted = RECEIVE_BUFFER,
                "the uplink's receive buffer is small, so that bursts lose packets: raise the \
                 limit, sysctl net.core.rmem_max={RECEIVE_BUFFER}"
            );
        }
        // PMTUDISC_PROBE sets DF and ignores the path MTU, so an ICMP "fragmentation needed" does
        // not make later sends fail with EMSGSIZE. This setting and the unconnected socket make the
        // IPv4 identification 0.
        match uplink.local {
            IpAddr::V4(_) => {
                let name = libc::IP_MTU_DISCOVER;
                option::set(&socket, libc::IPPROTO_IP, name, libc::IP_PMTUDISC_PROBE)?;
            }
            IpAddr::V6(_) => {
                // rdma_rxe and cards compute no UDP checksum: the ICRC replaces it.
                option::set(&socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
                let name = libc::IPV6_MTU_DISCOVER;
                option::set(&socket, libc::IPPROTO_IPV6, name, libc::IPV6_PMTUDISC_PROBE)?;
            }
        }
        Ok(Self { socket, uplink: uplink.clone(), mac, logged: AtomicBool::new(false) })
    }

    fn is_peer(&self, address: IpAddr) -> bool {
        self.uplink.peers.contains(&address)
    }
}

/// Requests a receive buffer of `bytes` bytes; returns the size that the kernel grants.
fn set_receive_buffer(socket: &UdpSocket, bytes: usize) -> io::Result<usize> {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUF);
    option::set(socket, level, name, bytes as i32)?;
    // The kernel doubles the granted size for its own overhead.
    Ok(option::get(socket, level, name)? as usize / 2)
}

impl ExternalSocket for Socket {
    fn send(&self, frame: &[u8], scratch: &mut Vec<u8>) {
        // The switch also sends broadcast frames here.
        if frame.get(..6) != Some(&self.uplink.mac().0) {
            return;
        }
        scratch.clear();
        scratch.extend_from_slice(frame);
        let Some((ends, payload)) = datagram::send(scratch) else {
            tracing::debug!("the uplink drops a frame: it is not a RoCE v2 packet");
            return;
        };
        if ends.source != self.uplink.local || !self.is_peer(ends.destination) {
            tracing::debug!(?ends, uplink = %self.uplink, "a packet has another source or target");
            return;
        }
        match self.socket.send_to(&scratch[payload..], (ends.destination, ROCE_PORT)) {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                let bytes = scratch.len() - payload;
                if !self.logged.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        bytes,
                        "a packet does not fit the network's MTU and is lost: choose a smaller \
                         path MTU for the queue pair, 1024 where the network's is 1500"
                    );
                }
            }
            Err(error) => tracing::debug!(%error, "a packet for a peer is lost"),
            Ok(_) => {}
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Vec<u8>>> {
        let (length, from) = self.socket.recv_from(buffer)?;
        if !self.is_peer(from.ip()) {
            tracing::debug!(%from, "a datagram is dropped: its sender is not a peer");
            return Ok(None);
        }
        let from: SocketAddr = from;
        let macs = [self.mac, self.uplink.mac()];
        Ok(datagram::receive(macs, from, self.uplink.local, &buffer[..length]))
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Model {
    /// Joins port 1 of an Ethernet device to the IP network of this machine, until the guard is
    /// dropped: its RoCE v2 packets leave as UDP datagrams of port 4791 to the peers, whose
    /// datagrams arrive. A peer is another model, Linux's rdma_rxe, or a card. While the port is
    /// joined, the model packetizes every message; otherwise it may copy a whole message at once.
    ///
    /// The network device of the port then has the local address: the modelled kernel enters it
    /// into the GID table when a program opens the device, so join before that.
    ///
    /// ```no_run
    /// # use verbless_model::{Link, Model, Profile, RoceUplink};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let card = Profile::load("connectx6dx")?.with_link(Link::Ethernet);
    /// let model = Model::builder().device(card).threaded().build();
    /// let uplink = RoceUplink::new("192.0.2.1".parse()?, vec!["192.0.2.2".parse()?])?;
    /// let joined = model.join_roce(0, &uplink)?;
    /// # drop(joined);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The device has no Ethernet ports. The socket cannot be bound: the address is not one of this
    /// machine, or port 4791 is in use, as by Linux's rdma_rxe once it is loaded.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn join_roce(&self, device: usize, uplink: &RoceUplink) -> io::Result<External> {
        let handle = self.device(device);
        let port = handle.port(1).filter(|_| handle.profile().link() == Link::Ethernet);
        let Some(port) = port else {
            let text = format!("device {device} has no Ethernet ports");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let [_, _, mac @ ..] = port.mac.to_be_bytes();
        let gateway = Gateway {
            function: device,
            mac: uplink.mac(),
            local: gid_of(uplink.local),
            peers: uplink.peers.iter().copied().map(gid_of).collect(),
        };
        self.join(Socket::bind(uplink, Mac(mac))?, Some(gateway), None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::time::{Duration, Instant};

    use nix::sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket,
    };

    use super::*;
    use crate::Profile;
    use verbless_wire::Packet;
    use verbless_wire::samples::of_rxe;

    /// An address of this machine that no other process's test has.
    fn address(host: u8) -> IpAddr {
        let [.., a, b] = std::process::id().to_be_bytes();
        IpAddr::from([127, a, b, host])
    }

    fn uplink(hosts: [u8; 2]) -> RoceUplink {
        let [local, peer] = hosts.map(address);
        RoceUplink::new(local, vec![peer]).unwrap()
    }

    fn model() -> Model {
        let profile = Profile::load("connectx6dx").unwrap().with_link(Link::Ethernet);
        Model::builder().device(profile).threaded().build()
    }

    fn wait(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A RoCE v2 packet over IPv4 as a device would send it: to the router, between two addresses.
    fn frame(uplink: &RoceUplink, from: IpAddr, to: IpAddr) -> Vec<u8> {
        let mut frame = of_rxe().next().unwrap().2;
        frame[..6].copy_from_slice(&uplink.mac().0);
        let mut packet = Packet::parse_ethernet(&frame).unwrap().unwrap();
        let verbless_wire::Route::Ipv4(_, ip, _) = &mut packet.headers.route else { panic!() };
        let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!() };
        ip.set_source_address(&from.octets()).set_destination_address(&to.octets());
        verbless_wire::samples::emitted(&packet)
    }

    #[test]
    fn sent_packet_keeps_a_valid_icrc() {
        let uplink = uplink([10, 11]);
        let flags = SockFlag::SOCK_NONBLOCK;
        let Ok(raw) = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Udp) else {
            let line = "skipped: the headers of a socket: a raw socket needs CAP_NET_RAW\n";
            // The test runner would suppress `eprintln!` in a passing test.
            io::stderr().write_all(line.as_bytes()).unwrap();
            return;
        };
        let sent = of_rxe().next().unwrap().2;
        let socket = Socket::bind(&uplink, Mac([2; 6])).unwrap();
        let mut buffer = [0; 2000];
        for _ in 0..3 {
            socket.send(&frame(&uplink, address(10), address(11)), &mut Vec::new());
            let mut length = 0;
            // A raw socket receives all datagrams of this machine.
            wait("the packet arrives", || {
                length = recv(raw.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap_or(0);
                let IpAddr::V4(from) = address(10) else { panic!() };
                length > 20 && buffer[12..16] == from.octets()
            });
            // The loopback device leaves the checksum of UDP, which the ICRC skips, half computed.
            buffer[26..28].fill(0);
            let seen = [&[0; 12][..], &[8, 0], &buffer[..length]].concat();
            let packet = Packet::parse_ethernet(&seen).expect("its ICRC is right").unwrap();
            let sent = Packet::parse_ethernet(&sent).unwrap().unwrap();
            assert_eq!(packet.headers.transport, sent.headers.transport);
            assert_eq!(packet.payload, sent.payload);
        }
    }

    #[test]
    fn only_packets_between_uplink_ends_pass() {
        let uplink = uplink([20, 21]);
        let socket = Socket::bind(&uplink, Mac([2; 6])).unwrap();
        let [peer, stranger] =
            [21, 22].map(|host| UdpSocket::bind((address(host), ROCE_PORT)).unwrap());
        let [local, to, other] = [20, 21, 22].map(address);
        for frame in [
            frame(&uplink, local, other),
            frame(&uplink, other, to),
            // To another MAC, of another protocol, and cut.
            frame(&RoceUplink { local: other, peers: vec![] }, local, to),
            [&uplink.mac().0[..], &[0; 6], &[0x88, 0xb5], &[0; 60]].concat(),
            frame(&uplink, local, to)[..50].to_vec(),
            vec![0; 3],
        ] {
            socket.send(&frame, &mut Vec::new());
        }
        socket.send(&frame(&uplink, local, to), &mut Vec::new());
        let mut buffer = [0; 2000];
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (length, _) = peer.recv_from(&mut buffer).unwrap();
        let sent = buffer[..length].to_vec();
        peer.set_nonblocking(true).unwrap();
        stranger.set_nonblocking(true).unwrap();
        assert!(peer.recv(&mut buffer).is_err() && stranger.recv(&mut buffer).is_err());

        stranger.send_to(&sent, (local, ROCE_PORT)).unwrap();
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);
        // The same packet from the peer has a source address that its ICRC does not match.
        peer.send_to(&sent, (local, ROCE_PORT)).unwrap();
        let frame = socket.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(frame[..12], [[2; 6], uplink.mac().0].concat());
        assert!(Packet::parse_ethernet(&frame).is_err());
        assert!(socket.receive(&mut buffer).is_err());
    }

    #[test]
    fn ipv6_packet_without_udp_checksum_is_accepted() {
        let skip = |why: String| {
            let line = format!("skipped: packets over IPv6: {why}\n");
            io::stderr().write_all(line.as_bytes()).unwrap();
        };
        let bind = || UdpSocket::bind(("::1", 0));
        let [strict, sender] = match (bind(), bind()) {
            (Ok(strict), Ok(sender)) => [strict, sender],
            (Err(error), _) | (_, Err(error)) => return skip(format!("no socket of ::1: {error}")),
        };
        let own = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
        // There is only one such address, so another process's test may hold it for a moment.
        let (uplink, start) = (RoceUplink { local: own, peers: vec![own] }, Instant::now());
        let socket = loop {
            match Socket::bind(&uplink, Mac([2; 6])) {
                Ok(socket) => break socket,
                Err(error) if start.elapsed() > Duration::from_secs(20) => {
                    return skip(format!("no socket of [::1]:{ROCE_PORT}: {error}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        option::set(&sender, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
        for to in [&strict, &socket.socket] {
            sender.send_to(b"unchecked", to.local_addr().unwrap()).unwrap();
        }
        let mut buffer = [0; 20];
        wait("it arrives", || socket.receive(&mut buffer).is_ok_and(|frame| frame.is_some()));
        strict.set_nonblocking(true).unwrap();
        assert!(strict.recv(&mut buffer).is_err(), "what was sent has no checksum");
    }

    #[test]
    fn receive_buffer_size_is_reported_as_granted() {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        assert_eq!(set_receive_buffer(&socket, 16 << 10).unwrap(), 16 << 10);
        let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
        let Some(limit) = limit.and_then(|text| text.trim().parse::<usize>().ok()) else {
            let line = "skipped: the limit of receive buffers: no net.core.rmem_max here\n";
            io::stderr().write_all(line.as_bytes()).unwrap();
            return;
        };
        let max = i32::MAX as usize / 2;
        assert_eq!(set_receive_buffer(&socket, max).unwrap(), limit.min(max));
    }

    #[test]
    fn hostile_datagrams_leave_the_device_alive() {
        let (model, uplink) = (model(), uplink([30, 31]));
        let device = model.device(0);
        let [own, peer] = [30, 31].map(|host| gid_of(address(host)));
        assert_eq!((device.network_gids(), device.gateway(&peer)), (vec![], None));
        let joined = model.join_roce(0, &uplink).unwrap();
        assert_eq!(device.network_gids(), [own]);
        let mac = device.gateway(&peer).map(|mac| mac.to_be_bytes());
        assert_eq!(mac.unwrap()[2..], uplink.mac().0);
        assert_eq!(device.gateway(&own), None);
        assert!(!device.has_external_peer(), "no host there has its own MAC");
        let socket = UdpSocket::bind((address(31), ROCE_PORT)).unwrap();
        let genuine = of_rxe().map(|(_, _, frame)| frame[42..].to_vec());
        let lengths = [0, 1, 11, 12, 15, 16, 27, 28, 1000, 65000];
        let made = lengths.map(|length| vec![0xff; length]).into_iter();
        let all: Vec<_> = made.chain(genuine).collect();
        for payload in &all {
            socket.send_to(payload, (address(30), ROCE_PORT)).unwrap();
        }
        wait("they arrive", || model.traffic(0, 1)[1].frames == all.len() as u64);
        assert!(device.is_alive());
        let error = model.join_roce(0, &uplink).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(joined);
        assert_eq!((device.network_gids(), device.gateway(&peer)), (vec![], None));
        assert!(model.shared.common.fabric.is_undisturbed());
    }

    #[test]
    fn device_without_ethernet_is_rejected() {
        let profile = Profile::load("connectx6dx").unwrap().with_link(Link::Infiniband);
        let model = Model::builder().device(profile).threaded().build();
        let error = model.join_roce(0, &uplink([40, 41])).unwrap_err();
        assert_eq!(error.to_string(), "device 0 has no Ethernet ports");
    }

    #[test]
    fn uplink_parses_or_names_the_mistake() {
        for text in ["192.0.2.1,192.0.2.2", "2001:db8::1,2001:db8::2,2001:db8::3"] {
            assert_eq!(text.parse::<RoceUplink>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("192.0.2.1", "'192.0.2.1' has no comma: give LOCAL,PEER"),
            ("192.0.2.1,host", "'192.0.2.1,host' has no IP address in 'host': "),
            ("192.0.2.1,::1", "192.0.2.1 and ::1 are not both IPv4 or both IPv6"),
            ("192.0.2.1,192.0.2.1", "192.0.2.1 is both the local address and a peer's"),
            ("0.0.0.0,192.0.2.1", "0.0.0.0 is not an address of a host"),
            ("fe80::1,2001:db8::2", "fe80::1 is not an address of"),
            ("::ffff:1.2.3.4,2001:db8::2", "::ffff:1.2.3.4 is not an address of"),
            ("192.0.2.1,224.0.0.1", "224.0.0.1 is not an address of"),
        ] {
            let error = text.parse::<RoceUplink>().unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
