//! The host's side of a channel: a ring of slots that the program writes through a window, or a
//! queue pair with buffers. The untrusted program may write both at any time: the host copies the
//! data before it checks them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use verbless_command::{KeyAccess, Qpn};
use verbless_flexio_dev::stream::control::{HOST_SLOTS_AT, Setup};
use verbless_flexio_dev::stream::entry::NUMBER_AT;
use verbless_queue::address::GRH_BYTES;
use verbless_queue::domain::DatagramOptions;
use verbless_queue::{
    ConnectOptions, Cq, CqConfig, Cqe, Domain, PeerAddress, QKey, Qp, QpConfig, Rc, Region, Uc, Ud,
    WordRegion,
};

use crate::error::Error;
use crate::process::Process;

use super::{ChannelConfig, EntryTransport};

/// The host's side of a channel.
#[derive(Debug)]
pub(super) enum Receiver {
    /// No memory: the host reads the process's heap.
    Heap,
    Window {
        ring: WordRegion,
        slots: u64,
    },
    ReceiveQp(Box<ReceiveQp>),
}

/// A queue pair that receives.
#[derive(Debug)]
pub(super) struct ReceiveQp {
    qp: AnyQp,
    cq: Cq,
    region: Region,
    /// Bytes before the message in a buffer, of a buffer, and of the longest message.
    header: usize,
    stride: usize,
    room: usize,
    entries: u32,
    /// The queue pair whose datagrams are accepted.
    sender: Option<Qpn>,
}

#[derive(Debug)]
enum AnyQp {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("receiving from a stream failed: {error}"))
}

impl Receiver {
    pub(super) const fn heap() -> Self {
        Self::Heap
    }

    /// A ring with as many slots as the program's, and its location.
    pub(super) fn window(
        process: &Process,
        config: &ChannelConfig,
        setup: &mut Setup,
    ) -> Result<Self, Error> {
        let length = HOST_SLOTS_AT + config.ring_bytes;
        let ring = process.domain().words(length as usize / 8, KeyAccess::LOCAL)?;
        setup.key = ring.lkey().0;
        setup.host_ring = ring.address();
        Ok(Self::Window { ring, slots: config.ring_bytes >> config.log_entry_bytes })
    }

    /// A queue pair with buffers for the host's whole memory, all of them posted.
    pub(super) fn queue(process: &Process, config: &ChannelConfig) -> Result<Self, Error> {
        let domain = process.domain();
        let entry = 1_u64 << config.log_entry_bytes;
        let batch = u64::from(config.batch) * entry;
        let (header, room) = match config.transport {
            EntryTransport::Ud => (GRH_BYTES, batch.min(domain.max_datagram_bytes(1)?.into())),
            _ => (0, batch),
        };
        // A message has whole entries.
        let room = room - room % entry;
        let entries = (room / entry) as u32;
        let buffers = (config.host_bytes / room).clamp(1, 1 << 15) as u32;
        let stride = (header + room as usize).next_multiple_of(64);
        let region = domain.region(stride * buffers as usize, KeyAccess::LOCAL)?;
        let queues = QpConfig { inline: 0, ..QpConfig::new(1, buffers) };
        let cq = domain.completion_queue(&CqConfig::new(queues.cqes::<Ud>()))?;
        let qp = match config.transport {
            EntryTransport::Ud => AnyQp::Ud(domain.queue_pair_of(&queues, &cq, &cq)?),
            EntryTransport::Uc => AnyQp::Uc(domain.queue_pair_of(&queues, &cq, &cq)?),
            _ => AnyQp::Rc(domain.queue_pair_of(&queues, &cq, &cq)?),
        };
        let room = room as usize;
        let mut queue = ReceiveQp { qp, cq, region, header, stride, room, entries, sender: None };
        for buffer in 0..buffers {
            queue.post(buffer.into())?;
        }
        Ok(Self::ReceiveQp(Box::new(queue)))
    }

    fn of_queue(&mut self) -> Result<&mut ReceiveQp, Error> {
        match self {
            Self::ReceiveQp(queue) => Ok(queue),
            _ => Err(Error::Failed("the stream has no queue pair".into())),
        }
    }

    pub(super) fn qpn(&self) -> Option<u32> {
        match self {
            Self::ReceiveQp(queue) => Some(each!(&queue.qp, qp => qp.qpn().0)),
            _ => None,
        }
    }

