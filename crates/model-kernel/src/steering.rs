//! The kernel's flow tables for packets that the port receives. Each rank with rules has one table.
//! The first table is the root; each sends its misses to the next. A table has a group per mask; a
//! group has an entry per value; an entry sends to the destinations of all rules of its value.
//!
//! Source: Linux `drivers/net/ethernet/mellanox/mlx5/core/fs_core.c` (`add_rule_fg`,
//! `check_conflicting_ftes`, `check_valid_spec`), `drivers/infiniband/hw/mlx5/fs.c`
//! (`raw_fs_is_multicast`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use verbless_prm::{
    CreateFlowGroupIn, CreateFlowTableIn, DeleteFlowTableEntryIn, DestroyFlowGroupIn,
    DestroyFlowTableIn, FlowContextAction, FlowDestination, FlowTableContext, FteMatchParam,
    MatchCriteriaEnable, ModifyFlowTableField, ModifyFlowTableIn, SetFlowTableEntryIn,
    SetFlowTableRootIn, SetFteModifyEnable, TableMissAction,
};

use super::cmd::{FunctionAccess, cmd_exec, command};
use super::refused::refused;

/// log2 of the entries of a table (`MLX5_FS_MAX_ENTRIES`), and of a group.
const LOG_TABLE: u8 = 16;
const LOG_GROUP: u8 = 5;

/// The rank of rules that match multicast frames only, whatever their priority: after all others
/// (`MLX5_IB_FLOW_MCAST_PRIO`). The rank of other rules is their priority.
const MULTICAST_RANK: u16 = 16;

/// The tag of an entry whose first rule has none (`MLX5_FS_DEFAULT_FLOW_TAG`).
const NO_TAG: u32 = 0;

/// The fields that the rules of a matcher compare.
#[derive(Debug, Clone)]
pub(super) struct FlowMatcher {
    pub mask: Box<FteMatchParam>,
    pub enable: u8,
    pub priority: u16,
}

/// A rule of a matcher.
#[derive(Debug)]
pub(super) struct Rule {
    pub value: Box<FteMatchParam>,
    /// `None`: the rule accepts any tag.
    pub tag: Option<u32>,
    /// `None`: the rule drops the frames.
    pub to: Option<FlowDestination>,
}

/// The position of a rule in the device's tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    rank: u16,
    index: u32,
    to: Option<FlowDestination>,
}

/// The rules of a device.
#[derive(Debug, Default)]
pub(super) struct Flows(Mutex<BTreeMap<u16, RankTable>>);

/// The rules of a rank.
#[derive(Debug)]
struct RankTable {
    id: u32,
    /// By the position of each group's range of entries.
    groups: BTreeMap<u32, RuleGroup>,
    /// By mask and criteria.
    masks: HashMap<MaskKey, MaskRules>,
    /// Positions below `next` without a group.
    free: BTreeSet<u32>,
    /// The lowest position that never had a group.
    next: u32,
}

/// Mask and criteria of a matcher.
type MaskKey = (Vec<u8>, u8);

/// The groups and entries of one mask.
#[derive(Debug, Default)]
struct MaskRules {
    /// The index of the entry for each value.
    entries: HashMap<Vec<u8>, u32>,
    /// The positions of its groups with room.
    with_room: BTreeSet<u32>,
}

#[derive(Debug)]
struct RuleGroup {
    id: u32,
    mask: Box<FteMatchParam>,
    enable: u8,
    /// By index in the table.
    entries: BTreeMap<u32, RuleEntry>,
}

/// The device's flow table entry for all rules with one value.
#[derive(Debug)]
struct RuleEntry {
    value: Box<FteMatchParam>,
    tag: u32,
    /// The destination of each rule.
    rules: Vec<Option<FlowDestination>>,
}

impl FlowMatcher {
    /// The rank of a rule of this matcher with this value.
    fn rank(&self, value: &FteMatchParam) -> u16 {
        const OUTER: u8 = MatchCriteriaEnable::OUTER_HEADERS.0;
        let group = |headers: &FteMatchParam| headers.outer_headers().dmac_47_16() >> 24 & 1 != 0;
        match self.enable & OUTER != 0 && group(&self.mask) && group(value) {
            true => MULTICAST_RANK,
            false => self.priority,
        }
    }

