//! Marks in a recording: where a case begins.
//!
//! A mark is a NOP, which DevX passes and which does nothing. What follows its sixteen bytes is no
//! part of the command, so a name can travel there; every recorder on the way sees it.

use verbless_prm::{CommandInput, NopIn, NopOut};

/// Bytes of the answer.
pub const ANSWER: usize = NopOut::BYTES;

/// The command that carries a name.
#[must_use]
pub fn command(name: &str) -> Vec<u8> {
    [NopIn::new().as_bytes(), name.as_bytes()].concat()
}

/// The name in a command, if it is a mark.
#[must_use]
pub fn name(input: &[u8]) -> Option<&str> {
    let opcode = <NopIn as CommandInput>::INFO.opcode.to_be_bytes();
    let rest = input.get(NopIn::BYTES..).filter(|rest| !rest.is_empty())?;
    input.starts_with(&opcode).then(|| std::str::from_utf8(rest).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_from_its_mark_and_from_no_other_command() {
        assert_eq!(name(&command("theirs cq 100")), Some("theirs cq 100"));
        assert_eq!(name(NopIn::new().as_bytes()), None);
        let mut other = command("cq");
        other[1] ^= 1;
        assert_eq!(name(&other), None);
    }
}
