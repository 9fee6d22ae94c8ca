//! Sending a typed command, each way that DevX has. None takes a layout that only the model knows.

use verbless_devx::{Context, DevxObject, Result};
use verbless_prm::{CommandInput, Structure};

/// Compiles for commands that hardware has.
const fn published<I: CommandInput>() {
    assert!(!I::MODEL_ONLY, "only the model knows this layout: its function takes a &ModelToken");
}

/// Sends a creating command without a variable tail.
pub(crate) fn create<I: CommandInput>(
    context: &Context,
    input: &I,
    output: &mut I::Output,
) -> Result<DevxObject> {
    const { published::<I>() };
    context.obj_create(input.as_bytes(), output.as_bytes_mut())
}

/// Sends a general command (DEVX_OTHER).
pub(crate) fn execute<I: CommandInput>(
    context: &Context,
    input: &I,
    output: &mut I::Output,
) -> Result<()> {
    const { published::<I>() };
    context.devx_other(input.as_bytes(), output.as_bytes_mut())
}

/// Sends a query of an object.
pub(crate) fn query_object<I: CommandInput>(
    object: &DevxObject,
    input: &I,
    output: &mut I::Output,
) -> Result<()> {
    const { published::<I>() };
    object.query(input.as_bytes(), output.as_bytes_mut())
}

/// Sends a change of an object whose answer holds nothing but the status.
pub(crate) fn modify_object<I: CommandInput>(object: &DevxObject, input: &I) -> Result<()> {
    const { published::<I>() };
    let mut output = I::Output::default();
    object.modify(input.as_bytes(), output.as_bytes_mut())
}
