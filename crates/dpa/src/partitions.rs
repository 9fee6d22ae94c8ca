//! How the functions of a card share its execution units (EUs): partitions, which functions use,
//! and groups of a partition's EUs.
//!
//! Source of the parameters: the registers NIC_DPA_EU_PARTITION and NIC_DPA_EUG (mstflint), and
//! DOCA's guide to the tool that writes them. EUs and functions without a partition of their own
//! are in the default partition, which has number 0 here.

use std::collections::{BTreeMap, BTreeSet};

use super::runner::Affinity;

/// The default partition: all EUs without another partition.
pub(super) const DEFAULT: u16 = 0;
/// Functions that a partition may name: the register counts them in 8 bits.
pub const MAX_PARTITION_MEMBERS: u16 = 255;

/// Why a request to share EUs is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareRefusal {
    /// The EU, group, partition or function does not exist on the card.
    Absent,
    /// The EU or function is in another partition or group already.
    Taken,
    /// Groups, threads, calls or processes still use it.
    InUse,
    /// The maximum number exists already.
    Full,
    /// The function may not change partitions, or not this one.
    NotManager,
    /// The group does not exist, or belongs to another sender.
    NoGroup,
}

/// The sender of a command about groups: a user context of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The function, by vhca_id.
    pub function: u16,
    /// The user context.
    pub uid: u16,
    /// Whether it is the kernel, which may change the groups of all contexts of the function.
    pub kernel: bool,
}

/// A group of execution units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The name, which means nothing to the DPA.
    pub name: [u8; 16],
    /// The EUs.
    pub units: BTreeSet<u16>,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partition {
    /// The EUs.
    pub units: BTreeSet<u16>,
    /// The functions that use the partition, by vhca_id.
    pub members: BTreeSet<u16>,
    /// Maximum number of groups of the partition's EUs.
    pub groups: u16,
}

/// The changes of a partition; a field that is `None` changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionChanges {
    /// The EUs.
    pub units: Option<BTreeSet<u16>>,
    /// The functions that use it, by vhca_id.
    pub members: Option<BTreeSet<u16>>,
    /// Maximum number of groups of its EUs.
    pub groups: Option<u16>,
}

/// A function's rights on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Whether it is in the default partition unless another partition names it.
    pub by_default: bool,
    /// Whether it may create partitions.
    pub manages: bool,
}

/// A function of the card.
struct Member {
    rights: Rights,
    processes: u32,
}

/// A group, with its partition and its owner.
struct GroupEntry {
    group: Group,
    partition: u16,
    /// The owner: the function, by vhca_id, and the user context that made the group.
    owner: (u16, u16),
    /// Whether the owner is gone: the group is destroyed with the last thread or call bound to it.
    left: bool,
    /// Threads and calls that are bound to it.
    bound: u32,
}

/// How the EUs of a card are shared.
pub struct EuSharing {
    /// For each EU, its partition, and the number of threads and calls bound to only that EU.
    units: Vec<(u16, u32)>,
    /// All partitions except the default one.
    partitions: BTreeMap<u16, Partition>,
    max_partitions: u16,
    groups: BTreeMap<u16, GroupEntry>,
    max_groups: u16,
    members: BTreeMap<u16, Member>,
}

impl EuSharing {
    /// A card with `units` EUs, all in the default partition, and at most this many groups and
    /// partitions.
    pub fn new(units: u16, max_groups: u16, max_partitions: u16) -> Self {
        Self {
            units: vec![(DEFAULT, 0); units.into()],
            partitions: BTreeMap::new(),
            max_partitions,
            groups: BTreeMap::new(),
            max_groups,
            members: BTreeMap::new(),
        }
    }

    /// The number of EUs.
    pub fn count(&self) -> u16 {
        self.units.len() as u16
    }

    /// Adds a function with this vhca_id to the card.
    pub fn join(&mut self, vhca_id: u16, rights: Rights) {
        self.members.insert(vhca_id, Member { rights, processes: 0 });
    }

