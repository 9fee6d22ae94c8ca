//! Run-time descriptions of the structures: names, positions, enums, nested structures.
//!
//! A [`View`] interprets bytes as a structure that is chosen at run time; it reads and prints
//! fields by name. A field that the bytes are too short for is missing; the others are present.

use core::fmt;

use crate::bits;

/// A structure.
#[derive(Debug, PartialEq, Eq)]
pub struct StructInfo {
    /// The structure's name in `prm/`, such as `cq_context`.
    pub name: &'static str,
    /// Size in bytes, without a tail.
    pub bytes: usize,
    /// Sources of the layout; `model` as the only one means that no hardware has it.
    pub sources: &'static [&'static str],
    /// The fields in memory order.
    pub fields: &'static [FieldInfo],
    /// The gaps: first bit and number of bits.
    pub reserved: &'static [(u32, u32)],
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldInfo {
    /// The field's name.
    pub name: &'static str,
    /// First bit, counted from the most significant bit of the structure's first byte.
    pub offset: u32,
    /// Bits of one element.
    pub width: u32,
    /// Number of elements: 1 if it is not an array; 0 for a tail, which extends to the end of the
    /// bytes.
    pub count: u32,
    /// The type of an element.
    pub kind: Kind,
    /// Whether the field may overlap other fields.
    pub overlay: bool,
    /// Whether only the model has it: hardware reserves these bits.
    pub model_only: bool,
}

/// The type of an element of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number of at most 64 bits.
    Number,
    /// A number with named values.
    Enum(&'static EnumInfo),
    /// A structure.
    Struct(&'static StructInfo),
    /// Bytes without further meaning.
    Bytes,
}

/// Named values.
#[derive(Debug, PartialEq, Eq)]
pub struct EnumInfo {
    /// The enum's name in `prm/`, such as `cqe_size`.
    pub name: &'static str,
    /// Bits that hold a value.
    pub bits: u32,
    /// Names and values.
    pub values: &'static [(&'static str, u64)],
    /// Values that only the model has.
    pub model_only: &'static [u64],
}

impl EnumInfo {
    /// The name of a value, if it has one.
    pub const fn name_of(&self, value: u64) -> Option<&'static str> {
        let mut i = 0;
        while i < self.values.len() {
            if self.values[i].1 == value {
                return Some(self.values[i].0);
            }
            i += 1;
        }
        None
    }
}

impl StructInfo {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&'static FieldInfo> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Whether a flexible array follows its bytes: its own, or that of a structure at its end.
    pub fn has_tail(&self) -> bool {
        self.fields.iter().any(|field| match field.kind {
            _ if field.is_tail() => true,
            Kind::Struct(nested) => {
                field.bit(field.count as usize) == self.bytes * 8 && nested.has_tail()
            }
            _ => false,
        })
    }

    /// Whether only the model has this layout. Hardware must never see it.
    pub const fn is_model_only(&self) -> bool {
        are_model_only(self.sources)
    }
}

/// Whether the model is the only source.
pub(crate) const fn are_model_only(sources: &[&str]) -> bool {
    let mut i = 0;
    while i < sources.len() {
        if !matches!(sources[i].as_bytes(), b"model") {
            return false;
        }
        i += 1;
    }
    !sources.is_empty()
}

impl FieldInfo {
    /// A number of `width` bits from bit `offset`.
    pub const fn number(name: &'static str, offset: u32, width: u32) -> Self {
        let kind = Kind::Number;
        Self { name, offset, width, count: 1, kind, overlay: false, model_only: false }
    }

    /// `bytes` bytes from bit `offset`.
    pub const fn bytes(name: &'static str, offset: u32, bytes: u32) -> Self {
        Self { kind: Kind::Bytes, ..Self::number(name, offset, bytes * 8) }
    }

    /// A structure from bit `offset`.
    pub const fn nested(name: &'static str, offset: u32, info: &'static StructInfo) -> Self {
        Self { kind: Kind::Struct(info), ..Self::number(name, offset, info.bytes as u32 * 8) }
    }