    pub(super) fn entries_per_message(&self) -> u32 {
        match self {
            Self::ReceiveQp(queue) => queue.entries,
            _ => 1,
        }
    }

    pub(super) fn address(
        &mut self,
        domain: &Domain,
        options: &ConnectOptions,
    ) -> Result<PeerAddress, Error> {
        Ok(each!(&self.of_queue()?.qp, qp => domain.address(qp, options)?))
    }

    pub(super) fn connect(
        &mut self,
        domain: &Domain,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        match &mut self.of_queue()?.qp {
            AnyQp::Rc(qp) => domain.connect(qp, peer, options)?,
            AnyQp::Uc(qp) => domain.connect(qp, peer, options)?,
            AnyQp::Ud(_) => return Err(failed("a datagram queue pair is not connected")),
        }
        Ok(())
    }

    /// Receives datagrams of queue pair `from`, under a secret Q_Key.
    pub(super) fn start(&mut self, from: Qpn) -> Result<QKey, Error> {
        let queue = self.of_queue()?;
        let AnyQp::Ud(qp) = &mut queue.qp else {
            return Err(failed("a connected queue pair takes no datagrams"));
        };
        // If the top bit of a request's Q_Key is set, the device sends the sender QP's Q_Key
        // instead.
        let q_key = QKey(RandomState::new().hash_one(from.0) as u32 & 0x7fff_ffff);
        qp.start(&DatagramOptions::new(q_key))?;
        queue.sender = Some(from);
        Ok(q_key)
    }

    /// Takes the available entries; `next` is the number of the first one, and `accept` returns the
    /// next expected number.
    pub(super) fn take(
        &mut self,
        log_entry_bytes: u8,
        next: &mut u64,
        accept: &mut dyn FnMut(&mut u64, &[u8]),
    ) -> Result<(), Error> {
        let entry_bytes = 1 << log_entry_bytes;
        match self {
            Self::Heap => Ok(()),
            Self::Window { ring, slots } => {
                let mut entry = vec![0; entry_bytes];
                let words: &[AtomicU64] = ring;
                // This also acknowledges entries that were read from the heap.
                words[0].store(next.to_le(), Ordering::Release);
                // At most one pass through the ring, so that a program cannot keep the host in this
                // loop.
                for _ in 0..*slots {
                    let within = (*next & (*slots - 1)) as usize * entry_bytes;
                    let at = (HOST_SLOTS_AT as usize + within) / 8;
                    let number = words[at + NUMBER_AT / 8].load(Ordering::Acquire);
                    if u64::from_le(number) != *next + 1 {
                        break;
                    }
                    for (bytes, word) in entry.chunks_exact_mut(8).zip(&words[at..]) {
                        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                    }
                    let before = *next;
                    accept(next, &entry);
                    if *next == before {
                        break;
                    }
                    words[0].store(next.to_le(), Ordering::Release);
                }
                Ok(())
            }
            Self::ReceiveQp(queue) => queue.take(entry_bytes, &mut |entry| accept(next, entry)),
        }
    }
}

/// Handles a queue pair of any service.
macro_rules! each {
    ($any:expr, $qp:ident => $what:expr) => {
        match $any {
            AnyQp::Rc($qp) => $what,
            AnyQp::Uc($qp) => $what,
            AnyQp::Ud($qp) => $what,
        }
    };
}
use each;

impl ReceiveQp {
    fn post(&mut self, buffer: u64) -> Result<(), Error> {
        let at = buffer as usize * self.stride;
        let into = self.region.sge(at, self.header + self.room).map_err(failed)?;
        each!(&mut self.qp, qp => qp.post_receive(into, buffer)).map(drop).map_err(failed)
    }