    fn key(&self) -> MaskKey {
        (self.mask.as_bytes().to_vec(), self.enable)
    }

    /// Whether a value has no bit outside the mask.
    fn covers(&self, value: &FteMatchParam) -> bool {
        let bits = value.as_bytes().iter().zip(self.mask.as_bytes());
        bits.into_iter().all(|(value, mask)| value & !mask == 0)
    }
}

impl Flows {
    /// Adds a rule.
    pub(super) fn add(
        &self,
        function: &dyn FunctionAccess,
        matcher: &FlowMatcher,
        rule: Rule,
    ) -> Result<Flow, Errno> {
        if !matcher.covers(&rule.value) {
            let words = "the rule's value has bits outside the matcher's mask or criteria";
            return Err(refused(Errno::EINVAL, words));
        }
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, to) = (matcher.rank(&rule.value), rule.to);
        add_table(function, &mut tables, rank)?;
        let table = tables.get_mut(&rank).ok_or(Errno::EINVAL)?;
        let added = table.add(function, matcher, rule);
        if added.is_err() {
            remove_if_empty(function, &mut tables, rank);
        }
        added.map(|index| Flow { rank, index, to })
    }

    /// Removes a rule.
    pub(super) fn remove(&self, function: &dyn FunctionAccess, flow: Flow) -> Result<(), Errno> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get_mut(&flow.rank) {
            table.remove(function, flow)?;
        }
        remove_if_empty(function, &mut tables, flow.rank);
        Ok(())
    }
}

/// Creates the table of a rank unless it exists.
fn add_table(
    function: &dyn FunctionAccess,
    tables: &mut BTreeMap<u16, RankTable>,
    rank: u16,
) -> Result<(), Errno> {
    if tables.contains_key(&rank) {
        return Ok(());
    }
    let mut input = CreateFlowTableIn::new();
    let context = input.flow_table_context_mut();
    context.set_level(rank as u8 + 1).set_log_size(LOG_TABLE);
    set_miss(context, tables.range(rank..).next().map(|(_, next)| next.id));
    let id = command(function, &input)?.table_id();
    tables.insert(rank, RankTable::new(id));
    set_next_table(function, tables, rank, Some(id)).inspect_err(|_| {
        remove_if_empty(function, tables, rank);
    })
}

fn set_miss(context: &mut FlowTableContext, next: Option<u32>) {
    if let Some(next) = next {
        context.set_table_miss_action(TableMissAction::FWD).set_table_miss_id(next);
    }
}

/// Points the predecessor of a rank (the miss path of the table before it, or the root) to a table,
/// or to none.
fn set_next_table(
    function: &dyn FunctionAccess,
    tables: &BTreeMap<u16, RankTable>,
    rank: u16,
    to: Option<u32>,
) -> Result<(), Errno> {
    if let Some((_, before)) = tables.range(..rank).next_back() {
        let mut input = ModifyFlowTableIn::new();
        input.set_table_id(before.id);
        input.set_modify_field_select(ModifyFlowTableField::MISS_TABLE_ID.0);
        set_miss(input.flow_table_context_mut(), to);
        return command(function, &input).map(|_| ());
    }
    let mut input = SetFlowTableRootIn::new();
    match to.or(tables.get(&rank).map(|table| table.id)) {
        Some(id) => input.set_table_id(id),
        None => return Ok(()),
    };
    if to.is_none() {
        input.set_op_mod(SetFlowTableRootIn::DISCONNECT);
    }
    command(function, &input).map(|_| ())
}

/// Removes a table without rules.
fn remove_if_empty(
    function: &dyn FunctionAccess,
    tables: &mut BTreeMap<u16, RankTable>,
    rank: u16,
) {
    let Some(table) = tables.get(&rank).filter(|table| table.groups.is_empty()) else { return };
    let next = tables.range(rank + 1..).next().map(|(_, next)| next.id);
    let mut input = DestroyFlowTableIn::new();
    input.set_table_id(table.id);
    let gone =
        set_next_table(function, tables, rank, next).and_then(|()| command(function, &input));
    if let Err(errno) = gone {
        tracing::warn!(rank, %errno, "an empty flow table stays");
        return;
    }
    tables.remove(&rank);
}

