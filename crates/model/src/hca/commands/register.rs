//! ACCESS_REGISTER: the registers of the profile, of which a driver may write two. `units` has the
//! registers of the DPA.

use verbless_prm::reflect::View;
use verbless_prm::{AccessRegisterIn, AccessRegisterOut, RegisterId, bits};

use super::call::{Call, Outcome};
use super::register_access::{no_such_register, write_output};
use super::units;
use crate::hca::refusal::Refusal;

/// Fields that select what the register shows; they are returned unchanged.
const INDEXES: [&str; 3] = ["local_port", "proto_mask", "plane_ind"];

/// Registers that read back what the driver wrote.
const WRITABLE: [RegisterId; 2] = [RegisterId::HOST_ENDIANNESS, RegisterId::NODE_DESC];

/// ACCESS_REGISTER.
pub(super) fn access(
    call: &mut Call<'_>,
    input: &AccessRegisterIn,
    _: &mut AccessRegisterOut,
) -> Outcome {
    let id = input.register_id();
    if let Some(outcome) = units::access(call, id) {
        return outcome;
    }
    let Some(register) = call.hca().profile.registers().get(&id.0) else {
        return Err(no_such_register(call, id));
    };
    let info = register.info;
    let requested = call.list.get(..info.bytes).ok_or(Refusal::InputTooShort)?;
    let writes = call.op_mod == AccessRegisterIn::WRITE;
    if writes && !WRITABLE.contains(&id) {
        return Err(Refusal::RegisterReadOnly);
    }
    let ports = call.hca().ports.len() as u64;
    if View::new(info, requested).get("local_port").is_some_and(|port| port > ports) {
        return Err(Refusal::NoSuchPort);
    }
    let mut value = call.hca().registers.get(&id.0).unwrap_or(&register.bytes).clone();
    if writes {
        value.copy_from_slice(requested);
        call.hca_mut().registers.insert(id.0, value.clone());
    }
    for name in INDEXES {
        if let (Some(field), Some(index)) = (info.field(name), View::new(info, requested).get(name))
        {
            bits::set(&mut value, field.bit(0), field.width as usize, index);
        }
    }
    write_output(call, AccessRegisterOut::BYTES, &value)
}
