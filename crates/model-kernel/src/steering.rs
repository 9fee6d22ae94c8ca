//! The kernel's flow tables, of what the port receives: one for each priority that has rules, of
//! which the first is the root and each leads its misses to the next; in a table a group for each
//! mask.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use verbless_prm::{
    CreateFlowGroupIn, CreateFlowTableIn, DeleteFlowTableEntryIn, DestroyFlowGroupIn,
    DestroyFlowTableIn, FlowContextAction, FlowDestination, FlowTableContext, FteMatchParam,
    ModifyFlowTableField, ModifyFlowTableIn, SetFlowTableEntryIn, SetFlowTableRootIn,
    TableMissAction,
};

use super::reach::{Function, command, exec};

/// log2 of the entries of a table, and of those of a group.
const LOG_TABLE: u8 = 10;
const LOG_GROUP: u8 = 5;

/// What a matcher compares.
#[derive(Debug, Clone)]
pub(super) struct FlowMatcher {
    pub mask: Box<FteMatchParam>,
    pub enable: u8,
    pub priority: u16,
}

/// Where a rule is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    priority: u16,
    index: u32,
}

/// The rules of a device.
#[derive(Debug, Default)]
pub(super) struct Flows(Mutex<BTreeMap<u16, Table>>);

/// The rules of a priority.
#[derive(Debug)]
struct Table {
    id: u32,
    /// By the number of the range of entries that each has.
    groups: BTreeMap<u32, Group>,
}

#[derive(Debug)]
struct Group {
    id: u32,
    mask: Box<FteMatchParam>,
    enable: u8,
    /// Bit per entry.
    used: u32,
}

impl Flows {
    /// Makes a rule.
    pub(super) fn add(
        &self,
        function: &dyn Function,
        matcher: &FlowMatcher,
        value: &FteMatchParam,
        tag: u32,
        to: Option<FlowDestination>,
    ) -> Result<Flow, Errno> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let priority = matcher.priority;
        add_table(function, &mut tables, priority)?;
        let table = tables.get_mut(&priority).ok_or(Errno::EINVAL)?;
        let added = table.add(function, matcher, value, tag, to);
        if added.is_err() {
            remove_if_empty(function, &mut tables, priority);
        }
        added.map(|index| Flow { priority, index })
    }

    /// Takes a rule away.
    pub(super) fn remove(&self, function: &dyn Function, flow: Flow) -> Result<(), Errno> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get_mut(&flow.priority) {
            table.remove(function, flow.index)?;
        }
        remove_if_empty(function, &mut tables, flow.priority);
        Ok(())
    }
}

/// Sees to it that there is a table for a priority.
fn add_table(
    function: &dyn Function,
    tables: &mut BTreeMap<u16, Table>,
    priority: u16,
) -> Result<(), Errno> {
    if tables.contains_key(&priority) {
        return Ok(());
    }
    let mut input = CreateFlowTableIn::new();
    let context = input.flow_table_context_mut();
    context.set_level(priority as u8 + 1).set_log_size(LOG_TABLE);
    set_miss(context, tables.range(priority..).next().map(|(_, next)| next.id));
    let id = command(function, &input)?.table_id();
    tables.insert(priority, Table { id, groups: BTreeMap::new() });
    lead_to(function, tables, priority, Some(id)).inspect_err(|_| {
        remove_if_empty(function, tables, priority);
    })
}

fn set_miss(context: &mut FlowTableContext, next: Option<u32>) {
    if let Some(next) = next {
        context.set_table_miss_action(TableMissAction::FWD).set_table_miss_id(next);
    }
}

/// Lets whatever is before a priority lead to a table, or, with none, nowhere: the misses of the
/// table before it, or the root.
fn lead_to(
    function: &dyn Function,
    tables: &BTreeMap<u16, Table>,
    priority: u16,
    to: Option<u32>,
) -> Result<(), Errno> {
    if let Some((_, before)) = tables.range(..priority).next_back() {
        let mut input = ModifyFlowTableIn::new();
        input.set_table_id(before.id);
        input.set_modify_field_select(ModifyFlowTableField::MISS_TABLE_ID.0);
        set_miss(input.flow_table_context_mut(), to);
        return command(function, &input).map(|_| ());
    }
    let mut input = SetFlowTableRootIn::new();
    match to.or(tables.get(&priority).map(|table| table.id)) {
        Some(id) => input.set_table_id(id),
        None => return Ok(()),
    };
    if to.is_none() {
        input.set_op_mod(SetFlowTableRootIn::DISCONNECT);
    }
    command(function, &input).map(|_| ())
}

