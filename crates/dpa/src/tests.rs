//! Sharing of the execution units of a card.

use super::partitions::{
    DEFAULT, EuSharing, Group, Partition, PartitionChanges, Rights, Sender, ShareRefusal,
};
use super::runner::Affinity;

const MANAGER: u16 = 1;
const PF: u16 = 2;
const VF: u16 = 3;

fn sharing() -> EuSharing {
    let mut sharing = EuSharing::new(8, 3, 2);
    sharing.join(MANAGER, Rights { by_default: true, manages: true });
    sharing.join(PF, Rights { by_default: true, manages: false });
    sharing.join(VF, Rights { by_default: false, manages: false });
    sharing
}

fn partition(units: impl IntoIterator<Item = u16>, members: &[u16], groups: u16) -> Partition {
    let members = members.iter().copied().collect();
    Partition { units: units.into_iter().collect(), members, groups }
}

fn group(units: impl IntoIterator<Item = u16>) -> Group {
    Group { name: *b"a group of units", units: units.into_iter().collect() }
}

/// A user context of a function.
fn context(function: u16, uid: u16) -> Sender {
    Sender { function, uid, kernel: false }
}

const FREE: fn(u16) -> bool = |_| true;

#[test]
fn function_runs_only_on_units_of_its_partition() {
    let mut sharing = sharing();
    assert!(!sharing.add_process(VF), "the VF is in no partition");
    assert_eq!(sharing.find(VF, Affinity::Any, FREE), None);
    let id = sharing.add_partition(MANAGER, partition(2..4, &[VF], 1)).unwrap();
    assert!(sharing.add_process(VF));
    assert_eq!(sharing.find(VF, Affinity::Any, FREE), Some(2));
    assert_eq!(sharing.find(PF, Affinity::Any, FREE), Some(0));
    assert!(sharing.bind(VF, Affinity::Unit(3)) && !sharing.bind(VF, Affinity::Unit(4)));
    assert!(sharing.bind(PF, Affinity::Unit(4)) && !sharing.bind(PF, Affinity::Unit(3)));
    let rest = partition([0, 1, 4, 5, 6, 7], &[MANAGER, PF], 3);
    assert_eq!(sharing.partition(PF, DEFAULT), Ok(rest));
    assert_eq!(sharing.partition(VF, id), Ok(partition(2..4, &[VF], 1)));
    assert_eq!(sharing.partition(PF, id), Err(ShareRefusal::NotManager));
}

#[test]
fn partition_changes_are_reserved_to_manager() {
    let mut sharing = sharing();
    let wanted = partition([0], &[VF], 0);
    assert_eq!(sharing.add_partition(PF, wanted.clone()), Err(ShareRefusal::NotManager));
    let id = sharing.add_partition(MANAGER, wanted).unwrap();
    for by in [PF, VF] {
        let changed = sharing.change_partition(by, id, PartitionChanges::default());
        assert_eq!(changed, Err(ShareRefusal::NotManager));
        assert_eq!(sharing.remove_partition(by, id), Err(ShareRefusal::NotManager));
    }
    assert_eq!(sharing.remove_partition(MANAGER, id), Ok(()));
    assert_eq!(sharing.remove_partition(MANAGER, id), Err(ShareRefusal::Absent));
    assert_eq!(sharing.remove_partition(MANAGER, DEFAULT), Err(ShareRefusal::Absent));
}

#[test]
fn partitions_do_not_share_units_or_functions() {
    let mut sharing = sharing();
    let mut make = |to| sharing.add_partition(MANAGER, to);
    assert_eq!(make(partition([], &[VF], 0)), Err(ShareRefusal::Absent), "no EUs");
    assert_eq!(make(partition([8], &[VF], 0)), Err(ShareRefusal::Absent), "EU 8 of 8");
    assert_eq!(make(partition([7], &[9], 0)), Err(ShareRefusal::Absent), "no such function");
    assert_eq!(make(partition([7], &[VF], 4)), Err(ShareRefusal::Full), "four groups of three");
    let one = make(partition([7], &[VF], 0)).unwrap();
    assert_eq!(make(partition([6, 7], &[], 0)), Err(ShareRefusal::Taken), "an EU of another");
    assert_eq!(make(partition([6], &[VF], 0)), Err(ShareRefusal::Taken), "a function of another");
    make(partition([6], &[PF], 0)).unwrap();
    assert_eq!(make(partition([5], &[], 0)), Err(ShareRefusal::Full), "a third of two");
    let changes = PartitionChanges { units: Some([6].into()), ..PartitionChanges::default() };
    assert_eq!(sharing.change_partition(MANAGER, one, changes), Err(ShareRefusal::Taken));
    let changes = PartitionChanges { units: Some([0, 1].into()), ..PartitionChanges::default() };
    assert_eq!(sharing.change_partition(MANAGER, one, changes), Ok(()));
    assert_eq!(sharing.partition(VF, one), Ok(partition(0..2, &[VF], 0)));
    assert_eq!(sharing.find(PF, Affinity::Any, FREE), Some(6));
}

