//! Receive flow tables of a function: tables, groups, entries, and the root.

use verbless_prm::{
    CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut,
    DeleteFlowTableEntryIn, DeleteFlowTableEntryOut, DestroyFlowGroupIn, DestroyFlowGroupOut,
    DestroyFlowTableIn, DestroyFlowTableOut, FlowContext, FlowContextAction, FlowDestination,
    FlowDestinationType, FlowTableCap, FlowTablePropLayout, FlowTableType, FteMatchSetLyr24,
    HcaCapPage, MatchCriteriaEnable, ModifyFlowTableField, ModifyFlowTableIn, ModifyFlowTableOut,
    QueryFlowGroupIn, QueryFlowGroupOut, QueryFlowTableEntryIn, QueryFlowTableEntryOut,
    QueryFlowTableIn, QueryFlowTableOut, SetFlowTableEntryIn, SetFlowTableEntryOut,
    SetFlowTableRootIn, SetFlowTableRootOut, SetFteModifyEnable, TableMissAction,
};

use super::call::{Call, Outcome};
use crate::hca::objects::flow::{Destination, FlowEntry, FlowGroup, FlowTable, Key};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// Fields of the context that CREATE_FLOW_TABLE accepts.
const KNOWN_TABLE: [&str; 4] = ["table_miss_action", "level", "log_size", "table_miss_id"];
/// Known fields of an entry; other code checks its match values.
const KNOWN_ENTRY: [&str; 5] =
    ["group_id", "flow_tag", "action", "destination_list_size", "match_value"];
/// The supported actions of an entry.
const ACTIONS: u16 =
    FlowContextAction::ALLOW.0 | FlowContextAction::DROP.0 | FlowContextAction::FWD_DEST.0;

/// Checks that a command names receive tables of the function's own port.
macro_rules! check_own {
    ($call:expr, $input:expr) => {{
        let own = !$input.other_vport() && !$input.other_eswitch();
        if !own || $input.table_type() != FlowTableType::NIC_RX {
            return Err(Refusal::Unsupported);
        }
        properties($call)?
    }};
}

/// The device's capabilities for NIC receive tables.
fn properties(call: &Call<'_>) -> Result<FlowTablePropLayout, Refusal> {
    let page = call.hca().caps.page(HcaCapPage::FLOW_TABLE.0)?;
    let page = FlowTableCap::from_prefix(&page.current).ok_or(Refusal::NoSuchPage)?;
    let properties = *page.flow_table_properties_nic_receive();
    if properties.ft_support() { Ok(properties) } else { Err(Refusal::Unsupported) }
}

/// CREATE_FLOW_TABLE.
pub(in crate::hca) fn create_table(
    call: &mut Call<'_>,
    input: &CreateFlowTableIn,
    output: &mut CreateFlowTableOut,
) -> Outcome {
    let properties = check_own!(call, input);
    let context = *input.flow_table_context();
    call.check_known_fields(&context, &KNOWN_TABLE)?;
    call.check_count(call.hca().objects.flow_tables.len(), properties.log_max_ft_num())?;
    if context.log_size() > properties.log_max_ft_size() {
        return Err(Refusal::FlowTableSize);
    }
    if context.level() > properties.max_ft_level() {
        return Err(Refusal::FlowTableLevel);
    }
    check_miss(call, &context, context.level())?;
    let table = FlowTable {
        uid: call.uid,
        context,
        groups: Default::default(),
        entries: Default::default(),
    };
    output.set_table_id(call.make(kind::FlowTable, table)?);
    Ok(())
}

/// Whether a table of this level may have the miss action of the context.
fn check_miss(call: &Call<'_>, context: &verbless_prm::FlowTableContext, level: u8) -> Outcome {
    match context.table_miss_action() {
        TableMissAction::DEF => Ok(()),
        TableMissAction::FWD => check_above(call, context.table_miss_id(), level),
        _ => Err(Refusal::Unsupported),
    }
}

/// Checks that a table of this level may forward to another one.
fn check_above(call: &Call<'_>, table: u32, level: u8) -> Outcome {
    let above = call.find(kind::FlowTable, table)?.context.level() > level;
    if above { Ok(()) } else { Err(Refusal::FlowTableLevel) }
}

