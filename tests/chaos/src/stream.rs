//! One end of a busy connection: WRITEs, SENDs and READs, each verified on completion, until the
//! peer stops answering.

use verbless_command::Device;
use verbless_conformance::{Endpoint, Stop, ensure, pattern};
use verbless_queue::wr::{Read, SendImm, Write, WriteImm};
use verbless_queue::{
    Completion, CompletionError, ConnectOptions, QpConfig, RemoteAddr, WcOpcode, WcStatus,
};

use crate::message::EndAddress;
use crate::random::Random;

/// Requests in flight, each with a slot of memory.
const DEPTH: usize = 8;
const SLOT: usize = 8 << 10;
/// Posted receives, and the length of each.
const RECEIVES: usize = 32;
const RECEIVE_BYTES: usize = 1 << 10;

/// Offsets: memory that the peer reads, memory that it writes, sent messages, received messages,
/// the targets of READs.
const READABLE: usize = 0;
const WRITABLE: usize = SLOT;
const SEND: usize = WRITABLE + DEPTH * SLOT;
const RECEIVED: usize = SEND + SLOT;
const READ_INTO: usize = RECEIVED + RECEIVES * RECEIVE_BYTES;
const BYTES: usize = READ_INTO + DEPTH * SLOT;

/// Pattern seeds: READABLE, SEND.
const READABLE_PATTERN: u8 = 0x35;
const SEND_PATTERN: u8 = 0x6a;

/// Gives up a few milliseconds after the peer's last answer.
fn options(psn: u32) -> ConnectOptions {
    let psn = Some(psn);
    ConnectOptions { psn, ack_timeout: 8, retry_count: 3, min_rnr_timer: 1, ..Default::default() }
}

/// An end of a connection.
pub(crate) struct Stream {
    end: Endpoint,
    options: ConnectOptions,
    peer: RemoteAddr,
    random: Random,
    readable: Vec<u8>,
    sent: Vec<u8>,
    /// Slots of requests that are not in flight.
    free: Vec<usize>,
    silent: bool,
}

impl Stream {
    /// An unconnected end.
    pub(crate) fn new(device: &Device, mut random: Random) -> Result<Self, Stop> {
        let config = QpConfig::new(DEPTH as u32 * 2, RECEIVES as u32);
        let end = Endpoint::new(device.clone(), &config, BYTES)?;
        let (readable, sent) = (pattern(READABLE_PATTERN, SLOT), pattern(SEND_PATTERN, SLOT));
        end.fill(READABLE, &readable)?;
        end.fill(SEND, &sent)?;
        Ok(Self {
            options: options(random.below(1 << 24) as u32),
            peer: end.remote(0)?,
            end,
            random,
            readable,
            sent,
            free: (0..DEPTH).collect(),
            silent: false,
        })
    }

    /// The address of this end.
    pub(crate) fn address(&self) -> Result<EndAddress, Stop> {
        let Endpoint { domain, qp, .. } = &self.end;
        let memory = self.end.remote(0)?;
        Ok(EndAddress { peer: domain.address(qp, &self.options)?, memory })
    }

    /// Connects to the other end.
    pub(crate) fn connect(&mut self, to: &EndAddress) -> Result<(), Stop> {
        let Endpoint { domain, qp, .. } = &mut self.end;
        domain.connect(qp, &to.peer, &self.options)?;
        self.peer = to.memory;
        (0..RECEIVES).try_for_each(|slot| self.receive(slot))
    }

    fn receive(&mut self, slot: usize) -> Result<(), Stop> {
        self.end.receive(RECEIVED + slot * RECEIVE_BYTES, RECEIVE_BYTES, slot as u64)
    }

    /// Posts and polls once. Returns true when the peer stopped answering
    /// (`TransportRetryExceeded`); fails on any other error.
    pub(crate) fn turn(&mut self) -> Result<bool, Stop> {
        if !self.silent {
            self.post()?;
        }
        self.poll_sends()?;
        self.poll_receives()?;
        Ok(self.silent)
    }

