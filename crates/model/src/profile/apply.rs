//! Writes the values of a profile into the PRM's fields.

use std::collections::BTreeMap;

use verbless_prm::reflect::{EnumInfo, FieldInfo, Kind, StructInfo};
use verbless_prm::{CommandInput, HcaCapPage, QueryHcaCapIn, RegisterId, STRUCTURES, bits};

use super::error::{ProfileError, nearest};
use super::file::{ByLink, File, OnDpu};
use super::text::{Fields, Value};

/// A capability page: its values at the start of the device, and their maxima.
#[derive(Debug, Clone)]
pub(crate) struct CapPage {
    pub info: &'static verbless_prm::reflect::StructInfo,
    pub current: Box<[u8]>,
    pub max: Box<[u8]>,
}

/// A register, as ACCESS_REGISTER reads it.
#[derive(Debug, Clone)]
pub struct Register {
    /// The register's layout.
    pub info: &'static verbless_prm::reflect::StructInfo,
    /// The register's contents.
    pub bytes: Box<[u8]>,
}

/// All capability pages of a function.
pub(super) fn pages(
    file: &File,
    by_link: &ByLink,
    by_side: Option<&OnDpu>,
) -> Result<BTreeMap<u16, CapPage>, ProfileError> {
    let link = prefix(file, by_link);
    let none = BTreeMap::new();
    let mut pages = BTreeMap::new();
    // The current value is also the maximum, unless a `max` section gives a larger one.
    for (prefix, sections, both) in [
        ("", &file.caps, true),
        (link, &by_link.caps, true),
        ("dpu.", by_side.map_or(&none, |side| &side.caps), true),
        ("", &file.max, false),
        (link, &by_link.max, false),
    ] {
        for (name, values) in sections {
            let section = format!("{prefix}{}.{name}", if both { "caps" } else { "max" });
            let (number, info) = page(&section, name)?;
            let page = pages.entry(number).or_insert_with(|| {
                let zeros = vec![0; info.bytes].into_boxed_slice();
                CapPage { info, current: zeros.clone(), max: zeros }
            });
            if both {
                fields(&section, info, &mut page.current, values)?;
            }
            fields(&section, info, &mut page.max, values)?;
        }
    }
    let lacking = HcaCapPage::GENERAL;
    if !pages.contains_key(&lacking.0) {
        return Err(ProfileError::Value {
            section: "caps".into(),
            field: "general".into(),
            why: "is missing: every device has that page".into(),
        });
    }
    Ok(pages)
}

/// All registers of a device.
pub(super) fn registers(
    file: &File,
    by_link: &ByLink,
) -> Result<BTreeMap<u16, Register>, ProfileError> {
    let mut registers = BTreeMap::new();
    for (prefix, sections) in [("", &file.registers), (prefix(file, by_link), &by_link.registers)] {
        for (name, values) in sections {
            let section = format!("{prefix}registers.{name}");
            let (number, info) = register(&section, name)?;
            let register = registers
                .entry(number)
                .or_insert_with(|| Register { info, bytes: vec![0; info.bytes].into() });
            fields(&section, info, &mut register.bytes, values)?;
        }
    }
    Ok(registers)
}

/// The number and layout of the register that a section names: the layout of `PTYS` is `ptys_reg`.
fn register(section: &str, name: &str) -> Result<(u16, &'static StructInfo), ProfileError> {
    let ids = RegisterId::INFO.values;
    let upper = name.to_uppercase();
    let found = ids.iter().find(|(id, _)| *id == upper).and_then(|&(_, number)| {
        let layout = format!("{name}_reg");
        let info = STRUCTURES.iter().find(|info| info.name == layout)?;
        Some((number as u16, *info))
    });
    found.ok_or_else(|| ProfileError::NoSuchRegister {
        section: section.into(),
        near: nearest(&upper, ids.iter().map(|(id, _)| *id)),
    })
}

fn prefix(file: &File, by_link: &ByLink) -> &'static str {
    if std::ptr::eq(by_link, &file.infiniband) { "infiniband." } else { "ethernet." }
}

