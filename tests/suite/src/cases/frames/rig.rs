//! Two functions that exchange frames, and the packets in the frames.

use std::iter;

use verbless_command::{Device, FlowAttr, KeyAccess};
use verbless_queue::raw_rq::ReceivedFrame;
use verbless_queue::wr::EthSend;
use verbless_queue::{
    Completion, CompletionError, Cq, CqConfig, Domain, FlowRule, Region, Rq, RqConfig, Sq, SqConfig,
};

use crate::{Lab, Stop, until};

/// Bytes of a frame's buffer.
pub(super) const BYTES: usize = 2048;
/// The first of the EtherTypes that are free for experiments.
pub(in crate::cases) const ETHERTYPE: u16 = 0x88b5;
/// Maximum bytes of a frame that are inline.
const HEADER: usize = 18;

/// A MAC address.
pub(in crate::cases) type Mac = [u8; 6];

/// The objects of each function.
pub(in crate::cases) struct Side {
    pub device: Device,
    pub domain: Domain,
    pub cq: Cq,
    /// Frame `n` is at `n` times [`BYTES`].
    pub region: Region,
}

/// A function that sends, and one that receives.
pub(in crate::cases) struct Hosts {
    pub sender: Sq,
    pub receiver: Rq,
    pub from: Side,
    pub into: Side,
    pub here: Mac,
    pub there: Mac,
}

impl Side {
    fn new(device: Device) -> Result<Self, Stop> {
        let domain = Domain::new(&device)?;
        let cq = domain.completion_queue(&CqConfig::new(64))?;
        let region = domain.region(16 * BYTES, KeyAccess::LOCAL)?;
        Ok(Self { device, domain, cq, region })
    }
}

/// The MAC address of a function.
fn mac(device: &Device) -> Result<Mac, Stop> {
    let context = device.query_nic_vport_context()?;
    let address = context.permanent_address();
    let [.., a, b] = u32::from(address.mac_addr_47_32()).to_be_bytes();
    let [c, d, e, f] = address.mac_addr_31_0().to_be_bytes();
    Ok([a, b, c, d, e, f])
}

impl Hosts {
    pub(super) fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::of(lab, &SqConfig::new(16), &RqConfig::new(16))
    }

    pub(in crate::cases) fn of(
        lab: &Lab,
        send: &SqConfig,
        receive: &RqConfig,
    ) -> Result<Self, Stop> {
        let (from, into) = (Side::new(lab.device()?)?, Side::new(lab.other_device()?)?);
        let (here, there) = (mac(&from.device)?, mac(&into.device)?);
        let sender = from.domain.sq(send, &from.cq)?;
        let receiver = into.domain.rq(receive, &into.cq)?;
        Ok(Self { sender, receiver, from, into, here, there })
    }

    /// Steers frames to the receiver.
    pub(in crate::cases) fn steer(&self, attr: &FlowAttr) -> Result<FlowRule, Stop> {
        Ok(self.receiver.steer(attr)?)
    }

    /// Posts buffer `slot` for a frame, with the slot number as the cookie.
    pub(super) fn receive(&mut self, slot: usize) -> Result<(), Stop> {
        self.receiver.post(self.into.region.sge(slot * BYTES, BYTES)?, slot as u64)?;
        Ok(())
    }

    /// Posts a signaled send of a frame.
    pub(super) fn post(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let (header, rest) = bytes.split_at(bytes.len().min(HEADER));
        if rest.is_empty() {
            self.sender.post(&EthSend::new(header, []).signaled(), 0)?;
            return Ok(());
        }
        self.from.region.write_at(0, rest)?;
        let rest = self.from.region.sge(0, rest.len())?;
        self.sender.post(&EthSend::new(header, rest).signaled(), 0)?;
        Ok(())
    }

    /// The completion of the oldest posted frame.
    pub(in crate::cases) fn sent(&mut self) -> Result<Result<Completion, CompletionError>, Stop> {
        until("a frame was sent", || self.sender.poll(&mut self.from.cq))
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.post(bytes)?;
        self.sent()??;
        Ok(())
    }

    /// The completion of the oldest receive: a frame and its bytes, or its error.
    pub(super) fn arrived(
        &mut self,
    ) -> Result<Result<(ReceivedFrame, Vec<u8>), CompletionError>, Stop> {
        match until("a frame arrives", || self.receiver.poll(&mut self.into.cq))? {
            Ok(done) => {
                let mut bytes = vec![0; done.byte_len() as usize];
                self.into.region.read_at(done.cookie as usize * BYTES, &mut bytes)?;
                Ok(Ok((done, bytes)))
            }
            Err(error) => Ok(Err(error)),
        }
    }
}