    /// Makes the field one with named values.
    pub const fn of(self, info: &'static EnumInfo) -> Self {
        Self { kind: Kind::Enum(info), ..self }
    }

    /// Makes the field an array of `count` elements.
    pub const fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }

    /// Makes the field a flexible array at the structure's end.
    pub const fn tail(self) -> Self {
        Self { count: 0, ..self }
    }

    /// Lets it overlap other fields.
    pub const fn overlay(self) -> Self {
        Self { overlay: true, ..self }
    }

    /// Marks it as a field that only the model has.
    pub const fn model_only(self) -> Self {
        Self { model_only: true, ..self }
    }

    /// Whether the field is a flexible array at the end.
    pub const fn is_tail(&self) -> bool {
        self.count == 0
    }

    /// Number of elements that lie within the first `bytes` bytes of the structure.
    pub const fn elements(&self, bytes: usize) -> usize {
        if self.width == 0 {
            return 0;
        }
        let whole = (bytes * 8).saturating_sub(self.offset as usize) / self.width as usize;
        if self.is_tail() || whole < self.count as usize { whole } else { self.count as usize }
    }

    /// The first bit of element `index`.
    pub const fn bit(&self, index: usize) -> usize {
        self.offset as usize + index * self.width as usize
    }

    /// Element `index` as a number; `None` for bytes and structures, or beyond `bytes`.
    pub fn value(&self, bytes: &[u8], index: usize) -> Option<u64> {
        let number = matches!(self.kind, Kind::Number | Kind::Enum(_));
        (number && index < self.elements(bytes.len()))
            .then(|| bits::get(bytes, self.bit(index), self.width as usize))
    }

    /// The bytes of element `index`; `None` for numbers, or beyond `bytes`.
    pub fn slice<'a>(&self, bytes: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let whole = matches!(self.kind, Kind::Bytes | Kind::Struct(_));
        let start = self.bit(index) / 8;
        (whole && index < self.elements(bytes.len()))
            .then(|| &bytes[start..start + self.width as usize / 8])
    }
}

/// Bytes interpreted as a structure.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The structure.
    pub info: &'static StructInfo,
    /// The bytes, including a tail; they may be fewer than the structure has.
    pub bytes: &'a [u8],
    /// A field of opaque bytes, and the structure to interpret them as.
    pub holds: Option<(&'static str, &'static StructInfo)>,
}

/// One number or run of bytes in a [`View`], with nested structures flattened.
#[derive(Clone, Copy)]
pub struct Leaf {
    /// Its field.
    pub field: &'static FieldInfo,
    /// First bit, counted from the start of the outermost structure.
    pub bit: usize,
    /// Number of bits; a multiple of 8 for bytes.
    pub width: usize,
}

/// The path from the outermost structure to a [`Leaf`].
#[derive(Clone, Copy)]
pub struct Path<'a> {
    /// The field of the outer structure, if this is not the outermost.
    pub parent: Option<&'a Path<'a>>,
    /// The structure that has the field.
    pub info: &'static StructInfo,
    /// The field.
    pub field: &'static FieldInfo,
    /// The index of its element.
    pub index: usize,
}

impl<'a> View<'a> {
    /// Interprets `bytes` as the structure `info`.
    pub const fn new(info: &'static StructInfo, bytes: &'a [u8]) -> Self {
        Self { info, bytes, holds: None }
    }

    /// The number in a field; `address_path.rlid` is a field of a nested structure.
    pub fn get(&self, path: &str) -> Option<u64> {
        let (name, rest) = match path.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        let field = self.info.field(name)?;
        match rest {
            None => field.value(self.bytes, 0),
            Some(rest) => self.nested(field, 0)?.get(rest),
        }
    }

