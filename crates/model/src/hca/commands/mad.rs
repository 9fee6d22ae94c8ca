//! MAD_IFC: the device's subnet management agent, and the part of a performance agent that drivers
//! use.
//!
//! Layouts and attributes are those of the InfiniBand specification, volume 1, chapters 13 (MADs),
//! 14 (subnet management) and 16 (performance management). The model has no subnet manager: ports
//! come up with a LID of their own.

use verbless_prm::{MadIfcIn, MadIfcOut, PtysReg, PvlcReg, RegisterId, Structure};

use super::call::{Call, Outcome};
use crate::fabric::address::FIRST_MULTICAST_LID;
use crate::hca::effect::Effect;
use crate::hca::refusal::Refusal;
use crate::hca::state::Hca;
use crate::profile::Link;

/// Bytes of a MAD.
const MAD: usize = 256;
/// Offset of the data in an SMP or a performance MAD.
const DATA: usize = 64;

/// Management classes.
const CLASS_LID_ROUTED: u8 = 0x01;
const CLASS_DIRECTED: u8 = 0x81;
const CLASS_PERFORMANCE: u8 = 0x04;

/// Methods.
const GET: u8 = 0x01;
const SET: u8 = 0x02;
const GET_RESPONSE: u8 = 0x81;

/// Subnet management attributes.
const NODE_DESCRIPTION: u16 = 0x10;
const NODE_INFO: u16 = 0x11;
const GUID_INFO: u16 = 0x14;
const PORT_INFO: u16 = 0x15;
const PKEY_TABLE: u16 = 0x16;

/// Performance attributes.
const CLASS_PORT_INFO: u16 = 0x01;
const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;

/// MAD statuses: an unsupported combination of method and attribute; a value out of range.
const UNSUPPORTED: u16 = 3 << 2;
const INVALID: u16 = 7 << 2;
/// The direction bit in the status of a directed SMP: a response.
const DIRECTION: u16 = 1 << 15;

/// GUIDs and P_Keys per block of their tables.
const GUIDS: u32 = 8;
const PKEYS: u32 = 32;

/// A datagram, read and written by the byte offsets of the specification.
struct Mad([u8; MAD]);

impl Mad {
    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn class(&self) -> u8 {
        self.0[1]
    }

    fn method(&self) -> u8 {
        self.0[3]
    }

    fn attribute(&self) -> u16 {
        self.u16(16)
    }

    fn modifier(&self) -> u32 {
        u32::from(self.u16(20)) << 16 | u32::from(self.u16(22))
    }
}

/// MAD_IFC.
pub(super) fn mad_ifc(call: &mut Call<'_>, input: &MadIfcIn, output: &mut MadIfcOut) -> Outcome {
    let index = usize::from(input.port()).checked_sub(1).ok_or(Refusal::NoSuchPort)?;
    if index >= call.hca().ports.len() || input.plane_index() != 0 {
        return Err(Refusal::NoSuchPort);
    }
    let request = Mad(*input.mad());
    // Base version 1 is the only one.
    if request.0[0] != 1 || ![GET, SET].contains(&request.method()) {
        return Err(Refusal::MadPacket);
    }
    let mut response = Mad(request.0);
    response.0[3] = GET_RESPONSE;
    let directed = request.class() == CLASS_DIRECTED;
    let status = match request.class() {
        CLASS_LID_ROUTED | CLASS_DIRECTED if call.hca().profile.link() == Link::Infiniband => {
            subnet(call, index, &request, &mut response)
        }
        CLASS_PERFORMANCE => performance(&request, &mut response),
        _ => return Err(Refusal::MadPacket),
    };
    let direction = if directed { DIRECTION } else { 0 };
    response.put(4, &(status.err().unwrap_or(0) | direction).to_be_bytes());
    output.set_response_mad_packet(&response.0);
    Ok(())
}

