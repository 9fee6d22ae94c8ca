//! Finding a command by its opcode, among those that are compiled in.

use crate::command::{CommandInfo, Devx};
use crate::generated::{COMMANDS, DEVX_OF_OP_MODS};

impl CommandInfo {
    /// The command with that opcode; `None` also when it is of a family whose feature is off.
    pub fn by_opcode(opcode: u16) -> Option<&'static Self> {
        let found = COMMANDS.binary_search_by_key(&opcode, |command| command.opcode);
        found.ok().map(|index| COMMANDS[index])
    }

    /// Whether and as what DevX passes the command with this op_mod.
    pub fn devx_of(&self, op_mod: u16) -> Devx {
        let mut others = DEVX_OF_OP_MODS.iter();
        let other = others.find(|(opcode, of, _)| (*opcode, *of) == (self.opcode, op_mod));
        other.map_or(self.devx, |(_, _, devx)| *devx)
    }

    /// The command that an input buffer is for.
    pub fn of_input(input: &[u8]) -> Option<&'static Self> {
        Self::by_opcode(u16::from_be_bytes(*input.first_chunk()?))
    }
}
