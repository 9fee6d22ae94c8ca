//! The multicast groups of a function: the QPs that receive messages to a GID.

use std::collections::{BTreeMap, BTreeSet};

/// The QPs in each group; a group without QPs has no entry.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<[u8; 16], BTreeSet<u32>>,
    /// The number of members of all groups.
    count: usize,
}

impl Groups {
    /// Number of groups.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The QPs in the group of this GID, if it exists.
    pub(crate) fn get(&self, gid: &[u8; 16]) -> Option<&BTreeSet<u32>> {
        self.members.get(gid)
    }

    /// Adds a QP to a group; false if it was a member.
    pub(crate) fn join(&mut self, gid: [u8; 16], qpn: u32) -> bool {
        let joined = self.members.entry(gid).or_default().insert(qpn);
        self.count += usize::from(joined);
        joined
    }

    /// Removes a QP from a group, and the group with its last member.
    pub(crate) fn leave(&mut self, gid: &[u8; 16], qpn: u32) {
        let Some(members) = self.members.get_mut(gid) else {
            tracing::error!(qpn, ?gid, "a QP leaves a group without members");
            return;
        };
        self.count -= usize::from(members.remove(&qpn));
        if members.is_empty() {
            self.members.remove(gid);
        }
    }

    /// The approximate size of all groups in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.members.len() * size_of::<([u8; 16], BTreeSet<u32>)>()
            + self.count * size_of::<[u64; 4]>()
    }
}
