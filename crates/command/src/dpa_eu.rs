//! DPA execution units (EUs): EU groups and EU partitions, created and changed through access
//! registers (`register`), whose layouts mstflint publishes.

use verbless_devx::{DestroyError, Error};
use verbless_prm as prm;
use verbless_prm::{
    NicCapExtReg, NicDpaEuPartitionModify, NicDpaEuPartitionReg, NicDpaEugModify, NicDpaEugReg,
    NicDpaOperation, RegisterId,
};

use crate::device::Device;
use crate::error::limit;

/// The operation in error messages.
const ATTEMPTED: &str = "sharing execution units of the DPA";
/// Number of EUs in a member mask.
const MAX_UNITS: u16 = 1024;
/// `cap_group` of [`DpaCap`](prm::DpaCap).
const DPA_CAP_GROUP: u16 = 1;

/// The size of a device's DPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpaCaps {
    /// Execution units.
    pub units: u16,
    /// Maximum number of groups.
    pub max_groups: u16,
    /// Maximum number of EUs in a group.
    pub max_units_per_group: u16,
    /// Maximum number of partitions, besides the default one.
    pub max_partitions: u16,
    /// Maximum number of functions in a partition.
    pub max_functions_per_partition: u16,
}

/// A group of execution units, to which threads and calls can be bound. A drop sends DESTROY and
/// ignores the error: a group with bound threads or calls stays until the context has closed and
/// the last of these is gone.
#[derive(Debug)]
pub struct DpaEuGroup {
    device: Device,
    id: u16,
    partition: Option<u16>,
    /// The group is destroyed: the id may belong to a new one.
    destroyed: bool,
}

/// A partition of execution units: an isolated pool for its functions. The card keeps it until a
/// program calls [`destroy`](Self::destroy); dropping this handle does not destroy it.
#[derive(Debug, Clone)]
pub struct DpaEuPartition {
    device: Device,
    id: u16,
}

/// Attributes of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DpaEuPartitionAttr {
    /// The partition's EUs. Only the default partition may share them.
    pub units: Vec<u16>,
    /// The functions that may use the partition, by vhca_id. A function is in at most one
    /// partition.
    pub functions: Vec<u16>,
    /// Maximum number of groups of these EUs.
    pub max_groups: u16,
}

impl Device {
    /// Reads the size of the DPA (register NIC_CAP_EXT).
    ///
    /// # Errors
    /// The device has no DPA, or this process cannot access its registers
    /// ([`register_access`](Self::register_access)).
    pub fn dpa_caps(&self) -> Result<DpaCaps, Error> {
        let mut register = NicCapExtReg::default();
        register.set_cap_group(DPA_CAP_GROUP);
        self.read_register(RegisterId::NIC_CAP_EXT, &mut register)?;
        let cap = prm::DpaCap::from_prefix(register.cap_data()).copied().unwrap_or_default();
        Ok(DpaCaps {
            units: cap.max_num_dpa_eu(),
            max_groups: cap.max_num_dpa_eug(),
            max_units_per_group: cap.max_num_dpa_eu_per_group(),
            max_partitions: cap.max_num_dpa_eu_partition(),
            max_functions_per_partition: cap.max_num_partition_vhca_id(),
        })
    }

    /// Creates a group of execution units of the function's own partition (register NIC_DPA_EUG).
    /// The device keeps the first 16 bytes of the name.
    ///
    /// # Errors
    /// An EU is outside of the partition or in another group; the limit of groups is reached; the
    /// process may not access registers ([`register_access`](Self::register_access)).
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
        set_members(&mut register, units)?;
        self.write_register(RegisterId::NIC_DPA_EUG, &mut register)?;
        let id = register.eug_id();
        Ok(DpaEuGroup { device: self.clone(), id, partition, destroyed: false })
    }

    /// Creates a partition of execution units (register NIC_DPA_EU_PARTITION).
    ///
    /// # Errors
    /// The function does not manage the card's EUs; an EU or function is in another partition or in
    /// use; the limit of partitions is reached.
    pub fn create_dpa_partition(&self, attr: &DpaEuPartitionAttr) -> Result<DpaEuPartition, Error> {
        let mut register = NicDpaEuPartitionReg::default();
        register.set_operation(NicDpaOperation::CREATE).set_max_num_eug(attr.max_groups);
        set_members(&mut register, &attr.units)?;
        set_functions(&mut register, &attr.functions)?;
        self.write_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)?;
        Ok(DpaEuPartition { device: self.clone(), id: register.eu_partition_id() })
    }

    /// The existing partition of this number; sends no command.
    pub fn dpa_partition(&self, id: u16) -> DpaEuPartition {
        DpaEuPartition { device: self.clone(), id }
    }
}

/// A register with a member mask: one bit per EU, in 32-bit words.
trait MemberMask {
    fn word(&self, index: usize) -> u32;
    fn set_word(&mut self, index: usize, word: u32);
}

macro_rules! member_mask {
    ($($register:ty),*) => {$(
        impl MemberMask for $register {
            fn word(&self, index: usize) -> u32 {
                self.member_mask(index)
            }

            fn set_word(&mut self, index: usize, word: u32) {
                self.set_member_mask(index, word);
            }
        }
    )*};
}