    /// The contents of a partition, for a function that uses it or creates partitions.
    pub fn partition(&self, by: u16, id: u16) -> Result<Partition, ShareRefusal> {
        self.check_user(by, id)?;
        Ok(match self.partitions.get(&id) {
            Some(partition) => partition.clone(),
            None => self.default_partition(),
        })
    }

    /// Creates a partition for the function `by`; returns its number.
    pub fn add_partition(&mut self, by: u16, to: Partition) -> Result<u16, ShareRefusal> {
        self.check_manager(by)?;
        let mut numbers = 1..=self.max_partitions;
        let id = numbers.find(|id| !self.partitions.contains_key(id)).ok_or(ShareRefusal::Full)?;
        self.check_whole(&to)?;
        self.check_change(id, &to)?;
        self.set_partition(id, to);
        Ok(id)
    }

    /// Changes the EUs, functions or groups of a partition.
    pub fn change_partition(
        &mut self,
        by: u16,
        id: u16,
        to: PartitionChanges,
    ) -> Result<(), ShareRefusal> {
        self.check_manager(by)?;
        let mut partition = self.partitions.get(&id).ok_or(ShareRefusal::Absent)?.clone();
        partition.units = to.units.unwrap_or(partition.units);
        partition.members = to.members.unwrap_or(partition.members);
        partition.groups = to.groups.unwrap_or(partition.groups);
        self.check_whole(&partition)?;
        self.check_change(id, &partition)?;
        self.set_partition(id, partition);
        Ok(())
    }

    /// Removes a partition: its EUs return to the default partition.
    pub fn remove_partition(&mut self, by: u16, id: u16) -> Result<(), ShareRefusal> {
        self.check_manager(by)?;
        if !self.partitions.contains_key(&id) {
            return Err(ShareRefusal::Absent);
        }
        self.check_change(id, &Partition::default())?;
        self.set_partition(id, Partition::default());
        self.partitions.remove(&id);
        Ok(())
    }

    /// A group of a partition, or of the function's own partition.
    pub fn group(&self, by: u16, of: Option<u16>, id: u16) -> Result<Group, ShareRefusal> {
        let partition = self.partition_for(by, of)?;
        let there = |it: &&GroupEntry| it.partition == partition && !it.left;
        let grouped = self.groups.get(&id).filter(there);
        grouped.map(|it| it.group.clone()).ok_or(ShareRefusal::NoGroup)
    }

    /// Creates a group in a partition, or in the function's own; returns its number.
    pub fn add_group(
        &mut self,
        by: Sender,
        of: Option<u16>,
        group: Group,
    ) -> Result<u16, ShareRefusal> {
        let partition = self.partition_for(by.function, of)?;
        let mut numbers = 0..self.max_groups;
        let id = numbers.find(|id| !self.groups.contains_key(id)).ok_or(ShareRefusal::Full)?;
        let max = self.partitions.get(&partition).map_or(self.max_groups, |it| it.groups);
        if self.groups_of(partition) >= max.into() {
            return Err(ShareRefusal::Full);
        }
        self.check_group(partition, id, &group)?;
        let owner = (by.function, by.uid);
        self.groups.insert(id, GroupEntry { group, partition, owner, left: false, bound: 0 });
        Ok(id)
    }

    /// Changes the EUs of one of the sender's groups. Runs on a removed EU keep it until they are
    /// over.
    pub fn change_group(
        &mut self,
        by: Sender,
        of: Option<u16>,
        id: u16,
        units: BTreeSet<u16>,
    ) -> Result<(), ShareRefusal> {
        let group = Group { units, ..self.group_of(by, of, id)? };
        self.check_group(self.partition_for(by.function, of)?, id, &group)?;
        if let Some(grouped) = self.groups.get_mut(&id) {
            grouped.group = group;
        }
        Ok(())
    }

    /// Removes one of the sender's groups.
    pub fn remove_group(
        &mut self,
        by: Sender,
        of: Option<u16>,
        id: u16,
    ) -> Result<(), ShareRefusal> {
        self.group_of(by, of, id)?;
        if self.groups[&id].bound > 0 {
            return Err(ShareRefusal::InUse);
        }
        self.groups.remove(&id);
        Ok(())
    }

