//! Ethernet frames that are not RoCE packets: sends of SQs, flow steering of arriving frames, and
//! the CQEs of RQs.
//!
//! Sources: IEEE 802.3 and 802.1Q; RFC 791, 768, 793, 8200 and 1071; Linux
//! `drivers/net/ethernet/mellanox/mlx5/core/en_{tx,rx}.c`.

use verbless_prm::hot::{CtrlSegment, cqe_opcode, cqe_syndrome};
use verbless_prm::{
    Cqe, CqeL3Type, CqeL4Type, CqeOpcode, EthSegment, FteMatchSetLyr24, MinWqeInlineMode,
};

use super::context::StandaloneSq;
use super::cqe::Completion;
use super::function::FunctionEngine;
use super::keys::{self, AccessRight, KeyUser, Range, Sge};
use super::scratch::Scratch;
use super::state::Egress;
use super::transfer;
use super::work::{Segment, segments};
use crate::fabric::Delivery;
use crate::functions::OtherFunctions;
use crate::hca::objects::Objects;
use crate::hca::objects::flow::{Key, steer};
use crate::profile::Link;
use verbless_wire::{EtherType, Ethernet, Vlan};

/// Bytes of the shortest frame without FCS; ports pad shorter frames.
const MIN_FRAME_BYTES: usize = 60;
/// Bytes of the longest frame.
const MAX_FRAME_BYTES: u64 = 10_240;
/// Bytes of the FCS, which a port's MTU counts.
const FCS_BYTES: usize = 4;
/// Offset of the inline headers in a WQE: they begin in the last two bytes of its Ethernet segment.
const HEADERS: usize = CtrlSegment::BYTES + EthSegment::BYTES - 2;

impl StandaloneSq<'_> {
    /// Sends the frame of the WQE in `Scratch::wqe`; the error is the syndrome.
    pub(super) fn send_frame(&mut self, scratch: &mut Scratch) -> Result<(), u8> {
        const MALFORMED: u8 = cqe_syndrome::LOCAL_QP_OPERATION;
        let Scratch { wqe, local, .. } = scratch;
        let ethernet = wqe.get(CtrlSegment::BYTES..).and_then(EthSegment::from_prefix);
        let ethernet = ethernet.ok_or(MALFORMED)?;
        let tis = (self.sq.context.tis_lst_sz() != 0).then(|| self.sq.context.tis_num_0());
        let domain = tis.and_then(|tis| self.context.tises.get(&tis));
        let domain = domain.map(|tis| tis.context.transport_domain());
        // The device offers no checksum, segmentation or VLAN insertion offload.
        let offloads = ethernet.as_bytes()[..8] != [0; 8] || ethernet.insert_vlan();
        let ethernet_port = self.context.addresses.link == Link::Ethernet;
        let Some(domain) = domain.filter(|_| !offloads && ethernet_port) else {
            tracing::info!(
                sqn = self.sqn,
                ?tis,
                offloads,
                "an SQ cannot send a frame: it has no TIS, its port is InfiniBand, or the WQE \
                 requests an offload"
            );
            return Err(MALFORMED);
        };
        let inline = usize::from(ethernet.inline_hdr_sz());
        let data = HEADERS + 2 + inline.saturating_sub(2).next_multiple_of(16);
        if data > wqe.len() {
            return Err(MALFORMED);
        }
        local.clear();
        if inline > 0 {
            local.push(Sge::Inline { at: HEADERS, length: inline as u64 });
        }
        let user = KeyUser { pd: self.sq.pd, qpn: self.sqn, reserved_lkey: self.sq.context.rlky() };
        let (mut total, mut visits) = (inline as u64, keys::VISITS);
        let keys = self.context.keys();
        for segment in segments(wqe, data) {
            match segment.map_err(|_| MALFORMED)? {
                Segment::Pointer { lkey, address, length } => {
                    total += length;
                    if total > MAX_FRAME_BYTES {
                        return Err(cqe_syndrome::LOCAL_LENGTH);
                    }
                    let range = Range { key: lkey, address, length };
                    keys.resolve(user, range, AccessRight::LocalRead, &mut visits, local).map_err(
                        |refusal| {
                            tracing::info!(
                                sqn = self.sqn,
                                ?range,
                                ?refusal,
                                "an mkey refuses a local access"
                            );
                            cqe_syndrome::LOCAL_PROTECTION
                        },
                    )?;
                }
                Segment::Inline { at, length } => {
                    total += length;
                    local.push(Sge::Inline { at, length });
                }
            }
        }
        if !(Ethernet::PLAIN as u64..=MAX_FRAME_BYTES).contains(&total) {
            return Err(cqe_syndrome::LOCAL_LENGTH);
        }
        let total = total as usize;
        if inline < least_inline(self.sq.context.min_wqe_inline_mode()).min(total) {
            tracing::info!(
                sqn = self.sqn,
                inline,
                "a WQE has fewer bytes of inline headers than its SQ's min_wqe_inline_mode requires"
            );
            return Err(MALFORMED);
        }
        let state = &mut *self.context.state;
        state.moved_bytes += total as u64;
        let (spaces, mut gathered) = (self.context.spaces, Ok(()));
        let frame = state.buffers.plain(total.max(MIN_FRAME_BYTES), domain, |into| {
            let (bytes, fill) = into.split_at_mut(total);
            gathered = transfer::gather(spaces, local, wqe, bytes);
            fill.fill(0);
        });
        if gathered.is_err() {
            state.buffers.recycle(frame);
            return Err(cqe_syndrome::LOCAL_PROTECTION);
        }
        state.egress.push(Egress { port: 1, frame });
        Ok(())
    }
}