    /// Element `index` of a field that holds a structure.
    pub fn nested(&self, field: &FieldInfo, index: usize) -> Option<View<'a>> {
        let held = self.holds.filter(|(name, _)| *name == field.name);
        if let Some((_, info)) = held {
            let bytes = self.bytes.get(field.offset as usize / 8..)?;
            let fixed = field.count as usize * field.width as usize / 8;
            let bytes = if field.is_tail() { bytes } else { bytes.get(..fixed).unwrap_or(bytes) };
            return (index == 0).then_some(View::new(info, bytes));
        }
        let Kind::Struct(info) = field.kind else { return None };
        let start = field.bit(index) / 8;
        let elements = if field.is_tail() { usize::MAX } else { field.count as usize };
        let bytes =
            self.bytes.get(start..).filter(|bytes| !bytes.is_empty() && index < elements)?;
        // A nested structure at the end of the outer one may have a tail.
        let last = !field.is_tail() && start + info.bytes == self.info.bytes;
        Some(View::new(info, if last { bytes } else { bytes.get(..info.bytes).unwrap_or(bytes) }))
    }

    /// Calls `f` for every number and run of bytes that lies within the bytes, in field order.
    pub fn leaves(&self, f: &mut dyn FnMut(&Path<'_>, Leaf)) {
        self.leaves_below(None, 0, f);
    }

    fn leaves_below(
        &self,
        parent: Option<&Path<'_>>,
        start: usize,
        f: &mut dyn FnMut(&Path<'_>, Leaf),
    ) {
        for field in self.info.fields {
            for index in 0..self.elements(field) {
                let path = Path { parent, info: self.info, field, index };
                let bit = start + field.bit(index);
                match self.nested(field, index) {
                    Some(nested) => nested.leaves_below(Some(&path), bit, f),
                    None => f(&path, Leaf { field, bit, width: field.width as usize }),
                }
            }
        }
    }

    pub(crate) fn elements(&self, field: &FieldInfo) -> usize {
        if self.holds.is_some_and(|(name, _)| name == field.name) {
            return usize::from(self.bytes.len() > field.offset as usize / 8);
        }
        match field.kind {
            // A truncated nested structure still shows its first fields.
            Kind::Struct(_) if !field.is_tail() => (0..field.count as usize)
                .take_while(|&index| field.bit(index) / 8 < self.bytes.len())
                .count(),
            _ => field.elements(self.bytes.len()),
        }
    }

    /// Calls `f` with the first bit and the number of bits of every gap within the bytes, also
    /// those of nested structures. Bytes after a structure without a tail are a gap.
    pub fn gaps(&self, f: &mut dyn FnMut(usize, usize)) {
        self.gaps_below(0, f);
    }

    fn gaps_below(&self, start: usize, f: &mut dyn FnMut(usize, usize)) {
        for &(offset, width) in self.info.reserved {
            let end = ((offset + width) as usize).min(self.bytes.len() * 8);
            if (offset as usize) < end {
                f(start + offset as usize, end - offset as usize);
            }
        }
        for field in self.info.fields {
            for index in 0..self.elements(field) {
                let Some(nested) = self.nested(field, index) else { break };
                nested.gaps_below(start + field.bit(index), f);
            }
        }
        let known = match self.holds.and_then(|(name, _)| self.info.field(name)) {
            Some(held) if held.is_tail() => self.bytes.len(),
            _ if self.info.has_tail() => self.bytes.len(),
            _ => self.info.bytes,
        };
        if self.bytes.len() > known {
            f(start + known * 8, (self.bytes.len() - known) * 8);
        }
    }

    /// The first nonzero gap as (first bit, number of bits), nested structures included.
    pub fn nonzero_reserved(&self) -> Option<(usize, usize)> {
        let mut found = None;
        self.gaps(&mut |start, width| {
            let chunks = (0..width).step_by(64).map(|at| (start + at, (width - at).min(64)));
            let zero = |(at, width)| bits::get(self.bytes, at, width) == 0;
            if found.is_none() && !{ chunks }.all(zero) {
                found = Some((start, width));
            }
        });
        found
    }

    fn value(&self, field: &'static FieldInfo, index: usize) -> Value<'a> {
        match self.nested(field, index) {
            Some(nested) => Value::Nested(nested),
            None => match field.kind {
                Kind::Enum(info) => Value::Enum(info, field.value(self.bytes, index).unwrap_or(0)),
                Kind::Number => Value::Number(field.value(self.bytes, index).unwrap_or(0)),
                _ => Value::Bytes(field.slice(self.bytes, index).unwrap_or(&[])),
            },
        }
    }
}

/// Every field with its value, enum values by name.
impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(self.info.name);
        for field in self.info.fields {
            match (field.count, self.elements(field)) {
                (1, 0) => {}
                (1, _) => {
                    out.field(field.name, &self.value(field, 0));
                }
                _ => {
                    out.field(field.name, &Array { view: *self, field });
                }
            }
        }
        out.finish()
    }
}

