//! Two programs that exchange data and verify every byte of it: events of other programs must not
//! disturb them.

use verbless_command::Device;
use verbless_conformance::{Endpoint, Stop, ensure, ensure_eq, pattern};
use verbless_queue::wr::{Inline, Read, SendImm, Write};
use verbless_queue::{ConnectOptions, QpConfig, RemoteAddr};

use crate::message::{EndAddress, Inbox, Message, Received, send};

/// Bytes of the longest message, and the offsets of its write and its read.
const MAX_MESSAGE_BYTES: usize = 16 << 10;
const HERE: usize = MAX_MESSAGE_BYTES;
const READ: usize = 2 * MAX_MESSAGE_BYTES;
const BYTES: usize = 3 * MAX_MESSAGE_BYTES;
/// Rounds between two reports.
const ROUNDS_PER_REPORT: u64 = 16;

/// One of the two.
pub(crate) struct Checker {
    end: Endpoint,
    peer: RemoteAddr,
    /// Whether it sends first.
    begins: bool,
}

impl Checker {
    pub(crate) fn new(device: &Device, begins: bool) -> Result<Self, Stop> {
        let end = Endpoint::new(device.clone(), &QpConfig::new(8, 8), BYTES)?;
        Ok(Self { peer: end.remote(0)?, end, begins })
    }

    pub(crate) fn address(&self) -> Result<EndAddress, Stop> {
        let Endpoint { domain, qp, .. } = &self.end;
        let memory = self.end.remote(0)?;
        Ok(EndAddress { peer: domain.address(qp, &ConnectOptions::default())?, memory })
    }

    pub(crate) fn connect(&mut self, to: &EndAddress) -> Result<(), Stop> {
        let Endpoint { domain, qp, .. } = &mut self.end;
        domain.connect(qp, &to.peer, &ConnectOptions::default())?;
        self.peer = to.memory;
        (0..4).try_for_each(|_| self.end.receive(0, 0, 0))
    }

    /// Runs rounds until it must end. In each round it writes to the peer, reads the bytes back,
    /// notifies the peer by a SEND, waits for the peer's SEND, and verifies the peer's write.
    pub(crate) fn rounds(&mut self, inbox: &Inbox) -> Result<(), Stop> {
        for round in 0.. {
            if self.begins {
                if matches!(inbox.listen(), Received::End) {
                    // The peer waits for a message; this value ends it.
                    return self.notify_peer(u32::MAX);
                }
                self.send_round(round)?;
            }
            if self.receive_round(round)? {
                return Ok(());
            }
            if !self.begins {
                self.send_round(round)?;
            }
            if round % ROUNDS_PER_REPORT == 0 {
                send(Message::Rounds(round))?;
            }
        }
        Ok(())
    }

    fn length(round: u64) -> usize {
        1 + (round as usize * 2677) % MAX_MESSAGE_BYTES
    }

    fn pattern(round: u64, of_beginner: bool) -> Vec<u8> {
        pattern(
            (round as u8).wrapping_mul(2) ^ if of_beginner { 0x80 } else { 0 },
            Self::length(round),
        )
    }

    fn notify_peer(&mut self, what: u32) -> Result<(), Stop> {
        self.end.perform(&SendImm::new(Inline(b""), what).signaled())?;
        Ok(())
    }

    fn send_round(&mut self, round: u64) -> Result<(), Stop> {
        let length = Self::length(round);
        let bytes = Self::pattern(round, self.begins);
        self.end.fill(0, &bytes)?;
        let from = self.end.sge(0, length)?;
        let to = RemoteAddr::new(self.peer.address + HERE as u64, self.peer.rkey);
        self.end.perform(&Write::new(from, to).signaled())?;
        self.end.fill(READ, &vec![0; length])?;
        let into = self.end.sge(READ, length)?;
        self.end.perform(&Read::new(into, to).signaled())?;
        ensure!(
            self.end.bytes(READ, length)? == bytes,
            "round {round}: a READ brought other bytes"
        );
        self.notify_peer(round as u32)
    }

    /// True when the peer has ended.
    fn receive_round(&mut self, round: u64) -> Result<bool, Stop> {
        let done = self.end.received()??;
        if done.immediate() == Some(u32::MAX) {
            return Ok(true);
        }
        ensure_eq!(done.immediate(), Some(round as u32), "the immediate");
        let bytes = Self::pattern(round, !self.begins);
        let here = self.end.bytes(HERE, bytes.len())?;
        ensure!(here == bytes, "round {round}: other bytes than were written");
        self.end.receive(0, 0, 0)?;
        Ok(false)
    }
}
