//! Changes of single fields of otherwise valid commands; the PRM description gives the fields'
//! positions.

use arbitrary::Arbitrary;
use verbless_prm::reflect::{Kind, View};
use verbless_prm::{CommandInfo, bits};

use crate::address::Address;
use crate::machine::{ObjectKind, ObjectNumbers};

/// A change of one field.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub struct Tweak {
    /// The index of the field, counted through nested structures.
    field: u16,
    value: Value,
}

/// The new value of a field.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub enum Value {
    Small(u8),
    /// All bits.
    Ones,
    /// One bit.
    Bit(u8),
    /// The number of an existing or destroyed object.
    Number(ObjectKind, u8),
    Address(Address),
    Any(u64),
}

impl Value {
    fn get(self, known: &ObjectNumbers) -> u64 {
        match self {
            Self::Small(value) => value.into(),
            Self::Ones => u64::MAX,
            Self::Bit(bit) => 1 << (bit % 64),
            Self::Number(sort, index) => known.pick(sort, index).into(),
            Self::Address(address) => address.get(),
            Self::Any(value) => value,
        }
    }
}

/// Applies changes to the input of a command.
pub fn apply(input: &mut [u8], tweaks: &[Tweak], known: &ObjectNumbers) {
    if tweaks.is_empty() {
        return;
    }
    let Some(command) = CommandInfo::of_input(input) else { return };
    let mut leaves = Vec::new();
    View::new(command.input, input).leaves(&mut |_, leaf| leaves.push(leaf));
    // The target sets opcode, uid and op_mod itself.
    leaves.retain(|leaf| leaf.bit >= 64);
    for tweak in tweaks {
        let Some(leaf) = leaves.get(usize::from(tweak.field) % leaves.len().max(1)) else { return };
        let value = tweak.value.get(known);
        match leaf.field.kind {
            Kind::Number | Kind::Enum(_) if leaf.width < 64 => {
                bits::set(input, leaf.bit, leaf.width, value & ((1 << leaf.width) - 1));
            }
            Kind::Number | Kind::Enum(_) => bits::set(input, leaf.bit, leaf.width, value),
            _ => input[leaf.bit / 8..][..leaf.width / 8].fill(value as u8),
        }
    }
}
