//! The text of a plan, entry by entry, and the values of its keys.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::FaultPlanError;
use crate::profile::nearest;

/// The text of a plan, for the line numbers of errors.
#[derive(Clone, Copy)]
pub(super) struct Text<'a>(pub &'a str);

impl Text<'_> {
    pub(super) fn error(self, at: &Range<usize>, text: impl Into<String>) -> FaultPlanError {
        let before = self.0.get(..at.start).unwrap_or_default();
        FaultPlanError { line: Some(1 + before.matches('\n').count()), text: text.into() }
    }
}

/// An entry of a plan, `[[NAME]]`. The reader takes its keys one by one; a key that nothing takes
/// is a mistake.
pub(super) struct Entry<'a> {
    text: Text<'a>,
    name: &'static str,
    at: Range<usize>,
    keys: DeTable<'a>,
    /// The keys that were looked up.
    known: Vec<&'static str>,
}

/// A value, and its position in the text.
pub(super) struct Item<'a> {
    text: Text<'a>,
    name: String,
    value: Spanned<DeValue<'a>>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(
        text: Text<'a>,
        name: &'static str,
        at: Range<usize>,
        keys: DeTable<'a>,
    ) -> Self {
        Self { text, name, at, keys, known: Vec::new() }
    }

    /// Takes the value of a key, if it is there.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Item<'a>> {
        self.known.push(key);
        let value = self.keys.remove(key)?;
        Some(Item { text: self.text, name: format!("[[{}]] {key}", self.name), value })
    }

    /// The value of a key that must be there.
    pub(super) fn require(&mut self, key: &'static str) -> Result<Item<'a>, FaultPlanError> {
        self.take(key).ok_or_else(|| self.error(format!("{key} is missing")))
    }

    /// An error about this entry.
    pub(super) fn error(&self, why: impl std::fmt::Display) -> FaultPlanError {
        self.text.error(&self.at, format!("[[{}]]: {why}", self.name))
    }

    /// Checks that the entry has no other keys.
    pub(super) fn end(&self) -> Result<(), FaultPlanError> {
        let Some((key, _)) = self.keys.iter().next() else { return Ok(()) };
        let (at, key) = (key.span(), key.get_ref());
        Err(self.text.error(&at, unknown(&format!("[[{}]]", self.name), key, &self.known)))
    }
}

/// The text of an error about an unknown key, with the known ones.
pub(super) fn unknown(section: &str, key: &str, known: &[&'static str]) -> String {
    let near = nearest(key, known.iter().copied()).map(|near| format!("; did you mean {near}?"));
    let all = known.join(", ");
    let hint = near.unwrap_or_else(|| format!("; there are {all}"));
    format!("{section} {key}: there is no such key{hint}")
}

impl Item<'_> {
    pub(super) fn error(&self, why: impl std::fmt::Display) -> FaultPlanError {
        self.text.error(&self.value.span(), format!("{} {why}", self.name))
    }

    fn kind(&self, wanted: &str) -> FaultPlanError {
        self.error(format!("is of type {}, and must be {wanted}", self.value.get_ref().type_str()))
    }

    pub(super) fn boolean(&self) -> Result<bool, FaultPlanError> {
        match self.value.get_ref() {
            DeValue::Boolean(value) => Ok(*value),
            _ => Err(self.kind("true or false")),
        }
    }

    pub(super) fn string(&self) -> Result<&str, FaultPlanError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.kind("a string")),
        }
    }

    /// Reads an integer within these bounds.
    pub(super) fn integer(&self, range: RangeInclusive<u64>) -> Result<u64, FaultPlanError> {
        let DeValue::Integer(integer) = self.value.get_ref() else {
            return Err(self.kind("an integer"));
        };
        let value = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
        let fits = value.and_then(|value| u64::try_from(value).ok());
        fits.filter(|value| range.contains(value)).ok_or_else(|| {
            let (min, max) = (range.start(), range.end());
            // With its radix, which only the text has; the limits are written alike.
            let written = self.text.0.get(self.value.span()).unwrap_or(integer.as_str());
            self.error(match integer.radix() {
                16 => format!("is {written}: it is from {min:#x} to {max:#x}"),
                _ => format!("is {written}: it is from {min} to {max}"),
            })
        })
    }

    /// A number from 0 to 1.
    pub(super) fn probability(&self) -> Result<f64, FaultPlanError> {
        let value = match self.value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            _ => return Err(self.kind("a number from 0 to 1")),
        };
        value.filter(|value| (0.0..=1.0).contains(value)).ok_or_else(|| {
            self.error("is a probability: it is from 0 to 1, as 0.01 for one frame in a hundred")
        })
    }

    /// The values of an array, or a single value.
    pub(super) fn each(self) -> Vec<Self> {
        let Self { text, name, value } = self;
        let span = value.span();
        match value.into_inner() {
            DeValue::Array(values) => {
                values.into_iter().map(|value| Item { text, name: name.clone(), value }).collect()
            }
            value => vec![Item { text, name, value: Spanned::new(span, value) }],
        }
    }

    /// A time, as `"50us"`.
    pub(super) fn duration(&self) -> Result<Duration, FaultPlanError> {
        const UNITS: [(&str, u64); 4] =
            [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
        self.quantity(&UNITS, "a time, as \"50us\": an integer and ns, us, ms or s")
            .map(Duration::from_nanos)
    }

    /// A rate in bits per second, as `"100Gb/s"`.
    pub(super) fn rate(&self) -> Result<u64, FaultPlanError> {
        const UNITS: [(&str, u64); 4] =
            [("Gb/s", 1_000_000_000), ("Mb/s", 1_000_000), ("kb/s", 1_000), ("b/s", 1)];
        let expected = "a rate, as \"100Gb/s\": an integer and b/s, kb/s, Mb/s or Gb/s";
        match self.quantity(&UNITS, expected)? {
            0 => Err(self.error("is 0: a link that carries nothing is `up = false`")),
            rate => Ok(rate),
        }
    }

    fn quantity(&self, units: &[(&str, u64)], expected: &str) -> Result<u64, FaultPlanError> {
        let text = self.string().map_err(|_| self.kind(expected))?;
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = units.iter().find(|(name, _)| *name == unit.trim_start()).map(|it| it.1);
        let product = factor.and_then(|factor| number.parse::<u64>().ok()?.checked_mul(factor));
        product.ok_or_else(|| self.error(format!("is {text:?}, and must be {expected}")))
    }

    /// Reads a name, and returns its value in `names`.
    pub(super) fn one_of<T: Copy>(&self, names: &[(&'static str, T)]) -> Result<T, FaultPlanError> {
        let text = self.string()?;
        let found = names.iter().find(|(name, _)| *name == text);
        found.map(|it| it.1).ok_or_else(|| {
            let all: Vec<_> = names.iter().map(|it| it.0).collect();
            self.error(format!("is {text:?}: there are {}", all.join(", ")))
        })
    }

    /// A number, or a name that stands for one.
    pub(super) fn number_or_name<'n>(
        &self,
        max: u64,
        names: impl Iterator<Item = (&'n str, u64)>,
        what: &str,
    ) -> Result<u64, FaultPlanError> {
        if let DeValue::Integer(_) = self.value.get_ref() {
            return self.integer(0..=max);
        }
        let text =
            self.string().map_err(|_| self.kind(&format!("the name or number of {what}")))?;
        let mut names = names;
        let found = names.find(|(name, _)| *name == text).map(|it| it.1);
        found.ok_or_else(|| self.error(format!("is {text:?}: there is no {what} of that name")))
    }
}