/// A table without rules goes.
fn remove_if_empty(function: &dyn Function, tables: &mut BTreeMap<u16, Table>, priority: u16) {
    let Some(table) = tables.get(&priority).filter(|table| table.groups.is_empty()) else { return };
    let next = tables.range(priority + 1..).next().map(|(_, next)| next.id);
    let mut input = DestroyFlowTableIn::new();
    input.set_table_id(table.id);
    let gone = lead_to(function, tables, priority, next).and_then(|()| command(function, &input));
    if let Err(errno) = gone {
        tracing::warn!(priority, %errno, "an empty flow table stays");
        return;
    }
    tables.remove(&priority);
}

impl Table {
    /// Writes an entry; its index.
    fn add(
        &mut self,
        function: &dyn Function,
        matcher: &FlowMatcher,
        value: &FteMatchParam,
        tag: u32,
        to: Option<FlowDestination>,
    ) -> Result<u32, Errno> {
        let place = self.place(function, matcher)?;
        let group = self.groups.get_mut(&place).ok_or(Errno::EINVAL)?;
        let slot = group.used.trailing_ones();
        let index = (place << LOG_GROUP) + slot;
        let mut input = SetFlowTableEntryIn::new();
        input.set_table_id(self.id).set_flow_index(index);
        let context = input.flow_context_mut();
        context.set_group_id(group.id).set_flow_tag(tag);
        *context.match_value_mut() = *value;
        let action = match to {
            Some(_) => FlowContextAction::FWD_DEST,
            None => FlowContextAction::DROP,
        };
        context.set_action(action.0).set_destination_list_size(to.is_some().into());
        let list = to.map(|to| *to.as_bytes()).unwrap_or_default();
        let list = if to.is_some() { &list[..] } else { &[] };
        let written = exec(function, &[input.as_bytes(), list].concat(), &mut [0; 16]);
        match written {
            Ok(()) => group.used |= 1 << slot,
            Err(_) => self.drop_if_empty(function, place),
        }
        written.map(|()| index)
    }

    /// The range of a group for a matcher that has room, which is made if there is none.
    fn place(&mut self, function: &dyn Function, matcher: &FlowMatcher) -> Result<u32, Errno> {
        let fits = |group: &Group| {
            let same = group.mask.as_bytes() == matcher.mask.as_bytes();
            same && group.enable == matcher.enable && group.used != u32::MAX
        };
        if let Some((&place, _)) = self.groups.iter().find(|(_, group)| fits(group)) {
            return Ok(place);
        }
        let places = 0..1_u32 << (LOG_TABLE - LOG_GROUP);
        let mut free = places.into_iter().filter(|place| !self.groups.contains_key(place));
        let place = free.next().ok_or(Errno::ENOSPC)?;
        let mut input = CreateFlowGroupIn::new();
        input.set_table_id(self.id).set_start_flow_index(place << LOG_GROUP);
        input.set_end_flow_index(((place + 1) << LOG_GROUP) - 1);
        input.set_match_criteria_enable(matcher.enable);
        *input.match_criteria_mut() = *matcher.mask;
        let id = command(function, &input)?.group_id();
        let (mask, enable) = (matcher.mask.clone(), matcher.enable);
        self.groups.insert(place, Group { id, mask, enable, used: 0 });
        Ok(place)
    }

    /// Removes an entry, and its group with the last one.
    fn remove(&mut self, function: &dyn Function, index: u32) -> Result<(), Errno> {
        let mut input = DeleteFlowTableEntryIn::new();
        input.set_table_id(self.id).set_flow_index(index);
        command(function, &input)?;
        let place = index >> LOG_GROUP;
        if let Some(group) = self.groups.get_mut(&place) {
            group.used &= !(1 << (index & ((1 << LOG_GROUP) - 1)));
        }
        self.drop_if_empty(function, place);
        Ok(())
    }

    fn drop_if_empty(&mut self, function: &dyn Function, place: u32) {
        let Some(group) = self.groups.get(&place).filter(|group| group.used == 0) else { return };
        let mut input = DestroyFlowGroupIn::new();
        input.set_table_id(self.id).set_group_id(group.id);
        match command(function, &input) {
            Ok(_) => drop(self.groups.remove(&place)),
            Err(errno) => tracing::warn!(place, %errno, "an empty flow group stays"),
        }
    }
}