impl RuleEntry {
    /// The destinations of the entry without duplicates.
    fn destinations(&self) -> Vec<u8> {
        let mut all: Vec<_> = self.rules.iter().flatten().map(|to| *to.as_bytes()).collect();
        all.sort_unstable();
        all.dedup();
        all.concat()
    }

    /// Whether this entry can take a rule: the rule has the same action and no other tag.
    fn takes(&self, rule: &Rule) -> bool {
        let drops = self.rules.iter().all(Option::is_none);
        drops == rule.to.is_none() && rule.tag.is_none_or(|tag| tag == self.tag)
    }

    /// Writes the entry at an index, as a new one or with a changed list of destinations.
    fn enter(
        &self,
        function: &dyn FunctionAccess,
        (table, group, index): (u32, u32, u32),
        changed: bool,
    ) -> Result<(), Errno> {
        let list = self.destinations();
        let mut input = SetFlowTableEntryIn::new();
        input.set_table_id(table).set_flow_index(index);
        if changed {
            input.set_op_mod(SetFlowTableEntryIn::MODIFY);
            input.set_modify_enable_mask(SetFteModifyEnable::DESTINATION_LIST.0);
        }
        let context = input.flow_context_mut();
        context.set_group_id(group).set_flow_tag(self.tag);
        *context.match_value_mut() = *self.value;
        let action = match list.is_empty() {
            true => FlowContextAction::DROP,
            false => FlowContextAction::FWD_DEST,
        };
        let count = list.len() / FlowDestination::BYTES;
        context.set_action(action.0).set_destination_list_size(count as u32);
        cmd_exec(function, &[&input.as_bytes()[..], &list].concat(), &mut [0; 16])
    }
}

impl RankTable {
    fn new(id: u32) -> Self {
        let (groups, masks) = (BTreeMap::new(), HashMap::new());
        Self { id, groups, masks, free: BTreeSet::new(), next: 0 }
    }

    /// Creates an entry for a rule, or adds the rule to the entry of its value; returns the index.
    fn add(
        &mut self,
        function: &dyn FunctionAccess,
        matcher: &FlowMatcher,
        rule: Rule,
    ) -> Result<u32, Errno> {
        let id = self.id;
        let rules = self.masks.get(&matcher.key());
        let known = rules.and_then(|rules| rules.entries.get(&rule.value.as_bytes()[..])).copied();
        if let Some(index) = known {
            let group = self.groups.get_mut(&(index >> LOG_GROUP)).ok_or(Errno::EINVAL)?;
            let entry = group.entries.get_mut(&index).ok_or(Errno::EINVAL)?;
            if !entry.takes(&rule) {
                let words = "another rule of this value has another tag, or drops";
                return Err(refused(Errno::EEXIST, words));
            }
            let before = entry.destinations();
            entry.rules.push(rule.to);
            if entry.destinations() != before
                && let Err(refused) = entry.enter(function, (id, group.id, index), true)
            {
                entry.rules.pop();
                return Err(refused);
            }
            return Ok(index);
        }
        let position = self.group_with_room(function, matcher)?;
        let group = self.groups.get_mut(&position).ok_or(Errno::EINVAL)?;
        let mut free = range(position).filter(|index| !group.entries.contains_key(index));
        let index = free.next().ok_or_else(no_room)?;
        let tag = rule.tag.unwrap_or(NO_TAG);
        let entry = RuleEntry { value: rule.value, tag, rules: vec![rule.to] };
        let entered = entry.enter(function, (id, group.id, index), false);
        match entered {
            Ok(()) => {
                let rules = self.masks.entry(matcher.key()).or_default();
                rules.entries.insert(entry.value.as_bytes().to_vec(), index);
                group.entries.insert(index, entry);
                if group.entries.len() == 1 << LOG_GROUP {
                    rules.with_room.remove(&position);
                }
            }
            Err(_) => self.drop_if_empty(function, position),
        }
        entered.map(|()| index)
    }

