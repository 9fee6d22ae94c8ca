//! Looks up compiled-in commands by opcode.

use crate::command::{CommandInfo, Devx};
use crate::generated::{COMMANDS, DEVX_OF_OP_MODS};

impl CommandInfo {
    /// The command with that opcode; `None` if it is unknown or its family's feature is off.
    pub fn by_opcode(opcode: u16) -> Option<&'static Self> {
        let found = COMMANDS.binary_search_by_key(&opcode, |command| command.opcode);
        found.ok().map(|index| COMMANDS[index])
    }

    /// The DevX method of the command with this op_mod.
    pub fn devx_of(&self, op_mod: u16) -> Devx {
        let mut others = DEVX_OF_OP_MODS.iter();
        let other = others.find(|(opcode, of, _)| (*opcode, *of) == (self.opcode, op_mod));
        other.map_or(self.devx, |(_, _, devx)| *devx)
    }

    /// The command of an input buffer.
    pub fn of_input(input: &[u8]) -> Option<&'static Self> {
        Self::by_opcode(u16::from_be_bytes(*input.first_chunk()?))
    }
}
