//! The text of a profile: code reads its sections field by field, over the values of its base.

use toml::de::{DeTable, DeValue};

use super::error::{ProfileError, nearest};

/// A section; its fields are read one by one, and another field in it is a mistake.
pub(super) struct Section<'a> {
    name: String,
    fields: &'a DeTable<'a>,
    /// The fields that the code read.
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// The section of this name; the whole file's section has none.
    pub(super) fn new(name: &str, fields: &'a DeTable<'a>) -> Self {
        Self { name: name.into(), fields, known: Vec::new() }
    }

    /// The full name of a field within this section.
    fn within(&self, field: &str) -> String {
        if self.name.is_empty() { field.into() } else { format!("{}.{field}", self.name) }
    }

    /// Reads a field over the base's value; without a field, it is the base's, if there is one.
    pub(super) fn optional<T: Read>(
        &mut self,
        field: &'static str,
        base: Option<&T>,
    ) -> Result<Option<T>, ProfileError> {
        self.known.push(field);
        match self.fields.get(field) {
            Some(value) => T::read(value.get_ref(), &self.within(field), base).map(Some),
            None => Ok(base.cloned()),
        }
    }

    /// Reads a field that must exist, here or in the base.
    pub(super) fn required<T: Read>(
        &mut self,
        field: &'static str,
        base: Option<&T>,
    ) -> Result<T, ProfileError> {
        let value = self.optional(field, base)?;
        value.ok_or_else(|| wrong(&self.within(field), "is missing"))
    }

    /// Checks that the section has no other fields.
    pub(super) fn end(self) -> Result<(), ProfileError> {
        let is_unknown = |name: &str| !self.known.contains(&name);
        let mut fields = self.fields.iter();
        let unknown = fields.find(|(name, _)| is_unknown(name.get_ref()));
        let Some((field, value)) = unknown else { return Ok(()) };
        let near = nearest(field.get_ref(), self.known.iter().copied());
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        let what = if matches!(value.get_ref(), DeValue::Table(_)) { "section" } else { "field" };
        Err(wrong(&self.within(field.get_ref()), format!("is not a {what} of a profile{near}")))
    }
}

/// A type that a field's value can be read as.
pub(super) trait Read: Clone {
    /// Reads the value of `place`, a section and a field in it, over that of the profile's base.
    fn read(value: &DeValue<'_>, place: &str, base: Option<&Self>) -> Result<Self, ProfileError>;
}

/// The error for a mistake in a field.
pub(super) fn wrong(place: &str, why: impl Into<String>) -> ProfileError {
    let (section, field) = place.rsplit_once('.').unwrap_or(("profile", place));
    ProfileError::Value { section: section.into(), field: field.into(), why: why.into() }
}

/// The error for a value of another type than `place` accepts.
pub(super) fn misplaced(place: &str, value: &DeValue<'_>, wanted: &str) -> ProfileError {
    wrong(place, format!("is of type {}, but must be {wanted}", kind(value)))
}

/// The value's type, in the words of a profile.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Table(_) => "section",
        DeValue::Integer(_) if integer(value).is_none() => "integer of too many digits",
        _ => value.type_str(),
    }
}

/// The value, if it is an integer.
pub(super) fn integer(value: &DeValue<'_>) -> Option<i128> {
    let DeValue::Integer(integer) = value else { return None };
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// The fields of a section.
pub(super) fn table<'a>(
    value: &'a DeValue<'a>,
    place: &str,
) -> Result<&'a DeTable<'a>, ProfileError> {
    let DeValue::Table(fields) = value else { return Err(misplaced(place, value, "a section")) };
    Ok(fields)
}

macro_rules! read_numbers {
    ($($number:ty),*) => {$(
        impl Read for $number {
            fn read(
                value: &DeValue<'_>,
                place: &str,
                _: Option<&Self>,
            ) -> Result<Self, ProfileError> {
                let number = integer(value).ok_or_else(|| misplaced(place, value, "a number"))?;
                let max = Self::MAX;
                let fits = Self::try_from(number);
                fits.map_err(|_| wrong(place, format!("is {number}, not from 0 to {max}")))
            }
        }
    )*};
}

read_numbers!(u8, u16, u32, u64);

impl Read for String {
    fn read(value: &DeValue<'_>, place: &str, _: Option<&Self>) -> Result<Self, ProfileError> {
        match value {
            DeValue::String(text) => Ok(text.to_string()),
            other => Err(misplaced(place, other, "a string")),
        }
    }
}

impl<T: Read> Read for Option<T> {
    fn read(value: &DeValue<'_>, place: &str, base: Option<&Self>) -> Result<Self, ProfileError> {
        T::read(value, place, base.and_then(Option::as_ref)).map(Some)
    }
}

impl<T: Read, const N: usize> Read for [T; N] {
    fn read(value: &DeValue<'_>, place: &str, _: Option<&Self>) -> Result<Self, ProfileError> {
        let values = <[T; N]>::try_from(Vec::read(value, place, None)?);
        values.map_err(|given| wrong(place, format!("has {} values, not {N}", given.len())))
    }
}

impl<T: Read> Read for Vec<T> {
    fn read(value: &DeValue<'_>, place: &str, _: Option<&Self>) -> Result<Self, ProfileError> {
        let DeValue::Array(values) = value else {
            return Err(misplaced(place, value, "an array"));
        };
        values.iter().map(|value| T::read(value.get_ref(), place, None)).collect()
    }
}