    /// The position of a group of this matcher with room; creates the group if there is none.
    fn group_with_room(
        &mut self,
        function: &dyn FunctionAccess,
        matcher: &FlowMatcher,
    ) -> Result<u32, Errno> {
        let rules = self.masks.get(&matcher.key());
        if let Some(&position) = rules.and_then(|rules| rules.with_room.first()) {
            return Ok(position);
        }
        let position = self.free.first().copied().unwrap_or(self.next);
        if position >= 1 << (LOG_TABLE - LOG_GROUP) {
            return Err(no_room());
        }
        let mut input = CreateFlowGroupIn::new();
        let range = range(position);
        input.set_table_id(self.id).set_start_flow_index(range.start);
        input.set_end_flow_index(range.end - 1);
        input.set_match_criteria_enable(matcher.enable);
        *input.match_criteria_mut() = *matcher.mask;
        let id = command(function, &input)?.group_id();
        let (mask, enable) = (matcher.mask.clone(), matcher.enable);
        self.groups.insert(position, RuleGroup { id, mask, enable, entries: BTreeMap::new() });
        self.masks.entry(matcher.key()).or_default().with_room.insert(position);
        self.free.remove(&position);
        self.next = self.next.max(position + 1);
        Ok(position)
    }

    /// Removes a rule from its entry, the entry with its last rule, and the group with its last
    /// entry.
    fn remove(&mut self, function: &dyn FunctionAccess, flow: Flow) -> Result<(), Errno> {
        let (id, index, position) = (self.id, flow.index, flow.index >> LOG_GROUP);
        let Some(group) = self.groups.get_mut(&position) else { return Ok(()) };
        let Some(entry) = group.entries.get_mut(&index) else { return Ok(()) };
        let is_it = |to: &Option<FlowDestination>| {
            to.map(|to| *to.as_bytes()) == flow.to.map(|to| *to.as_bytes())
        };
        let Some(at) = entry.rules.iter().position(is_it) else { return Ok(()) };
        let before = entry.destinations();
        let rule = entry.rules.remove(at);
        let removed = if entry.rules.is_empty() {
            let mut input = DeleteFlowTableEntryIn::new();
            input.set_table_id(id).set_flow_index(index);
            command(function, &input).map(|_| ())
        } else if entry.destinations() != before {
            entry.enter(function, (id, group.id, index), true)
        } else {
            Ok(())
        };
        if removed.is_err() {
            entry.rules.insert(at, rule);
            return removed;
        }
        if entry.rules.is_empty() {
            let entry = group.entries.remove(&index);
            if let (Some(rules), Some(entry)) = (self.masks.get_mut(&group.key()), entry) {
                rules.entries.remove(&entry.value.as_bytes()[..]);
                rules.with_room.insert(position);
            }
        }
        self.drop_if_empty(function, position);
        Ok(())
    }

    fn drop_if_empty(&mut self, function: &dyn FunctionAccess, position: u32) {
        let empty = |group: &&RuleGroup| group.entries.is_empty();
        let Some(group) = self.groups.get(&position).filter(empty) else { return };
        let mut input = DestroyFlowGroupIn::new();
        input.set_table_id(self.id).set_group_id(group.id);
        match command(function, &input) {
            Ok(_) => self.forget(position),
            Err(errno) => tracing::warn!(position, %errno, "an empty flow group stays"),
        }
    }

    /// Forgets a destroyed group.
    fn forget(&mut self, position: u32) {
        let Some(group) = self.groups.remove(&position) else { return };
        self.free.insert(position);
        let key = group.key();
        let Some(rules) = self.masks.get_mut(&key) else { return };
        rules.with_room.remove(&position);
        if rules.with_room.is_empty() && rules.entries.is_empty() {
            self.masks.remove(&key);
        }
    }
}

impl RuleGroup {
    fn key(&self) -> MaskKey {
        (self.mask.as_bytes().to_vec(), self.enable)
    }
}

/// The entry indexes of the group at a position.
fn range(position: u32) -> std::ops::Range<u32> {
    position << LOG_GROUP..(position + 1) << LOG_GROUP
}

/// The errno for a rule that finds no room in a table.
fn no_room() -> Errno {
    refused(Errno::ENOSPC, "the flow table has no room for another rule")
}
