//! Virtual ports: the Ethernet and the InfiniBand contexts of the function's own port, and its
//! address tables.

use verbless_prm::{
    IbPhysicalState, IbPortState, MacAddressLayout, ModifyHcaVportContextIn,
    ModifyHcaVportContextOut, ModifyNicVportContextIn, ModifyNicVportContextOut,
    QueryHcaVportContextIn, QueryHcaVportContextOut, QueryHcaVportGidIn, QueryHcaVportGidOut,
    QueryHcaVportPkeyIn, QueryHcaVportPkeyOut, QueryNicVportContextIn, QueryNicVportContextOut,
    QueryRoceAddressIn, QueryRoceAddressOut, QueryVportStateIn, QueryVportStateOut, RoceAddrLayout,
    RoceL3Type, RoceL3TypeCap, SetRoceAddressIn, SetRoceAddressOut, VportAdminState, VportListType,
    VportState,
};

use super::call::{Call, Outcome};
use crate::hca::DEFAULT_PKEY;
use crate::hca::effect::Effect;
use crate::hca::refusal::Refusal;
use crate::hca::state::Port;
use crate::profile::Link;

/// The index of the whole table.
const WHOLE_TABLE: u16 = 0xffff;

impl Call<'_> {
    /// Refuses the command unless it names the function's own vport.
    fn own_vport(&self, other: bool, number: u16) -> Outcome {
        if other && number != 0 { Err(Refusal::NoSuchFunction) } else { Ok(()) }
    }

    /// The port that an InfiniBand command names; 0 is the first: only devices with several ports
    /// read the field.
    fn ib_port(&self, number: u8) -> Result<(usize, &Port), Refusal> {
        if self.hca().profile.link() != Link::Infiniband {
            return Err(Refusal::WrongLink);
        }
        self.port(number)
    }

    /// The port that a command of either link names.
    fn port(&self, number: u8) -> Result<(usize, &Port), Refusal> {
        let index = usize::from(number.max(1)) - 1;
        let port = self.hca().ports.get(index).ok_or(Refusal::NoSuchPort)?;
        Ok((index, port))
    }

    /// Writes a list after the fixed part of the outbox: one table entry, or all.
    fn put_list(&mut self, start: usize, list: &[u8]) -> Outcome {
        let room = self.output.get_mut(start..start + list.len()).ok_or(Refusal::OutputTooShort)?;
        room.copy_from_slice(list);
        Ok(())
    }
}

/// QUERY_NIC_VPORT_CONTEXT.
pub(super) fn query_nic(
    call: &mut Call<'_>,
    input: &QueryNicVportContextIn,
    output: &mut QueryNicVportContextOut,
) -> Outcome {
    call.own_vport(input.other_vport(), input.vport_number())?;
    let hca = call.hca();
    let identity = &hca.identity;
    let port = identity.ports.first().ok_or(Refusal::NoSuchPort)?;
    let now = hca.nic_vport();
    let context = output.nic_vport_context_mut();
    *context = now.context;
    context.set_system_image_guid(identity.system_image_guid);
    context.set_port_guid(port.guid);
    context.set_node_guid(identity.node_guid);
    context.set_allowed_list_type(input.allowed_list_type());
    let violations = hca.ports.first().map(|port| port.violations).unwrap_or_default();
    context.set_qkey_violation_counter(violations.qkey);
    let list = now.lists.get(&input.allowed_list_type().0).cloned().unwrap_or_default();
    // A caller without room for a list requests none.
    if call.output.len() > QueryNicVportContextOut::BYTES {
        context.set_allowed_list_size((list.len() / MacAddressLayout::BYTES) as u16);
        call.put_list(QueryNicVportContextOut::BYTES, &list)?;
    }
    Ok(())
}

