//! Variants of a profile, each with one capability lowered or removed. No case may fail on them: a
//! case that needs the capability is skipped with that reason.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::{Stop, profiles};

/// The profiles that `--sweep` varies.
const SWEPT: [&str; 2] = ["bluefield3", "connectx6dx"];

/// A profile with one capability changed.
pub struct Variant {
    /// `page.field = value`, with the value in the profile's TOML file.
    pub name: String,
    /// The whole profile.
    text: String,
}

impl Variant {
    /// Writes the profile to a file in `folder`, for `--profile`.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, Stop> {
        let path = folder.join("variant.toml");
        std::fs::write(&path, &self.text)?;
        Ok(path)
    }
}

/// The variants of the profile `name`: each flag that is set in `caps`, of either link, is cleared;
/// each number becomes 0 and, if it is above 1, half of itself, rounded up.
pub fn variants(name: &str) -> Result<Vec<Variant>, Stop> {
    if !SWEPT.contains(&name) {
        let known = SWEPT.join(" and ");
        return Err(Stop::fail(format!(
            "--sweep {name}: unknown profile; the profiles are {known}"
        )));
    }
    let table = profiles::whole(name)?;
    let mut found = Vec::new();
    for part in [&[][..], &["infiniband"], &["ethernet"]] {
        let caps = part.iter().try_fold(&table, |table, key| table.get(*key)?.as_table());
        let Some(caps) = caps.and_then(|part| part.get("caps")?.as_table()) else { continue };
        let mut path: Vec<String> = part.iter().map(ToString::to_string).collect();
        path.push("caps".into());
        collect(&table, caps, &mut path, &mut found)?;
    }
    Ok(found)
}

/// Adds the variants of the fields below `path`.
fn collect(
    whole: &Table,
    part: &Table,
    path: &mut Vec<String>,
    found: &mut Vec<Variant>,
) -> Result<(), Stop> {
    for (key, value) in part {
        path.push(key.clone());
        match value {
            Value::Boolean(true) => found.push(variant(whole, path, Value::Boolean(false))?),
            Value::Integer(number) if *number > 0 => {
                found.push(variant(whole, path, Value::Integer(0))?);
                if *number > 1 {
                    found.push(variant(whole, path, Value::Integer((number + 1) / 2))?);
                }
            }
            Value::Table(part) => collect(whole, part, path, found)?,
            _ => {}
        }
        path.pop();
    }
    Ok(())
}

fn variant(whole: &Table, path: &[String], value: Value) -> Result<Variant, Stop> {
    let name = format!("{} = {value}", path.join("."));
    let mut changed = whole.clone();
    let (last, parents) = path.split_last().ok_or_else(|| Stop::fail("an empty path"))?;
    let part =
        parents.iter().try_fold(&mut changed, |table, key| table.get_mut(key)?.as_table_mut());
    part.ok_or_else(|| Stop::fail(format!("{name}: not in the profile")))?
        .insert(last.clone(), value);
    Ok(Variant { name, text: toml::to_string(&changed)? })
}

#[cfg(test)]
mod tests {
    use super::variants;

    #[test]
    fn variants_cover_flags_and_numbers_of_either_link() {
        let names: Vec<_> = variants("connectx6dx")
            .unwrap_or_else(|crate::Stop(why)| panic!("{why}"))
            .into_iter()
            .map(|variant| variant.name)
            .collect();
        for name in [
            "caps.general.uc = false",
            "caps.general.log_max_rmp = 0",
            "caps.general.log_max_qp_sz = 8",
            "ethernet.caps.ethernet_offloads.vlan_cap = false",
        ] {
            assert!(names.iter().any(|it| it == name), "{name}");
        }
    }
}
