//! Commands that a test wants to fail.

/// Failures to come, of one function.
#[derive(Debug, Default)]
pub(crate) struct CommandFaults {
    faults: Vec<CommandFault>,
}

#[derive(Debug)]
struct CommandFault {
    opcode: u16,
    /// Commands of that opcode to let pass first.
    pass: u32,
    status: u8,
    syndrome: u32,
}

impl CommandFaults {
    /// Lets the `nth` command from now with that opcode fail; the first is 1.
    pub(crate) fn add(&mut self, opcode: u16, nth: u32, status: u8, syndrome: u32) {
        self.faults.push(CommandFault { opcode, pass: nth.saturating_sub(1), status, syndrome });
    }

    /// Whether the command that is about to run is one of them; it is struck once.
    pub(crate) fn strikes(&mut self, opcode: u16) -> Option<(u8, u32)> {
        let mut struck = None;
        self.faults.retain_mut(|fault| {
            if fault.opcode != opcode {
                return true;
            }
            if fault.pass == 0 && struck.is_none() {
                struck = Some((fault.status, fault.syndrome));
                return false;
            }
            fault.pass = fault.pass.saturating_sub(1);
            true
        });
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_command_of_an_opcode_fails_once() {
        let mut faults = CommandFaults::default();
        faults.add(0x400, 2, 0xf, 7);
        faults.add(0x500, 1, 0x3, 8);
        assert_eq!(faults.strikes(0x400), None);
        assert_eq!(faults.strikes(0x500), Some((0x3, 8)));
        assert_eq!(faults.strikes(0x400), Some((0xf, 7)));
        assert_eq!(faults.strikes(0x400), None);
    }
}
