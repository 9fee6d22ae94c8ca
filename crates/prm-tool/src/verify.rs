//! `prm verify`: compares every field with descriptions other than its sources.
//!
//! There are five: a Linux `mlx5_ifc.h`, the bring-up of a real ConnectX-4 ([`super::trace`]), WQEs
//! and CQEs of rdma-core ([`super::golden`]), the mailboxes that Linux's mlx5_ib writes for given
//! verbs attributes ([`super::mailbox`]), and mstflint's tables of registers ([`super::adb`]). A
//! description confirms a field only if it is independent of the field's sources: the `mlx5_ifc`
//! headers of Linux, DPDK, UCX, FreeBSD and rdma-core are one family, so the header confirms no
//! field with a source among them; the golden bytes confirm no field whose only source is
//! rdma-core, and mstflint's tables none whose only source is mstflint. The header can still
//! contradict every field: a field at another position is an error. If the recorded facts of a
//! newer header agree with us, the field has moved between versions and is only listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;

use super::description::{Description, Field, Structure};
use super::facts::{Facts, ifc_name};
use super::runtime::Runtime;
use super::{adb, golden, ifc, mailbox, trace};

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

/// The evidence that confirms a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmations {
    ifc: bool,
    trace: bool,
    golden: bool,
    mailbox: bool,
    mstflint: bool,
}

impl Confirmations {
    /// The number of independent descriptions.
    pub(crate) fn count(self) -> usize {
        self.names().count()
    }

    /// Their names, one word each.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.ifc, "ifc"),
            (self.trace, "trace"),
            (self.golden, "golden"),
            (self.mailbox, "mailbox"),
            (self.mstflint, "mstflint"),
        ];
        all.into_iter().filter(|(yes, _)| *yes).map(|(_, name)| name)
    }
}

/// The meaning of [`Confirmations::names`].
pub(crate) const LEGEND: &str = "ifc: a C header of another family; trace: a real ConnectX-4's \
     bring-up; golden: WQEs and CQEs of rdma-core; mailbox: what mlx5_ib writes; mstflint: its \
     tables of registers";

/// The fields that each kind of evidence confirms, as (structure, field).
#[derive(Debug, Default)]
pub(crate) struct Evidence<'a> {
    ifc: BTreeSet<(&'a str, &'a str)>,
    trace: BTreeSet<(&'static str, &'static str)>,
    golden: BTreeSet<(&'static str, &'static str)>,
    mailbox: BTreeSet<(&'static str, &'static str)>,
    mstflint: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Evidence<'a> {
    /// Collects the evidence in the repository at `root`, and a header of this machine, if any.
    pub(crate) fn gather(
        root: &Path,
        description: &'a Description,
    ) -> crate::repository::Result<Self> {
        let runtime = Runtime::new(description);
        let mut evidence = Self {
            trace: trace::replay(&runtime, trace::read(root)?).confirmed,
            golden: golden::check(&runtime, &golden::read(root)?).confirmed,
            mailbox: mailbox::compare(&runtime, mailbox::read(root)?).confirmed,
            mstflint: adb::compare(description, &adb::read(root)?).same,
            ifc: BTreeSet::new(),
        };
        if let Some(text) = header(None).and_then(|path| std::fs::read_to_string(path).ok())
            && let Ok(facts) = ifc::parse(&text)
        {
            evidence.ifc = compare(description, &facts, &facts).same;
        }
        Ok(evidence)
    }

    /// The evidence that confirms a field; its own sources and their relatives do not count.
    pub(crate) fn of(&self, structure: &Structure, field: &Field) -> Confirmations {
        let key = (structure.name.as_str(), field.name.as_str());
        let sources = field.sources.as_ref().unwrap_or(&structure.sources);
        Confirmations {
            ifc: self.ifc.contains(&key) && !sources.iter().any(|source| is_ifc(source)),
            trace: self.trace.contains(&key),
            golden: self.golden.contains(&key)
                && !sources.iter().all(|source| source.starts_with("rdma-core")),
            mailbox: self.mailbox.contains(&key),
            mstflint: self.mstflint.contains(&key)
                && !sources.iter().all(|source| source.starts_with("mstflint")),
        }
    }
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

    let mut evidence = Evidence::default();
    match header(options.ifc.as_deref()) {
        None => {
            say("skipped: ifc header: there is no mlx5_ifc.h in /usr/src/linux*; pass one by --ifc"
                .into())
        }
        Some(path) => {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let facts =
                ifc::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
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
            evidence.ifc = compared.same;
        }
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
    for other in &compared.others {
        say(format!("        {other}"));
    }

    evidence.trace = replay.confirmed;
    evidence.golden = checked.confirmed;
    evidence.mailbox = alike.confirmed;
    evidence.mstflint = compared.same;
    out += &summary(&description, &evidence, options.list);
    super::repository::print(&out)?;
    if problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
    Err(format!("{} contradictions:\n{}", lines.len(), lines.join("\n")).into())
}

