//! The profiles that come along, and those that say only how they differ from another one.

use super::error::ProfileError;
use super::text::{Fields, Value, parse};

/// The profiles that come with the model: name and text.
const BUILTIN: [(&str, &str); 6] = [
    ("connectx6dx", include_str!("../../profiles/connectx6dx.toml")),
    ("connectx6dx-bond", include_str!("../../profiles/connectx6dx-bond.toml")),
    ("connectx6dx-realtime", include_str!("../../profiles/connectx6dx-realtime.toml")),
    ("connectx6vf", include_str!("../../profiles/connectx6vf.toml")),
    ("bluefield3", include_str!("../../profiles/bluefield3.toml")),
    ("bluefield3-fwctl", include_str!("../../profiles/bluefield3-fwctl.toml")),
];

/// The text of a built-in profile.
pub(super) fn builtin(name: &str) -> Result<&'static str, ProfileError> {
    let found = BUILTIN.iter().find(|(builtin, _)| *builtin == name);
    found.map(|&(_, text)| text).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        ProfileError::NoSuchProfile { name: name.into(), known }
    })
}

/// The names of the profiles that come along.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

/// Parses a profile and merges it over its `base`, if it names one.
pub(super) fn merged(text: &str) -> Result<Fields, ProfileError> {
    let mut own = parse(text)?;
    let Some(base) = own.remove("base") else { return Ok(own) };
    let Value::String(base) = base else {
        return Err(ProfileError::Value {
            section: "profile".into(),
            field: "base".into(),
            why: "is not the name of a profile that comes along".into(),
        });
    };
    let mut whole = parse(builtin(&base)?)?;
    put_over(&mut whole, own);
    Ok(whole)
}

/// Puts `own` over `whole`: sections are merged, values replaced.
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