    /// Removes the groups of a user context of a function, or without `uid` those of the function,
    /// since their owner is gone. A group with bound threads or calls is removed with the last of
    /// these.
    pub fn remove_groups(&mut self, function: u16, uid: Option<u16>) {
        self.groups.retain(|_, it| {
            it.left |= it.owner.0 == function && uid.is_none_or(|uid| it.owner.1 == uid);
            !it.left || it.bound > 0
        });
    }

    /// Counts a new process of a function; false if the function is in no partition and may not
    /// have one.
    pub(super) fn add_process(&mut self, member: u16) -> bool {
        let home = self.home(member);
        match self.members.get_mut(&member) {
            Some(function) if home.is_some() => {
                function.processes += 1;
                true
            }
            _ => false,
        }
    }

    /// Subtracts one process of the function.
    pub(super) fn remove_process(&mut self, member: u16) {
        if let Some(function) = self.members.get_mut(&member) {
            function.processes = function.processes.saturating_sub(1);
        }
    }

    /// Binds a thread or call of a function to EUs; false if the function may not use these.
    pub(super) fn bind(&mut self, member: u16, affinity: Affinity) -> bool {
        let home = self.home(member);
        let may = match affinity {
            Affinity::Any => home.is_some(),
            Affinity::Unit(unit) => self.of(unit).is_some_and(|of| Some(of) == home),
            Affinity::Group(group) => {
                self.groups.get(&group).is_some_and(|it| Some(it.partition) == home && !it.left)
            }
        };
        if may && let Some(bound) = self.bound_to(affinity) {
            *bound += 1;
        }
        may
    }

    /// Subtracts one thread or call that is bound in this way.
    pub(super) fn unbind(&mut self, affinity: Affinity) {
        if let Some(bound) = self.bound_to(affinity) {
            *bound = bound.saturating_sub(1);
        }
        self.groups.retain(|_, it| !it.left || it.bound > 0);
    }

    /// The first free EU that a run of a function may use.
    pub(super) fn find(
        &self,
        member: u16,
        affinity: Affinity,
        is_free: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let home = self.home(member)?;
        let good = |unit: &u16| self.of(*unit) == Some(home) && is_free(*unit);
        match affinity {
            Affinity::Any => (0..self.count()).find(good),
            Affinity::Unit(unit) => Some(unit).filter(good),
            Affinity::Group(group) => {
                self.groups.get(&group)?.group.units.iter().copied().find(good)
            }
        }
    }

    /// The partition of an EU.
    fn of(&self, unit: u16) -> Option<u16> {
        self.units.get(usize::from(unit)).map(|it| it.0)
    }

    fn bound_to(&mut self, affinity: Affinity) -> Option<&mut u32> {
        match affinity {
            Affinity::Any => None,
            Affinity::Unit(unit) => self.units.get_mut(usize::from(unit)).map(|it| &mut it.1),
            Affinity::Group(group) => self.groups.get_mut(&group).map(|it| &mut it.bound),
        }
    }

    /// The partition of a function.
    fn home(&self, member: u16) -> Option<u16> {
        let named = self.partitions.iter().find(|(_, it)| it.members.contains(&member));
        let by_default = self.members.get(&member).is_some_and(|it| it.rights.by_default);
        named.map(|(&id, _)| id).or(by_default.then_some(DEFAULT))
    }

    fn default_partition(&self) -> Partition {
        let units = (0..self.count()).filter(|&unit| self.of(unit) == Some(DEFAULT));
        let members = self.members.keys().copied();
        Partition {
            units: units.collect(),
            members: members.filter(|&member| self.home(member) == Some(DEFAULT)).collect(),
            groups: self.max_groups,
        }
    }

    fn groups_of(&self, partition: u16) -> usize {
        self.groups.values().filter(|it| it.partition == partition).count()
    }

    /// A group that the sender may change.
    fn group_of(&self, by: Sender, of: Option<u16>, id: u16) -> Result<Group, ShareRefusal> {
        let group = self.group(by.function, of, id)?;
        let (function, uid) = self.groups[&id].owner;
        let owns = function == by.function && (uid == by.uid || by.kernel);
        if owns { Ok(group) } else { Err(ShareRefusal::NoGroup) }
    }

