//! A profile as a tree of values, from its text or from the built-in constants; code reads its
//! sections field by field.

use std::collections::BTreeMap;

#[cfg(feature = "toml")]
use toml::de::{DeTable, DeValue};

use super::error::{ProfileError, nearest};

/// The fields of a section by name, or sections within it.
pub(super) type Fields = BTreeMap<String, Value>;

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Integer(i128),
    Boolean(bool),
    String(String),
    Array(Vec<Value>),
    Section(Fields),
    /// A value of a type that no field accepts, by the type's name.
    #[cfg(feature = "toml")]
    Other(&'static str),
}

impl Value {
    /// The value's type, in TOML's words.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) => "integer",
            Self::Boolean(_) => "boolean",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Section(_) => "section",
            #[cfg(feature = "toml")]
            Self::Other(kind) => kind,
        }
    }
}

/// A value of a built-in profile.
pub(super) enum Constant {
    Integer(u64),
    Boolean(bool),
    String(&'static str),
    Array(&'static [Constant]),
    Section(&'static [(&'static str, Constant)]),
}

impl Constant {
    fn value(&self) -> Value {
        match *self {
            Self::Integer(number) => Value::Integer(number.into()),
            Self::Boolean(is) => Value::Boolean(is),
            Self::String(text) => Value::String(text.into()),
            Self::Array(values) => Value::Array(values.iter().map(Self::value).collect()),
            Self::Section(section) => Value::Section(built_in(section)),
        }
    }
}

/// The fields of a built-in section.
pub(super) fn built_in(section: &[(&str, Constant)]) -> Fields {
    section.iter().map(|(name, value)| ((*name).into(), value.value())).collect()
}

/// Parses a text.
#[cfg(feature = "toml")]
pub(super) fn parse(text: &str) -> Result<Fields, ProfileError> {
    let tree = DeTable::parse(text).map_err(|error| ProfileError::Syntax(error.to_string()))?;
    Ok(fields(tree.get_ref()))
}

#[cfg(feature = "toml")]
fn fields(table: &DeTable<'_>) -> Fields {
    let entries = table.iter();
    entries.map(|(name, value)| (name.get_ref().to_string(), owned(value.get_ref()))).collect()
}

#[cfg(feature = "toml")]
fn owned(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::Integer(integer) => i128::from_str_radix(integer.as_str(), integer.radix())
            .map_or(Value::Other("integer of too many digits"), Value::Integer),
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Array(values) => {
            Value::Array(values.iter().map(|value| owned(value.get_ref())).collect())
        }
        DeValue::Table(table) => Value::Section(fields(table)),
        DeValue::Float(_) | DeValue::Datetime(_) => Value::Other(value.type_str()),
    }
}

/// A section; its fields are taken one by one, and a field left at the end is a mistake.
pub(super) struct Section {
    name: String,
    fields: Fields,
    /// The fields that the code took.
    known: Vec<&'static str>,
}

impl Section {
    /// The section of this name; the whole file's section has none.
    pub(super) fn new(name: &str, fields: Fields) -> Self {
        Self { name: name.into(), fields, known: Vec::new() }
    }

    /// The full name of a field within this section.
    fn within(&self, field: &str) -> String {
        if self.name.is_empty() { field.into() } else { format!("{}.{field}", self.name) }
    }

    /// Takes a field, if it exists.
    pub(super) fn optional<T: Read>(
        &mut self,
        field: &'static str,
    ) -> Result<Option<T>, ProfileError> {
        self.known.push(field);
        let value = self.fields.remove(field);
        value.map(|value| T::read(value, &self.within(field))).transpose()
    }

    /// Takes a field that must exist.
    pub(super) fn required<T: Read>(&mut self, field: &'static str) -> Result<T, ProfileError> {
        let value = self.optional(field)?;
        value.ok_or_else(|| wrong(&self.within(field), "is missing"))
    }

    /// Checks that the section has no other fields.
    pub(super) fn end(self) -> Result<(), ProfileError> {
        let Some((field, value)) = self.fields.first_key_value() else { return Ok(()) };
        let near = nearest(field, self.known.iter().copied());
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        let what = if matches!(value, Value::Section(_)) { "section" } else { "field" };
        Err(wrong(&self.within(field), format!("is not a {what} of a profile{near}")))
    }
}

/// A type that a field's value can be read as.
pub(super) trait Read: Sized {
    /// Reads the value of `place`: a section and a field in it.
    fn read(value: Value, place: &str) -> Result<Self, ProfileError>;
}

/// The error for a mistake in a field.
pub(super) fn wrong(place: &str, why: impl Into<String>) -> ProfileError {
    let (section, field) = place.rsplit_once('.').unwrap_or(("profile", place));
    ProfileError::Value { section: section.into(), field: field.into(), why: why.into() }
}

/// The error for a value of another type than `place` accepts.
pub(super) fn misplaced(place: &str, value: &Value, wanted: &str) -> ProfileError {
    wrong(place, format!("is of type {}, but must be {wanted}", value.kind()))
}

macro_rules! read_numbers {
    ($($number:ty),*) => {$(
        impl Read for $number {
            fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
                let Value::Integer(value) = value else {
                    return Err(misplaced(place, &value, "a number"));
                };
                let most = Self::MAX;
                let fits = Self::try_from(value);
                fits.map_err(|_| wrong(place, format!("is {value}, not from 0 to {most}")))
            }
        }
    )*};
}

read_numbers!(u8, u16, u32, u64);

impl Read for String {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        match value {
            Value::String(text) => Ok(text),
            other => Err(misplaced(place, &other, "a string")),
        }
    }
}

impl<T: Read, const N: usize> Read for [T; N] {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        let Value::Array(values) = value else {
            return Err(misplaced(place, &value, "an array"));
        };
        let values: Result<Vec<T>, _> =
            values.into_iter().map(|value| T::read(value, place)).collect();
        let values = <[T; N]>::try_from(values?);
        values.map_err(|given| wrong(place, format!("has {} values, not {N}", given.len())))
    }
}

impl<T: Read> Read for Vec<T> {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        let Value::Array(values) = value else {
            return Err(misplaced(place, &value, "an array"));
        };
        values.into_iter().map(|value| T::read(value, place)).collect()
    }
}

impl Read for Fields {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        match value {
            Value::Section(fields) => Ok(fields),
            other => Err(misplaced(place, &other, "a section")),
        }
    }
}

impl Read for BTreeMap<String, Fields> {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        let sections = Fields::read(value, place)?.into_iter();
        let read = |(name, value)| {
            let fields = Fields::read(value, &format!("{place}.{name}"))?;
            Ok((name, fields))
        };
        sections.map(read).collect()
    }
}
