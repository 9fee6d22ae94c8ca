//! The execution units of a DPA: groups of units, and partitions of them among the functions of a
//! card. The commands are registers (`register`; layouts published in mstflint).

use verbless_devx::Error;
use verbless_prm as prm;
use verbless_prm::{
    NicCapExtReg, NicDpaEuPartitionModify, NicDpaEuPartitionReg, NicDpaEugModify, NicDpaEugReg,
    NicDpaOperation, RegisterId,
};

use crate::device::Device;
use crate::error::limit;

/// The operation in error messages.
const UNITS: &str = "sharing execution units of the DPA";
/// Maximum number of units in a mask.
const MAX_UNITS: u16 = 1024;

/// The size of a device's DPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpaCaps {
    /// Execution units.
    pub units: u16,
    /// Maximum number of groups.
    pub groups: u16,
    /// Maximum number of units in a group.
    pub units_per_group: u16,
    /// Maximum number of partitions, besides the default one.
    pub partitions: u16,
    /// Maximum number of functions in a partition.
    pub functions_per_partition: u16,
}

/// A group of execution units, to which threads and calls can be bound. A drop destroys it; if
/// threads are bound to it then, it stays, even after the context closes.
#[derive(Debug)]
pub struct DpaEuGroup {
    device: Device,
    id: u16,
    partition: Option<u16>,
}

/// A partition of execution units: an isolated pool for its functions. A card keeps it until a
/// program destroys it; a drop does not.
#[derive(Debug, Clone)]
pub struct DpaEuPartition {
    device: Device,
    id: u16,
}

/// Attributes of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DpaEuPartitionAttr {
    /// The partition's units. Only the default partition may share them.
    pub units: Vec<u16>,
    /// The functions that may use the partition, by vhca_id. A function is in at most one
    /// partition.
    pub functions: Vec<u16>,
    /// Maximum number of groups of these units.
    pub groups: u16,
}

impl Device {
    /// Reads the size of the DPA (register NIC_CAP_EXT).
    ///
    /// # Errors
    /// The device has no DPA, or this process cannot access its registers
    /// ([`register_access`](Self::register_access)).
    pub fn dpa_caps(&self) -> Result<DpaCaps, Error> {
        let mut register = NicCapExtReg::default();
        // The capabilities of the DPA.
        register.set_cap_group(1);
        self.read_register(RegisterId::NIC_CAP_EXT, &mut register)?;
        let cap = prm::DpaCap::from_prefix(register.cap_data()).copied().unwrap_or_default();
        Ok(DpaCaps {
            units: cap.max_num_dpa_eu(),
            groups: cap.max_num_dpa_eug(),
            units_per_group: cap.max_num_dpa_eu_per_group(),
            partitions: cap.max_num_dpa_eu_partition(),
            functions_per_partition: cap.max_num_partition_vhca_id(),
        })
    }

    /// Creates a group of execution units of the function's own partition (register NIC_DPA_EUG).
    /// The device keeps the first 16 bytes of the name.
    ///
    /// # Errors
    /// A unit is outside of the partition or in another group; the limit of groups is reached; the
    /// user lacks the permission.
    pub fn create_dpa_group(&self, name: &str, units: &[u16]) -> Result<DpaEuGroup, Error> {
        self.create_dpa_group_of(None, name, units)
    }

    fn create_dpa_group_of(
        &self,
        partition: Option<u16>,
        name: &str,
        units: &[u16],
    ) -> Result<DpaEuGroup, Error> {
        let mut register = group_register(NicDpaOperation::CREATE, partition);
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        register.set_eug_name(&bytes);
        for (index, word) in mask(units)?.into_iter().enumerate() {
            register.set_member_mask(index, word);
        }
        self.write_register(RegisterId::NIC_DPA_EUG, &mut register)?;
        Ok(DpaEuGroup { device: self.clone(), id: register.eug_id(), partition })
    }

    /// Creates a partition of execution units (register NIC_DPA_EU_PARTITION).
    ///
    /// # Errors
    /// The function does not manage the card's units; a unit or function is in another partition or
    /// in use; the limit of partitions is reached.
    pub fn create_dpa_partition(&self, attr: &DpaEuPartitionAttr) -> Result<DpaEuPartition, Error> {
        let mut register = NicDpaEuPartitionReg::default();
        register.set_operation(NicDpaOperation::CREATE).set_max_num_eug(attr.groups);
        set_units(&mut register, &attr.units)?;
        set_functions(&mut register, &attr.functions)?;
        self.write_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)?;
        Ok(DpaEuPartition { device: self.clone(), id: register.eu_partition_id() })
    }

    /// The existing partition of this number; sends no command.
    pub fn dpa_partition(&self, id: u16) -> DpaEuPartition {
        DpaEuPartition { device: self.clone(), id }
    }
}

/// The bit mask of these units, as elements of the register.
fn mask(units: &[u16]) -> Result<[u32; 32], Error> {
    let mut words = [0; 32];
    for &unit in units {
        if unit >= MAX_UNITS {
            let most = MAX_UNITS.into();
            return Err(limit(UNITS, "a unit's number", unit.into(), most));
        }
        words[usize::from(unit / 32)] |= 1 << (unit % 32);
    }
    Ok(words)
}

/// The units whose bits are set in a mask, given by its elements.
fn units(word: impl Fn(usize) -> u32) -> Vec<u16> {
    let named = |unit: &u16| word(usize::from(unit / 32)) >> (unit % 32) & 1 != 0;
    (0..MAX_UNITS).filter(named).collect()
}

fn set_units(register: &mut NicDpaEuPartitionReg, units: &[u16]) -> Result<(), Error> {
    for (index, word) in mask(units)?.into_iter().enumerate() {
        register.set_member_mask(index, word);
    }
    Ok(())
}

