//! Registers of the DPA, open to user contexts too: its size, groups of its execution units, and
//! their partitions among the functions of the card.

use std::collections::BTreeSet;

use verbless_dpa::{
    Dpa, DpaLimits, EuSharing, Group, MAX_PARTITION_MEMBERS, Partition, PartitionChanges, Sender,
    ShareRefusal,
};
use verbless_prm::{
    AccessRegisterIn, AccessRegisterOut, AccessRegisterUserIn, AccessRegisterUserOut, DpaCap,
    NicCapExtReg, NicDpaEuPartitionModify, NicDpaEuPartitionReg, NicDpaEugModify, NicDpaEugReg,
    NicDpaOperation, RegisterId, Structure,
};

use super::call::{Call, Outcome};
use super::register_access::{no_such_register, require_user_access, write_output};
use crate::hca::refusal::Refusal;

/// Capabilities of the DPA, in NIC_CAP_EXT.
const DPA_GROUP: u16 = 1;
/// Words of an EU mask.
const MASK_WORDS: usize = 32;
const MAX_UNITS: u16 = 32 * MASK_WORDS as u16;

/// ACCESS_REGISTER_USER: the registers of the DPA.
pub(super) fn access_user(
    call: &mut Call<'_>,
    input: &AccessRegisterUserIn,
    _: &mut AccessRegisterUserOut,
) -> Outcome {
    require_user_access(call)?;
    let id = input.register_id();
    access(call, id).unwrap_or_else(|| Err(no_such_register(call, id)))
}

// Both commands have the register at the same offset, and the same op_mods.
const _: () = assert!(AccessRegisterOut::BYTES == AccessRegisterUserOut::BYTES);
const _: () = assert!(AccessRegisterIn::WRITE == AccessRegisterUserIn::WRITE);

/// Accesses a register of the DPA, by ACCESS_REGISTER_USER or ACCESS_REGISTER; `None` for any other
/// register.
pub(super) fn access(call: &mut Call<'_>, id: RegisterId) -> Option<Outcome> {
    let write = call.op_mod == AccessRegisterUserIn::WRITE;
    let dpa = call.hca().dpa.clone()?;
    let (uid, kernel) = (call.uid, call.owns(0));
    Some(match id {
        RegisterId::NIC_CAP_EXT => exchange(call, |register: &mut NicCapExtReg| {
            if write {
                return Err(Refusal::RegisterReadOnly);
            }
            capabilities(&dpa, register)
        }),
        RegisterId::NIC_DPA_EUG => exchange(call, |register: &mut NicDpaEugReg| {
            change(&dpa, |function, sharing| {
                group(Sender { function, uid, kernel }, sharing, write, register)
            })
        }),
        RegisterId::NIC_DPA_EU_PARTITION => {
            exchange(call, |register: &mut NicDpaEuPartitionReg| {
                change(&dpa, |by, sharing| partition(by, sharing, write, register))
            })
        }
        _ => return None,
    })
}

/// Runs `each` on a register and returns its new contents.
fn exchange<R: Structure>(call: &mut Call<'_>, each: impl FnOnce(&mut R) -> Outcome) -> Outcome {
    let mut register = R::read(call.list).ok_or(Refusal::InputTooShort)?;
    each(&mut register)?;
    write_output(call, AccessRegisterUserOut::BYTES, register.as_bytes())
}

fn capabilities(dpa: &Dpa, register: &mut NicCapExtReg) -> Outcome {
    if register.cap_group() != DPA_GROUP {
        return Err(Refusal::NoSuchRegister);
    }
    let DpaLimits { units, groups, partitions, .. } = dpa.limits();
    let mut shown = DpaCap::default();
    shown
        .set_max_num_dpa_eu(units)
        .set_max_num_dpa_eug(groups)
        .set_max_num_dpa_eu_per_group(units.min(MAX_UNITS))
        .set_max_num_dpa_eu_partition(partitions)
        .set_max_num_partition_vhca_id(MAX_PARTITION_MEMBERS);
    let mut data = *register.cap_data();
    data[..DpaCap::BYTES].copy_from_slice(shown.as_bytes());
    register.set_cap_data(&data);
    Ok(())
}

/// Reads or changes the sharing of EUs, for the function of this DPA.
fn change(
    dpa: &Dpa,
    each: impl FnOnce(u16, &mut EuSharing) -> Result<(), RegisterRefusal>,
) -> Outcome {
    let (units, by) = dpa.shares();
    let result = units.with(|sharing| each(by, sharing));
    dpa.units_changed();
    result.map_err(|RegisterRefusal(refusal)| refusal)
}

/// Why a register access is refused.
struct RegisterRefusal(Refusal);

impl From<ShareRefusal> for RegisterRefusal {
    fn from(unshared: ShareRefusal) -> Self {
        Self(match unshared {
            ShareRefusal::Absent => Refusal::DpaPartition,
            ShareRefusal::Taken => Refusal::DpaUnitTaken,
            ShareRefusal::InUse => Refusal::DpaUnitsInUse,
            ShareRefusal::Full => Refusal::DpaTooManyGroups,
            ShareRefusal::NotManager => Refusal::DpaNotManager,
            ShareRefusal::NoGroup => Refusal::NoSuchDpaGroup,
        })
    }
}