/// Answers a subnet management packet; the error is the MAD's status.
fn subnet(call: &mut Call<'_>, index: usize, request: &Mad, response: &mut Mad) -> Result<(), u16> {
    if request.method() == SET {
        return match request.attribute() {
            PORT_INFO => set_port_info(call, index, request, response),
            _ => Err(UNSUPPORTED),
        };
    }
    let hca = call.hca();
    response.0[DATA..DATA + 64].fill(0);
    match request.attribute() {
        NODE_DESCRIPTION => {
            let name = hca.profile.name().as_bytes();
            let given = hca.registers.get(&RegisterId::NODE_DESC.0).map_or(name, |given| given);
            response.put(DATA, &given[..given.len().min(64)]);
        }
        NODE_INFO => node_info(hca, index, response),
        GUID_INFO if request.modifier() < hca.caps.gids().div_ceil(GUIDS) => {
            if request.modifier() == 0 {
                response.put(DATA, &hca.identity.ports[index].guid.to_be_bytes());
            }
        }
        PORT_INFO => match request.modifier() as usize {
            // 0 is the port of arrival.
            0 => port_info(hca, index, response),
            port if port <= hca.ports.len() => port_info(hca, port - 1, response),
            _ => return Err(INVALID),
        },
        PKEY_TABLE if (request.modifier() & 0xffff) < hca.caps.pkeys().div_ceil(PKEYS) => {
            let first = (request.modifier() & 0xffff) * PKEYS;
            for slot in 0..PKEYS {
                let key = hca.pkey(first + slot).unwrap_or(0);
                response.put(DATA + 2 * slot as usize, &key.to_be_bytes());
            }
        }
        GUID_INFO | PKEY_TABLE => return Err(INVALID),
        _ => return Err(UNSUPPORTED),
    }
    Ok(())
}

fn node_info(hca: &Hca, index: usize, response: &mut Mad) {
    const CHANNEL_ADAPTER: u8 = 1;
    let device = hca.profile.device();
    let identity = &hca.identity;
    let port = index as u32 + 1;
    response.put(DATA, &[1, 1, CHANNEL_ADAPTER, hca.ports.len() as u8]);
    response.put(DATA + 4, &identity.system_image_guid.to_be_bytes());
    response.put(DATA + 12, &identity.node_guid.to_be_bytes());
    response.put(DATA + 20, &identity.ports[index].guid.to_be_bytes());
    response.put(DATA + 28, &(hca.caps.pkeys() as u16).to_be_bytes());
    response.put(DATA + 30, &device.device_id.to_be_bytes());
    response.put(DATA + 36, &(port << 24 | device.ieee_vendor_id & 0xff_ffff).to_be_bytes());
}

fn port_info(hca: &Hca, index: usize, response: &mut Mad) {
    const LINK_LOCAL: u64 = 0xfe80 << 48;
    const LINK_UP: u8 = 5;
    const POLLING: u8 = 2;
    const ACTIVE: u8 = 4;
    const DOWN: u8 = 1;
    let (port, context, numbers) = (&hca.ports[index], hca.profile.hca_vport(), hca.profile.port());
    let mtu = |bytes: u16| (bytes.max(256).ilog2() - 7) as u8;
    let rates = register::<PtysReg>(hca, RegisterId::PTYS);
    let lanes = register::<PvlcReg>(hca, RegisterId::PVLC);
    let widths = [rates.ib_link_width_admin(), rates.ib_link_width_capability()].map(widths);
    let [enabled, supported, active] =
        [rates.ib_proto_admin(), rates.ib_proto_capability(), rates.ib_proto_oper()]
            .map(PtysSpeeds);
    let (state, physical) = if port.up { (ACTIVE, LINK_UP) } else { (DOWN, POLLING) };
    response.put(DATA + 8, &LINK_LOCAL.to_be_bytes());
    response.put(DATA + 16, &port.lid.to_be_bytes());
    response.put(DATA + 18, &context.sm_lid().to_be_bytes());
    response.put(DATA + 20, &port.cap_mask1.to_be_bytes());
    response.put(DATA + 28, &[index as u8 + 1, widths[0], widths[1], numbers.active_width]);
    response
        .put(DATA + 32, &[supported.legacy() << 4 | state, physical << 4 | POLLING, context.lmc()]);
    response.put(DATA + 35, &[active.legacy_active() << 4 | enabled.legacy()]);
    response.put(DATA + 36, &[mtu(numbers.active_mtu) << 4 | context.sm_sl()]);
    response.put(DATA + 37, &[lanes.vl_hw_cap() << 4]);
    response.put(DATA + 41, &[mtu(numbers.max_mtu), 0, lanes.vl_operational() << 4]);
    response.put(DATA + 46, &port.violations.pkey.to_be_bytes());
    response.put(DATA + 48, &port.violations.qkey.to_be_bytes());
    response.put(DATA + 50, &[hca.caps.gids() as u8, context.subnet_timeout()]);
    response.put(DATA + 62, &[active.extended() << 4 | supported.extended(), enabled.extended()]);
}

