//! `prm verify`: compares every field with descriptions other than its source, and says how many
//! confirm it ([`super::evidence`]).
//!
//! Three kinds fail it: a public description that has a field at other bits, unless
//! `prm/evidence/divergences.toml` says why; a recording that contradicts a field
//! ([`super::trace`], [`super::golden`], [`super::mailbox`]); and a Linux `mlx5_ifc.h` of this
//! machine with a field at another position. If the recorded facts of a newer header agree with us,
//! the field has moved between versions and is only listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;

use super::description::{Description, Field, Structure};
use super::evidence::divergence::Divergences;
use super::evidence::{self, Evidence};
use super::facts::{Facts, ifc_name};
use super::runtime::Runtime;
use super::{adb, cards, golden, header, mailbox, trace};

/// Options of `prm verify`.
#[derive(Args)]
pub struct Options {
    /// A Linux mlx5_ifc.h; without it, the task searches /usr/src.
    #[arg(long, value_name = "HEADER")]
    ifc: Option<PathBuf>,
    /// List every unconfirmed field.
    #[arg(long)]
    list: bool,
}

/// Runs the task.
pub(crate) fn run(root: &Path, options: &Options) -> crate::repository::Result {
    let description = super::check::load_sound(root)?;
    let runtime = Runtime::new(&description);
    let mut out = String::new();
    let mut problems = Vec::new();
    let mut say = |line: String| {
        out += &line;
        out.push('\n');
    };

    let mut evidence = Evidence::with(Divergences::read(root)?);
    match header(options.ifc.as_deref()) {
        None => {
            say("skipped: ifc header: there is no mlx5_ifc.h in /usr/src/linux*; pass one by --ifc"
                .into())
        }
        Some(path) => {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let facts =
                header::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            let recorded = Facts::read(&root.join(super::import::FACTS))?;
            let compared = compare(&description, &facts, &recorded);
            say(format!(
                "ifc:    {}: {} fields have its positions, {} have others, {} are not in it",
                path.display(),
                compared.same.len(),
                compared.problems.len() + compared.moved.len(),
                compared.absent
            ));
            for moved in &compared.moved {
                say(format!("        moved between versions: {moved}"));
            }
            problems.extend(compared.problems);
        }
    }

    let divergences = Divergences::read(root)?;
    for (name, compared) in evidence::public(root, &description)? {
        let (structures, conflicts) = (compared.structures, compared.conflicts.len());
        problems.extend(divergences.problems(name, &compared.conflicts, &compared.renamed()));
        evidence.public(name, compared);
        say(format!(
            "{:8} {structures} of our structures; {} fields have its positions, {conflicts} have \
             others",
            format!("{name}:"),
            evidence.agreements(name),
        ));
    }

    let replay = trace::replay(&runtime, trace::read(root)?);
    say(format!(
        "trace:  {} commands of a real ConnectX-4 decode and encode to the same bytes; {} do not",
        replay.commands.len() - replay.problems.len().min(replay.commands.len()),
        replay.problems.len()
    ));
    for position in &replay.undescribed {
        say(format!("        bits are set outside every field: {position}"));
    }
    problems.extend(replay.problems.iter().map(|problem| format!("trace: {problem}")));

    let pages = cards::check(root, &runtime)?;
    say(format!(
        "        {} capability pages of a real ConnectX-7 decode and encode to the same bytes, \
         with {} fields that the ConnectX-4 does not confirm",
        pages.commands.len() - pages.problems.len().min(pages.commands.len()),
        pages.confirmed.difference(&replay.confirmed).count()
    ));
    for position in &pages.undescribed {
        say(format!("        bits are set outside every field: {position}"));
    }
    problems.extend(pages.problems.iter().map(|problem| format!("cards: {problem}")));

    let checked = golden::check(&runtime, &golden::read(root)?);
    say(format!(
        "golden: {} WQEs, records, doorbells and CQEs; {} values are as requested, {} are not",
        checked.vectors,
        checked.comparisons - checked.problems.len().min(checked.comparisons),
        checked.problems.len()
    ));
    problems.extend(checked.problems.iter().map(|problem| format!("golden: {problem}")));

    let alike = mailbox::compare(&runtime, mailbox::read(root)?);
    say(format!(
        "mailbox: {} commands of mlx5_ib and our driver for the same cases; {} fields follow the \
         request in both",
        alike.commands,
        alike.confirmed.len()
    ));
    problems.extend(alike.problems.iter().map(|problem| format!("mailbox: {problem}")));

    let registers = adb::read(root)?;
    let compared = adb::compare(&description, &registers);
    say(format!(
        "mstflint: {} registers; {} fields have a position in them, {} have another",
        registers.structs.len(),
        compared.same.len(),
        compared.others.len()
    ));
    problems.extend(divergences.problems("mstflint", &compared.others, &BTreeSet::new()));

    evidence.recorded("trace", &replay.confirmed | &pages.confirmed);
    evidence.recorded("golden", checked.confirmed);
    evidence.recorded("mailbox", alike.confirmed);
    evidence.recorded("mstflint", compared.same);
    out += &summary(&description, &evidence, options.list);
    super::repository::print(&out)?;
    if problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
    Err(format!("{} contradictions:\n{}", lines.len(), lines.join("\n")).into())
}