/// Reads, creates, changes or destroys a group of execution units.
fn group(
    by: Sender,
    sharing: &mut EuSharing,
    write: bool,
    register: &mut NicDpaEugReg,
) -> Result<(), RegisterRefusal> {
    let of = register.partition_id_valid().then(|| register.partition_id());
    let id = register.eug_id();
    if !write {
        let Group { name, units } = sharing.group(by.function, of, id)?;
        register.set_eug_name(&name).set_modify_field_select(NicDpaEugModify::MEMBER_MASK.0);
        for (index, word) in mask(&units).into_iter().enumerate() {
            register.set_member_mask(index, word);
        }
        return Ok(());
    }
    let units = units(|index| register.member_mask(index));
    match register.operation() {
        NicDpaOperation::CREATE => {
            let group = Group { name: *register.eug_name(), units };
            register.set_eug_id(sharing.add_group(by, of, group)?);
        }
        NicDpaOperation::MODIFY => {
            let select = register.modify_field_select();
            let [changes] = selected(select, [NicDpaEugModify::MEMBER_MASK.0])?;
            let same = sharing.group(by.function, of, id)?.units;
            sharing.change_group(by, of, id, if changes { units } else { same })?;
        }
        NicDpaOperation::DESTROY => sharing.remove_group(by, of, id)?,
        _ => return Err(RegisterRefusal(Refusal::UnknownOpMod)),
    }
    Ok(())
}

/// Reads, creates, changes or destroys a partition of execution units.
fn partition(
    by: u16,
    sharing: &mut EuSharing,
    write: bool,
    register: &mut NicDpaEuPartitionReg,
) -> Result<(), RegisterRefusal> {
    type Modify = NicDpaEuPartitionModify;
    const FIELDS: [u32; 3] = [Modify::MEMBER_MASK.0, Modify::VHCA_ID.0, Modify::MAX_NUM_EUG.0];
    let id = register.eu_partition_id();
    if !write {
        let Partition { units, members, groups } = sharing.partition(by, id)?;
        *register = NicDpaEuPartitionReg::default();
        register
            .set_eu_partition_id(id)
            .set_modify_field_select(FIELDS.into_iter().sum())
            .set_max_num_eug(groups)
            .set_num_vhca_id(members.len().min(MAX_PARTITION_MEMBERS.into()) as u8);
        for (index, word) in mask(&units).into_iter().enumerate() {
            register.set_member_mask(index, word);
        }
        for (index, member) in members.into_iter().take(MAX_PARTITION_MEMBERS.into()).enumerate() {
            register.set_vhca_id(index, member);
        }
        return Ok(());
    }
    let units = units(|index| register.member_mask(index));
    let count = usize::from(register.num_vhca_id());
    let members: BTreeSet<u16> = (0..count).map(|index| register.vhca_id(index)).collect();
    let groups = register.max_num_eug();
    match register.operation() {
        NicDpaOperation::CREATE => {
            let id = sharing.add_partition(by, Partition { units, members, groups })?;
            register.set_eu_partition_id(id);
        }
        NicDpaOperation::MODIFY => {
            let fields = selected(register.modify_field_select(), FIELDS)?;
            let [has_units, has_members, has_groups] = fields;
            let changes = PartitionChanges {
                units: has_units.then_some(units),
                members: has_members.then_some(members),
                groups: has_groups.then_some(groups),
            };
            sharing.change_partition(by, id, changes)?;
        }
        NicDpaOperation::DESTROY => sharing.remove_partition(by, id)?,
        _ => return Err(RegisterRefusal(Refusal::UnknownOpMod)),
    }
    Ok(())
}

/// The fields that MODIFY selects; it may select no others.
fn selected<const N: usize>(select: u32, fields: [u32; N]) -> Result<[bool; N], RegisterRefusal> {
    match select & !fields.iter().sum::<u32>() {
        0 => Ok(fields.map(|field| select & field != 0)),
        _ => Err(RegisterRefusal(Refusal::DpaModifySelect)),
    }
}

/// The EUs in a mask.
fn units(word: impl Fn(usize) -> u32) -> BTreeSet<u16> {
    let named = |unit: &u16| word(usize::from(unit / 32)) >> (unit % 32) & 1 != 0;
    (0..MAX_UNITS).filter(named).collect()
}

/// The mask of these EUs.
fn mask(units: &BTreeSet<u16>) -> [u32; MASK_WORDS] {
    let mut words = [0; MASK_WORDS];
    for unit in units {
        words[usize::from(unit / 32)] |= 1 << (unit % 32);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_mask_counts_bits_from_first_word() {
        let mut words = [0; MASK_WORDS];
        (words[0], words[1], words[31]) = (1 << 31 | 1, 1, 1 << 31);
        let named = units(|index| words[index]);
        assert_eq!(named, [0, 31, 32, 1023].into());
        assert_eq!(mask(&named), words);
        assert_eq!(units(|_| 0), BTreeSet::new());
        assert_eq!(units(|_| u32::MAX).len(), 1024);
    }

    #[test]
    fn only_modifiable_fields_may_be_selected() {
        let of_two = |select| selected(select, [1, 4]).map_err(|RegisterRefusal(refusal)| refusal);
        assert_eq!(of_two(0), Ok([false, false]));
        assert_eq!(of_two(1), Ok([true, false]));
        assert_eq!(of_two(5), Ok([true, true]));
        for select in [2, 3, 8 | 5, 1 << 31] {
            assert_eq!(of_two(select), Err(Refusal::DpaModifySelect), "{select:#x}");
        }
    }
}
