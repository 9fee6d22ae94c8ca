//! Every offered capability is covered: for each capability that a profile of the model names,
//! `capabilities.toml` has exactly one entry, which is a case, a test or a line of
//! `docs/fidelity.md`, and has no other entries. Each capability has a source in `sources.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};
use verbless_conformance::cases;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn table(path: &str) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Integer(number) => *number == 0,
        Value::Boolean(set) => !set,
        Value::Array(values) => values.iter().all(is_nothing),
        _ => false,
    }
}

/// Page and field of a capability.
type Field = (String, String);

/// Page and field of every capability of a profile, on any link and side, current or maximum.
fn offered() -> BTreeSet<Field> {
    let profiles = verbless_model::Profile::names();
    let of = |name: &str| values_of(&format!("crates/model/profiles/{name}.toml"));
    profiles.flat_map(|name| of(name).into_keys()).collect()
}

/// The nonzero values of each capability in a profile.
fn values_of(path: &str) -> BTreeMap<Field, Vec<Value>> {
    let whole = table(path);
    let mut found: BTreeMap<Field, Vec<Value>> = BTreeMap::new();
    let parts = ["infiniband", "ethernet", "dpu"].map(|part| whole.get(part));
    let parts = parts.into_iter().flatten().filter_map(Value::as_table);
    for part in parts.chain([&whole]) {
        for pages in ["caps", "max"].into_iter().filter_map(|kind| part.get(kind)?.as_table()) {
            for (page, fields) in pages {
                let fields = fields.as_table().expect("a page is a table");
                for (field, value) in fields.iter().filter(|(_, value)| !is_nothing(value)) {
                    let name = (page.clone(), field.clone());
                    found.entry(name).or_default().push(value.clone());
                }
            }
        }
    }
    found
}

/// The mistake in the table's entry of a capability, if any.
fn mistake(says: &str, fidelity: &str) -> Option<String> {
    let (kind, of) = says.split_once(' ')?;
    match kind {
        "case" if cases().any(|case| case.id() == of) => None,
        "case" => Some(format!("there is no case {of}")),
        "test" => {
            let (file, name) = of.split_once(' ').expect("a file and a name");
            let exists = read(file).contains(&format!("fn {name}("));
            (!exists).then(|| format!("there is no test {name} in {file}"))
        }
        "fidelity" if fidelity.contains(of) => None,
        "fidelity" => Some(format!("docs/fidelity.md does not contain `{of}`")),
        _ => Some(format!("{kind} is neither case, test nor fidelity")),
    }
}

#[test]
fn fidelity_rows_and_paragraphs_correspond() {
    let text = read("docs/fidelity.md");
    let section = text.split("\n## ").find(|it| it.starts_with("With differences"));
    let section = section.expect("the section of differences");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let below = rows.filter(|row| row.contains("(below)"));
    let below: BTreeSet<&str> = below.filter_map(|row| row.split(" | ").next()).collect();
    let paragraphs = section.split("\n\n").filter(|it| !it.starts_with('|')).skip(1);
    let has = |name: &str, paragraph: &str| {
        let joined = paragraph.replace('\n', " ");
        joined.strip_prefix(name).is_some_and(|rest| rest.starts_with(". "))
    };
    let paragraphs: Vec<&str> = paragraphs.collect();
    let rows_alone: Vec<_> =
        below.iter().filter(|name| !paragraphs.iter().any(|it| has(name, it))).collect();
    let paragraphs_alone: Vec<_> =
        paragraphs.iter().filter(|it| !below.iter().any(|name| has(name, it))).collect();
    assert!(below.len() > 30, "the table is elsewhere: {below:?}");
    assert!(rows_alone.is_empty(), "rows without a paragraph: {rows_alone:?}");
    assert!(paragraphs_alone.is_empty(), "paragraphs without a row: {paragraphs_alone:?}");
}

#[test]
fn profile_capabilities_are_used_or_explained() {
    let fidelity = read("docs/fidelity.md");
    let listed = table("tests/suite/capabilities.toml");
    let mut mistakes = Vec::new();
    let mut known = BTreeSet::new();
    for (page, fields) in &listed {
        for (field, says) in fields.as_table().expect("a page is a table") {
            known.insert((page.clone(), field.clone()));
            let says = says.as_str().expect("a text");
            if let Some(why) = mistake(says, &fidelity) {
                mistakes.push(format!("{page}.{field}: {why}"));
            }
        }
    }
    let offered = offered();
    assert!(offered.len() > 100, "the profiles are read");
    for (page, field) in offered.difference(&known) {
        mistakes.push(format!("{page}.{field} is offered, but not listed"));
    }
    for (page, field) in known.difference(&offered) {
        mistakes.push(format!("{page}.{field} is listed, but no profile offers it"));
    }
    assert!(mistakes.is_empty(), "\n{}", mistakes.join("\n"));
}

#[test]
fn each_capability_of_a_profile_has_a_source() {
    let names = verbless_model::Profile::names();
    let profiles: Vec<_> =
        names.map(|name| values_of(&format!("crates/model/profiles/{name}.toml"))).collect();
    // A test of the recording compares this profile with the answers of a real ConnectX-4.
    let recorded = values_of("crates/model-host/src/pci/trace/connectx4.toml");
    let is_recorded = |name: &Field| {
        let recorded = recorded.get(name).map_or(&[][..], Vec::as_slice);
        let of = |profile: &BTreeMap<Field, Vec<Value>>| profile.get(name).cloned();
        profiles.iter().filter_map(of).all(|it| it.iter().any(|value| recorded.contains(value)))
    };
    let mut known = BTreeSet::new();
    let mut mistakes = Vec::new();
    for (page, fields) in &table("tests/suite/sources.toml") {
        for (field, says) in fields.as_table().expect("a page is a table") {
            let name = (page.clone(), field.clone());
            let says = says.as_str().expect("a text");
            let good = match says.split_once(' ') {
                None => says == "model" || says == "trace" && is_recorded(&name),
                Some(("report", what)) => what.contains('#'),
                Some(("reader", what)) => what.contains(' ') && what.contains('/'),
                Some(_) => false,
            };
            if !good {
                mistakes.push(format!("{page}.{field}: {says}"));
            }
            known.insert(name);
        }
    }
    let offered = offered();
    let missing: Vec<_> = offered.difference(&known).collect();
    let stale: Vec<_> = known.difference(&offered).collect();
    assert!(missing.is_empty() && stale.is_empty(), "missing {missing:?}, stale {stale:?}");
    assert!(mistakes.is_empty(), "\n{}", mistakes.join("\n"));
}
