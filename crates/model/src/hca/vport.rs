//! The Ethernet vport context of a function's port, and its tables of addresses and keys.

use verbless_prm::{NicVportContext, RoceAddrLayout, VportListType};

use crate::hca::refusal::Refusal;
use crate::hca::state::Hca;
use crate::numbered::Numbered;
use crate::profile::Link;

/// The default P_Key: full membership in the partition of every port.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// The Ethernet vport context of the function's port, and its address lists by type.
#[derive(Debug, Clone)]
pub(crate) struct NicVport {
    pub context: NicVportContext,
    pub lists: Numbered<u8, Vec<u8>>,
}

impl Hca {
    /// The current Ethernet vport context. Initially RoCE is on, and the list of MACs has only the
    /// port's own.
    pub(crate) fn nic_vport(&self) -> NicVport {
        if let Some(set) = &self.nic_vport {
            return set.clone();
        }
        let mut context = *self.profile.nic_vport();
        let mac = self.identity.ports.first().map_or(0, |port| port.mac);
        context.set_roce_en(self.profile.link() == Link::Ethernet && self.caps.general().roce());
        let address = context.permanent_address_mut();
        address.set_mac_addr_47_32((mac >> 32) as u16).set_mac_addr_31_0(mac as u32);
        let own = address.as_bytes().to_vec();
        NicVport { context, lists: [(VportListType::UC.0, own)].into() }
    }

    /// Entry `index` of the P_Key table, if the port has that key.
    pub(crate) fn pkey(&self, index: u32) -> Result<u16, Refusal> {
        if index >= self.caps.pkeys() {
            return Err(Refusal::PkeyIndex);
        }
        if index == 0 { Ok(DEFAULT_PKEY) } else { Err(Refusal::PkeyIndex) }
    }

    /// Entry `index` of the RoCE address table, if it is in use.
    pub(crate) fn roce_address(&self, index: u32) -> Result<&RoceAddrLayout, Refusal> {
        self.roce_addresses
            .get(index as usize)
            .filter(|entry| **entry != RoceAddrLayout::zeroed())
            .ok_or(Refusal::GidIndex)
    }
}
