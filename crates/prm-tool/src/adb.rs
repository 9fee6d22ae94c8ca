//! mstflint's tables of registers (`register_access_table.adb`): a description of NVIDIA's own
//! tools, of another lineage than the C headers.
//!
//! `prm import --adb` records the positions of described registers in [`RECORDED`], names and
//! numbers only, and `prm verify` compares our fields with them. A field is confirmed if the table
//! has a field of the same bits, whatever its name: mstflint renames many. A field of the same name
//! and other bits is a conflict. A register
//! has mstflint's name as a source, or nearly our own name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::description::{Description, Structure};
use super::evidence::compare::Conflict;
use super::facts::{Facts, Layout};

/// Path of the recorded positions from the root of the repository.
const RECORDED: &str = "prm/evidence/mstflint-registers.json";

/// Comparison of the recorded positions with our fields.
#[derive(Debug, Default)]
pub(crate) struct Compared<'a> {
    /// Fields with the bits of a field of the table.
    pub(crate) same: BTreeSet<(&'a str, &'a str)>,
    /// Fields whose name the table has for other bits.
    pub(crate) others: Vec<Conflict<'a>>,
}

/// Reads the recorded positions.
pub(crate) fn read(root: &Path) -> crate::repository::Result<Facts> {
    Facts::read(&root.join(RECORDED))
}

/// Records the registers of the description that the files have; the first file that has a register
/// counts.
pub(crate) fn record(root: &Path, files: &[PathBuf]) -> crate::repository::Result {
    let description = Description::load(root)?;
    let mut tables = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        tables.push(parse(&text).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    let mut structs = BTreeMap::new();
    for structure in &description.structures {
        let found = tables.iter().find_map(|table| find(structure, table));
        structs.extend(found.map(|(name, layout)| (name.clone(), layout.clone())));
    }
    let facts = Facts { structs, enums: BTreeMap::new() };
    std::fs::write(root.join(RECORDED), serde_json::to_string(&facts)? + "\n")?;
    println!("{RECORDED}: {} registers", facts.structs.len());
    Ok(())
}

/// Compares all fields with the recorded positions.
pub(crate) fn compare<'a>(description: &'a Description, recorded: &Facts) -> Compared<'a> {
    let mut compared = Compared::default();
    for structure in &description.structures {
        let Some((name, layout)) = find(structure, &recorded.structs) else { continue };
        for field in structure.fields.iter().filter(|field| !field.tail) {
            let ours = (field.start, field.span().width);
            let theirs = field.linux.as_deref().unwrap_or(&field.name).to_lowercase();
            if layout.fields.values().any(|&theirs| theirs == ours) {
                compared.same.insert((&structure.name, &field.name));
            } else if let Some(&(start, width)) = layout.fields.get(&theirs) {
                compared.others.push(Conflict {
                    structure: &structure.name,
                    field: &field.name,
                    ours,
                    theirs: (start, width),
                    name: name.clone(),
                });
            }
        }
    }
    compared
}

/// The layout of a structure in a table.
fn find<'a>(
    structure: &Structure,
    table: &'a BTreeMap<String, Layout>,
) -> Option<(&'a String, &'a Layout)> {
    let sources = structure.sources.iter().filter_map(|source| {
        source.strip_prefix("mstflint: register_access_table.adb ").map(str::to_lowercase)
    });
    let short = structure.name.trim_end_matches("_reg").to_owned();
    let own = [structure.name.clone(), short, format!("{}_reg", structure.name)];
    sources.chain(own).find_map(|name| table.get_key_value(&name))
}

/// The layouts of a file by name, without its `_ext`, in lower case.
fn parse(text: &str) -> Result<BTreeMap<String, Layout>, String> {
    let mut layouts: BTreeMap<String, Layout> = BTreeMap::new();
    let mut current = None;
    for tag in tags(text) {
        let value = |name| attribute(tag, name);
        if tag.starts_with("node ") {
            let (Some(name), Some(size)) = (value("name"), value("size")) else {
                return Err(format!("a node has no name or size: <{tag}>"));
            };
            let name = name.trim_end_matches("_ext").to_lowercase();
            let bits = bits(size).ok_or_else(|| format!("{name}: {size} is not a size"))?;
            layouts.insert(name.clone(), Layout { bits, fields: BTreeMap::new() });
            current = Some(name);
        } else if tag.starts_with("field ") {
            let layout = current.as_ref().and_then(|name| layouts.get_mut(name));
            let (Some(layout), Some(name)) = (layout, value("name")) else {
                return Err(format!("a field has no node or name: <{tag}>"));
            };
            let position = value("offset").zip(value("size")).and_then(|(o, s)| position(o, s));
            let position = position.ok_or_else(|| format!("{name} has no position: <{tag}>"))?;
            layout.fields.entry(name.to_lowercase()).or_insert(position);
        }
    }
    Ok(layouts)
}

