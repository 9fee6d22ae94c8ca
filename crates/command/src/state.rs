//! The state transitions of RQs and SQs. Both queues have the states RST, RDY and ERR, and a MODIFY
//! command that names the current state and the next one.

/// Adds the transitions to an object with the method `query` and the field `owned`.
macro_rules! state_transitions {
    (
        $object:ty, $command:literal, $ready:literal, $work:literal, $reset:literal;
        $state:ty, $input:ty, $number:ident $set_number:ident, $set_state:ident
    ) => {
        impl $object {
            #[doc = concat!($command, ": RST → RDY. The queue then ", $ready, ".")]
            pub fn to_ready(&self) -> Result<(), Error> {
                self.modify(<$state>::RST, <$state>::RDY)
            }

            #[doc = concat!($command, " to ERR from the current state. With `flush_in_error`")]
            #[doc = concat!("the posted ", $work, " complete as flushed after this call returns.")]
            /// [`to_reset`](Self::to_reset) discards those that have not completed yet.
            pub fn to_error(&self) -> Result<(), Error> {
                self.move_to_state(<$state>::ERR)
            }

            #[doc = concat!($command, " to RST from the current state: discards posted ")]
            #[doc = concat!($work, $reset, ".")]
            pub fn to_reset(&self) -> Result<(), Error> {
                self.move_to_state(<$state>::RST)
            }

            fn move_to_state(&self, to: $state) -> Result<(), Error> {
                let current = || Ok(self.query()?.state());
                crate::execute::move_to_state(to, current, |from| self.modify(from, to))
            }

            #[doc = concat!($command, " from the given current state to another one.")]
            pub fn modify(&self, from: $state, to: $state) -> Result<(), Error> {
                for state in [from, to] {
                    crate::error::fits($command, "a state's number", state.0.into(), 4)?;
                }
                let mut input = <$input>::new();
                input.$set_number(self.$number.0).$set_state(from);
                input.ctx_mut().set_state(to);
                crate::execute::modify_object(self.owned.object(), &input)
            }
        }
    };
}

pub(crate) use state_transitions;
