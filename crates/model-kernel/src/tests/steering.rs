//! The kernel's flow tables against a device that records its commands.

use std::sync::Arc;

use nix::errno::Errno;
use verbless_prm::{
    CreateFlowGroupIn, CreateFlowTableIn, DeleteFlowTableEntryIn, DestroyFlowGroupIn,
    DestroyFlowTableIn, FlowDestination, FteMatchParam, MatchCriteriaEnable, ModifyFlowTableIn,
    Opcode, SetFlowTableEntryIn, SetFlowTableRootIn, TableMissAction,
};

use super::super::steering::{Flow, FlowMatcher, Flows, Rule};
use super::support::Device;

struct Steering {
    device: Arc<Device>,
    flows: Flows,
}

/// Matches frames of an Ethertype, or with `mac` any frames to a group's or station's address.
fn matching(priority: u16, mac: bool) -> FlowMatcher {
    let mut mask = Box::new(FteMatchParam::zeroed());
    match mac {
        true => mask.outer_headers_mut().set_dmac_47_16(u32::MAX),
        false => mask.outer_headers_mut().set_ethertype(0xffff),
    };
    FlowMatcher { mask, enable: MatchCriteriaEnable::OUTER_HEADERS.0, priority }
}

fn ethertype(number: u16, tag: Option<u32>, to: Option<u32>) -> Rule {
    let mut value = Box::new(FteMatchParam::zeroed());
    value.outer_headers_mut().set_ethertype(number);
    Rule { value, tag, to: to.map(tir) }
}

fn mac(address: u32, to: u32) -> Rule {
    let mut value = Box::new(FteMatchParam::zeroed());
    value.outer_headers_mut().set_dmac_47_16(address);
    Rule { value, tag: None, to: Some(tir(to)) }
}

fn tir(number: u32) -> FlowDestination {
    let mut to = FlowDestination::zeroed();
    to.set_destination_id(number);
    to
}

impl Steering {
    fn new() -> Self {
        Self { device: Device::new(), flows: Flows::default() }
    }

    fn add(&self, matcher: &FlowMatcher, rule: Rule) -> Result<Flow, Errno> {
        self.flows.add(&*self.device, matcher, rule)
    }

    fn remove(&self, flow: Flow) {
        self.flows.remove(&*self.device, flow).expect("the device accepts it");
    }

    fn count(&self, opcode: Opcode) -> usize {
        self.device.count(opcode.0)
    }

    fn last<T: Clone>(&self, opcode: Opcode, read: fn(&[u8]) -> Option<&T>) -> T {
        let command = self.device.last(opcode.0).expect("the command was sent");
        read(&command).expect("the command is whole").clone()
    }

    fn entry(&self) -> SetFlowTableEntryIn {
        self.last(Opcode::SET_FLOW_TABLE_ENTRY, SetFlowTableEntryIn::from_prefix)
    }
}

#[test]
fn table_and_group_sizes_are_bounded() {
    let steering = Steering::new();
    let group = || -> CreateFlowGroupIn {
        steering.last(Opcode::CREATE_FLOW_GROUP, CreateFlowGroupIn::from_prefix)
    };
    for number in 0..33 {
        steering.add(&matching(0, false), ethertype(number, None, Some(1))).expect("there is room");
        assert_eq!(steering.entry().flow_index(), u32::from(number));
        let first = u32::from(number) & !31;
        assert_eq!((group().start_flow_index(), group().end_flow_index()), (first, first + 31));
    }
    let with_mask = |mask: u16| {
        let mut matcher = matching(0, false);
        matcher.mask.outer_headers_mut().set_ethertype(mask);
        steering.add(&matcher, ethertype(0, None, Some(1)))
    };
    for mask in 0..2046 {
        with_mask(mask).expect("there is room");
    }
    assert_eq!((group().start_flow_index(), group().end_flow_index()), (0xffe0, 0xffff));
    assert_eq!(with_mask(2046).map(drop), Err(Errno::ENOSPC));
    with_mask(2045).expect("another rule of the same value needs no entry");
}

#[test]
fn rank_tables_chain_by_miss_action() {
    let steering = Steering::new();
    let level = || {
        let table: CreateFlowTableIn =
            steering.last(Opcode::CREATE_FLOW_TABLE, CreateFlowTableIn::from_prefix);
        let context = table.flow_table_context();
        let miss = (context.table_miss_action() == TableMissAction::FWD)
            .then_some(context.table_miss_id());
        (context.level(), context.log_size(), miss)
    };
    let root = || {
        let root: SetFlowTableRootIn =
            steering.last(Opcode::SET_FLOW_TABLE_ROOT, SetFlowTableRootIn::from_prefix);
        (root.table_id(), root.op_mod() == SetFlowTableRootIn::DISCONNECT)
    };
    let misses = || {
        let modify: ModifyFlowTableIn =
            steering.last(Opcode::MODIFY_FLOW_TABLE, ModifyFlowTableIn::from_prefix);
        let context = modify.flow_table_context();
        let action = context.table_miss_action() == TableMissAction::FWD;
        (modify.table_id(), action.then_some(context.table_miss_id()))
    };
    let second = steering.add(&matching(2, false), ethertype(1, None, Some(1))).expect("a rule");
    let (two, alone) = (steering.entry().table_id(), level());
    assert_eq!((alone, root()), ((3, 16, None), (two, false)));
    let first = steering.add(&matching(1, false), ethertype(1, None, Some(1))).expect("a rule");
    let one = steering.entry().table_id();
    assert_eq!((level(), root()), ((2, 16, Some(two)), (one, false)));
    let group = steering.add(&matching(0, true), mac(0x0100_0000, 1)).expect("a rule");
    let last = steering.entry().table_id();
    assert_eq!((level(), misses()), ((17, 16, None), (two, Some(last))));
    let station = steering.add(&matching(0, true), mac(0x0200_0000, 1)).expect("a rule");
    let zero = steering.entry().table_id();
    assert_eq!((level(), root()), ((1, 16, Some(one)), (zero, false)), "a station's priority");
    steering.remove(second);
    assert_eq!(misses(), (one, Some(last)), "around the destroyed table");
    steering.remove(group);
    assert_eq!(misses(), (one, None));
    steering.remove(station);
    assert_eq!(root(), (one, false));
    steering.remove(first);
    assert_eq!(root(), (one, true), "no table is left");
    assert_eq!(steering.count(Opcode::CREATE_FLOW_TABLE), 4);
    let gone: DestroyFlowTableIn =
        steering.last(Opcode::DESTROY_FLOW_TABLE, DestroyFlowTableIn::from_prefix);
    assert_eq!((gone.table_id(), steering.count(Opcode::DESTROY_FLOW_TABLE)), (one, 4));
}