    fn post(&mut self) -> Result<(), Stop> {
        while let Some(slot) = self.free.pop() {
            let longest = if self.random.below(4) == 0 { SLOT } else { RECEIVE_BYTES };
            let length = 1 + self.random.below(longest as u64) as usize;
            let cookie = (slot << 32 | length) as u64;
            let (writable, read_into) = (WRITABLE + slot * SLOT, READ_INTO + slot * SLOT);
            let peer = self.peer;
            let at = |offset: usize| RemoteAddr::new(peer.address + offset as u64, peer.rkey);
            let immediate = (slot << 16 | length) as u32;
            let kind = self.random.below(4);
            let Endpoint { qp, region, .. } = &mut self.end;
            let from = region.sge(SEND, length)?;
            match kind {
                0 => qp.post(&Write::new(from, at(writable)).signaled(), cookie)?,
                1 => qp.post(&WriteImm::new(from, at(writable), immediate).signaled(), cookie)?,
                2 => {
                    let from = region.sge(SEND, length.min(RECEIVE_BYTES))?;
                    qp.post(&SendImm::new(from, immediate).signaled(), cookie)?
                }
                _ => {
                    region.write_at(read_into, &vec![0; length])?;
                    let into = region.sge(read_into, length)?;
                    qp.post(&Read::new(into, at(READABLE)).signaled(), cookie)?
                }
            };
        }
        Ok(())
    }

    fn poll_sends(&mut self) -> Result<(), Stop> {
        loop {
            let Endpoint { qp, send_cq, .. } = &mut self.end;
            match qp.poll(send_cq) {
                None => return Ok(()),
                Some(Ok(done)) => self.sent(&done)?,
                Some(Err(error)) => {
                    let expected = match self.silent {
                        true => WcStatus::Flushed,
                        false => WcStatus::TransportRetryExceeded,
                    };
                    ensure!(
                        status(&error) == Some(expected),
                        "a request failed with {error}; expected {expected:?}"
                    );
                    self.silent = true;
                }
            }
        }
    }

    fn sent(&mut self, done: &Completion) -> Result<(), Stop> {
        let (slot, length) = ((done.cookie >> 32) as usize, done.cookie as u32 as usize);
        ensure!(
            slot < DEPTH && !self.free.contains(&slot),
            "completion {done:?} of a request that is not in flight"
        );
        if done.operation() == WcOpcode::Read {
            let read = self.end.bytes(READ_INTO + slot * SLOT, length)?;
            ensure!(read == self.readable[..length], "READ of {length} bytes returned wrong data");
        }
        self.free.push(slot);
        Ok(())
    }

    fn poll_receives(&mut self) -> Result<(), Stop> {
        loop {
            let Endpoint { qp, receive_cq, .. } = &mut self.end;
            match qp.poll(receive_cq) {
                None => return Ok(()),
                Some(Ok(done)) => self.received(&done)?,
                Some(Err(error)) => {
                    let flushed = status(&error) == Some(WcStatus::Flushed);
                    ensure!(flushed, "a receive failed with {error}");
                }
            }
        }
    }

    fn received(&mut self, done: &Completion) -> Result<(), Stop> {
        let immediate =
            done.immediate().ok_or_else(|| Stop::fail("a message without immediate"))?;
        let (slot, length) = (immediate as usize >> 16, immediate as usize & 0xffff);
        ensure!(slot < DEPTH && (1..=SLOT).contains(&length), "{done:?}: a wrong immediate");
        let (at, length) = match done.operation() {
            WcOpcode::ReceiveWriteImm => (WRITABLE + slot * SLOT, length),
            _ => (RECEIVED + done.cookie as usize * RECEIVE_BYTES, length.min(RECEIVE_BYTES)),
        };
        ensure!(done.byte_len() as usize == length, "{done:?}, but {length} bytes were sent");
        let bytes = self.end.bytes(at, length)?;
        ensure!(bytes == self.sent[..length], "{length} received bytes differ from the sent ones");
        if self.silent { Ok(()) } else { self.receive(done.cookie as usize) }
    }
}

fn status(error: &CompletionError) -> Option<WcStatus> {
    match error {
        CompletionError::Failed(failure) => Some(failure.status),
        CompletionError::InvalidCqe(_)
        | CompletionError::OtherSrq(_)
        | CompletionError::OtherQueue(_)
        | CompletionError::OtherRawRq(_) => None,
    }
}