/// The texts between `<` and `>`; quoted texts may contain both.
fn tags(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.find('<')? + 1;
        let mut quoted = false;
        let end = rest[start..].find(|c| {
            quoted ^= c == '"';
            c == '>' && !quoted
        })?;
        let tag = &rest[start..start + end];
        rest = &rest[start + end..];
        Some(tag)
    })
}

/// The value of an attribute.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let start = tag.find(&format!(" {name}=\""))? + name.len() + 3;
    tag[start..].split('"').next()
}

/// `0x4.16` (bytes, bits) or `0x4` in bits.
fn bits(text: &str) -> Option<u32> {
    let (bytes, bits) = text.split_once('.').unwrap_or((text, "0"));
    let bytes = u32::from_str_radix(bytes.strip_prefix("0x")?, 16).ok()?;
    bytes.checked_mul(8)?.checked_add(bits.parse().ok()?)
}

/// First bit and width; the table counts the bits of a dword from the lowest one, we from the
/// highest.
fn position(offset: &str, size: &str) -> Option<(u32, u32)> {
    let (offset, width) = (bits(offset)?, bits(size)?);
    let (dword, low) = (offset / 32 * 32, offset % 32);
    match width {
        0 => None,
        1..32 => Some((dword + 32u32.checked_sub(low + width)?, width)),
        _ => Some((dword, width)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{Scratch, root};

    const ADB: &str = r#"
        <node name="PXYZ_reg_ext" descr="a > b" size="0x10.0" >
            <field name="flag" descr="&lt;" offset="0x0.31" size="0x0.1" />
            <field name="count" descr="" access="RW" offset="0x0.0" size="0x0.12" />
            <field name="Wide" descr="" offset="0x8.0" size="0x8.0" />
        </node>
    "#;
    const TABLE: &str = r#"
        [pxyz_reg]
        bytes = 0x10
        sources = ["linux: mlx5_ifc_pxyz_reg_bits"]
        fields.renamed = { at = "0x00.31" }
        fields.count = { at = "0x00.7:0" }
        fields.absent = { at = "0x04" }
        fields.wide = { at = "0x08", bits = 64 }
    "#;

    #[test]
    fn positions_count_from_highest_bit() {
        let layouts = parse(ADB).unwrap();
        let fields = [("flag", (0, 1)), ("count", (20, 12)), ("wide", (64, 64))];
        let fields = fields.map(|(name, position)| (name.to_owned(), position)).into();
        assert_eq!(layouts["pxyz_reg"], Layout { bits: 128, fields });
        for (text, error) in [
            (r#"<node name="a" >"#, "a node has no name or size"),
            (r#"<node name="a" size="4" >"#, "a: 4 is not a size"),
            (r#"<field name="a" />"#, "a field has no node or name"),
            (
                r#"<node name="a" size="0x4.0" ><field name="b" offset="0x0.30" size="0x0.4" />"#,
                "b has no position",
            ),
        ] {
            assert!(parse(text).unwrap_err().starts_with(error), "{text}");
        }
    }

    #[test]
    fn field_of_same_bits_is_confirmed_whatever_its_name() {
        let description = Description::parse([("prm/x.toml", TABLE)]);
        let recorded = Facts { structs: parse(ADB).unwrap(), enums: BTreeMap::new() };
        let compared = compare(&description, &recorded);
        assert_eq!(compared.same, [("pxyz_reg", "renamed"), ("pxyz_reg", "wide")].into());
        let [other] = &*compared.others else { panic!("{:?}", compared.others) };
        let text = other.to_string();
        assert!(text.contains("count is at bit 24 with 8 bits, but pxyz_reg has it at"), "{text}");
    }

    #[test]
    fn record_keeps_described_registers() {
        let other = ADB.replace("PXYZ", "PABC");
        let files = [("prm/x.toml", TABLE), ("a.adb", ADB), ("b.adb", &other), (RECORDED, "")];
        let scratch = Scratch::new("adb", &files);
        let root = scratch.path();
        record(root, &[root.join("b.adb"), root.join("a.adb")]).unwrap();
        let names: Vec<String> = read(root).unwrap().structs.into_keys().collect();
        assert_eq!(names, ["pxyz_reg"]);
        let error = record(root, &[root.join("c.adb")]).unwrap_err().to_string();
        assert!(error.contains("c.adb: "), "{error}");
    }

    #[test]
    fn recorded_registers_are_described() {
        let description = Description::load(&root()).unwrap();
        let recorded = read(&root()).unwrap();
        let known: BTreeSet<&String> = (description.structures.iter())
            .filter_map(|structure| find(structure, &recorded.structs))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(known, recorded.structs.keys().collect());
    }
}