/// Minimum bytes of inline headers in a WQE; a shorter frame is all inline.
fn least_inline(mode: MinWqeInlineMode) -> usize {
    match mode {
        MinWqeInlineMode::NONE => 0,
        MinWqeInlineMode::L2 => Ethernet::PLAIN,
        MinWqeInlineMode::IP => Ethernet::PLAIN + 20,
        _ => Ethernet::PLAIN + 20 + 8,
    }
}

/// Delivers a frame that has arrived to the RQs that the function's flow tables select.
pub(super) fn arrive(
    function: &mut FunctionEngine,
    others: OtherFunctions<'_>,
    delivery: &Delivery,
    now: u64,
    scratch: &mut Scratch,
) {
    let bytes = delivery.frame.bytes();
    let Ok(frame) = Parsed::of(bytes) else {
        tracing::debug!(length = bytes.len(), "a port drops a frame without an Ethernet header");
        return;
    };
    let (group, hca) = (frame.header.destination.is_group(), &function.hca);
    // A function's own frames do not pass the port, so its MTU limits only the others.
    if !delivery.own && bytes.len() + FCS_BYTES > hca.port_mtu() {
        tracing::debug!(length = bytes.len(), "a port drops a frame that is longer than its MTU");
        return;
    }
    if delivery.own && hca.blocks_own(group) {
        return;
    }
    let domain = delivery.frame.domain().filter(|_| delivery.own);
    let mut selected = Vec::new();
    let Objects { flow_tables, flow_root, tirs, .. } = &hca.objects;
    steer(flow_tables, *flow_root, &frame.key(), |tirn, tag| {
        let Some(tir) = tirs.get(&tirn) else {
            tracing::error!(tirn, "a flow rule names a destroyed TIR");
            return;
        };
        // Bit 0 loops back unicast frames of the TIR's own domain, bit 1 multicast frames.
        let kind = if group { 2 } else { 1 };
        let own = domain == Some(tir.context.transport_domain());
        if !own || tir.context.self_lb_block() & kind != 0 {
            selected.push((tir.context.inline_rqn(), tag));
        }
    });
    for (rqn, tag) in selected {
        match function.rq_among(rqn, now, others) {
            Ok(mut rq) => rq.take(&frame, tag, scratch),
            Err(missing) => tracing::error!(%missing, "a TIR names a destroyed RQ"),
        }
    }
}

/// A frame, and its parsed headers.
pub(super) struct Parsed<'a> {
    bytes: &'a [u8],
    header: Ethernet,
    pub vlan: Option<Vlan>,
    /// The bytes after the Ethernet header.
    rest: &'a [u8],
    l3: CqeL3Type,
    l3_ok: bool,
    l4: CqeL4Type,
    l4_ok: bool,
    /// Version and protocol of an IP packet.
    version: u8,
    protocol: u8,
}

