//! Profiles that say only how they differ from another one.

use toml::{Table, Value};

use super::{ProfileError, builtin};

/// The whole of a profile with a `base`; `None`: it has none, and is whole as it is.
pub(super) fn merged(text: &str) -> Result<Option<Table>, ProfileError> {
    let mut own: Table =
        toml::from_str(text).map_err(|error| ProfileError::Syntax(error.into()))?;
    let Some(base) = own.remove("base") else { return Ok(None) };
    let base = base.as_str().ok_or_else(|| ProfileError::Value {
        section: "profile".into(),
        field: "base".into(),
        why: "is not the name of a profile that comes along".into(),
    })?;
    let mut whole: Table =
        toml::from_str(builtin(base)?).map_err(|error| ProfileError::Syntax(error.into()))?;
    put_over(&mut whole, own);
    Ok(Some(whole))
}

/// Puts `own` over `whole`: sections are merged, values replaced.
fn put_over(whole: &mut Table, own: Table) {
    for (name, value) in own {
        match (whole.get_mut(&name), value) {
            (Some(Value::Table(whole)), Value::Table(own)) => put_over(whole, own),
            (_, value) => {
                whole.insert(name, value);
            }
        }
    }
}