/// How many fields are confirmed, by descriptions and by lineages; with `list` also the unconfirmed
/// fields.
fn summary(description: &Description, evidence: &Evidence<'_>, list: bool) -> String {
    let coverage = Coverage::of(description, evidence);
    let mut out = format!(
        "\n{} fields; confirmed by at least one, and at least two:\n  \
         descriptions: {}  (besides the one that the field comes from)\n  \
         without ofed: {}  (for fields from Linux, whose fork it is)\n  \
         lineages:     {}  (independent; the vendor's headers are one lineage)\n",
        coverage.fields,
        shares(coverage.descriptions, coverage.fields),
        shares(coverage.without_forks, coverage.fields),
        shares(coverage.lineages, coverage.fields)
    );
    if list {
        out += "\nfields with no description:\n";
        for (structure, fields) in &coverage.alone {
            out += &format!("  {structure}: {}\n", fields.join(", "));
        }
    } else if !coverage.alone.is_empty() {
        let fields: usize = coverage.alone.values().map(Vec::len).sum();
        let structures = coverage.alone.len();
        out += &format!("`--list` names the {fields} with none, in {structures} structures\n");
    }
    out
}

fn shares([one, two]: [usize; 2], of: usize) -> String {
    let percent = |count: usize| 100.0 * count as f64 / of.max(1) as f64;
    format!("{one} ({:.1} %), {two} ({:.1} %)", percent(one), percent(two))
}

/// How many fields have at least one and at least two confirmations.
#[derive(Debug, Default)]
pub(crate) struct Coverage<'a> {
    pub(crate) fields: usize,
    pub(crate) descriptions: [usize; 2],
    pub(crate) without_forks: [usize; 2],
    pub(crate) lineages: [usize; 2],
    /// Fields with no description, by structure.
    alone: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Coverage<'a> {
    /// Counts the confirmations of all fields.
    pub(crate) fn of(description: &'a Description, evidence: &Evidence<'_>) -> Self {
        let mut coverage = Self::default();
        for structure in &description.structures {
            for field in &structure.fields {
                let confirmations = evidence.of(structure, field);
                coverage.fields += 1;
                for (counts, count) in [
                    (&mut coverage.descriptions, confirmations.descriptions()),
                    (&mut coverage.without_forks, confirmations.without_forks()),
                    (&mut coverage.lineages, confirmations.lineages()),
                ] {
                    counts[0] += usize::from(count >= 1);
                    counts[1] += usize::from(count >= 2);
                }
                if confirmations.descriptions() == 0 {
                    coverage.alone.entry(&structure.name).or_default().push(&field.name);
                }
            }
        }
        coverage
    }
}

