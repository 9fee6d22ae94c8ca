//! The rules of comparing, on small tables; and what the recorded tables confirm.

use super::*;
use crate::evidence::table::{facts, record};
use crate::facts::Layout;
use crate::repository::{Scratch, root};
use crate::verify::Coverage;

const TABLE: &str = r#"
    [outer_context]
    bytes = 0x10
    sources = ["linux: mlx5_ifc_outc_bits"]
    [outer_context.fields]
    kind = { at = "0x00.31:28" }
    flag = { at = "0x00.3" }
    part = { at = "0x04", struct = "part" }
    tail = { at = "0x08", struct = "tail" }

    [part]
    bytes = 0x04
    sources = ["dpdk: struct part"]
    [part.fields]
    high = { at = "0x00.31:16" }
    low = { at = "0x00.15:0", sources = ["linux: struct part"] }

    [tail]
    bytes = 0x08
    sources = ["rdma-core: x"]
    fields.word = { at = "0x00" }

    [make_in]
    bytes = 0x20
    sources = ["linux: mlx5_ifc_make_in_bits"]
    fields.opcode = { at = "0x00.31:16" }
    fields.number = { at = "0x14.23:0" }
"#;

fn described() -> Description {
    Description::parse([("prm/x.toml", TABLE)])
}

fn structs(text: &str) -> BTreeMap<String, Layout> {
    crate::header::read([text]).facts.structs
}

fn compared<'a>(description: &'a Description, text: &str) -> Compared<'a> {
    compare(description, "dpdk", &structs(text))
}

#[test]
fn field_of_same_bits_agrees_by_any_name() {
    let description = described();
    let found = compared(
        &description,
        "struct mlx5_ifc_outc_bits { u8 sort[4]; u8 reserved_at_4[24]; u8 flag[1]; u8 r[3];
         u8 high_half[16]; u8 low_half[16]; u8 tail[0x60]; };",
    );
    let there: Vec<_> = found.same.iter().map(|((s, f), name)| (*s, *f, name.as_str())).collect();
    let wanted = [
        ("outer_context", "flag", "flag"),
        ("outer_context", "kind", "sort"),
        ("outer_context", "tail", "tail"),
        ("part", "high", "high_half"),
        ("part", "low", "low_half"),
    ];
    assert_eq!(there, wanted);
    assert_eq!((found.structures, found.conflicts.len()), (1, 0));
}

#[test]
fn field_of_same_name_and_other_bits_is_conflict() {
    let description = described();
    let text = "struct mlx5_ifc_outc_bits { u8 kind[2]; u8 r[26]; u8 other[1]; };";
    let found = compared(&description, text);
    assert_eq!(found.conflicts.len(), 1);
    let says = "[outer_context] kind is at bit 0 with 4 bits, but mlx5_ifc_outc_bits has it at bit \
                0 with 2";
    assert_eq!(found.conflicts[0].to_string(), says);
    // After a conflict, a place alone is no agreement.
    assert!(found.same.is_empty(), "{:?}", found.same);
    let same_name = compared(&description, &text.replace("other", "flag"));
    assert!(same_name.same.contains_key(&("outer_context", "flag")));

    let plain = "struct mlx5_outc { u8 kind; u8 r[2]; u8 flag; };";
    assert_eq!(compared(&description, plain).conflicts, []);
    let elsewhere = "struct mlx5_outc { u8 r[2]; u8 kind; };";
    assert_eq!(compared(&description, elsewhere).conflicts.len(), 1);
}

#[test]
fn mailbox_begins_after_bytes_in_queue_entry() {
    let description = described();
    let text = "struct mcx_cmd_make_in { uint16_t cmd_opcode; uint8_t r[14]; };
                struct mcx_cmd_make_mb_in { uint32_t r; uint8_t s; uint8_t cmd_number[3]; };";
    let found = compared(&description, text);
    let keys: Vec<_> = found.same.keys().map(|key| key.1).collect();
    assert_eq!(keys, ["number", "opcode"]);
}

