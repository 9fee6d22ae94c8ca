//! A public description as facts: `prm/evidence/descriptions/NAME.json.gz`, which `prm import
//! --evidence NAME` makes from the description's own files.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::source::{Form, SOURCES, Source};
use crate::facts::{Facts, Layout, is_reserved};
use crate::header;
use crate::repository::Result;

/// Directory of the tables from the root of the repository.
const DIRECTORY: &str = "prm/evidence/descriptions";

/// The facts of one description, and their origin.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Table {
    pub(crate) source: String,
    pub(crate) project: String,
    pub(crate) version: String,
    pub(crate) licence: String,
    /// Paths in the project.
    pub(crate) files: Vec<String>,
    /// Command that makes the table again.
    pub(crate) made_by: String,
    /// Structures by their name there: bits, and fields with first bit and width.
    pub(crate) structs: BTreeMap<String, Layout>,
}

/// Reads a table; a description without one has no facts.
pub(crate) fn read(root: &Path, source: &Source) -> Result<Table> {
    let path = path(root, source);
    let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = std::fs::read(&path).map_err(|error| describe(&error))?;
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice())
        .read_to_string(&mut text)
        .map_err(|error| describe(&error))?;
    Ok(serde_json::from_str(&text).map_err(|error| describe(&error))?)
}

fn path(root: &Path, source: &Source) -> PathBuf {
    root.join(DIRECTORY).join(format!("{}.json.gz", source.name))
}

/// Writes the table of a description. `files` are copies of the files that the source lists, in
/// that order; `version` is the commit or release that they come from.
pub(crate) fn record(root: &Path, name: &str, version: &str, files: &[PathBuf]) -> Result {
    let source = SOURCES.iter().find(|source| source.name == name).ok_or_else(|| {
        let names: Vec<&str> = SOURCES.iter().map(|source| source.name).collect();
        format!("there is no description `{name}`; those known are {}", names.join(", "))
    })?;
    if files.len() != source.files.len() {
        let wanted = source.files.join(" ");
        return Err(format!("{name} is made of {} files: {wanted}", source.files.len()).into());
    }
    let mut texts = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file);
        texts.push(text.map_err(|error| format!("{}: {error}", file.display()))?);
    }
    let mut structs = facts(source, &texts).structs;
    structs.values_mut().for_each(drop_gaps);
    structs.retain(|_, layout| !layout.fields.is_empty());
    let table = Table {
        source: source.name.to_owned(),
        project: source.project.to_owned(),
        version: version.to_owned(),
        licence: source.licence.to_owned(),
        files: source.files.iter().map(|&file| file.to_owned()).collect(),
        made_by: format!(
            "cargo xtask prm import --evidence {name} --version {version} {}",
            source.files.join(" ")
        ),
        structs,
    };
    let path = path(root, source);
    std::fs::create_dir_all(root.join(DIRECTORY))?;
    // Without a time stamp, so that the same facts are the same file.
    let best = flate2::Compression::best();
    let mut packed = flate2::GzBuilder::new().mtime(0).write(Vec::new(), best);
    packed.write_all(serde_json::to_string(&table)?.as_bytes())?;
    std::fs::write(&path, packed.finish()?)?;
    let fields: usize = table.structs.values().map(|layout| layout.fields.len()).sum();
    println!("{}: {} structures, {fields} fields", path.display(), table.structs.len());
    Ok(())
}

/// The facts of a description's files.
pub(super) fn facts(source: &Source, texts: &[String]) -> Facts {
    match source.form {
        Form::Header => header::read(texts.iter().map(String::as_str)).facts,
        Form::Lua => super::lua::read(&texts.concat()),
    }
}

/// Leaves only named fields.
pub(super) fn drop_gaps(layout: &mut Layout) {
    layout.fields.retain(|name, _| !is_gap(name));
}

/// Whether a field is a gap, under any of the names that projects give to gaps.
fn is_gap(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name).to_lowercase();
    is_reserved(&last) || ["reserved", "rsvd", "resv"].iter().any(|gap| last.contains(gap))
}