/// The given header, or that of the last kernel in /usr/src.
fn header(given: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = given {
        return Some(path.to_owned());
    }
    let mut trees: Vec<PathBuf> =
        std::fs::read_dir("/usr/src").ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    trees.sort();
    trees
        .into_iter()
        .rev()
        .filter(|tree| {
            tree.file_name().is_some_and(|name| name.to_string_lossy().starts_with("linux"))
        })
        .map(|tree| tree.join("include/linux/mlx5/mlx5_ifc.h"))
        .find(|path| path.exists())
}

/// Comparison of a header with our fields.
#[derive(Debug, Default)]
struct Compared<'a> {
    /// Fields at the header's position.
    same: BTreeSet<(&'a str, &'a str)>,
    /// Fields at another position in the header.
    problems: Vec<String>,
    /// Fields that the header has at another position, and a newer header at ours.
    moved: Vec<String>,
    /// Fields that the header's structure lacks.
    absent: usize,
}

/// Compares all fields with the header, whose structures have the table's source or name.
fn compare<'a>(description: &'a Description, header: &Facts, newer: &Facts) -> Compared<'a> {
    let mut compared = Compared::default();
    for structure in &description.structures {
        let by_name = format!("mlx5_ifc_{}_bits", structure.name);
        let name = ifc_name(&structure.sources).unwrap_or(&by_name);
        let Some(layout) = header.structs.get(name) else { continue };
        for field in &structure.fields {
            let theirs = field.linux.as_deref().unwrap_or(&field.name);
            match layout.fields.get(theirs) {
                None => compared.absent += 1,
                Some(&(start, width)) if agrees(structure, field, start, width) => {
                    compared.same.insert((&structure.name, &field.name));
                }
                Some(&(start, width)) => {
                    let message = format!(
                        "[{}] {} is at bit {} with {} bits, but {name} has `{theirs}` at bit \
                         {start} with {width}",
                        structure.name,
                        field.name,
                        field.start,
                        field.span().width
                    );
                    let newer =
                        newer.structs.get(name).and_then(|layout| layout.fields.get(theirs));
                    match newer {
                        Some(&(start, width)) if agrees(structure, field, start, width) => {
                            compared.moved.push(message);
                        }
                        _ => compared.problems.push(format!("{}: {message}", structure.file)),
                    }
                }
            }
        }
    }
    compared
}