/// MODIFY_FLOW_TABLE: sets the miss action.
pub(in crate::hca) fn modify_table(
    call: &mut Call<'_>,
    input: &ModifyFlowTableIn,
    _: &mut ModifyFlowTableOut,
) -> Outcome {
    let _ = check_own!(call, input);
    let (number, new) = (input.table_id(), *input.flow_table_context());
    let level = call.find(kind::FlowTable, number)?.context.level();
    if input.modify_field_select() & !ModifyFlowTableField::MISS_TABLE_ID.0 != 0 {
        return Err(Refusal::Unsupported);
    }
    if input.modify_field_select() == 0 {
        return Ok(());
    }
    check_miss(call, &new, level)?;
    call.change(kind::FlowTable, number, |table| {
        table.context.set_table_miss_action(new.table_miss_action());
        table.context.set_table_miss_id(new.table_miss_id());
    })
}

/// QUERY_FLOW_TABLE.
pub(in crate::hca) fn query_table(
    call: &mut Call<'_>,
    input: &QueryFlowTableIn,
    output: &mut QueryFlowTableOut,
) -> Outcome {
    *output.flow_table_context_mut() = call.find(kind::FlowTable, input.table_id())?.context;
    Ok(())
}

/// DESTROY_FLOW_TABLE. If the table is the root, the function has no root afterwards: Linux
/// destroys its last root without disconnecting it (`update_root_ft_destroy` of `fs_core.c`).
pub(in crate::hca) fn destroy_table(
    call: &mut Call<'_>,
    input: &DestroyFlowTableIn,
    _: &mut DestroyFlowTableOut,
) -> Outcome {
    let number = input.table_id();
    if !call.find(kind::FlowTable, number)?.groups.is_empty() {
        return Err(Refusal::FlowTableInUse);
    }
    call.destroy(kind::FlowTable, number)
}

/// SET_FLOW_TABLE_ROOT: sets the first table for frames; with op_mod DISCONNECT, removes it.
pub(in crate::hca) fn set_root(
    call: &mut Call<'_>,
    input: &SetFlowTableRootIn,
    _: &mut SetFlowTableRootOut,
) -> Outcome {
    let properties = check_own!(call, input);
    if !properties.modify_root() || input.underlay_qpn() != 0 || input.table_of_other_vport() {
        return Err(Refusal::Unsupported);
    }
    let number = input.table_id();
    call.find(kind::FlowTable, number)?;
    let objects = &mut call.hca_mut().objects;
    objects.flow_root = match input.op_mod() {
        SetFlowTableRootIn::DISCONNECT if objects.flow_root == Some(number) => None,
        SetFlowTableRootIn::DISCONNECT => objects.flow_root,
        _ => Some(number),
    };
    Ok(())
}

/// CREATE_FLOW_GROUP.
pub(in crate::hca) fn create_group(
    call: &mut Call<'_>,
    input: &CreateFlowGroupIn,
    output: &mut CreateFlowGroupOut,
) -> Outcome {
    let _ = check_own!(call, input);
    let table = call.find(kind::FlowTable, input.table_id())?;
    let (first, last) = (input.start_flow_index(), input.end_flow_index());
    let overlaps = |group: &FlowGroup| first <= *group.range.end() && *group.range.start() <= last;
    if first > last || last >= table.size() || table.groups.values().any(overlaps) {
        return Err(Refusal::FlowGroupRange);
    }
    let enable = input.match_criteria_enable();
    let unsupported = input.group_type() != 0 || input.source_eswitch_owner_vhca_id_valid();
    if unsupported || enable & !MatchCriteriaEnable::OUTER_HEADERS.0 != 0 {
        return Err(Refusal::FlowCriteria);
    }
    let mask = Key::mask(input.match_criteria()).ok_or(Refusal::FlowCriteria)?;
    // A disabled header is not matched, so a mask for it is a mistake.
    if enable == 0 && mask != Key::of(&FteMatchSetLyr24::zeroed()) {
        return Err(Refusal::FlowCriteria);
    }
    let number = (0..).find(|number| !table.groups.contains_key(number)).unwrap_or(u32::MAX);
    call.change(kind::FlowTable, input.table_id(), |table| {
        table.groups.insert(number, FlowGroup { range: first..=last, enable, mask });
    })?;
    output.set_group_id(number);
    Ok(())
}