#[test]
fn own_description_lineage_and_fork_are_told_apart() {
    let description = described();
    let text = "struct mlx5_ifc_outc_bits { u8 kind[4]; };";
    let mut evidence = Evidence::default();
    for name in ["linux", "ofed", "dpdk", "openbsd"] {
        evidence.public(name, compare(&description, name, &structs(text)));
    }
    evidence.recorded("trace", [("outer_context", "kind"), ("tail", "word")].into());
    evidence.recorded("golden", [("outer_context", "kind"), ("tail", "word")].into());
    let of = |structure: &str, field: usize| {
        let structure = description.structure(structure).unwrap();
        evidence.of(structure, &structure.fields[field])
    };
    let kind = of("outer_context", 0);
    let names: Vec<_> = kind.names().collect();
    assert_eq!(names, ["dpdk", "golden", "ofed", "openbsd", "trace"]);
    assert_eq!((kind.descriptions(), kind.without_forks(), kind.lineages()), (5, 4, 3));
    assert_eq!(kind.counts(), "5/3");
    // The golden bytes are rdma-core's.
    assert_eq!(of("tail", 0).names().collect::<Vec<_>>(), ["trace"]);
    assert_eq!(of("outer_context", 1), Confirmations::default());
}

#[test]
fn alias_names_its_descriptions() {
    let description = described();
    let mut evidence = Evidence::default();
    for name in ["dpdk", "ucx", "illumos"] {
        let text = match name {
            "illumos" => "struct mlx5_ifc_outc_bits { u8 ml_kind[4]; };",
            _ => "struct mlx5_ifc_outc_bits { u8 sort[4]; };",
        };
        evidence.public(name, compare(&description, name, &structs(text)));
    }
    let outer = description.structure("outer_context").unwrap();
    let kind = evidence.of(outer, &outer.fields[0]);
    assert_eq!(kind.aliases(), [("sort", vec!["dpdk", "ucx"])].into());
    assert_eq!(evidence.called("SORT"), [("outer_context", "kind")].into());
    assert!(evidence.called("kind").is_empty());
}

#[test]
fn divergence_needs_conflict_and_conflict_needs_divergence() {
    let description = described();
    let found = compared(&description, "struct mlx5_ifc_outc_bits { u8 kind[2]; };");
    let divergences = |fields| {
        Divergences::parse(&format!(
            "[[divergence]]\ndescriptions = [\"dpdk\"]\nfields = [{fields}]\nwhy = \"Older.\""
        ))
        .unwrap()
    };
    let known = divergences("\"outer_context.kind\"");
    let none = BTreeSet::new();
    assert!(known.problems("dpdk", &found.conflicts, &none).is_empty());
    assert_eq!(known.why("dpdk", "outer_context", "kind"), Some("Older."));
    let [unknown] = &divergences("").problems("dpdk", &found.conflicts, &none)[..] else {
        panic!()
    };
    assert!(unknown.contains("correct prm/, or explain it"), "{unknown}");
    let [stale] = &known.problems("dpdk", &[], &none)[..] else { panic!() };
    assert!(stale.contains("there is no conflict: remove it"), "{stale}");
    assert!(Divergences::parse("[[divergence]]\nfields = []").is_err());

    // The same bits may be something else.
    let renamed = compared(&description, "struct mlx5_ifc_outc_bits { u8 sort[4]; };");
    assert_eq!(renamed.renamed(), ["outer_context.kind".to_owned()].into());
    assert!(known.problems("dpdk", &[], &renamed.renamed()).is_empty());
    let mut evidence = Evidence::with(known);
    evidence.public("dpdk", renamed);
    assert_eq!(evidence.agreements("dpdk"), 0);
}

#[test]
fn overlapping_field_of_that_name_agrees_alone() {
    let text = "[thing]\nbytes = 4\nsources = [\"linux: x\"]\n\
                fields.lid = { at = \"0x00.31:16\" }\n\
                fields.port = { at = \"0x00.31:16\", overlay = true }";
    let description = Description::parse([("prm/x.toml", text)]);
    let fields = |text| {
        let found = compared(&description, text);
        found.same.keys().map(|key| key.1).collect::<Vec<_>>()
    };
    assert_eq!(fields("struct thing { uint16_t lid; };"), ["lid"]);
    assert_eq!(fields("struct thing { uint16_t other; };"), ["lid", "port"]);
}

