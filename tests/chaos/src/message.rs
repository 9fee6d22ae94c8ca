//! The protocol between the controlling process and its programs: one line per message.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use verbless_conformance::Stop;
use verbless_queue::{PeerAddress, RemoteAddr, Rkey};

/// The address of a connection's end: its QP and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndAddress {
    pub(crate) peer: PeerAddress,
    pub(crate) memory: RemoteAddr,
}

/// A line. The number identifies the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// To the second of two: connect to this, and reply with your address.
    Meet(u32, EndAddress),
    /// To the first of two: connect to this.
    Peer(u32, EndAddress),
    /// To both: your peer is connected, or gone.
    Go(u32),
    /// From either: my address.
    Here(u32, EndAddress),
    /// From the first: I am connected.
    Connected(u32),
    /// From either: my peer does not answer.
    Lost(u32),
    /// From a program without a peer: all its objects exist.
    Ready,
    /// From a checker: the number of successful rounds.
    Rounds(u64),
}

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut with_address = |verb: &str, id: &u32, end: &EndAddress| {
            let bytes = end.peer.to_bytes();
            let peer: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let RemoteAddr { address, rkey, .. } = end.memory;
            write!(f, "{verb} {id} {peer} {address} {}", rkey.0)
        };
        match self {
            Self::Meet(id, at) => with_address("meet", id, at),
            Self::Peer(id, at) => with_address("peer", id, at),
            Self::Here(id, at) => with_address("here", id, at),
            Self::Go(id) => write!(f, "go {id}"),
            Self::Connected(id) => write!(f, "connected {id}"),
            Self::Lost(id) => write!(f, "lost {id}"),
            Self::Ready => write!(f, "made"),
            Self::Rounds(count) => write!(f, "rounds {count}"),
        }
    }
}

impl Message {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match words[..] {
            ["go", id] => Self::Go(id.parse().ok()?),
            ["connected", id] => Self::Connected(id.parse().ok()?),
            ["lost", id] => Self::Lost(id.parse().ok()?),
            ["made"] => Self::Ready,
            ["rounds", count] => Self::Rounds(count.parse().ok()?),
            [verb, id, peer, address, rkey] => {
                let mut bytes = [0; PeerAddress::BYTES];
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(peer.get(2 * index..2 * index + 2)?, 16).ok()?;
                }
                let memory = RemoteAddr::new(address.parse().ok()?, Rkey(rkey.parse().ok()?));
                let end = EndAddress { peer: PeerAddress::from_bytes(&bytes).ok()?, memory };
                match verb {
                    "meet" => Self::Meet(id.parse().ok()?, end),
                    "peer" => Self::Peer(id.parse().ok()?, end),
                    "here" => Self::Here(id.parse().ok()?, end),
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}

/// Sends a message to the controlling process.
pub(crate) fn send(message: Message) -> Result<(), Stop> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{message}")?;
    Ok(out.flush()?)
}

/// The messages of the controlling process.
pub(crate) struct Inbox(Receiver<Message>);

impl Inbox {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let lines = std::io::stdin().lock().lines();
            for message in lines.map_while(|line| Message::parse(&line.ok()?)) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Self(receiver)
    }

    /// Waits for the next message; `None` when the program must end.
    pub(crate) fn wait(&self) -> Option<Message> {
        self.0.recv().ok()
    }

    /// The next message, if there is one.
    pub(crate) fn listen(&self) -> Received {
        match self.0.try_recv() {
            Ok(message) => Received::Message(message),
            Err(TryRecvError::Empty) => Received::Nothing,
            Err(TryRecvError::Disconnected) => Received::End,
        }
    }
}

/// An entry of an inbox.
pub(crate) enum Received {
    Message(Message),
    Nothing,
    /// The program must end.
    End,
}

#[cfg(test)]
mod tests {
    use verbless_command::Mtu;
    use verbless_devx::Gid;
    use verbless_queue::Qpn;

    use super::*;

    #[test]
    fn every_message_survives_formatting_and_parsing() {
        let peer = PeerAddress {
            qpn: Qpn(0xabcdef),
            psn: 0x123456,
            ethernet: false,
            lid: 7,
            gid: Gid([9; 16]),
            grh_required: false,
            service_level: 0,
            mtu: Mtu::B2048,
            reads: 16,
        };
        let end = EndAddress { peer, memory: RemoteAddr::new(0x7fff_1234_5678, Rkey(0xffff_fff0)) };
        for message in [
            Message::Meet(1, end),
            Message::Peer(2, end),
            Message::Here(u32::MAX, end),
            Message::Go(3),
            Message::Connected(4),
            Message::Lost(5),
            Message::Ready,
            Message::Rounds(u64::MAX),
        ] {
            assert_eq!(Message::parse(&message.to_string()), Some(message));
        }
        assert_eq!(Message::parse("meet 1 00 0 0"), None);
        assert_eq!(Message::parse("hello"), None);
    }
}
