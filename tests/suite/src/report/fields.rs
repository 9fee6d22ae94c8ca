//! Capability pages as named fields.

use std::fmt;

use verbless_prm::reflect::{EnumInfo, FieldInfo, Kind, StructInfo, View};
use verbless_prm::{CommandInput, HcaCapPage, QueryHcaCapIn, bits};

use super::document::{Field, Page};

/// The layout of capability page `number`, if the PRM has one.
pub(super) fn layout(number: u16) -> Option<&'static StructInfo> {
    let op_mod = u64::from(number.checked_mul(2)?);
    let variants = <QueryHcaCapIn as CommandInput>::INFO.variants;
    Some(variants.iter().find(|variant| variant.values.contains(&op_mod))?.info)
}

/// The name of capability page `number`, if the PRM has one.
pub(super) fn page_name(number: u16) -> Option<&'static str> {
    HcaCapPage::INFO.name_of(number.into())
}

/// A number or a run of bytes within a structure.
#[derive(Clone, PartialEq)]
pub(crate) struct Leaf {
    /// The names from the structure to the field, with the index of an array's element.
    pub path: String,
    /// The structure that has the field.
    pub owner: &'static StructInfo,
    pub field: &'static FieldInfo,
    pub index: usize,
    /// First bit within the outermost structure.
    pub bit: usize,
}

impl Leaf {
    /// Its value in the outermost structure's bytes.
    pub(crate) fn value(&self, bytes: &[u8]) -> Value {
        let width = self.field.width as usize;
        match self.field.kind {
            Kind::Number => Value::Number(bits::get(bytes, self.bit, width)),
            Kind::Enum(info) => Value::Enum(info, bits::get(bytes, self.bit, width)),
            _ => Value::Bytes(bytes[self.bit / 8..][..width / 8].into()),
        }
    }
}

/// The value of a [`Leaf`].
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Number(u64),
    Enum(&'static EnumInfo, u64),
    Bytes(Box<[u8]>),
}

impl Value {
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Number(number) | Self::Enum(_, number) => *number == 0,
            Self::Bytes(bytes) => bytes.iter().all(|&byte| byte == 0),
        }
    }
}

/// Numbers from here on are more likely masks than counts, and are printed in hexadecimal.
const FIRST_MASK: u64 = 1_000_000;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enum(info, number) if info.name_of(*number).is_some() => {
                f.write_str(info.name_of(*number).unwrap_or_default())
            }
            Self::Number(number) | Self::Enum(_, number) if *number < FIRST_MASK => {
                write!(f, "{number}")
            }
            Self::Number(number) | Self::Enum(_, number) => write!(f, "{number:#x}"),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// All leaves of a structure within `len` bytes.
pub(super) fn leaves(info: &'static StructInfo, len: usize) -> Vec<Leaf> {
    of_view(&View::new(info, &vec![0; len]))
}

/// All leaves of a view.
pub(crate) fn of_view(view: &View<'_>) -> Vec<Leaf> {
    let mut found = Vec::new();
    view.leaves(&mut |path, leaf| {
        let (owner, field, index) = (path.info, leaf.field, path.index);
        found.push(Leaf { path: path.to_string(), owner, field, index, bit: leaf.bit });
    });
    found
}

/// A leaf of a page with its values.
pub(super) struct Capability {
    pub leaf: Leaf,
    pub current: Value,
    pub maximum: Value,
}

impl Page {
    /// The fields of the page; none if the PRM does not know its layout.
    pub(super) fn capabilities(&self) -> Vec<Capability> {
        let Some(info) = layout(self.number) else { return Vec::new() };
        let (current, maximum) = (self.current.padded(0x1000), self.maximum.padded(0x1000));
        let of = |leaf: Leaf| Capability {
            current: leaf.value(&current),
            maximum: leaf.value(&maximum),
            leaf,
        };
        leaves(info, info.bytes).into_iter().map(of).collect()
    }

    /// The current values that are not 0.
    pub(super) fn set_fields(&self) -> Vec<Field> {
        let set = self.capabilities().into_iter().filter(|it| !it.current.is_zero());
        set.map(|it| Field { name: it.leaf.path, value: it.current.to_string() }).collect()
    }

    /// The page's name in texts for readers.
    pub(super) fn title(&self) -> String {
        match page_name(self.number) {
            Some(name) => name.to_lowercase(),
            None => format!("page {:#x}", self.number),
        }
    }

    /// Nonzero bits that the PRM does not name: the first bit of each run of current values.
    pub(super) fn unnamed_bits(&self) -> Vec<usize> {
        let bytes = self.current.padded(0x1000);
        let is_set = |bit: &usize| bytes[bit / 8] >> (7 - bit % 8) & 1 == 1;
        let Some(info) = layout(self.number) else {
            return (0..bytes.len() * 8).filter(is_set).collect();
        };
        let mut found = Vec::new();
        View::new(info, &bytes).gaps(&mut |start, width| {
            found.extend((start..start + width).filter(is_set));
        });
        found
    }
}