#[test]
fn openbsd_capability_page_is_of_vendor_lineage() {
    let text = "[NAME]\nbytes = 4\nsources = [\"linux: x\"]\nfields.a = { at = \"0x00\" }";
    for (name, lineages) in [("hca_cap", 0), ("cq_context", 1)] {
        let text = text.replace("NAME", name);
        let description = Description::parse([("prm/x.toml", text.as_str())]);
        let mut evidence = Evidence::default();
        evidence.recorded("openbsd", [(name, "a")].into());
        let structure = &description.structures[0];
        let confirmed = evidence.of(structure, &structure.fields[0]);
        assert_eq!((confirmed.descriptions(), confirmed.lineages()), (1, lineages), "{name}");
    }
}

#[test]
fn record_keeps_facts_and_origin() {
    let scratch = Scratch::new(
        "evidence",
        &[(
            "prm.h",
            "struct mlx5_ifc_a_bits { u8 a[8];
        u8 reserved_at_8[8]; u8 rsvd[16]; };",
        )],
    );
    let file = scratch.path().join("prm.h");
    record(scratch.path(), "libdpcp", "1.1.54", std::slice::from_ref(&file)).unwrap();
    let libdpcp = source("libdpcp").unwrap();
    let path = scratch.path().join("prm/evidence/descriptions/libdpcp.json.gz");
    let packed = std::fs::read(&path).unwrap();
    record(scratch.path(), "libdpcp", "1.1.54", std::slice::from_ref(&file)).unwrap();
    assert_eq!(packed, std::fs::read(&path).unwrap());
    let table = table::read(scratch.path(), libdpcp).unwrap();
    assert_eq!((table.version.as_str(), table.licence.as_str()), ("1.1.54", "BSD-3-Clause"));
    let fields = [("a".to_owned(), (0, 8))].into();
    assert_eq!(table.structs["mlx5_ifc_a_bits"], Layout { bits: 32, fields });
    for (name, files, says) in [
        ("libdpc", vec![], "there is no description `libdpc`; those known are linux, "),
        ("libdpcp", vec![], "libdpcp is made of 1 files: src/dcmd/prm.h"),
        ("libdpcp", vec![file.with_extension("none")], "prm.none: "),
    ] {
        let error = record(scratch.path(), name, "", &files).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let snabb = source("snabb").unwrap();
    let lua = r#"self:command("MAKE"):x()"#.to_owned() + "\n:input(\"op\", 0x00, 31, 16, 1)";
    assert_eq!(facts(snabb, &[lua]).structs["make_in"].fields["op"], (0, 16));
}

#[test]
fn recorded_tables_match_their_source_entries() {
    let description = Description::load(&root()).unwrap();
    let readme = std::fs::read_to_string(root().join("prm/evidence/README.md")).unwrap();
    for source in SOURCES {
        let table = table::read(&root(), source).unwrap();
        assert_eq!(table.source, source.name);
        assert_eq!(table.licence, source.licence, "{}", source.name);
        assert_eq!(table.files, source.files, "{}", source.name);
        assert!(table.made_by.contains(&table.version), "{}", table.made_by);
        let row = format!("| {} | {} | {} |", table.source, table.version, table.licence);
        assert!(readme.contains(&row), "no row: {row}");
        let facts = match source.name {
            "linux" => Facts::read(&root().join(crate::import::FACTS)).unwrap().structs,
            _ => BTreeMap::new(),
        };
        for (name, structure) in names::otherwise(source.name) {
            assert!(table.structs.contains_key(name) || facts.contains_key(name), "{name}");
            assert!(description.structure(structure).is_some(), "{structure}");
        }
    }
}

/// The shares of fields, in percent, that the recorded evidence confirms. A new table may lower
/// them: then it needs a description here, or its reason in the commit that changes the bound.
#[test]
fn recorded_evidence_confirms_most_fields() {
    let description = Description::load(&root()).unwrap();
    let evidence = Evidence::gather(&root(), &description).unwrap();
    let coverage = Coverage::of(&description, &evidence);
    let share = |count: usize| 100 * count / coverage.fields;
    let all = [coverage.descriptions, coverage.without_forks, coverage.lineages];
    let reached = all.map(|counts| counts.map(share));
    for (reached, bound) in reached.iter().zip([[86, 67], [72, 55], [25, 6]]) {
        assert!(reached[0] >= bound[0] && reached[1] >= bound[1], "{reached:?} < {bound:?}");
    }
}