/// A frame of this length; its payload follows from `seed`.
pub(in crate::cases) fn frame(
    to: Mac,
    from: Mac,
    ethertype: u16,
    length: usize,
    seed: usize,
) -> Vec<u8> {
    let payload = (0..length - 14).map(|at| (seed * 13 + at * 5 + at / 256) as u8);
    to.into_iter().chain(from).chain(ethertype.to_be_bytes()).chain(payload).collect()
}

/// The ones' complement sum of 16-bit words (RFC 1071).
pub(super) fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// An IP packet with valid checksums.
pub(super) struct Packet {
    ip: Vec<u8>,
    ethertype: u16,
    transport: Vec<u8>,
    /// Offset of the checksum in the transport's header.
    check_at: usize,
    /// The pseudo-header of the checksum.
    pseudo: Vec<u8>,
    checked: bool,
}

const UDP: u8 = 17;
const TCP: u8 = 6;

fn payload() -> impl Iterator<Item = u8> {
    (0..41).map(|at| 0x80 ^ (at * 3))
}

/// A UDP header without checksum, and its payload.
fn udp() -> Vec<u8> {
    [0x10, 0x11, 0x20, 0x21, 0, 49, 0, 0].into_iter().chain(payload()).collect()
}

impl Packet {
    fn v4(protocol: u8, transport: Vec<u8>, check_at: usize) -> Self {
        let length = (20 + transport.len()) as u16;
        let mut ip = vec![0x45, 0];
        ip.extend(length.to_be_bytes());
        ip.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
        ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let check = (!sum(&ip)).to_be_bytes();
        ip[10..12].copy_from_slice(&check);
        let mut pseudo = ip[12..20].to_vec();
        pseudo.extend([0, protocol]);
        pseudo.extend((transport.len() as u16).to_be_bytes());
        Self { ip, ethertype: 0x0800, transport, check_at, pseudo, checked: true }
    }

    /// UDP over IPv4.
    pub(super) fn udp4() -> Self {
        Self::v4(UDP, udp(), 6)
    }

    /// TCP with ACK over IPv4.
    pub(super) fn tcp4() -> Self {
        let header = [0x10, 0x11, 0x20, 0x21, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10];
        let rest = [0x20, 0, 0, 0, 0, 0];
        Self::v4(TCP, header.into_iter().chain(rest).chain(payload()).collect(), 16)
    }

    /// UDP over IPv6.
    pub(super) fn udp6() -> Self {
        let transport = udp();
        let length = transport.len() as u16;
        let addresses: Vec<u8> = iter::repeat_n(0x20, 16).chain(iter::repeat_n(0x30, 16)).collect();
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend(length.to_be_bytes());
        ip.extend([UDP, 64]);
        ip.extend(&addresses);
        let pseudo = [&addresses[..], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, UDP]].concat();
        Self { ip, ethertype: 0x86dd, transport, check_at: 6, pseudo, checked: true }
    }

    /// The same packet without the transport's checksum.
    pub(super) fn without_checksum(self) -> Self {
        Self { checked: false, ..self }
    }

    /// The frame that carries the packet.
    pub(super) fn frame(&self, to: Mac, from: Mac) -> Vec<u8> {
        let mut transport = self.transport.clone();
        if self.checked {
            let check = !sum(&[&self.pseudo[..], &transport].concat());
            transport[self.check_at..][..2].copy_from_slice(&check.to_be_bytes());
        }
        let ethertype = self.ethertype.to_be_bytes();
        [&to[..], &from, &ethertype, &self.ip, &transport].concat()
    }
}