/// MODIFY_NIC_VPORT_CONTEXT: the driver selects the frames to receive, and enables RoCE.
pub(super) fn modify_nic(
    call: &mut Call<'_>,
    input: &ModifyNicVportContextIn,
    _: &mut ModifyNicVportContextOut,
) -> Outcome {
    call.own_vport(input.other_vport(), input.vport_number())?;
    let (fields, new) = (input.field_select(), input.nic_vport_context());
    let general = call.hca().caps.general();
    let fixed = fields.affiliation() || fields.node_guid() || fields.port_guid();
    let roce = fields.roce_en() && new.roce_en();
    let offered = general.roce() && call.hca().profile.link() == Link::Ethernet;
    let loopback = fields.disable_uc_local_lb() && !general.disable_local_lb_uc()
        || fields.disable_mc_local_lb() && !general.disable_local_lb_mc();
    if fixed || fields.min_inline() || loopback || (roce && !offered) {
        return Err(Refusal::VportField);
    }
    let mut now = call.hca().nic_vport();
    if fields.addresses_list() {
        let log_max = match new.allowed_list_type() {
            VportListType::UC => general.log_max_current_uc_list(),
            VportListType::MC => general.log_max_current_mc_list(),
            VportListType::VLAN => general.log_max_vlan_list(),
            _ => return Err(Refusal::VportField),
        };
        let count = usize::from(new.allowed_list_size());
        if count > 1 << log_max {
            return Err(Refusal::VportField);
        }
        let bytes = count * MacAddressLayout::BYTES;
        let list = call.list.get(..bytes).ok_or(Refusal::ListTooShort)?;
        now.lists.insert(new.allowed_list_type().0, list.to_vec());
    }
    macro_rules! take {
        ($($selected:ident: $($get:ident $set:ident),*;)*) => {
            $(if fields.$selected() { $(now.context.$set(new.$get());)* })*
        };
    }
    take! {
        roce_en: roce_en set_roce_en;
        mtu: mtu set_mtu;
        promisc: promisc_uc set_promisc_uc, promisc_mc set_promisc_mc, promisc_all set_promisc_all;
        disable_uc_local_lb: disable_uc_local_lb set_disable_uc_local_lb;
        disable_mc_local_lb: disable_mc_local_lb set_disable_mc_local_lb;
        change_event: arm_change_event set_arm_change_event, event_on_mtu set_event_on_mtu,
            event_on_promisc_change set_event_on_promisc_change,
            event_on_vlan_change set_event_on_vlan_change,
            event_on_mc_address_change set_event_on_mc_address_change,
            event_on_uc_address_change set_event_on_uc_address_change;
    }
    if fields.permanent_address() {
        *now.context.permanent_address_mut() = *new.permanent_address();
    }
    let hca = call.hca_mut();
    hca.nic_vport = Some(now);
    hca.effects.push(Effect::AddressesChanged);
    Ok(())
}

/// QUERY_HCA_VPORT_CONTEXT.
pub(super) fn query_hca(
    call: &mut Call<'_>,
    input: &QueryHcaVportContextIn,
    output: &mut QueryHcaVportContextOut,
) -> Outcome {
    call.own_vport(input.other_vport(), input.vport_number())?;
    let (index, port) = call.ib_port(input.port_num())?;
    let hca = call.hca();
    let context = output.hca_vport_context_mut();
    *context = *hca.profile.hca_vport();
    let (physical, logical) = match port.up {
        true => (IbPhysicalState::LINK_UP, IbPortState::ACTIVE),
        false => (IbPhysicalState::POLLING, IbPortState::DOWN),
    };
    context.set_port_physical_state(physical);
    context.set_port_state(logical).set_vport_state(logical);
    context.set_system_image_guid(hca.identity.system_image_guid);
    context.set_port_guid(hca.identity.ports[index].guid);
    context.set_node_guid(hca.identity.node_guid);
    context.set_lid(port.lid).set_cap_mask1(port.cap_mask1);
    context.set_pkey_violation_counter(port.violations.pkey);
    context.set_qkey_violation_counter(port.violations.qkey);
    Ok(())
}

/// MODIFY_HCA_VPORT_CONTEXT: software declares the capabilities of a port; GUIDs and the port state
/// policy cannot change.
pub(super) fn modify_hca(
    call: &mut Call<'_>,
    input: &ModifyHcaVportContextIn,
    _: &mut ModifyHcaVportContextOut,
) -> Outcome {
    call.own_vport(input.other_vport(), input.vport_number())?;
    let (index, _) = call.ib_port(input.port_num())?;
    let new = input.hca_vport_context();
    let changes = new.cap_mask1_field_select();
    let allowed = call.hca().profile.hca_vport().cap_mask1_field_select();
    if new.field_select() != 0 || new.cap_mask2_field_select() != 0 || changes & !allowed != 0 {
        return Err(Refusal::VportField);
    }
    let mask = &mut call.hca_mut().ports[index].cap_mask1;
    *mask = *mask & !changes | new.cap_mask1() & changes;
    Ok(())
}