/// Whether a field has the header's position. A nested structure at the end may be longer than the
/// header's.
fn agrees(structure: &Structure, field: &Field, start: u32, width: u32) -> bool {
    let nested = matches!(field.content, super::description::Content::Struct(_));
    let at_end = field.span().end() == structure.bytes * 8;
    field.start == start
        && (field.span().width == width || (nested && at_end && width < field.span().width))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"
        [thing]
        bytes = 0x08
        sources = ["linux: mlx5_ifc_thing_bits"]
        [thing.fields]
        a = { at = "0x00.31:24" }
        b = { at = "0x00.23:16", linux = "bee" }
        c = { at = "0x04", sources = ["dpdk: struct x"] }
        d = { at = "0x00.7:0" }
    "#;
    const HEADER: &str = "struct mlx5_ifc_thing_bits {
        u8 a[0x8]; u8 bee[0x8]; u8 reserved_at_10[0x8]; u8 e[0x8]; u8 c[0x10]; u8 f[0x10]; };";

    #[test]
    fn moved_field_is_contradiction() {
        let description = Description::parse([("prm/x.toml", TABLE)]);
        let header = header::parse(HEADER).unwrap();
        let compared = compare(&description, &header, &header);
        assert_eq!(compared.same.len(), 2);
        assert_eq!(compared.absent, 1);
        assert_eq!(compared.problems.len(), 1);
        assert!(compared.problems[0].contains("[thing] c is at bit 32 with 32 bits"));

        let newer = header::parse(&HEADER.replace("c[0x10]; u8 f[0x10]", "c[0x20]")).unwrap();
        let compared = compare(&description, &header, &newer);
        assert_eq!((compared.problems.len(), compared.moved.len()), (0, 1));
    }

    #[test]
    fn first_source_does_not_confirm_field() {
        let description = Description::parse([("prm/x.toml", TABLE)]);
        let structure = &description.structures[0];
        let mut evidence = Evidence::default();
        for name in ["linux", "dpdk", "trace", "golden", "mstflint"] {
            evidence.recorded(name, ["a", "c"].map(|field| ("thing", field)).into());
        }
        let of = |field: &str, sources: Option<&[&str]>| {
            let field = structure.fields.iter().find(|it| it.name == field).unwrap();
            let sources = sources.map(|all| all.iter().map(|&it| it.to_owned()).collect());
            let field = Field { sources, ..field.clone() };
            let confirmed = evidence.of(structure, &field);
            (confirmed.names().collect::<Vec<_>>().join(" "), confirmed.lineages())
        };
        let from = |sources: &[&str], names: &str, lineages| {
            assert_eq!(of("c", Some(sources)), (names.into(), lineages), "{sources:?}");
        };
        assert_eq!(of("a", None), ("dpdk golden mstflint trace".into(), 3));
        from(&["dpdk: struct x"], "golden linux mstflint trace", 3);
        from(&["mstflint: x", "dpdk: struct x"], "dpdk golden linux trace", 3);
        from(&["rdma-core: struct x"], "dpdk linux mstflint trace", 2);
        from(&["rdma-core: x", "dpdk: x"], "dpdk golden linux mstflint trace", 3);
        from(&["ibta: 9.2"], "dpdk golden linux mstflint trace", 4);
        assert_eq!(of("b", None), (String::new(), 0));
    }

    #[test]
    fn summary_counts_descriptions_and_lineages() {
        let other = "[other]\nbytes = 4\nsources = [\"linux\"]\nfields.only = { at = \"0x00\" }";
        let description = Description::parse([("prm/x.toml", TABLE), ("prm/y.toml", other)]);
        let mut evidence = Evidence::default();
        for (name, fields) in [
            ("dpdk", &["a", "b"][..]),
            ("ofed", &["a", "b", "d"]),
            ("trace", &["a", "c"]),
            ("mailbox", &["a"]),
        ] {
            evidence.recorded(name, fields.iter().map(|&field| ("thing", field)).collect());
        }
        let text = "\n5 fields; confirmed by at least one, and at least two:\n  \
                    descriptions: 4 (80.0 %), 2 (40.0 %)  (besides the one that the field comes \
                    from)\n  \
                    without ofed: 3 (60.0 %), 1 (20.0 %)  (for fields from Linux, whose fork it \
                    is)\n  \
                    lineages:     2 (40.0 %), 1 (20.0 %)  (independent; the vendor's headers are \
                    one lineage)\n";
        let some = "`--list` names the 1 with none, in 1 structures\n";
        assert_eq!(summary(&description, &evidence, false), format!("{text}{some}"));
        let names = "\nfields with no description:\n  other: only\n";
        assert_eq!(summary(&description, &evidence, true), format!("{text}{names}"));
        evidence.recorded("trace", [("other", "only")].into());
        let all = summary(&description, &evidence, false);
        assert!(all.contains("descriptions: 5 (100.0 %)") && !all.contains("--list"), "{all}");
    }

    #[test]
    fn last_structure_may_exceed_header_width() {
        let text = "[inner]\nbytes = 4\n[s]\nbytes = 0x0c\n\
                    fields.first = { at = \"0x00\", struct = \"inner\" }\n\
                    fields.number = { at = \"0x04\" }\n\
                    fields.last = { at = \"0x08\", struct = \"inner\" }";
        let description = Description::parse([("prm/x.toml", text)]);
        let structure = description.structure("s").unwrap();
        for (field, start, width, agree) in [
            (0, 0, 32, true),
            (0, 0, 16, false),
            (1, 32, 32, true),
            (1, 32, 16, false),
            (1, 31, 32, false),
            (2, 64, 32, true),
            (2, 64, 16, true),
            (2, 64, 48, false),
            (2, 65, 32, false),
        ] {
            let field = &structure.fields[field];
            let found = agrees(structure, field, start, width);
            assert_eq!(found, agree, "{} at {start} with {width}", field.name);
        }
        let given = header(Some(Path::new("/some/header.h")));
        assert_eq!(given, Some(PathBuf::from("/some/header.h")));
    }
}
