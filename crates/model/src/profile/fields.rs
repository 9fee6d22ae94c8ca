//! Reads values of the PRM's fields by name from a profile's text.

use toml::de::{DeTable, DeValue};
use verbless_prm::reflect::{EnumInfo, FieldInfo, Kind, StructInfo};
use verbless_prm::{CommandInput, HcaCapPage, QueryHcaCapIn, RegisterId, STRUCTURES, Structure};

use super::error::{ProfileError, nearest};
use super::text::{Read, integer, kind, table};
use super::values::{Key, Layer, Sparse, Values};

impl<T: Structure> Read for Values<T> {
    fn read(value: &DeValue<'_>, place: &str, base: Option<&Self>) -> Result<Self, ProfileError> {
        let mut values = base.cloned().unwrap_or_else(Self::none);
        fields(place, table(value, place)?, T::INFO, 0, &mut values.0)?;
        Ok(values)
    }
}

impl<K: Named> Read for Layer<K> {
    fn read(value: &DeValue<'_>, place: &str, base: Option<&Self>) -> Result<Self, ProfileError> {
        let mut layer = base.cloned().unwrap_or_else(Self::new);
        for (name, value) in table(value, place)? {
            let section = format!("{place}.{}", name.get_ref());
            let values = table(value.get_ref(), &section)?;
            let (number, info) = K::find(&section, name.get_ref())?;
            fields(&section, values, info, 0, layer.entry(number, info))?;
        }
        Ok(layer)
    }
}

/// The kind of structure that a section names: a capability page or a register.
trait Named: Key + Clone {
    /// The number and layout of the structure that the section names.
    fn find(section: &str, name: &str) -> Result<(u16, &'static StructInfo), ProfileError>;
}

impl Named for HcaCapPage {
    fn find(section: &str, name: &str) -> Result<(u16, &'static StructInfo), ProfileError> {
        let upper = name.to_uppercase();
        let pages = HcaCapPage::INFO.values;
        let found = pages.iter().find(|(page, _)| *page == upper).and_then(|&(_, number)| {
            let variants = <QueryHcaCapIn as CommandInput>::INFO.variants;
            let variant =
                variants.iter().find(|variant| variant.values.contains(&(number << 1)))?;
            Some((number as u16, variant.info))
        });
        found.ok_or_else(|| ProfileError::NoSuchPage {
            section: section.into(),
            near: nearest(&upper, pages.iter().map(|(page, _)| *page)),
        })
    }
}

impl Named for RegisterId {
    /// The layout of `PTYS` is `ptys_reg`.
    fn find(section: &str, name: &str) -> Result<(u16, &'static StructInfo), ProfileError> {
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
}

/// Reads a section's values of a structure of type `info` that begins at bit `start` of `values`.
fn fields(
    section: &str,
    given: &DeTable<'_>,
    info: &'static StructInfo,
    start: usize,
    values: &mut Sparse,
) -> Result<(), ProfileError> {
    for (name, value) in given {
        let (name, value) = (name.get_ref(), value.get_ref());
        let field = info.field(name).ok_or_else(|| ProfileError::NoSuchField {
            section: section.into(),
            field: name.to_string(),
            structure: info.name,
            near: nearest(name, info.fields.iter().map(|field| field.name)),
        })?;
        let wrong =
            |why| ProfileError::Value { section: section.into(), field: name.to_string(), why };
        let mut set = |index, value| {
            let value = number(field, value).map_err(wrong)?;
            values.set(start + field.bit(index), field.width as usize, value);
            Ok(())
        };
        match (field.kind, value) {
            (Kind::Struct(inner), DeValue::Table(given)) => {
                let section = format!("{section}.{name}");
                fields(&section, given, inner, start + field.bit(0), values)?;
            }
            (Kind::Struct(_), _) => return Err(wrong("is a structure: give it a section".into())),
            (Kind::Bytes, _) => return Err(wrong("is bytes, and has no value here".into())),
            (Kind::Number | Kind::Enum(_), DeValue::Array(list)) if field.count != 1 => {
                if list.len() > field.elements(info.bytes) {
                    return Err(wrong(format!("has more than {} values", field.count)));
                }
                for (index, value) in list.iter().enumerate() {
                    set(index, value.get_ref())?;
                }
            }
            (Kind::Number | Kind::Enum(_), _) if field.count != 1 => {
                return Err(wrong("is an array: give it a list".into()));
            }
            (Kind::Number | Kind::Enum(_), value) => set(0, value)?,
        }
    }
    Ok(())
}

/// A value that fits `field`, or the reason why it does not.
fn number(field: &FieldInfo, value: &DeValue<'_>) -> Result<u64, String> {
    let number = match (value, field.kind) {
        (DeValue::Boolean(value), _) if field.width == 1 => u64::from(*value),
        (DeValue::String(text), Kind::Enum(names)) if !text.starts_with("0x") => {
            named(names, text)?
        }
        // TOML's own integers do not reach the upper half of 64 bits.
        (DeValue::String(text), _) if text.starts_with("0x") => u64::from_str_radix(&text[2..], 16)
            .map_err(|_| format!("is {text:?}, which is not a hexadecimal number of 64 bits"))?,
        _ => {
            let number = integer(value)
                .ok_or_else(|| format!("is of type {}, but must be a number", kind(value)))?;
            match u64::try_from(number) {
                Ok(number) => number,
                Err(_) if number < 0 => return Err(format!("is {number}: it cannot be negative")),
                Err(_) => return Err(format!("is {number}, which has more than 64 bits")),
            }
        }
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
