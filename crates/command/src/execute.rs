//! Executes typed commands, one function per DevX ioctl. None compiles for a command that only the
//! model has.

use verbless_devx::{Context, DevxObject, Result};
use verbless_prm::{CommandInput, IntoBytes};

/// Compiles only for commands that hardware has.
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
    context.obj_create(input.as_bytes(), output.as_mut_bytes())
}

/// Sends a general command (DEVX_OTHER).
pub(crate) fn execute<I: CommandInput>(
    context: &Context,
    input: &I,
    output: &mut I::Output,
) -> Result<()> {
    const { published::<I>() };
    context.devx_other(input.as_bytes(), output.as_mut_bytes())
}

/// Sends a query of an object.
pub(crate) fn query_object<I: CommandInput>(
    object: &DevxObject,
    input: &I,
    output: &mut I::Output,
) -> Result<()> {
    const { published::<I>() };
    object.query(input.as_bytes(), output.as_mut_bytes())
}

/// Sends a modify command whose output has the status only.
pub(crate) fn modify_object<I: CommandInput>(object: &DevxObject, input: &I) -> Result<()> {
    const { published::<I>() };
    let mut output = I::Output::default();
    object.modify(input.as_bytes(), output.as_mut_bytes())
}

/// Moves a queue to the state `to` from its current one. If the queue changes to ERR between the
/// query and the modify command, it is moved from ERR.
pub(crate) fn move_to_state<S: Copy + PartialEq>(
    to: S,
    current: impl Fn() -> Result<S>,
    modify_from: impl Fn(S) -> Result<()>,
) -> Result<()> {
    let mut from = current()?;
    while from != to {
        let Err(error) = modify_from(from) else { return Ok(()) };
        let now = current()?;
        if now == from {
            return Err(error);
        }
        from = now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use verbless_devx::{Error, ErrorKind};

    use super::move_to_state;

    fn refused() -> Error {
        Error::new(ErrorKind::Refused, "MODIFY_SQ", "the state is another")
    }

    #[test]
    fn move_to_state_follows_a_state_that_changes_once() {
        let state = Cell::new(1);
        let modify = |from| {
            // The queue goes to ERR by itself before the first command.
            if from == 1 {
                state.set(2);
                return Err(refused());
            }
            state.set(0);
            Ok(())
        };
        move_to_state(0, || Ok(state.get()), modify).expect("the queue moves from state 2");
        assert_eq!(state.get(), 0);
        move_to_state(0, || Ok(0), |_| panic!("no command is needed")).expect("no command");
        assert!(
            move_to_state(0, || Ok(3), |_| Err(refused())).is_err(),
            "a refusal from the same state"
        );
    }
}