    fn take(&mut self, entry_bytes: usize, accept: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for _ in 0..self.cq.entries() {
            let Some(cqe) = self.cq.poll() else { break };
            let source = match &self.qp {
                AnyQp::Ud(_) => Cqe::source(&cqe),
                _ => None,
            };
            let done = each!(&mut self.qp, qp => qp.complete(cqe)).map_err(failed)?;
            let stranger = self.sender.is_some_and(|from| source.is_none_or(|it| it.qpn() != from));
            let length = (done.byte_len() as usize).saturating_sub(self.header).min(self.room);
            if !stranger {
                let at = done.cookie as usize * self.stride + self.header;
                bytes.resize(length, 0);
                self.region.read_at(at, &mut bytes).map_err(failed)?;
                // A remainder shorter than an entry has no number, and counts as damaged.
                bytes.chunks(entry_bytes).for_each(&mut *accept);
            }
            self.post(done.cookie)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use verbless_command::Affinity;
    use verbless_queue::wr::Send;

    use super::*;
    use crate::channel::tests::agreeing;

    fn config(transport: EntryTransport, batch: u32) -> ChannelConfig {
        ChannelConfig {
            number: 1,
            transport,
            log_entry_bytes: 6,
            ring_bytes: 1024,
            ring_at: None,
            host_bytes: 1024,
            batch,
            room_retries: 0,
            affinity: Affinity::None,
        }
    }

    #[test]
    fn qp_messages_are_split_into_entries() {
        let (_model, process) = agreeing();
        let domain = process.domain();
        let mut receiver = Receiver::queue(&process, &config(EntryTransport::Rc, 4)).unwrap();
        assert_eq!(receiver.entries_per_message(), 4);
        let options = ConnectOptions::default();
        let there = receiver.address(domain, &options).unwrap();
        assert_eq!(receiver.qpn(), Some(there.qpn.0));
        // The test is the sender.
        let mut cq = domain.completion_queue(&CqConfig::new(64)).unwrap();
        let mut qp = domain.queue_pair(&QpConfig::new(16, 1), &cq, &cq).unwrap();
        let here = domain.address(&qp, &options).unwrap();
        receiver.connect(domain, &here, &options).unwrap();
        domain.connect(&mut qp, &there, &options).unwrap();
        let staging = domain.region(256, KeyAccess::LOCAL).unwrap();
        let (mut next, end) = (0, Instant::now() + Duration::from_secs(20));
        // As many as the buffers hold, three times; the last message has a remainder shorter than
        // an entry.
        for (round, bytes) in [256, 64, 256, 256, 128, 256, 192, 256, 256, 100].iter().enumerate() {
            let message: Vec<u8> = (0..*bytes).map(|at| (round * 7 + at) as u8).collect();
            staging.write_at(0, &message).unwrap();
            let send = Send::new(staging.sge(0, *bytes).unwrap()).signaled();
            qp.post(&send, 0).unwrap();
            let mut taken = Vec::new();
            while taken.len() < bytes.div_ceil(64) {
                assert!(Instant::now() < end, "message {round} does not come");
                let mut accept = |_: &mut u64, entry: &[u8]| taken.push(entry.to_vec());
                receiver.take(6, &mut next, &mut accept).unwrap();
            }
            let expected: Vec<_> = message.chunks(64).map(<[u8]>::to_vec).collect();
            assert_eq!(taken, expected, "message {round}");
            let cqe =
                cq.poll_within(Duration::from_secs(20)).unwrap().expect("the message was sent");
            qp.complete(cqe).unwrap();
        }
    }

    #[test]
    fn ud_receiver_is_limited_by_mtu() {
        let (_model, process) = agreeing();
        let domain = process.domain();
        let options = ConnectOptions::default();
        let longest = domain.max_datagram_bytes(1).unwrap();
        let mut datagrams =
            Receiver::queue(&process, &config(EntryTransport::Ud, 1 << 10)).unwrap();
        assert_eq!(datagrams.entries_per_message(), longest / 64);
        let few = Receiver::queue(&process, &config(EntryTransport::Ud, 2)).unwrap();
        assert_eq!(few.entries_per_message(), 2);
        let there = datagrams.address(domain, &options).unwrap();
        let refused = datagrams.connect(domain, &there, &options).unwrap_err().to_string();
        assert!(refused.contains("is not connected"), "{refused}");
        let q_key = datagrams.start(Qpn(7)).unwrap();
        assert_eq!(q_key.0 >> 31, 0, "the top bit means the sender's own");
        for transport in [EntryTransport::Rc, EntryTransport::Uc] {
            let mut connected = Receiver::queue(&process, &config(transport, 1)).unwrap();
            let refused = connected.start(Qpn(7)).unwrap_err().to_string();
            assert!(refused.contains("takes no datagrams"), "{refused}");
        }
        let mut heap = Receiver::heap();
        assert_eq!((heap.qpn(), heap.entries_per_message()), (None, 1));
        assert!(heap.address(domain, &options).is_err());
    }
}
