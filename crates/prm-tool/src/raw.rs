//! The tables as written, and the rules for writing a field.

use serde::Deserialize;

use super::at::{At, Rest};
use super::description::{Content, Field, Variant};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStructure {
    pub(super) bytes: u32,
    #[serde(default)]
    pub(super) doc: String,
    #[serde(default)]
    pub(super) sources: Vec<String>,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    #[serde(default)]
    pub(super) hot: bool,
    #[serde(default)]
    pub(super) words: toml::Table,
    #[serde(default)]
    pub(super) reserved: Vec<String>,
    #[serde(default)]
    pub(super) without: Vec<String>,
    #[serde(default)]
    pub(super) fields: toml::Table,
}

/// A word: its position, and optionally its fields or the structure that defines it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawWord {
    At(String),
    Only { at: String, fields: Vec<String> },
    Of { at: String, of: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawField {
    pub(super) at: String,
    pub(super) bits: Option<u32>,
    pub(super) bytes: Option<u32>,
    pub(super) count: Option<u32>,
    #[serde(rename = "enum")]
    pub(super) enumeration: Option<String>,
    #[serde(rename = "struct")]
    pub(super) structure: Option<String>,
    #[serde(default)]
    pub(super) tail: bool,
    #[serde(default)]
    pub(super) overlay: bool,
    #[serde(default)]
    pub(super) doc: String,
    pub(super) sources: Option<Vec<String>>,
    pub(super) linux: Option<String>,
}

impl RawField {
    pub(super) fn into_field(self, name: String) -> Result<Field, String> {
        let at = At::parse(&self.at)?;
        let said = [self.bits.is_some(), self.bytes.is_some(), self.structure.is_some()];
        if said.iter().filter(|&&said| said).count() > 1 {
            return Err("has more than one of bits, bytes and struct; keep one".into());
        }
        if self.enumeration.is_some() && (self.bytes.is_some() || self.structure.is_some()) {
            return Err("an enum is a number; it has no bytes or struct".into());
        }
        let exact = match at.rest {
            Rest::Bytes(_) => {
                return Err(format!(
                    "`at` of a field has no :n; write at = \"0x{:02x}\", bytes = n",
                    at.dword
                ));
            }
            Rest::Bits(_, lo) => lo != 0,
            Rest::None => false,
        };
        let width = match (self.bits, self.bytes, &self.structure) {
            (Some(bits), ..) => bits,
            (_, Some(bytes), _) => bytes.checked_mul(8).ok_or("bytes is too large")?,
            (_, _, Some(_)) => 0, // `Description::resolve` sets it
            _ => at.width(),
        };
        if width == 0 && self.structure.is_none() {
            return Err("has no bits".into());
        }
        if exact && self.structure.is_none() && width != at.width() && self.count.is_none() {
            return Err(format!(
                "`at` has {} bits, but the field has {width}; write a field that crosses its \
                 dword as .hi:0",
                at.width()
            ));
        }
        if self.count == Some(0) {
            return Err("count is 0; a flexible array at the end is tail = true".into());
        }
        if self.count.is_some_and(|count| count > 0x1_0000) {
            return Err("has more elements than a structure can hold".into());
        }
        if self.tail && self.count.is_some() {
            return Err("is a tail, which has no count".into());
        }
        let count = self.count.unwrap_or(1);
        if width.checked_mul(count).is_none_or(|bits| bits > 1 << 24) {
            return Err("is larger than a structure can be".into());
        }
        let content = match (self.enumeration, self.structure, self.bytes) {
            (Some(name), ..) => Content::Enum(name),
            (_, Some(name), _) => Content::Struct(name),
            (_, _, Some(_)) => Content::Bytes,
            _ if width > 64 => Content::Bytes,
            _ => Content::Number,
        };
        Ok(Field {
            name,
            start: at.start(),
            width,
            count,
            content,
            tail: self.tail,
            array: self.count.is_some(),
            overlay: self.overlay,
            doc: self.doc,
            sources: self.sources,
            linux: self.linux,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEnum {
    pub(super) bits: u32,
    pub(super) hot: Option<String>,
    #[serde(default)]
    pub(super) doc: String,
    #[serde(default)]
    pub(super) sources: Vec<String>,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    pub(super) called: Option<String>,
    #[serde(default)]
    pub(super) decimal: bool,
    #[serde(default)]
    pub(super) shown_in: Vec<String>,
    #[serde(default)]
    pub(super) values: toml::Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawValue {
    pub(super) value: u64,
    #[serde(default)]
    pub(super) says: Vec<String>,
    pub(super) devx: Option<String>,
    #[serde(default)]
    pub(super) doc: String,
    pub(super) sources: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCommand {
    pub(super) opcode: u16,
    pub(super) input: String,
    pub(super) output: String,
    pub(super) devx: String,
    #[serde(default)]
    pub(super) doc: String,
    #[serde(default)]
    pub(super) sources: Vec<String>,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    #[serde(default)]
    pub(super) op_mods: toml::Table,
    pub(super) state: Option<String>,
    #[serde(default)]
    pub(super) states: Vec<String>,
    #[serde(default)]
    pub(super) transitions: Vec<String>,
    pub(super) capability: Option<String>,
    #[serde(default)]
    pub(super) statuses: toml::Table,
    #[serde(default)]
    pub(super) variants: Vec<Variant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStatus {
    pub(super) why: String,
    pub(super) from: String,
}

#[cfg(test)]
mod tests {
    use super::super::description::Description;
    use super::*;

    fn field(text: &str) -> Result<Field, String> {
        let text = format!("[s]\nbytes = 4\nfields.f = {{ {text} }}");
        let mut description = Description::parse([("prm/x.toml", text.as_str())]);
        match description.problems.pop() {
            Some(problem) => Err(problem.message),
            None => Ok(description.structures.remove(0).fields.remove(0)),
        }
    }

    #[test]
    fn bits_above_64_are_opaque_bytes() {
        for (text, content, width) in [
            ("bytes = 4", Content::Bytes, 32),
            ("bits = 64", Content::Number, 64),
            ("bits = 65", Content::Bytes, 65),
            ("bits = 8, enum = \"e\"", Content::Enum("e".into()), 8),
        ] {
            let field = field(&format!("at = \"0x00\", {text}")).unwrap();
            assert_eq!((field.content, field.width), (content, width), "{text}");
        }
    }

    #[test]
    fn field_is_limited_to_65536_elements_and_2_mib() {
        for (text, says) in [
            ("bits = 256, count = 0x10000", ""),
            ("bits = 257, count = 0x10000", "is larger than a structure can be"),
            ("bits = 1, count = 0x10000", ""),
            ("bits = 1, count = 0x10001", "has more elements than a structure can hold"),
            ("bits = 0x1000000", ""),
            ("bits = 0x1000001", "is larger than a structure can be"),
            ("bytes = 0x20000000", "bytes is too large"),
        ] {
            let error = field(&format!("at = \"0x00\", {text}")).err().unwrap_or_default();
            assert_eq!(error, says, "{text}");
        }
    }
}