#[test]
fn units_in_use_cannot_leave_their_partition() {
    let mut sharing = sharing();
    let id = sharing.add_partition(MANAGER, partition(0..2, &[VF], 1)).unwrap();
    assert!(sharing.add_process(VF) && sharing.bind(VF, Affinity::Unit(1)));
    let change = |sharing: &mut EuSharing, changes| sharing.change_partition(MANAGER, id, changes);
    let members = || PartitionChanges { members: Some([].into()), ..PartitionChanges::default() };
    let units = |units: &[u16]| {
        let units = Some(units.iter().copied().collect());
        PartitionChanges { units, ..PartitionChanges::default() }
    };
    assert_eq!(
        change(&mut sharing, members()),
        Err(ShareRefusal::InUse),
        "the member has a process"
    );
    assert_eq!(change(&mut sharing, units(&[0])), Err(ShareRefusal::InUse), "one is bound to it");
    assert_eq!(change(&mut sharing, units(&[1, 2])), Ok(()));
    sharing.unbind(Affinity::Unit(1));
    let grouped = sharing.add_group(context(VF, 1), None, group([2])).unwrap();
    assert_eq!(change(&mut sharing, units(&[1])), Err(ShareRefusal::InUse), "a group has it");
    let none = PartitionChanges { groups: Some(0), ..PartitionChanges::default() };
    assert_eq!(change(&mut sharing, none), Err(ShareRefusal::InUse), "there is a group");
    sharing.remove_group(context(VF, 1), None, grouped).unwrap();
    // The last EU of functions without a partition of their own.
    assert!(sharing.add_process(PF));
    let all: Vec<u16> = (0..8).collect();
    assert_eq!(change(&mut sharing, units(&all)), Err(ShareRefusal::InUse), "a PF has a process");
    sharing.remove_process(PF);
    assert_eq!(change(&mut sharing, units(&all)), Ok(()));
    assert_eq!(sharing.find(PF, Affinity::Any, FREE), None);
    assert_eq!(sharing.remove_partition(MANAGER, id), Err(ShareRefusal::InUse));
    sharing.remove_process(VF);
    assert_eq!(sharing.remove_partition(MANAGER, id), Ok(()));
}

#[test]
fn groups_stay_in_one_partition_without_overlap() {
    let mut sharing = sharing();
    let id = sharing.add_partition(MANAGER, partition(0..4, &[VF], 1)).unwrap();
    let of_default = sharing.add_group(context(PF, 1), None, group([4, 5])).unwrap();
    assert_eq!(sharing.add_group(context(PF, 1), None, group([5, 6])), Err(ShareRefusal::Taken));
    assert_eq!(sharing.add_group(context(PF, 1), None, group([3, 6])), Err(ShareRefusal::Absent));
    assert_eq!(
        sharing.add_group(context(PF, 1), Some(id), group([1])),
        Err(ShareRefusal::NotManager)
    );
    assert_eq!(sharing.add_group(context(MANAGER, 1), None, group([1])), Err(ShareRefusal::Absent));
    let its = sharing.add_group(context(MANAGER, 1), Some(id), group([1])).unwrap();
    assert_eq!(
        sharing.add_group(context(VF, 1), None, group([2])),
        Err(ShareRefusal::Full),
        "one of one"
    );
    assert_eq!(sharing.group(VF, None, its), Ok(group([1])));
    assert_eq!(sharing.group(VF, None, of_default), Err(ShareRefusal::NoGroup));
    assert_eq!(sharing.group(VF, Some(DEFAULT), of_default), Err(ShareRefusal::NotManager));
    assert!(sharing.bind(VF, Affinity::Group(its)) && !sharing.bind(PF, Affinity::Group(its)));
    let manager = context(MANAGER, 1);
    let of = Some(id);
    assert_eq!(sharing.remove_group(manager, of, its), Err(ShareRefusal::InUse));
    assert_eq!(sharing.change_group(manager, of, its, [0, 2].into()), Ok(()));
    assert_eq!(sharing.find(VF, Affinity::Group(its), FREE), Some(0));
}

#[test]
fn group_is_changed_only_by_its_owner() {
    let mut sharing = sharing();
    let (mine, other, kernel) =
        (context(PF, 1), context(PF, 2), Sender { kernel: true, ..context(PF, 0) });
    let [first, second] =
        [[1], [2]].map(|units| sharing.add_group(mine, None, group(units)).unwrap());
    let of_other = sharing.add_group(other, None, group([3])).unwrap();
    let elsewhere = Sender { kernel: true, ..context(MANAGER, 1) };
    for by in [other, elsewhere] {
        let changed = sharing.change_group(by, None, first, [4].into());
        assert_eq!(changed, Err(ShareRefusal::NoGroup), "{by:?}");
        assert_eq!(sharing.remove_group(by, None, first), Err(ShareRefusal::NoGroup), "{by:?}");
    }
    assert_eq!(sharing.group(PF, None, first), Ok(group([1])), "who may use it sees it");
    assert_eq!(sharing.change_group(kernel, None, first, [4].into()), Ok(()));
    // A bound thread keeps its group, and no other thread can bind to it.
    assert!(sharing.bind(PF, Affinity::Group(first)));
    sharing.remove_groups(PF, Some(1));
    assert_eq!(sharing.group(PF, None, second), Err(ShareRefusal::NoGroup));
    assert_eq!(sharing.group(PF, None, first), Err(ShareRefusal::NoGroup));
    assert_eq!(sharing.find(PF, Affinity::Group(first), FREE), Some(4));
    assert!(!sharing.bind(PF, Affinity::Group(first)), "a second");
    assert_eq!(sharing.add_group(other, None, group([4])), Err(ShareRefusal::Taken));
    sharing.unbind(Affinity::Group(first));
    assert!(
        sharing.add_group(other, None, group([4])).is_ok(),
        "an EU of a group that was removed"
    );
    assert!(sharing.group(PF, None, of_other).is_ok());
    sharing.remove_groups(PF, None);
    assert_eq!(sharing.group(PF, None, of_other), Err(ShareRefusal::NoGroup), "a reset");
}
