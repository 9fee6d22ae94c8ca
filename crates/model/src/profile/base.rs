//! The built-in profiles, and profiles that give only their differences from another one.

use super::builtin::BUILTIN;
use super::error::ProfileError;
use super::text::{Fields, Value, built_in};

/// The fields of a built-in profile.
pub(super) fn builtin(name: &str) -> Result<Fields, ProfileError> {
    let found = BUILTIN.iter().find(|(builtin, _)| *builtin == name);
    found.map(|(_, fields)| built_in(fields)).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        ProfileError::NoSuchProfile { name: name.into(), known }
    })
}

/// The names of the built-in profiles.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

/// Merges a profile over its `base`, if it names one.
pub(super) fn merged(mut own: Fields) -> Result<Fields, ProfileError> {
    let Some(base) = own.remove("base") else { return Ok(own) };
    let Value::String(base) = base else {
        return Err(ProfileError::Value {
            section: "profile".into(),
            field: "base".into(),
            why: "is not the name of a built-in profile".into(),
        });
    };
    let mut whole = builtin(&base)?;
    put_over(&mut whole, own);
    Ok(whole)
}

/// Merges `own` over `whole`: sections are merged, values replaced.
fn put_over(whole: &mut Fields, own: Fields) {
    for (name, value) in own {
        match (whole.get_mut(&name), value) {
            (Some(Value::Section(whole)), Value::Section(own)) => put_over(whole, own),
            (_, value) => {
                whole.insert(name, value);
            }
        }
    }
}