#[test]
fn rules_of_equal_value_share_entry() {
    let steering = Steering::new();
    let matcher = matching(0, false);
    let add = |number, tag, to| steering.add(&matcher, ethertype(number, tag, to));
    let list = || steering.entry().flow_context().destination_list_size();
    let first = add(1, Some(5), Some(1)).expect("a rule");
    assert_eq!((list(), steering.entry().op_mod()), (1, 0));
    assert_eq!(add(1, Some(6), Some(2)).map(drop), Err(Errno::EEXIST), "another tag");
    assert_eq!(
        add(1, None, None).map(drop),
        Err(Errno::EEXIST),
        "the rule drops, the entry does not"
    );
    let twin = add(1, None, Some(1)).expect("the same again");
    assert_eq!(steering.count(Opcode::SET_FLOW_TABLE_ENTRY), 1, "nothing changes");
    let second = add(1, Some(5), Some(2)).expect("to another");
    let entry = steering.entry();
    assert_eq!((list(), entry.op_mod(), entry.flow_index()), (2, SetFlowTableEntryIn::MODIFY, 0));
    let other = add(2, None, None).expect("another value");
    assert_eq!((list(), steering.entry().flow_index()), (0, 1));
    assert_eq!(steering.count(Opcode::CREATE_FLOW_GROUP), 1, "of the same mask");
    assert_eq!(
        add(2, None, Some(1)).map(drop),
        Err(Errno::EEXIST),
        "the entry drops, the rule does not"
    );
    let set = steering.count(Opcode::SET_FLOW_TABLE_ENTRY);
    steering.remove(first);
    assert_eq!(steering.count(Opcode::SET_FLOW_TABLE_ENTRY), set, "an equal rule is left");
    steering.remove(twin);
    assert_eq!((list(), steering.count(Opcode::SET_FLOW_TABLE_ENTRY)), (1, set + 1));
    steering.remove(second);
    let gone: DeleteFlowTableEntryIn =
        steering.last(Opcode::DELETE_FLOW_TABLE_ENTRY, DeleteFlowTableEntryIn::from_prefix);
    assert_eq!((gone.flow_index(), steering.count(Opcode::DESTROY_FLOW_GROUP)), (0, 0));
    steering.remove(other);
    let gone: DestroyFlowGroupIn =
        steering.last(Opcode::DESTROY_FLOW_GROUP, DestroyFlowGroupIn::from_prefix);
    let made: CreateFlowGroupIn =
        steering.last(Opcode::CREATE_FLOW_GROUP, CreateFlowGroupIn::from_prefix);
    assert_eq!(gone.table_id(), made.table_id());
    assert_eq!(made.match_criteria_enable(), MatchCriteriaEnable::OUTER_HEADERS.0);
}

#[test]
fn failed_rule_leaves_nothing() {
    let steering = Steering::new();
    let mut matcher = matching(0, false);
    matcher.mask.outer_headers_mut().set_ethertype(0xff00);
    assert_eq!(
        steering.add(&matcher, ethertype(0x0101, None, Some(1))).map(drop),
        Err(Errno::EINVAL)
    );
    assert_eq!(steering.count(Opcode::CREATE_FLOW_TABLE), 0);
    let matcher = matching(0, false);
    for (refused, tables, groups) in [
        (Opcode::CREATE_FLOW_TABLE, 0, 0),
        (Opcode::SET_FLOW_TABLE_ROOT, 1, 0),
        (Opcode::CREATE_FLOW_GROUP, 2, 0),
        (Opcode::SET_FLOW_TABLE_ENTRY, 3, 1),
    ] {
        steering.device.refuse_next(refused.0, 8);
        assert!(steering.add(&matcher, ethertype(1, None, Some(1))).is_err(), "{refused:?}");
        assert_eq!(steering.count(Opcode::DESTROY_FLOW_TABLE), tables, "{refused:?}");
        assert_eq!(steering.count(Opcode::DESTROY_FLOW_GROUP), groups, "{refused:?}");
    }
    let kept = steering.add(&matcher, ethertype(1, None, Some(1))).expect("the next time it works");
    steering.device.refuse_next(Opcode::SET_FLOW_TABLE_ENTRY.0, 8);
    assert!(steering.add(&matcher, ethertype(1, None, Some(2))).is_err());
    steering.add(&matcher, ethertype(1, None, Some(2))).expect("the rule does not exist yet");
    steering.device.refuse_next(Opcode::SET_FLOW_TABLE_ENTRY.0, 8);
    assert!(steering.flows.remove(&*steering.device, kept).is_err());
    steering.remove(kept);
    assert_eq!(steering.entry().flow_context().destination_list_size(), 1);
}
