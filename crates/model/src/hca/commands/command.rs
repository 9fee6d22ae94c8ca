//! A command in the tables of commands: who may send it, and the handler that executes it.

use verbless_prm::{CommandInfo, CommandInput, GeneralObjectType};

use super::call::{Call, Outcome};
use crate::hca::registry::KindEntry;
use crate::hca::state::Hca;

/// The commands on a kind of object, the second part of its entry.
pub(in crate::hca) trait ObjectCommands: KindEntry {
    /// The commands. One on a general object type needs the type's bit in
    /// `hca_cap.general_obj_types` of the profiles, which have the bits of no other types. Types
    /// from 0xff00 on have no bit: they are aliases of objects that have commands of their own.
    const COMMANDS: &'static [Command];

    /// Carries out the further effects of the removal of an object.
    fn removed(_: &mut Hca, _number: u32, _: Self::Object) {}
}

/// The function state that a command requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredLife {
    /// Any time.
    Always,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Up,
}

/// Who may send a command. Later variants have the rights of earlier ones too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Privilege {
    /// Every user context.
    User,
    /// User contexts with TOOLS_RESOURCES.
    Tools,
    /// Only uid 0.
    Kernel,
}

/// An implemented command.
pub(in crate::hca) struct Command {
    pub(in crate::hca) info: &'static CommandInfo,
    /// The general object type of the command, sent in op_mod's bits.
    pub(in crate::hca) object_type: Option<GeneralObjectType>,
    pub(super) life: RequiredLife,
    pub(super) privilege: Privilege,
    /// Whether a driver may stamp it with `SHARED_UID`, to create and destroy objects that all may
    /// use.
    pub(super) is_shared: bool,
    /// Minimum bytes of an inbox; bytes after its end count as 0.
    min_input_bytes: usize,
    handler: &'static dyn Handle,
}

/// The handler of a command with this inbox.
pub(in crate::hca) struct Run<I: CommandInput>(
    pub(in crate::hca) fn(&mut Call<'_>, &I, &mut I::Output) -> Outcome,
);

/// A handler of any command.
trait Handle: Sync {
    fn run(&self, call: &mut Call<'_>, min_input_bytes: usize) -> Outcome;
}

impl<I: CommandInput> Handle for Run<I> {
    fn run(&self, call: &mut Call<'_>, min_input_bytes: usize) -> Outcome {
        call.run::<I>(min_input_bytes, self.0)
    }
}

/// A command that every user context may send.
pub(in crate::hca) const fn user<I: CommandInput>(handler: &'static Run<I>) -> Command {
    command(Privilege::User, handler)
}

/// A command that only user contexts with TOOLS_RESOURCES and the kernel may send.
pub(in crate::hca) const fn tools<I: CommandInput>(handler: &'static Run<I>) -> Command {
    command(Privilege::Tools, handler)
}

/// A command that only the kernel may send.
pub(in crate::hca) const fn kernel<I: CommandInput>(handler: &'static Run<I>) -> Command {
    command(Privilege::Kernel, handler)
}

const fn command<I: CommandInput>(privilege: Privilege, handler: &'static Run<I>) -> Command {
    Command {
        info: <I as CommandInput>::INFO,
        object_type: None,
        life: RequiredLife::Up,
        privilege,
        is_shared: false,
        min_input_bytes: usize::MAX,
        handler,
    }
}

impl Command {
    /// The command is about this general object type.
    pub(in crate::hca) const fn of(self, object_type: GeneralObjectType) -> Self {
        Self { object_type: Some(object_type), ..self }
    }

    /// A driver may stamp the command with `SHARED_UID`.
    pub(in crate::hca) const fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// Allows a shorter inbox, of at least this many bytes; bytes after its end count as 0.
    pub(in crate::hca) const fn min_input_bytes(self, bytes: usize) -> Self {
        Self { min_input_bytes: bytes, ..self }
    }

    /// The command is legal from ENABLE_HCA on.
    pub(super) const fn enabled(self) -> Self {
        Self { life: RequiredLife::Enabled, ..self }
    }

    /// The command is always legal.
    pub(super) const fn always(self) -> Self {
        Self { life: RequiredLife::Always, ..self }
    }

    /// Executes the command.
    pub(super) fn run(&self, call: &mut Call<'_>) -> Outcome {
        self.handler.run(call, self.min_input_bytes)
    }
}
