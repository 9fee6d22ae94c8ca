//! Finding a command by its opcode, among those that are compiled in.

use crate::command::CommandInfo;
use crate::generated::COMMANDS;

impl CommandInfo {
    /// The command with that opcode; `None` also when it is of a family whose feature is off.
    pub fn by_opcode(opcode: u16) -> Option<&'static Self> {
        let found = COMMANDS.binary_search_by_key(&opcode, |command| command.opcode);
        found.ok().map(|index| COMMANDS[index])
    }

    /// The command that an input buffer is for.
    pub fn of_input(input: &[u8]) -> Option<&'static Self> {
        Self::by_opcode(u16::from_be_bytes(*input.first_chunk()?))
    }
}
