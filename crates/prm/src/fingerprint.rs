//! A number for the PRM that a program was built with: two programs with the same decode alike.

use crate::generated::{COMMANDS, STRUCTURES};
use crate::reflect::{FieldInfo, Kind};

/// FNV-1a over names, positions and values of all compiled structures and commands. Documentation
/// and sources are not in it.
pub fn fingerprint() -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for structure in STRUCTURES {
        hash.text(structure.name);
        hash.number(structure.bytes as u64);
        structure.fields.iter().for_each(|field| hash.field(field));
    }
    for command in COMMANDS {
        hash.text(command.name);
        hash.number(command.opcode.into());
        hash.text(command.input.name);
        hash.text(command.output.name);
    }
    hash.0
}

struct Fnv(u64);

impl Fnv {
    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }

    /// The text and a byte that no text has, so that no two lists of texts are alike.
    fn text(&mut self, text: &str) {
        text.bytes().chain([0xff]).for_each(|byte| self.byte(byte));
    }

    fn number(&mut self, number: u64) {
        number.to_be_bytes().into_iter().for_each(|byte| self.byte(byte));
    }

    fn field(&mut self, field: &FieldInfo) {
        self.text(field.name);
        for number in [field.offset, field.width, field.count] {
            self.number(number.into());
        }
        match field.kind {
            Kind::Number => self.byte(0),
            Kind::Bytes => self.byte(1),
            Kind::Struct(inner) => self.text(inner.name),
            Kind::Enum(names) => {
                self.text(names.name);
                for &(name, value) in names.values {
                    self.text(name);
                    self.number(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(field: FieldInfo) -> u64 {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        hash.field(&field);
        hash.0
    }

    #[test]
    fn fingerprint_depends_on_every_part_of_a_field() {
        let field = FieldInfo::number("rlid", 16, 8);
        let others = [
            FieldInfo::number("rlic", 16, 8),
            FieldInfo::number("rlid", 17, 8),
            FieldInfo::number("rlid", 16, 7),
            field.times(2),
            FieldInfo::bytes("rlid", 16, 1),
        ];
        for other in others {
            assert_ne!(of(field), of(other), "{other:?}");
        }
        assert_eq!(of(field), of(FieldInfo::number("rlid", 16, 8)));
    }

    #[test]
    fn fnv_matches_published_vector() {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        "foobar".bytes().for_each(|byte| hash.byte(byte));
        assert_eq!(hash.0, 0x8594_4171_f739_67e8);
    }
}
