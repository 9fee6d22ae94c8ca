//! The user of the program at the other end of a local connection.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

/// TCP_ESTABLISHED, as the kernel's table prints it.
const ESTABLISHED: &str = "01";

/// Whether a program of this user, or of root, made a debugger's connection. A local port has no
/// permissions: every user can connect to it. A connection from another machine counts as this
/// user's: the port was opened to the network on purpose.
///
/// # Errors
/// The kernel's table cannot be read.
pub fn is_same_user(stream: &TcpStream) -> io::Result<bool> {
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    if peer.ip().to_canonical() != local.ip().to_canonical() && !peer.ip().is_loopback() {
        return Ok(true);
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let own = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let own = own.and_then(|line| line.split_whitespace().nth(1)).ok_or(io::ErrorKind::NotFound)?;
    // A program may use an IPv6 socket for an IPv4 address.
    let table = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let tables = [table("/proc/net/tcp"), table("/proc/net/tcp6")];
    let found = tables.iter().find_map(|table| owner(table, peer, local));
    Ok(found.is_some_and(|uid| uid == own || uid == "0"))
}

/// The user of an open connection, from one address to another, in a table of the kernel.
fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<&str> {
    let ways = [Words::plain, Words::mapped].map(|words| (words(from), words(to)));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[_, local, remote, state, _, _, _, uid, ..] = &fields[..] else { return None };
        let is_it = ways.iter().any(|(from, to)| local == from.0 && remote == to.0);
        (is_it && state == ESTABLISHED).then_some(uid)
    })
}

/// An address as the kernel prints it: each word in the machine's order, and the port.
struct Words(String);

impl Words {
    fn plain(address: SocketAddr) -> Self {
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => Self::of(&ip.octets(), address.port()),
            IpAddr::V6(ip) => Self::of(&ip.octets(), address.port()),
        }
    }

    /// An IPv4 address as an IPv6 one.
    fn mapped(address: SocketAddr) -> Self {
        match address.ip() {
            IpAddr::V4(ip) => Self::of(&ip.to_ipv6_mapped().octets(), address.port()),
            IpAddr::V6(ip) => Self::of(&ip.octets(), address.port()),
        }
    }

    fn of(bytes: &[u8], port: u16) -> Self {
        let words = bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word));
        let words: String = words.map(|word| format!("{word:08X}")).collect();
        Self(format!("{words}:{port:04X}"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn is_same_user_rejects_connections_of_others() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let client = TcpStream::connect(address).expect("the server listens");
        let (stream, _) = listener.accept().expect("a connection");
        assert!(is_same_user(&stream).expect("there is /proc"));
        drop(client);
        assert!(!is_same_user(&stream).expect("there is /proc"), "its port may be another's");
        listener.set_nonblocking(true).expect("a listener");
        let over = [
            "socket.create_connection(('127.0.0.1', port))",
            "socket.socket(socket.AF_INET6); kept.connect(('::ffff:127.0.0.1', port))",
        ];
        for connect in over {
            let program = format!(
                "import socket, sys\nport = int(sys.argv[1])\nkept = {connect}\nsys.stdin.read()\n"
            );
            let port = address.port().to_string();
            let other = Command::new("setpriv")
                .args([
                    "--reuid=54321",
                    "--clear-groups",
                    "/usr/bin/python3",
                    "-c",
                    &program,
                    &port,
                ])
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .spawn();
            let Ok(mut other) = other else { return };
            let stream = loop {
                match listener.accept() {
                    Ok((stream, _)) => break stream,
                    // Only root can start programs of other users.
                    Err(_) if other.try_wait().expect("a child").is_some() => return,
                    Err(_) => std::thread::yield_now(),
                }
            };
            assert!(!is_same_user(&stream).expect("there is /proc"), "{connect}");
            drop(other.stdin.take());
            other.wait().expect("the child ends");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn owner_is_found_only_for_open_connections() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:04D2 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 100 1
   1: 0100007F:C000 0100007F:04D2 06 00000000:00000000 00:00000000 00000000     0        0 0 1
   2: 0100007F:C001 0100007F:04D2 01 00000000:00000000 00:00000000 00000000  1001        0 102 1
   3: 0000000000000000FFFF00000100007F:C002 0000000000000000FFFF00000100007F:04D2 01 0:0 0:0 0 7 0 1
";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        for (port, expected) in
            [(0xc000, None), (0xc001, Some("1001")), (0xc002, Some("7")), (0xc003, None)]
        {
            assert_eq!(owner(table, at(port), at(1234)), expected, "{port:#x}");
        }
    }
}