/// Prints a line `path = value` for each nonzero field; `{:#}` prints every field.
impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut result = Ok(());
        self.leaves(&mut |path, leaf| {
            let value = match leaf.field.kind {
                Kind::Enum(info) => Value::Enum(info, bits::get(self.bytes, leaf.bit, leaf.width)),
                Kind::Number => Value::Number(bits::get(self.bytes, leaf.bit, leaf.width)),
                _ => Value::Bytes(&self.bytes[leaf.bit / 8..][..leaf.width / 8]),
            };
            if result.is_ok() && (f.alternate() || !value.is_zero()) {
                result = writeln!(f, "{path} = {value:?}");
            }
        });
        result
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}.")?;
        }
        f.write_str(self.field.name)?;
        if self.field.count != 1 { write!(f, "[{}]", self.index) } else { Ok(()) }
    }
}

enum Value<'a> {
    Number(u64),
    Enum(&'static EnumInfo, u64),
    Bytes(&'a [u8]),
    Nested(View<'a>),
}

impl Value<'_> {
    fn is_zero(&self) -> bool {
        match self {
            Value::Number(value) | Value::Enum(_, value) => *value == 0,
            Value::Bytes(bytes) => bytes.iter().all(|&byte| byte == 0),
            Value::Nested(view) => view.bytes.iter().all(|&byte| byte == 0),
        }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(value) => number(f, *value),
            Value::Enum(info, value) => enum_value(f, info, *value),
            Value::Bytes(bytes) if self.is_zero() => write!(f, "[0; {}]", bytes.len()),
            Value::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Value::Nested(view) => view.fmt(f),
        }
    }
}

struct Array<'a> {
    view: View<'a>,
    field: &'static FieldInfo,
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements = self.view.elements(self.field);
        let mut values = (0..elements).map(|index| self.view.value(self.field, index));
        if elements > 1 && values.all(|value| value.is_zero()) {
            return write!(f, "[0; {elements}]");
        }
        f.debug_list()
            .entries((0..elements).map(|index| self.view.value(self.field, index)))
            .finish()
    }
}

/// A field's name without `r#`, the prefix of an accessor whose name is a keyword.
#[cfg(feature = "structures")]
pub(crate) const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// Prints numbers below 10 in decimal, others in hexadecimal.
fn number(f: &mut fmt::Formatter<'_>, value: u64) -> fmt::Result {
    if value < 10 { write!(f, "{value}") } else { write!(f, "{value:#x}") }
}

/// Prints the value's name, or the number if it has none.
pub(crate) fn enum_value(f: &mut fmt::Formatter<'_>, info: &EnumInfo, value: u64) -> fmt::Result {
    match info.name_of(value) {
        Some(name) => f.write_str(name),
        None => number(f, value),
    }
}

#[cfg(test)]
mod tests {
    use super::are_model_only;

    #[test]
    fn model_only_requires_model_as_sole_source() {
        assert!(are_model_only(&["model"]));
        for sources in [&["model", "linux: a"][..], &["linux: a", "model"], &["linux: a"], &[]] {
            assert!(!are_model_only(sources), "{sources:?}");
        }
    }
}
