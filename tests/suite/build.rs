//! Extracts the docs of the fields that a report shows from `prm/`.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use toml::Table;

/// The files of `prm/` that describe what a report has, beside capability pages.
const FILES: [&str; 4] = ["adapter", "hca_cap", "lag", "vport"];

/// Whether a structure of another file is a capability page, or a part of one.
fn is_capability(structure: &str) -> bool {
    structure.split('_').any(|word| ["cap", "caps", "capabilities"].contains(&word))
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../prm");
    let mut docs = String::new();
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "toml")) {
        let is_whole = FILES.iter().any(|file| path.file_stem().is_some_and(|stem| stem == *file));
        println!("cargo::rerun-if-changed={}", path.display());
        let entries: Table = std::fs::read_to_string(path)?.parse()?;
        // A report has no inputs of commands but those that failed.
        let shown = |name: &str| !name.ends_with("_in") && (is_whole || is_capability(name));
        for (structure, entry) in entries.iter().filter(|(name, _)| shown(name)) {
            let fields = entry.get("fields").and_then(|fields| fields.as_table());
            let Some(fields) = fields else { continue };
            writeln!(docs, "[{structure}]")?;
            for (field, about) in fields {
                if let Some(doc) = about.get("doc").and_then(|doc| doc.as_str()) {
                    writeln!(docs, "{field}\t{doc}")?;
                }
            }
        }
    }
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    Ok(std::fs::write(Path::new(&out).join("docs.tsv"), docs)?)
}