/// The number of confirmed fields by evidence; with `list` also the unconfirmed fields.
fn summary(description: &Description, evidence: &Evidence<'_>, list: bool) -> String {
    let mut counts = [0; 3];
    let mut by: BTreeMap<&str, u32> = BTreeMap::new();
    let mut alone: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for structure in &description.structures {
        for field in &structure.fields {
            let confirmations = evidence.of(structure, field);
            counts[confirmations.count().min(2)] += 1;
            confirmations.names().for_each(|name| *by.entry(name).or_default() += 1);
            if confirmations.count() == 0 {
                alone.entry(&structure.name).or_default().push(&field.name);
            }
        }
    }
    let by = |name| by.get(name).copied().unwrap_or(0);
    let mut out = format!(
        "\nindependent confirmations: {} fields have none, {} have 1, {} have 2 or more\n\
         by evidence: ifc header {}, trace {}, golden {}, mailbox {}, \
         mstflint {}\n",
        counts[0],
        counts[1],
        counts[2],
        by("ifc"),
        by("trace"),
        by("golden"),
        by("mailbox"),
        by("mstflint")
    );
    if list {
        out += "\nfields with none:\n";
        for (structure, fields) in &alone {
            out += &format!("  {structure}: {}\n", fields.join(", "));
        }
    } else if !alone.is_empty() {
        let (fields, structures) = (counts[0], alone.len());
        out += &format!("`--list` names the {fields} with none, in {structures} structures\n");
    }
    out
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

/// Whether a source is a header of the `mlx5_ifc` family.
fn is_ifc(source: &str) -> bool {
    source.contains("mlx5_ifc_")
        || source.contains("mlx5_prm_structs")
        || (source.starts_with("ucx") && source.contains("_bits"))
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
        let header = ifc::parse(HEADER).unwrap();
        let compared = compare(&description, &header, &header);
        assert_eq!(compared.same.len(), 2);
        assert_eq!(compared.absent, 1);
        assert_eq!(compared.problems.len(), 1);
        assert!(compared.problems[0].contains("[thing] c is at bit 32 with 32 bits"));

        let newer = ifc::parse(&HEADER.replace("c[0x10]; u8 f[0x10]", "c[0x20]")).unwrap();
        let compared = compare(&description, &header, &newer);
        assert_eq!((compared.problems.len(), compared.moved.len()), (0, 1));
    }

    #[test]
    fn is_ifc_covers_driver_headers() {
        for source in [
            "linux: mlx5_ifc_cqc_bits",
            "dpdk: mlx5_ifc_cqc_bits",
            "ucx: uct_ib_mlx5_cqc_bits",
            "rdma-core: mlx5_ifc_qpc_ext_bits",
            "rdma-core: tests/mlx5_prm_structs.py CmdHcaCap",
            "freebsd: mlx5_ifc_debug_cap_bits",
        ] {
            assert!(is_ifc(source), "{source}");
        }
        assert!(!is_ifc("linux: struct mlx5_wqe_ctrl_seg"));
        assert!(!is_ifc("ucx: struct mlx5_cqe64"));
        assert!(!is_ifc("trace: status_bits"));
        assert!(!is_ifc("model"));
    }

    #[test]
    fn source_family_does_not_confirm_field() {
        let description = Description::parse([("prm/x.toml", TABLE)]);
        let structure = &description.structures[0];
        let all: BTreeSet<_> = ["a", "c"].map(|field| ("thing", field)).into();
        let evidence = Evidence {
            ifc: all.clone(),
            trace: all.clone(),
            golden: all.clone(),
            mailbox: BTreeSet::new(),
            mstflint: all,
        };
        let of = |field: &str, sources: Option<&[&str]>| {
            let field = structure.fields.iter().find(|it| it.name == field).unwrap();
            let sources = sources.map(|all| all.iter().map(|&it| it.to_owned()).collect());
            let confirmed = evidence.of(structure, &Field { sources, ..field.clone() });
            (confirmed.count(), confirmed.names().collect::<Vec<_>>().join(" "))
        };
        let names = "trace golden mstflint".to_owned();
        assert_eq!(of("a", None), (3, names), "the structure's is a header");
        for (sources, count, names) in [
            (&["dpdk: struct x"][..], 4, "ifc trace golden mstflint"),
            (&["dpdk: struct x", "dpdk: mlx5_ifc_x_bits"], 3, "trace golden mstflint"),
            (&["rdma-core: struct x"], 3, "ifc trace mstflint"),
            (&["rdma-core: struct x", "dpdk: struct x"], 4, "ifc trace golden mstflint"),
            (&["mstflint: x"], 3, "ifc trace golden"),
            (&["mstflint: x", "dpdk: struct x"], 4, "ifc trace golden mstflint"),
        ] {
            assert_eq!(of("c", Some(sources)), (count, names.into()), "{sources:?}");
        }
        assert_eq!(of("b", None), (0, String::new()));
    }

    #[test]
    fn summary_counts_confirmations() {
        let other = "[other]\nbytes = 4\nsources = [\"linux\"]\nfields.only = { at = \"0x00\" }";
        let description = Description::parse([("prm/x.toml", TABLE), ("prm/y.toml", other)]);
        let fields = |names: &[&'static str]| names.iter().map(|&name| ("thing", name)).collect();
        let mut evidence = Evidence {
            ifc: fields(&["c"]),
            trace: fields(&["a", "b", "c"]),
            golden: fields(&["b"]),
            mailbox: fields(&["a", "b"]),
            mstflint: fields(&["a"]),
        };
        let text = "\nindependent confirmations: 2 fields have none, 0 have 1, 3 have 2 or more\n\
                    by evidence: ifc header 1, trace 3, golden 1, mailbox 2, mstflint 1\n";
        let some = "`--list` names the 2 with none, in 2 structures\n";
        assert_eq!(summary(&description, &evidence, false), format!("{text}{some}"));
        let names = "\nfields with none:\n  other: only\n  thing: d\n";
        assert_eq!(summary(&description, &evidence, true), format!("{text}{names}"));
        evidence.trace.extend([("thing", "d"), ("other", "only")]);
        let all = summary(&description, &evidence, false);
        let text = "\nindependent confirmations: 0 fields have none, 2 have 1, 3 have 2 or more\n\
                    by evidence: ifc header 1, trace 5, golden 1, mailbox 2, mstflint 1\n";
        assert_eq!(all, text);
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