/// DESTROY_FLOW_GROUP.
pub(in crate::hca) fn destroy_group(
    call: &mut Call<'_>,
    input: &DestroyFlowGroupIn,
    _: &mut DestroyFlowGroupOut,
) -> Outcome {
    let (table, number) = (input.table_id(), input.group_id());
    let found = call.find(kind::FlowTable, table)?;
    if !found.groups.contains_key(&number) {
        return Err(Refusal::NoSuchFlowGroup);
    }
    if found.entries.values().any(|entry| entry.group == number) {
        return Err(Refusal::FlowGroupInUse);
    }
    call.change(kind::FlowTable, table, |table| {
        table.groups.remove(&number);
    })
}

/// QUERY_FLOW_GROUP.
pub(in crate::hca) fn query_group(
    call: &mut Call<'_>,
    input: &QueryFlowGroupIn,
    output: &mut QueryFlowGroupOut,
) -> Outcome {
    let table = call.find(kind::FlowTable, input.table_id())?;
    let group = table.groups.get(&input.group_id()).ok_or(Refusal::NoSuchFlowGroup)?;
    output.set_start_flow_index(*group.range.start()).set_end_flow_index(*group.range.end());
    output.set_match_criteria_enable(group.enable);
    group.mask.write(output.match_criteria_mut().outer_headers_mut());
    Ok(())
}

/// SET_FLOW_TABLE_ENTRY: a new entry, or changes of one.
pub(in crate::hca) fn set_entry(
    call: &mut Call<'_>,
    input: &SetFlowTableEntryIn,
    _: &mut SetFlowTableEntryOut,
) -> Outcome {
    let properties = check_own!(call, input);
    let (number, index) = (input.table_id(), input.flow_index());
    let new = *input.flow_context();
    let changes = input.op_mod() == SetFlowTableEntryIn::MODIFY;
    let table = call.find(kind::FlowTable, number)?;
    let level = table.context.level();
    let old = match (changes, table.entries.get(&index)) {
        (false, Some(_)) => return Err(Refusal::FlowEntryExists),
        (true, None) => return Err(Refusal::NoSuchFlowEntry),
        (_, old) => old,
    };
    let group = match old {
        Some(old) => old.group,
        None => new.group_id(),
    };
    let group_of = table.groups.get(&group).ok_or(Refusal::NoSuchFlowGroup)?;
    if !group_of.range.contains(&index) {
        return Err(Refusal::FlowIndex);
    }
    let mask = group_of.mask;
    let mut context = match old {
        Some(old) => *old.context,
        None => new,
    };
    call.check_known_fields(&new, &KNOWN_ENTRY)?;
    let select = input.modify_enable_mask();
    let selected = |what: SetFteModifyEnable| !changes || select & what.0 != 0;
    let known = SetFteModifyEnable::ACTION.0
        | SetFteModifyEnable::FLOW_TAG.0
        | SetFteModifyEnable::DESTINATION_LIST.0;
    if changes && (select & !known != 0 || !properties.flow_modify_en()) {
        return Err(Refusal::Unsupported);
    }
    if selected(SetFteModifyEnable::ACTION) {
        context.set_action(new.action());
    }
    if selected(SetFteModifyEnable::FLOW_TAG) {
        context.set_flow_tag(new.flow_tag());
    }
    let mut to = old.map(|old| old.to.clone()).unwrap_or_default();
    if selected(SetFteModifyEnable::DESTINATION_LIST) {
        to = destinations(call, &new, &properties, (level, input.ignore_flow_level()))?;
        context.set_destination_list_size(new.destination_list_size());
    }
    check_action(&context, to.len())?;
    let value = Key::of(context.match_value().outer_headers());
    let entry = FlowEntry { group, mask, value, to, context: Box::new(context) };
    call.change(kind::FlowTable, number, |table| {
        table.entries.insert(index, entry);
    })
}

