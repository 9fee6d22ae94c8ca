//! UAR pages that a function extends to a process of another function of its card: programs of that
//! process ring doorbells of the queues on such a page. The commands are the model's own
//! (`prm/dpa`).
//!
//! The owner of the queues names the process that may ring by its serial number, which is unique.
//! The process need not be looked up; an extension to an ended process is harmless.

use verbless_dpa::function_of;
use verbless_prm::{CreateGeneralObjectIn, CreateGeneralObjectOut, DpaUarExtension};

use super::call::{Call, Outcome};
use super::domain::check_uar;
use crate::hca::objects;
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;

/// CREATE_GENERAL_OBJECT.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let mut context: DpaUarExtension = call.context(input)?;
    check_uar(call, context.uar_page())?;
    // Functions of other cards may have the same vhca_id.
    let owner = (context.vhca_id(), function_of(context.process_serial()));
    if !call.hca().reached_by.contains(&owner) {
        return Err(Refusal::UarExtensionTo);
    }
    context.set_device_id(0);
    let own = call.hca().caps.general().vhca_id();
    let made = call.make(kind::UarExtension, objects::UarExtension { uid: call.uid, context });
    let number = made?;
    call.change(kind::UarExtension, number, |extension| {
        extension.context.set_device_id(u32::from(own) << 16 | number);
    })?;
    output.set_obj_id(number);
    Ok(())
}