    /// The partition that a register names, or else the function's own; fails if the function may
    /// not use it.
    fn partition_for(&self, by: u16, named: Option<u16>) -> Result<u16, ShareRefusal> {
        let partition = named.or_else(|| self.home(by)).ok_or(ShareRefusal::Absent)?;
        self.check_user(by, partition)?;
        Ok(partition)
    }

    fn check_manager(&self, by: u16) -> Result<(), ShareRefusal> {
        let manages = self.members.get(&by).is_some_and(|it| it.rights.manages);
        if manages { Ok(()) } else { Err(ShareRefusal::NotManager) }
    }

    /// Checks that the function is in the partition, or creates partitions.
    fn check_user(&self, by: u16, partition: u16) -> Result<(), ShareRefusal> {
        if self.home(by) != Some(partition) {
            self.check_manager(by)?;
        }
        let there = partition == DEFAULT || self.partitions.contains_key(&partition);
        if there { Ok(()) } else { Err(ShareRefusal::Absent) }
    }

    /// Checks that a group has EUs, all of its partition, and none of another group.
    fn check_group(&self, partition: u16, id: u16, group: &Group) -> Result<(), ShareRefusal> {
        if group.units.is_empty() || group.units.iter().any(|&it| self.of(it) != Some(partition)) {
            return Err(ShareRefusal::Absent);
        }
        let mut others = self.groups.iter().filter(|&(&other, _)| other != id);
        let overlap = others.any(|(_, it)| !it.group.units.is_disjoint(&group.units));
        if overlap { Err(ShareRefusal::Taken) } else { Ok(()) }
    }

    /// Checks that a partition has EUs, and at most the maximum number of functions and groups.
    fn check_whole(&self, to: &Partition) -> Result<(), ShareRefusal> {
        if to.units.is_empty() {
            return Err(ShareRefusal::Absent);
        }
        let full = to.members.len() > MAX_PARTITION_MEMBERS.into() || to.groups > self.max_groups;
        if full { Err(ShareRefusal::Full) } else { Ok(()) }
    }

    /// Checks that partition `id` can have these contents.
    fn check_change(&self, id: u16, to: &Partition) -> Result<(), ShareRefusal> {
        let nothing = Partition::default();
        let from = self.partitions.get(&id).unwrap_or(&nothing);
        for &unit in to.units.difference(&from.units) {
            if self.of(unit).ok_or(ShareRefusal::Absent)? != DEFAULT {
                return Err(ShareRefusal::Taken);
            }
        }
        for &member in to.members.difference(&from.members) {
            self.members.get(&member).ok_or(ShareRefusal::Absent)?;
            if self.home(member).is_some_and(|home| home != DEFAULT) {
                return Err(ShareRefusal::Taken);
            }
        }
        // A function with processes stays in its partition, ...
        let runs = |member: &u16| self.members.get(member).is_some_and(|it| it.processes > 0);
        if to.members.symmetric_difference(&from.members).any(runs) {
            return Err(ShareRefusal::InUse);
        }
        // ... EUs with bound threads or calls, or in a group, stay as well, ...
        let in_use = |unit: &u16| {
            let bound = self.units.get(usize::from(*unit)).is_some_and(|it| it.1 > 0);
            bound || self.groups.values().any(|it| it.group.units.contains(unit))
        };
        if to.units.symmetric_difference(&from.units).any(in_use)
            || self.groups_of(id) > to.groups.into()
        {
            return Err(ShareRefusal::InUse);
        }
        // ... and processes of the default partition keep at least one EU.
        let left = self.default_partition();
        let goes = left.units.is_subset(&to.units);
        let stays = |member: &u16| !to.members.contains(member) && runs(member);
        if goes && left.members.iter().any(stays) { Err(ShareRefusal::InUse) } else { Ok(()) }
    }

    fn set_partition(&mut self, id: u16, to: Partition) {
        for (unit, (of, _)) in (0..).zip(&mut self.units) {
            match to.units.contains(&unit) {
                true => *of = id,
                false if *of == id => *of = DEFAULT,
                false => {}
            }
        }
        self.partitions.insert(id, to);
    }
}