/// Checks that an entry has one action, and destinations only if it forwards.
fn check_action(context: &FlowContext, destinations: usize) -> Outcome {
    let action = context.action();
    if action & !ACTIONS != 0 || action.count_ones() != 1 {
        return Err(Refusal::FlowAction);
    }
    let goes = action == FlowContextAction::FWD_DEST.0;
    if goes == (destinations > 0) { Ok(()) } else { Err(Refusal::FlowAction) }
}

/// The destinations of an entry, for a table of this level.
fn destinations(
    call: &Call<'_>,
    context: &FlowContext,
    properties: &FlowTablePropLayout,
    (level, any_level): (u8, bool),
) -> Result<Vec<Destination>, Refusal> {
    let count = context.destination_list_size();
    if any_level && !properties.ignore_flow_level() {
        return Err(Refusal::Unsupported);
    }
    if count > 1_u32.checked_shl(properties.log_max_destination().into()).unwrap_or(u32::MAX) {
        return Err(Refusal::FlowDestinations);
    }
    let mut all = Vec::new();
    for at in 0..count as usize {
        let bytes = call.list.get(at * FlowDestination::BYTES..).unwrap_or_default();
        let to = FlowDestination::from_prefix(bytes).ok_or(Refusal::ListTooShort)?;
        let number = to.destination_id();
        if to.packet_reformat() || to.destination_eswitch_owner_vhca_id_valid() {
            return Err(Refusal::Unsupported);
        }
        all.push(match to.destination_type() {
            FlowDestinationType::TIR => {
                call.find(kind::Tir, number)?;
                Destination::Tir(number)
            }
            FlowDestinationType::FLOW_TABLE => {
                check_above(call, number, level)?;
                Destination::Table(number)
            }
            _ => return Err(Refusal::Unsupported),
        });
    }
    Ok(all)
}

/// QUERY_FLOW_TABLE_ENTRY: the entry, followed by as many destinations as fit.
pub(in crate::hca) fn query_entry(
    call: &mut Call<'_>,
    input: &QueryFlowTableEntryIn,
    output: &mut QueryFlowTableEntryOut,
) -> Outcome {
    let table = call.find(kind::FlowTable, input.table_id())?;
    let entry = table.entries.get(&input.flow_index()).ok_or(Refusal::NoSuchFlowEntry)?;
    *output.flow_context_mut() = *entry.context;
    let list: Vec<u8> = entry.to.iter().flat_map(|to| written(*to)).collect();
    let room = call.output.get_mut(QueryFlowTableEntryOut::BYTES..).unwrap_or_default();
    let length = list.len().min(room.len());
    room[..length].copy_from_slice(&list[..length]);
    Ok(())
}

/// A destination in the format of commands.
fn written(to: Destination) -> [u8; FlowDestination::BYTES] {
    let mut destination = FlowDestination::zeroed();
    match to {
        Destination::Tir(tir) => {
            destination.set_destination_type(FlowDestinationType::TIR).set_destination_id(tir)
        }
        Destination::Table(table) => destination
            .set_destination_type(FlowDestinationType::FLOW_TABLE)
            .set_destination_id(table),
    };
    *destination.as_bytes()
}

/// DELETE_FLOW_TABLE_ENTRY.
pub(in crate::hca) fn delete_entry(
    call: &mut Call<'_>,
    input: &DeleteFlowTableEntryIn,
    _: &mut DeleteFlowTableEntryOut,
) -> Outcome {
    let (number, index) = (input.table_id(), input.flow_index());
    if !call.find(kind::FlowTable, number)?.entries.contains_key(&index) {
        return Err(Refusal::NoSuchFlowEntry);
    }
    call.change(kind::FlowTable, number, |table| {
        table.entries.remove(&index);
    })
}

/// A destroyed table stops being the root.
pub(in crate::hca) fn removed(hca: &mut Hca, number: u32, _: FlowTable) {
    hca.objects.flow_root.take_if(|root| *root == number);
}