impl<'a> Parsed<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, ()> {
        let (header, rest) = Ethernet::parse(bytes).map_err(drop)?;
        let mut parsed = Self {
            bytes,
            vlan: header.vlan,
            header,
            rest,
            l3: CqeL3Type::NONE,
            l3_ok: false,
            l4: CqeL4Type::NONE,
            l4_ok: false,
            version: 0,
            protocol: 0,
        };
        match header.ether_type {
            EtherType::IPV4 => parsed.ipv4(),
            EtherType::IPV6 => parsed.ipv6(),
            _ => {}
        }
        Ok(parsed)
    }

    fn ipv4(&mut self) {
        let rest = self.rest;
        let length = rest.first().map_or(0, |first| usize::from(first & 0xf) * 4);
        let Some(header) = rest.get(..length).filter(|_| length >= 20) else { return };
        if header[0] >> 4 != 4 {
            return;
        }
        (self.l3, self.version, self.protocol) = (CqeL3Type::IPV4, 4, header[9]);
        self.l3_ok = folded(sum(header)) == 0xffff;
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        // A fragment does not hold the whole datagram, which the checksum covers.
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        if let Some(payload) = rest.get(length..total).filter(|_| !fragment) {
            self.transport(sum(&header[12..20]), payload);
        }
    }

    fn ipv6(&mut self) {
        let Some((header, rest)) = self.rest.split_first_chunk::<40>() else { return };
        if header[0] >> 4 != 6 {
            return;
        }
        (self.l3, self.version, self.protocol) = (CqeL3Type::IPV6, 6, header[6]);
        self.l3_ok = true;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if let Some(payload) = rest.get(..length) {
            self.transport(sum(&header[8..40]), payload);
        }
    }

    /// Parses TCP or UDP; `addresses` is the sum of the IP addresses.
    fn transport(&mut self, addresses: u32, payload: &[u8]) {
        const TCP: u8 = 6;
        const UDP: u8 = 17;
        const ACK: u8 = 0x10;
        let pseudo = addresses + u32::from(self.protocol) + payload.len() as u32;
        let right = folded(pseudo + sum(payload)) == 0xffff;
        match self.protocol {
            UDP if payload.len() >= 8 => {
                // Over IPv4 the checksum of UDP is optional.
                let none = self.version == 4 && payload[6..8] == [0, 0];
                (self.l4, self.l4_ok) = (CqeL4Type::UDP, right || none);
            }
            TCP if payload.len() >= 20 => {
                let data = payload.len() > usize::from(payload[12] >> 4) * 4;
                self.l4 = match (payload[13] & ACK != 0, data) {
                    (false, _) => CqeL4Type::TCP_NO_ACK,
                    (true, false) => CqeL4Type::TCP_ACK_NO_DATA,
                    (true, true) => CqeL4Type::TCP_ACK_AND_DATA,
                };
                self.l4_ok = right;
            }
            _ => {}
        }
    }

    /// The fields of the frame that flow tables match.
    fn key(&self) -> Key {
        let mac = |bytes: [u8; 6]| {
            let [a, b, c, d, e, f] = bytes;
            (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]))
        };
        let mut fields = FteMatchSetLyr24::zeroed();
        let (high, low) = mac(self.header.source.0);
        fields.set_smac_47_16(high).set_smac_15_0(low);
        let (high, low) = mac(self.header.destination.0);
        fields.set_dmac_47_16(high).set_dmac_15_0(low).set_ethertype(self.header.ether_type.0);
        if let Some(vlan) = self.vlan {
            fields.set_cvlan_tag(true).set_first_vid(vlan.id).set_first_prio(vlan.priority);
            fields.set_first_cfi(vlan.drop_eligible);
        }
        fields.set_ip_version(self.version).set_ip_protocol(self.protocol);
        Key::of(&fields)
    }

    /// Writes the frame, without its VLAN tag if that is stripped.
    pub(super) fn write(&self, strip: bool, into: &mut Vec<u8>) {
        into.clear();
        match self.bytes.split_at_checked(12).filter(|_| strip) {
            Some((addresses, rest)) => {
                into.extend_from_slice(addresses);
                into.extend_from_slice(&rest[4..]);
            }
            None => into.extend_from_slice(self.bytes),
        }
    }

    /// The CQE of the RQ that received the frame, with the index of its WQE and its byte count.
    pub(super) fn completion(
        &self,
        (rqn, user_index): (u32, u32),
        tag: u32,
        (index, bytes): (u16, u32),
        stripped: bool,
        now: u64,
    ) -> Completion {
        let mut cqe = Cqe::zeroed();
        cqe.set_opcode(CqeOpcode(cqe_opcode::RESPONDER_SEND)).set_srqn_uidx(user_index);
        cqe.set_byte_cnt(bytes).set_timestamp(now).set_qpn(tag).set_wqe_counter(index);
        cqe.set_l2_ok(true).set_l3_ok(self.l3_ok).set_l4_ok(self.l4_ok);
        cqe.set_l3_hdr_type(self.l3).set_l4_hdr_type(self.l4);
        cqe.set_check_sum(folded(sum(self.rest)));
        if let Some(vlan) = self.vlan.filter(|_| stripped) {
            cqe.set_has_vlan(true).set_vlan_info(vlan.bits());
        }
        Completion { number: rqn, body: *cqe.as_bytes(), first_half: None, solicited: false }
    }
}

/// The sum of big-endian words of 16 bits (RFC 1071); an odd byte at the end is the high half of
/// the last word.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum()
}

/// Folds a sum into 16 bits, with its carries.
fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}