/// The number and layout of the capability page that a section names.
fn page(section: &str, name: &str) -> Result<(u16, &'static StructInfo), ProfileError> {
    let upper = name.to_uppercase();
    let pages = HcaCapPage::INFO.values;
    let found = pages.iter().find(|(page, _)| *page == upper).and_then(|&(_, number)| {
        let variants = <QueryHcaCapIn as CommandInput>::INFO.variants;
        let variant = variants.iter().find(|variant| variant.values.contains(&(number << 1)))?;
        Some((number as u16, variant.info))
    });
    found.ok_or_else(|| ProfileError::NoSuchPage {
        section: section.into(),
        near: nearest(&upper, pages.iter().map(|(page, _)| *page)),
    })
}

/// Writes each value of `values` into its field of `bytes`, a structure of type `info`.
pub(super) fn fields(
    section: &str,
    info: &'static StructInfo,
    bytes: &mut [u8],
    values: &Fields,
) -> Result<(), ProfileError> {
    for (name, value) in values {
        let field = info.field(name).ok_or_else(|| ProfileError::NoSuchField {
            section: section.into(),
            field: name.clone(),
            structure: info.name,
            near: nearest(name, info.fields.iter().map(|field| field.name)),
        })?;
        let wrong = |why| ProfileError::Value { section: section.into(), field: name.clone(), why };
        match (field.kind, value) {
            (Kind::Struct(inner), Value::Section(values)) => {
                let start = field.offset as usize / 8;
                let section = format!("{section}.{name}");
                fields(&section, inner, &mut bytes[start..start + inner.bytes], values)?;
            }
            (Kind::Struct(_), _) => return Err(wrong("is a structure: give it a section".into())),
            (Kind::Bytes, _) => return Err(wrong("is bytes, and has no value here".into())),
            (Kind::Number | Kind::Enum(_), Value::Array(values)) if field.count != 1 => {
                if values.len() > field.elements(bytes.len()) {
                    return Err(wrong(format!("has more than {} values", field.count)));
                }
                for (index, value) in values.iter().enumerate() {
                    let value = number(field, value).map_err(wrong)?;
                    bits::set(bytes, field.bit(index), field.width as usize, value);
                }
            }
            (Kind::Number | Kind::Enum(_), _) if field.count != 1 => {
                return Err(wrong("is an array: give it a list".into()));
            }
            (Kind::Number | Kind::Enum(_), value) => {
                let value = number(field, value).map_err(wrong)?;
                bits::set(bytes, field.bit(0), field.width as usize, value);
            }
        }
    }
    Ok(())
}

/// A value that fits `field`, or the reason why it does not.
fn number(field: &FieldInfo, value: &Value) -> Result<u64, String> {
    let number = match (value, field.kind) {
        (Value::Integer(value), _) => {
            u64::try_from(*value).map_err(|_| format!("is {value}: it cannot be negative"))?
        }
        (Value::Boolean(value), _) if field.width == 1 => u64::from(*value),
        (Value::String(text), Kind::Enum(names)) if !text.starts_with("0x") => named(names, text)?,
        // TOML's own integers do not reach the upper half of 64 bits.
        (Value::String(text), _) if text.starts_with("0x") => {
            u64::from_str_radix(&text[2..], 16)
                .map_err(|_| format!("is {text:?}, which is not a hexadecimal number of 64 bits"))?
        }
        (value, _) => return Err(format!("is of type {}, but must be a number", value.kind())),
    };
    if field.width < 64 && number >> field.width != 0 {
        return Err(format!("is {number}, which does not fit its {} bits", field.width));
    }
    Ok(number)
}

fn named(names: &'static EnumInfo, text: &str) -> Result<u64, String> {
    names.values.iter().find(|(name, _)| *name == text).map(|&(_, value)| value).ok_or_else(|| {
        let near = nearest(text, names.values.iter().map(|(name, _)| *name));
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        format!("is {text:?}, which is not a value of {}{near}", names.name)
    })
}