fn set_functions(register: &mut NicDpaEuPartitionReg, functions: &[u16]) -> Result<(), Error> {
    let count = u8::try_from(functions.len()).map_err(|_| {
        let most = u8::MAX.into();
        limit(UNITS, "functions of a partition", functions.len() as u64, most)
    })?;
    register.set_num_vhca_id(count);
    for (index, &vhca_id) in functions.iter().enumerate() {
        register.set_vhca_id(index, vhca_id);
    }
    Ok(())
}

/// The register of a group of a partition, or of the function's own.
fn group_register(operation: NicDpaOperation, partition: Option<u16>) -> NicDpaEugReg {
    let mut register = NicDpaEugReg::default();
    register.set_operation(operation);
    if let Some(partition) = partition {
        register.set_partition_id_valid(true).set_partition_id(partition);
    }
    register
}

impl DpaEuGroup {
    fn register(&self, operation: NicDpaOperation) -> NicDpaEugReg {
        let mut register = group_register(operation, self.partition);
        register.set_eug_id(self.id);
        register
    }

    /// The group's number, for [`Affinity::Group`](crate::Affinity::Group).
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Queries the group's units.
    pub fn units(&self) -> Result<Vec<u16>, Error> {
        let mut register = self.register(NicDpaOperation::default());
        self.device.read_register(RegisterId::NIC_DPA_EUG, &mut register)?;
        Ok(units(|index| register.member_mask(index)))
    }

    /// Replaces the group's units. Threads and calls on a removed unit finish their current run
    /// there.
    ///
    /// # Errors
    /// As for [`create_dpa_group`](Device::create_dpa_group).
    pub fn set_units(&self, units: &[u16]) -> Result<(), Error> {
        let mut register = self.register(NicDpaOperation::MODIFY);
        register.set_modify_field_select(NicDpaEugModify::MEMBER_MASK.0);
        for (index, word) in mask(units)?.into_iter().enumerate() {
            register.set_member_mask(index, word);
        }
        self.device.write_register(RegisterId::NIC_DPA_EUG, &mut register)
    }

    /// Destroys the group.
    ///
    /// # Errors
    /// Threads or calls are bound to it.
    pub fn destroy(&self) -> Result<(), Error> {
        let mut register = self.register(NicDpaOperation::DESTROY);
        self.device.write_register(RegisterId::NIC_DPA_EUG, &mut register)
    }
}

impl Drop for DpaEuGroup {
    fn drop(&mut self) {
        // If it is already destroyed, or threads are bound to it, a drop cannot report the error.
        let _ = self.destroy();
    }
}

impl DpaEuPartition {
    /// The partition's number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Queries the partition's attributes.
    ///
    /// # Errors
    /// The function neither uses it nor manages partitions; the partition does not exist.
    pub fn query(&self) -> Result<DpaEuPartitionAttr, Error> {
        let mut register = NicDpaEuPartitionReg::default();
        register.set_eu_partition_id(self.id);
        self.device.read_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)?;
        let count = usize::from(register.num_vhca_id());
        Ok(DpaEuPartitionAttr {
            units: units(|index| register.member_mask(index)),
            functions: (0..count).map(|index| register.vhca_id(index)).collect(),
            groups: register.max_num_eug(),
        })
    }

    /// Replaces the partition's units; the removed ones return to the default partition.
    ///
    /// # Errors
    /// As for [`create_dpa_partition`](Device::create_dpa_partition).
    pub fn set_units(&self, units: &[u16]) -> Result<(), Error> {
        let mut register = self.modify(NicDpaEuPartitionModify::MEMBER_MASK);
        set_units(&mut register, units)?;
        self.device.write_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)
    }

    /// Replaces the functions that may use the partition, given by vhca_id.
    ///
    /// # Errors
    /// As for [`create_dpa_partition`](Device::create_dpa_partition).
    pub fn set_functions(&self, functions: &[u16]) -> Result<(), Error> {
        let mut register = self.modify(NicDpaEuPartitionModify::VHCA_ID);
        set_functions(&mut register, functions)?;
        self.device.write_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)
    }

    /// Sets the maximum number of groups of the partition's units.
    ///
    /// # Errors
    /// More groups exist.
    pub fn set_groups(&self, groups: u16) -> Result<(), Error> {
        let mut register = self.modify(NicDpaEuPartitionModify::MAX_NUM_EUG);
        register.set_max_num_eug(groups);
        self.device.write_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)
    }

    /// Creates a group of the partition's units, like
    /// [`create_dpa_group`](Device::create_dpa_group).
    ///
    /// # Errors
    /// As for [`create_dpa_group`](Device::create_dpa_group); the function neither uses the
    /// partition nor manages partitions.
    pub fn create_group(&self, name: &str, units: &[u16]) -> Result<DpaEuGroup, Error> {
        self.device.create_dpa_group_of(Some(self.id), name, units)
    }

    /// Destroys the partition: its units return to the default partition.
    ///
    /// # Errors
    /// A function of it has processes; groups of its units exist; the function does not manage the
    /// card's units.
    pub fn destroy(&self) -> Result<(), Error> {
        let mut register = NicDpaEuPartitionReg::default();
        register.set_operation(NicDpaOperation::DESTROY).set_eu_partition_id(self.id);
        self.device.write_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)
    }

    fn modify(&self, field: NicDpaEuPartitionModify) -> NicDpaEuPartitionReg {
        let mut register = NicDpaEuPartitionReg::default();
        register
            .set_operation(NicDpaOperation::MODIFY)
            .set_eu_partition_id(self.id)
            .set_modify_field_select(field.0);
        register
    }
}