/// A register of the profile; all 0 if the profile has none.
fn register<R: Structure>(hca: &Hca, id: RegisterId) -> R {
    let mut value = R::default();
    if let Some(given) = hca.profile.registers().get(&id.0) {
        let bytes = value.as_mut_bytes();
        let length = bytes.len().min(given.bytes.len());
        bytes[..length].copy_from_slice(&given.bytes[..length]);
    }
    value
}

/// Widths of PTYS (1X, 2X, 4X, 8X, 12X from bit 0 on) in PortInfo's order (1X, 4X, 8X, 12X, 2X).
fn widths(ptys: u16) -> u8 {
    let bit = |from: u32, to: u32| (ptys >> from & 1) << to;
    (bit(0, 0) | bit(1, 4) | bit(2, 1) | bit(3, 2) | bit(4, 3)) as u8
}

/// Speeds of PTYS: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR from bit 0 on.
#[derive(Clone, Copy)]
struct PtysSpeeds(u16);

impl PtysSpeeds {
    /// LinkSpeedSupported and LinkSpeedEnabled: SDR, DDR, QDR.
    fn legacy(self) -> u8 {
        self.0 as u8 & 7
    }

    /// LinkSpeedActive, which is QDR if LinkSpeedExtActive gives a higher speed.
    fn legacy_active(self) -> u8 {
        const QDR: u8 = 4;
        if self.0 & !7 == 0 { self.legacy() } else { QDR }
    }

    /// LinkSpeedExt: FDR, EDR, HDR, NDR.
    fn extended(self) -> u8 {
        (self.0 >> 4) as u8 & 0xf
    }
}

/// Sets the port's LID, as a subnet manager does; ignores other fields.
fn set_port_info(
    call: &mut Call<'_>,
    index: usize,
    request: &Mad,
    response: &mut Mad,
) -> Result<(), u16> {
    let port = request.modifier() as usize;
    let lid = request.u16(DATA + 16);
    if port > call.hca().ports.len() || lid >= FIRST_MULTICAST_LID || lid == 0 {
        return Err(INVALID);
    }
    let index = port.checked_sub(1).unwrap_or(index);
    let hca = call.hca_mut();
    if std::mem::replace(&mut hca.ports[index].lid, lid) != lid {
        hca.effects.push(Effect::PortLid(index as u8 + 1));
    }
    response.0[DATA..DATA + 64].fill(0);
    port_info(call.hca(), index, response);
    Ok(())
}

/// Answers a performance query: the model counts no traffic, so every counter is 0.
fn performance(request: &Mad, response: &mut Mad) -> Result<(), u16> {
    const EXTENDED_WIDTH: u16 = 1 << 9;
    match request.attribute() {
        CLASS_PORT_INFO => {
            response.0[DATA..].fill(0);
            response.put(DATA, &[1, 1]);
            response.put(DATA + 2, &EXTENDED_WIDTH.to_be_bytes());
        }
        PORT_COUNTERS | PORT_COUNTERS_EXTENDED => {
            let select = request.0[DATA + 1];
            response.0[DATA..].fill(0);
            response.put(DATA + 1, &[select]);
        }
        _ => return Err(UNSUPPORTED),
    }
    Ok(())
}
