//! Marks in a recording: where a case begins.
//!
//! A mark is a NOP, which DevX passes and which has no effect. Bytes after its first sixteen are
//! not part of the command, so they can carry a name; every recorder on the way sees it.

use verbless_prm::{CommandInput, NopIn, NopOut};

/// Bytes of the output.
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
    fn mark_name_round_trips() {
        assert_eq!(name(&command("theirs cq 100")), Some("theirs cq 100"));
        assert_eq!(name(NopIn::new().as_bytes()), None);
        let mut other = command("cq");
        other[1] ^= 1;
        assert_eq!(name(&other), None);
    }
}