member_mask!(NicDpaEugReg, NicDpaEuPartitionReg);

/// Adds EUs to the register's member mask.
///
/// # Errors
/// The mask has no bit for an EU.
fn set_members(register: &mut impl MemberMask, units: &[u16]) -> Result<(), Error> {
    for &unit in units {
        if unit >= MAX_UNITS {
            let most = u64::from(MAX_UNITS) - 1;
            return Err(limit(ATTEMPTED, "an EU's number", unit.into(), most));
        }
        let index = usize::from(unit / 32);
        register.set_word(index, register.word(index) | 1 << (unit % 32));
    }
    Ok(())
}

/// The EUs of the register's member mask.
fn members(register: &impl MemberMask) -> Vec<u16> {
    let is_member = |unit: &u16| register.word(usize::from(unit / 32)) >> (unit % 32) & 1 != 0;
    (0..MAX_UNITS).filter(is_member).collect()
}

fn set_functions(register: &mut NicDpaEuPartitionReg, functions: &[u16]) -> Result<(), Error> {
    let count = u8::try_from(functions.len()).map_err(|_| {
        let most = u8::MAX.into();
        limit(ATTEMPTED, "functions of a partition", functions.len() as u64, most)
    })?;
    register.set_num_vhca_id(count);
    for (index, &vhca_id) in functions.iter().enumerate() {
        register.set_vhca_id(index, vhca_id);
    }
    Ok(())
}

/// NIC_DPA_EUG with the operation and the partition id, if there is one. Without it, the device
/// takes the partition of the function.
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

    /// Queries the group's EUs.
    pub fn units(&self) -> Result<Vec<u16>, Error> {
        let mut register = self.register(NicDpaOperation::default());
        self.device.read_register(RegisterId::NIC_DPA_EUG, &mut register)?;
        Ok(members(&register))
    }

    /// Replaces the group's EUs. Threads and calls on a removed EU finish their current run there.
    ///
    /// # Errors
    /// As for [`create_dpa_group`](Device::create_dpa_group).
    pub fn set_units(&self, units: &[u16]) -> Result<(), Error> {
        let mut register = self.register(NicDpaOperation::MODIFY);
        register.set_modify_field_select(NicDpaEugModify::MEMBER_MASK.0);
        set_members(&mut register, units)?;
        self.device.write_register(RegisterId::NIC_DPA_EUG, &mut register)
    }

    /// Destroys the group.
    ///
    /// # Errors
    /// Threads or calls are bound to it. The error returns the group, for another try.
    pub fn destroy(mut self) -> Result<(), DestroyError<Self>> {
        match self.send_destroy() {
            Ok(()) => Ok(()),
            Err(error) => Err(DestroyError { object: self, error }),
        }
    }

    fn send_destroy(&mut self) -> Result<(), Error> {
        let mut register = self.register(NicDpaOperation::DESTROY);
        self.device.write_register(RegisterId::NIC_DPA_EUG, &mut register)?;
        self.destroyed = true;
        Ok(())
    }
}

impl Drop for DpaEuGroup {
    fn drop(&mut self) {
        if !self.destroyed {
            // Fails if threads are bound to the group; a drop cannot return the error.
            let _ = self.send_destroy();
        }
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
    /// This function neither uses the partition nor manages partitions; the partition does not
    /// exist.
    pub fn query(&self) -> Result<DpaEuPartitionAttr, Error> {
        let mut register = NicDpaEuPartitionReg::default();
        register.set_eu_partition_id(self.id);
        self.device.read_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)?;
        let count = usize::from(register.num_vhca_id());
        Ok(DpaEuPartitionAttr {
            units: members(&register),
            functions: (0..count).map(|index| register.vhca_id(index)).collect(),
            max_groups: register.max_num_eug(),
        })
    }

    /// Replaces the partition's EUs; the removed ones return to the default partition.
    ///
    /// # Errors
    /// As for [`create_dpa_partition`](Device::create_dpa_partition).
    pub fn set_units(&self, units: &[u16]) -> Result<(), Error> {
        let mut register = self.modify(NicDpaEuPartitionModify::MEMBER_MASK);
        set_members(&mut register, units)?;
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

    /// Sets the maximum number of groups of the partition's EUs.
    ///
    /// # Errors
    /// The partition has more groups already.
    pub fn set_max_groups(&self, max_groups: u16) -> Result<(), Error> {
        let mut register = self.modify(NicDpaEuPartitionModify::MAX_NUM_EUG);
        register.set_max_num_eug(max_groups);
        self.device.write_register(RegisterId::NIC_DPA_EU_PARTITION, &mut register)
    }

    /// Creates a group of the partition's EUs, like [`create_dpa_group`](Device::create_dpa_group).
    ///
    /// # Errors
    /// As for [`create_dpa_group`](Device::create_dpa_group); the function neither uses the
    /// partition nor manages partitions.
    pub fn create_group(&self, name: &str, units: &[u16]) -> Result<DpaEuGroup, Error> {
        self.device.create_dpa_group_of(Some(self.id), name, units)
    }

    /// Destroys the partition: its EUs return to the default partition.
    ///
    /// # Errors
    /// A function that uses the partition has DPA processes; groups of its EUs exist; this function
    /// does not manage the card's EUs.
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
