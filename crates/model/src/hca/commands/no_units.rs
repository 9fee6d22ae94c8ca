//! Replaces `units` in a build without the feature `dpa`: a device without a DPA has none of its
//! registers.

use verbless_prm::{AccessRegisterUserIn, AccessRegisterUserOut, RegisterId};

use super::call::{Call, Outcome};
use super::register::{absent, user_may};

pub(super) fn access_user(
    call: &mut Call<'_>,
    input: &AccessRegisterUserIn,
    _: &mut AccessRegisterUserOut,
) -> Outcome {
    user_may(call)?;
    Err(absent(call, input.register_id()))
}

pub(super) fn access(_: &mut Call<'_>, _: RegisterId) -> Option<Outcome> {
    None
}
