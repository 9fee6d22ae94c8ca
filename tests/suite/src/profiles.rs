//! The text of the model's built-in profiles, and each as one table with that of its base.

use toml::map::Entry;
use toml::{Table, Value};

use crate::Stop;

/// The built-in profiles by name.
pub(crate) const PROFILES: [(&str, &str); 9] = [
    ("bluefield3", include_str!("../../../crates/model/profiles/bluefield3.toml")),
    ("bluefield3-fwctl", include_str!("../../../crates/model/profiles/bluefield3-fwctl.toml")),
    ("bluefield3-relaxed", include_str!("../../../crates/model/profiles/bluefield3-relaxed.toml")),
    ("connectx5", include_str!("../../../crates/model/profiles/connectx5.toml")),
    ("connectx6dx", include_str!("../../../crates/model/profiles/connectx6dx.toml")),
    ("connectx6dx-bond", include_str!("../../../crates/model/profiles/connectx6dx-bond.toml")),
    (
        "connectx6dx-realtime",
        include_str!("../../../crates/model/profiles/connectx6dx-realtime.toml"),
    ),
    ("connectx6vf", include_str!("../../../crates/model/profiles/connectx6vf.toml")),
    ("connectx7", include_str!("../../../crates/model/profiles/connectx7.toml")),
];

/// A built-in profile as a whole, without `base`.
pub(crate) fn whole(name: &str) -> Result<Table, Stop> {
    let (_, text) = PROFILES
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Stop::fail(format!("there is no built-in profile {name}")))?;
    let mut table: Table = text.parse()?;
    match table.remove("base") {
        Some(Value::String(base)) => {
            let mut below = whole(&base)?;
            merge(&mut below, table);
            Ok(below)
        }
        _ => Ok(table),
    }
}

/// Puts `above` over `below`, as the model does: sections field by field, arrays of numbers element
/// by element.
fn merge(below: &mut Table, above: Table) {
    for (key, value) in above {
        match below.entry(key) {
            Entry::Vacant(entry) => _ = entry.insert(value),
            Entry::Occupied(mut entry) => match (entry.get_mut(), value) {
                (Value::Table(below), Value::Table(above)) => merge(below, above),
                (Value::Array(below), Value::Array(above))
                    if below.len() > above.len() && !above.iter().any(Value::is_table) =>
                {
                    below.splice(..above.len(), above);
                }
                (below, value) => *below = value,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbless_model::Profile;

    #[test]
    fn whole_profile_equals_builtin() {
        let names: Vec<_> = PROFILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, Profile::names().collect::<Vec<_>>());
        for name in names {
            let table = whole(name).unwrap_or_else(|Stop(why)| panic!("{name}: {why}"));
            let text = toml::to_string(&table).expect("a table is TOML");
            let read = Profile::from_toml(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
            let builtin = Profile::load(name).expect("the profile is built in");
            assert_eq!(format!("{read:?}"), format!("{builtin:?}"), "{name}");
        }
    }
}
