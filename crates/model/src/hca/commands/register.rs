//! Registers: those that the profile has, as it has them, and a few that the driver may write.

use verbless_prm::reflect::View;
use verbless_prm::{
    AccessRegisterIn, AccessRegisterOut, AccessRegisterUserIn, AccessRegisterUserOut, DpaCap,
    NicCapExtReg, NicDpaEugReg, NicDpaOperation, RegisterId, bits,
};

use super::call::{Call, Outcome};
use crate::dpa::{Dpa, Group, Numbers, Refused};
use crate::hca::refusal::Refusal;

/// Fields by which a register's reader says what to read; they come back as they were.
const INDEXES: [&str; 3] = ["local_port", "proto_mask", "plane_ind"];

/// Registers that the driver writes, and reads back as it wrote them.
const WRITABLE: [RegisterId; 2] = [RegisterId::HOST_ENDIANNESS, RegisterId::NODE_DESC];

/// Capabilities of the DPA, in NIC_CAP_EXT.
const DPA_GROUP: u16 = 1;

/// ACCESS_REGISTER_USER: the registers of the DPA.
pub(super) fn access_user(
    call: &mut Call<'_>,
    input: &AccessRegisterUserIn,
    _: &mut AccessRegisterUserOut,
) -> Outcome {
    let id = input.register_id();
    let write = call.op_mod == AccessRegisterUserIn::WRITE;
    let (dpa, mut value) = match call.hca().dpa.clone() {
        Some(dpa) if [RegisterId::NIC_CAP_EXT, RegisterId::NIC_DPA_EUG].contains(&id) => {
            (dpa, call.list.to_vec())
        }
        _ => return Err(call.about(Refusal::NoSuchRegister, format!("register {:#x}", id.0))),
    };
    if id == RegisterId::NIC_CAP_EXT {
        let register = NicCapExtReg::from_prefix_mut(&mut value).ok_or(Refusal::InputTooShort)?;
        if write {
            return Err(Refusal::RegisterReadOnly);
        }
        if register.cap_group() != DPA_GROUP {
            return Err(call.about(Refusal::NoSuchRegister, "another group of NIC_CAP_EXT"));
        }
        let Numbers { units, groups, .. } = dpa.numbers();
        let mut shown = DpaCap::default();
        shown.set_max_num_dpa_eu(units).set_max_num_dpa_eug(groups);
        shown.set_max_num_dpa_eu_per_group(units.min(MOST_MEMBERS));
        let mut data = *register.cap_data();
        data[..DpaCap::BYTES].copy_from_slice(shown.as_bytes());
        register.set_cap_data(&data);
        return show(call, AccessRegisterUserOut::BYTES, register.as_bytes());
    }
    let register = NicDpaEugReg::from_prefix_mut(&mut value).ok_or(Refusal::InputTooShort)?;
    group(&dpa, write, register)?;
    show(call, AccessRegisterUserOut::BYTES, register.as_bytes())
}

/// Reads, creates, changes or destroys a group of execution units.
fn group(dpa: &Dpa, write: bool, register: &mut NicDpaEugReg) -> Outcome {
    let refused = |refused| match refused {
        Refused::Full => Refusal::DpaFull,
        Refused::InUse => Refusal::DpaGroupInUse,
        _ => Refusal::DpaUnit,
    };
    // Partitions are not modelled: all units are the function's own.
    if register.partition_id_valid() {
        return Err(Refusal::Unsupported);
    }
    let id = register.eug_id();
    if !write {
        let Group { name, units } = dpa.group(id).ok_or(Refusal::DpaUnit)?;
        register.set_eug_name(&name);
        for index in 0..MASK_WORDS {
            register.set_member_mask(index, 0);
        }
        for unit in units {
            let (index, bit) = (usize::from(unit) / 32, unit % 32);
            register.set_member_mask(index, register.member_mask(index) | 1 << bit);
        }
        return Ok(());
    }
    let of = |index: usize| {
        let word = register.member_mask(index);
        (0..32_u16).filter(move |bit| word >> bit & 1 != 0).map(move |bit| index as u16 * 32 + bit)
    };
    let group = Group { name: *register.eug_name(), units: (0..MASK_WORDS).flat_map(of).collect() };
    match register.operation() {
        NicDpaOperation::CREATE => {
            register.set_eug_id(dpa.add_group(group).map_err(refused)?);
        }
        NicDpaOperation::MODIFY => dpa.change_group(id, group).map_err(refused)?,
        NicDpaOperation::DESTROY => dpa.remove_group(id).map_err(refused)?,
        _ => return Err(Refusal::UnknownOpMod),
    }
    Ok(())
}

/// Elements of a group's mask, and the units that it can name.
const MASK_WORDS: usize = 32;
const MOST_MEMBERS: u16 = 32 * MASK_WORDS as u16;

fn show(call: &mut Call<'_>, from: usize, value: &[u8]) -> Outcome {
    let room = call.output.get_mut(from..from + value.len()).ok_or(Refusal::OutputTooShort)?;
    room.copy_from_slice(value);
    Ok(())
}

/// ACCESS_REGISTER.
pub(super) fn access(
    call: &mut Call<'_>,
    input: &AccessRegisterIn,
    _: &mut AccessRegisterOut,
) -> Outcome {
    let id = input.register_id();
    let Some(register) = call.hca().profile.registers().get(&id.0) else {
        return Err(call.about(Refusal::NoSuchRegister, format!("register {:#x}", id.0)));
    };
    let info = register.info;
    let asked = call.list.get(..info.bytes).ok_or(Refusal::InputTooShort)?;
    let mut value = call.hca().registers.get(&id.0).unwrap_or(&register.bytes).clone();
    if call.op_mod == AccessRegisterIn::WRITE {
        if !WRITABLE.contains(&id) {
            return Err(Refusal::RegisterReadOnly);
        }
        value.copy_from_slice(asked);
        call.hca_mut().registers.insert(id.0, value.clone());
    }
    for name in INDEXES {
        if let (Some(field), Some(index)) = (info.field(name), View::new(info, asked).get(name)) {
            bits::set(&mut value, field.bit(0), field.width as usize, index);
        }
    }
    let ports = call.hca().ports.len() as u64;
    if View::new(info, asked).get("local_port").is_some_and(|port| port > ports) {
        return Err(Refusal::NoSuchPort);
    }
    show(call, AccessRegisterOut::BYTES, &value)
}