/// QUERY_HCA_VPORT_GID: the link-local GID is entry 0; the others are empty.
pub(super) fn query_gid(
    call: &mut Call<'_>,
    input: &QueryHcaVportGidIn,
    output: &mut QueryHcaVportGidOut,
) -> Outcome {
    call.own_vport(input.other_vport(), input.vport_number())?;
    let (index, _) = call.ib_port(input.port_num())?;
    let size = call.hca().caps.gids();
    let gid = call.hca().identity.ports[index].link_local_gid();
    let list = match input.gid_index() {
        WHOLE_TABLE => table(&gid, size),
        0 => gid.to_vec(),
        entry if u32::from(entry) < size => vec![0; gid.len()],
        _ => return Err(Refusal::GidIndex),
    };
    output.set_gids_num((list.len() / gid.len()) as u16);
    call.put_list(QueryHcaVportGidOut::BYTES, &list)
}

/// QUERY_HCA_VPORT_PKEY: the default P_Key is entry 0; the others are empty. An Ethernet port has
/// the table too: Linux reads it on every port.
pub(super) fn query_pkey(
    call: &mut Call<'_>,
    input: &QueryHcaVportPkeyIn,
    _: &mut QueryHcaVportPkeyOut,
) -> Outcome {
    call.own_vport(input.other_vport(), input.vport_number())?;
    call.port(input.port_num())?;
    let size = call.hca().caps.pkeys();
    let first = u32::from(DEFAULT_PKEY).to_be_bytes();
    let list = match input.pkey_index() {
        WHOLE_TABLE => table(&first, size),
        0 => first.to_vec(),
        entry if u32::from(entry) < size => vec![0; first.len()],
        _ => return Err(Refusal::PkeyIndex),
    };
    call.put_list(QueryHcaVportPkeyOut::BYTES, &list)
}

/// A table of `size` entries with only the first in use.
fn table(first: &[u8], size: u32) -> Vec<u8> {
    let mut table = vec![0; first.len() * size as usize];
    table[..first.len()].copy_from_slice(first);
    table
}

/// QUERY_VPORT_STATE.
pub(super) fn query_state(
    call: &mut Call<'_>,
    input: &QueryVportStateIn,
    output: &mut QueryVportStateOut,
) -> Outcome {
    call.own_vport(input.other_vport(), input.vport_number())?;
    let up = call.hca().ports.first().is_some_and(|port| port.up);
    output.set_admin_state(VportAdminState::AUTO);
    output.set_state(if up { VportState::UP } else { VportState::DOWN });
    Ok(())
}

/// QUERY_ROCE_ADDRESS.
pub(super) fn query_roce_address(
    call: &mut Call<'_>,
    input: &QueryRoceAddressIn,
    output: &mut QueryRoceAddressOut,
) -> Outcome {
    let table = &call.hca().roce_addresses;
    let entry = table.get(usize::from(input.roce_address_index())).ok_or(roce_refusal(call))?;
    *output.roce_address_mut() = *entry;
    Ok(())
}

/// SET_ROCE_ADDRESS.
pub(super) fn set_roce_address(
    call: &mut Call<'_>,
    input: &SetRoceAddressIn,
    _: &mut SetRoceAddressOut,
) -> Outcome {
    let index = usize::from(input.roce_address_index());
    let new = *input.roce_address();
    if index >= call.hca().roce_addresses.len() {
        return Err(roce_refusal(call));
    }
    if input.vhca_port_num() > 1 {
        return Err(Refusal::NoSuchPort);
    }
    let roce = call.hca().caps.roce();
    let layer = match new.roce_l3_type() {
        RoceL3Type::IPV4 => RoceL3TypeCap::IPV4.0,
        RoceL3Type::IPV6 => RoceL3TypeCap::IPV6.0,
        _ => 0,
    };
    let version = 1_u8.checked_shl(new.roce_version().0.into()).unwrap_or(0);
    let empty = new == RoceAddrLayout::zeroed();
    if !empty && (roce.l3_type() & layer == 0 || roce.roce_version() & version == 0) {
        return Err(Refusal::RoceAddress);
    }
    let hca = call.hca_mut();
    hca.roce_addresses[index] = new;
    let used = hca.roce_addresses.iter().filter(|entry| **entry != RoceAddrLayout::zeroed());
    let gids = used.map(|entry| *entry.source_l3_address()).collect();
    if let Some(port) = hca.ports.first_mut() {
        port.gids = gids;
    }
    hca.effects.push(Effect::AddressesChanged);
    Ok(())
}

/// The refusal for an absent entry: an InfiniBand port has no table at all.
fn roce_refusal(call: &Call<'_>) -> Refusal {
    match call.hca().profile.link() {
        Link::Infiniband => Refusal::WrongLink,
        Link::Ethernet => Refusal::GidIndex,
    }
}
