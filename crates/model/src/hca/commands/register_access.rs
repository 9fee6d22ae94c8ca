//! Checks and output that ACCESS_REGISTER and ACCESS_REGISTER_USER share.

use verbless_prm::RegisterId;

use super::call::{Call, Outcome};
use crate::hca::refusal::Refusal;

/// Writes a register's value to the outbox at offset `from`.
pub(super) fn write_output(call: &mut Call<'_>, from: usize, value: &[u8]) -> Outcome {
    let room = call.output.get_mut(from..from + value.len()).ok_or(Refusal::OutputTooShort)?;
    room.copy_from_slice(value);
    Ok(())
}

/// The refusal for a register that the device lacks.
pub(super) fn no_such_register(call: &Call<'_>, id: RegisterId) -> Refusal {
    call.with_detail(Refusal::NoSuchRegister, format!("register {:#x}", id.0))
}

/// Refuses ACCESS_REGISTER_USER on a device without it.
pub(super) fn require_user_access(call: &Call<'_>) -> Outcome {
    match call.hca().caps.general().access_register_user() {
        true => Ok(()),
        false => Err(call.with_detail(Refusal::Unsupported, "access_register_user is 0")),
    }
}
