//! Extracts the docs of the fields that a report shows from `prm/`: about a third of its text.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use toml::Table;

/// The files of `prm/` that describe what a report has.
const FILES: [&str; 4] = ["adapter", "hca_cap", "lag", "vport"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../prm");
    let mut docs = String::new();
    for file in FILES {
        let path = folder.join(file).with_extension("toml");
        println!("cargo::rerun-if-changed={}", path.display());
        let entries: Table = std::fs::read_to_string(path)?.parse()?;
        // A report has no inputs of commands but those that failed.
        for (structure, entry) in entries.iter().filter(|(name, _)| !name.ends_with("_in")) {
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
