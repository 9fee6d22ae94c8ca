//! What import adds, corrects and leaves unchanged.

use super::*;
use crate::repository::Scratch;

const HEADER: &str = r#"{
    "structs": {
        "mlx5_ifc_thing_bits": { "bits": 192, "fields": {
            "kind": [0, 4], "reserved_at_4": [4, 12], "size": [16, 16], "path": [32, 64],
            "addr": [96, 64], "reserved_at_a0": [160, 1], "last": [161, 31], "pas": [192, 0]
        } },
        "mlx5_ifc_inner_bits": { "bits": 64, "fields": { "whole": [0, 64], "half": [0, 32] } },
        "mlx5_ifc_make_thing_in_bits": { "bits": 64, "fields": {
            "opcode": [0, 16], "uid": [16, 16], "reserved_at_20": [32, 16], "op_mod": [48, 16]
        } },
        "mlx5_ifc_make_thing_out_bits": { "bits": 128, "fields": {
            "status": [0, 8], "reserved_at_8": [8, 24], "syndrome": [32, 32],
            "reserved_at_40": [64, 64]
        } }
    },
    "enums": { "MLX5_CMD_OP_MAKE_THING": 2304 }
}"#;

const INNER: &str = r#"
[inner]
bytes = 8
sources = ["linux: mlx5_ifc_inner_bits"]
fields.whole = { at = "0x00", bits = 64 }
fields.half = { at = "0x00", overlay = true }
"#;

/// The text after import, and what remains to settle by hand.
fn imported(text: &str) -> (String, Vec<String>) {
    let facts: Facts = serde_json::from_str(HEADER).unwrap();
    let whole = format!("{INNER}{text}");
    let description = Description::parse([("prm/x.toml", whole.as_str())]);
    assert!(description.problems.is_empty(), "{:?}", description.problems);
    let mut document: DocumentMut = whole.parse().unwrap();
    let mut problems = Vec::new();
    import_file("prm/x.toml", &mut document, &description, &facts, &[], &mut problems);
    let text = document.to_string();
    let rest = text.strip_prefix(INNER).expect("what agrees is not touched");
    (rest.to_owned(), problems.iter().map(Problem::to_string).collect())
}

fn described(text: &str) -> Description {
    Description::parse([("prm/x.toml", format!("{INNER}{text}").as_str())])
}

#[test]
fn missing_fields_and_gaps_are_added_in_order() {
    let (text, problems) = imported(
        r#"
# What things are.
[thing]
bytes = 0x18
doc = "A thing."
sources = ["linux: mlx5_ifc_thing_bits"]
[thing.fields]
# The size comes first to mind.
size = { at = "0x00.15:0",   doc = "Size." }   # in bytes
"#,
    );
    assert_eq!(problems, Vec::<String>::new());
    let description = described(&text);
    let thing = description.structure("thing").unwrap();
    let names: Vec<&str> = thing.fields.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["kind", "size", "path", "addr", "last", "pas"]);
    let reserved: Vec<String> = thing.reserved.iter().map(At::to_string).collect();
    assert_eq!(reserved, ["0x00.27:16", "0x14.31"]);
    assert!(text.contains("# What things are.\n[thing]"));
    assert!(text.contains(
        "# The size comes first to mind.\n\
         size = { at = \"0x00.15:0\",   doc = \"Size.\" }   # in bytes"
    ));
    let pas = thing.fields.last().unwrap();
    assert!(pas.tail && pas.width == 64);
    // A second import changes nothing.
    assert_eq!(imported(&text), (text, Vec::new()));
}

const WHOLE: &str = r#"
[thing]
bytes = 0x18
sources = ["linux: mlx5_ifc_thing_bits"]
reserved = ["0x00.27:16", "0x14.31"]
[thing.fields]
kind = { at = "0x00.31:28", doc = "Kind." }
size = { at = "0x00.15:0" }
path = { at = "0x04", struct = "inner" }
addr = { at = "0x0c", bits = 64 }
last = { at = "0x14.30:0" }
pas = { at = "0x18", tail = true, bits = 64 }
"#;

#[test]
fn matching_table_is_unchanged() {
    assert_eq!(imported(WHOLE), (WHOLE.to_owned(), Vec::new()));
    let split = WHOLE.replace("\"0x00.27:16\"", "\"0x00.27:20\", \"0x00.19:16\"");
    assert_eq!(imported(&split), (split, Vec::new()));
    let bytes = WHOLE.replace("struct = \"inner\"", "bytes = 8");
    assert_eq!(imported(&bytes), (bytes, Vec::new()));
    let array = WHOLE.replace("struct = \"inner\"", "bits = 32, count = 2");
    assert_eq!(imported(&array), (array, Vec::new()));
}

#[test]
fn misplaced_field_is_moved_and_keeps_doc() {
    for (wrong, right) in [
        ("0x00.31:28\", doc", "0x00.30:27\", doc"),
        ("at = \"0x0c\", bits = 64", "at = \"0x10\", bits = 32"),
        ("path = { at = \"0x04\"", "path = { at = \"0x08\""),
    ] {
        let (text, problems) = imported(&WHOLE.replace(wrong, right));
        assert_eq!((text.as_str(), problems), (WHOLE, Vec::new()), "{right}");
    }
}

#[test]
fn unresolvable_difference_is_reported() {
    for (from, to, says) in [
        ("struct = \"inner\"", "bytes = 4", "[thing] path: holds 32 bits, but the facts say 64"),
        ("size = {", "extent = { sources = [],", ""),
        ("thing_bits\"]", "thong_bits\"]", "[thing]: no mlx5_ifc_thong_bits among the facts"),
        ("tail = true, bits = 64", "bits = 64", "disagree about tail"),
        (
            "last = { at = \"0x14.30:0\" }",
            "last = { at = \"0x14.30:0\" }\nmore = { at = \"0x14.31\" }",
            "[thing] more: mlx5_ifc_thing_bits has no `more`; add linux = ",
        ),
    ] {
        let problems = imported(&WHOLE.replace(from, to)).1;
        if says.is_empty() {
            assert_eq!(problems, Vec::<String>::new());
        } else {
            assert!(problems.iter().any(|p| p.contains(says)), "{to}: {problems:?}");
        }
    }
}

#[test]
fn renamed_field_is_matched_by_position() {
    let (text, problems) = imported(
        &WHOLE.replace("size = { at = \"0x00.15:0\" }", "extent = { at = \"0x00.15:0\" }"),
    );
    assert_eq!(problems, Vec::<String>::new());
    assert!(text.contains("extent = { at = \"0x00.15:0\", linux = \"size\" }"), "{text}");
}

#[test]
fn excluded_field_is_not_added() {
    let shorter: String =
        WHOLE.lines().filter(|l| !l.starts_with("size")).map(|l| format!("{l}\n")).collect();
    let shorter = shorter.replace("\"0x00.27:16\"", "\"0x00.27:0\"");
    assert!(imported(&shorter).0.contains("size = "));
    let without = shorter.replace("[thing.fields]", "without = [\"size\"]\n[thing.fields]");
    assert_eq!(imported(&without), (without, Vec::new()));
}

#[test]
fn new_command_has_opcode_and_common_docs() {
    let facts: Facts = serde_json::from_str(HEADER).unwrap();
    let text = new_command(&facts, &Description::default(), "make_thing").unwrap();
    let description = Description::parse([("prm/x.toml", text.as_str())]);
    assert!(description.problems.is_empty(), "{:?}", description.problems);
    assert_eq!(description.commands[0].opcode, 0x900);
    let output = description.structure("make_thing_out").unwrap();
    assert_eq!(output.fields[0].content, Content::Enum("command_status".into()));
    assert!(output.fields.iter().all(|field| !field.doc.is_empty()));

    let unknown = new_command(&facts, &Description::default(), "break_thing").unwrap_err();
    assert!(unknown.to_string().contains("MLX5_CMD_OP_BREAK_THING"));
    let near = new_structure(&facts, &Description::default(), "thing_in", "x").unwrap_err();
    assert!(near.to_string().contains("near: mlx5_ifc_make_thing_in_bits"), "{near}");
    let twice = new_structure(&facts, &described(""), "inner", "inner").unwrap_err();
    assert!(twice.to_string().contains("already a structure [inner]"));
}

#[test]
fn misplaced_array_field_is_corrected() {
    let path = "path = { at = \"0x04\", struct = \"inner\" }";
    for (wrong, right) in [
        // (path, at bit 32 with 64 bits)
        ("{ at = \"0x08\", bits = 16, count = 4 }", "{ at = \"0x04\", bits = 16, count = 4 }"),
        ("{ at = \"0x08\", count = 2 }", "{ at = \"0x04\", count = 2 }"),
        ("{ at = \"0x04\", bits = 96 }", "{ at = \"0x04\", bits = 64 }"),
        ("{ at = \"0x08\", bytes = 8 }", "{ at = \"0x04\", bytes = 8 }"),
    ] {
        let text = |written| WHOLE.replace(path, &format!("path = {written}"));
        let wanted = (text(right), Vec::new());
        let (imported, problems) = imported(&text(wrong));
        let corrected = imported.lines().find(|line| line.starts_with("path = ")).unwrap();
        assert_eq!((corrected, problems), (&*format!("path = {right}"), wanted.1), "{wrong}");
    }
    let kind = "kind = { at = \"0x00.31:28\", doc = \"Kind.\" }";
    for (wrong, right) in [
        // (kind, at bit 0 with 4 bits)
        ("{ at = \"0x00.27\", count = 4 }", "{ at = \"0x00.31\", count = 4 }"),
        ("{ at = \"0x00.27:0\", bits = 2, count = 2 }", "{ at = \"0x00\", bits = 2, count = 2 }"),
    ] {
        let text = imported(&WHOLE.replace(kind, &format!("kind = {wrong}"))).0;
        let corrected = text.lines().find(|line| line.starts_with("kind = ")).unwrap();
        assert_eq!(corrected, format!("kind = {right}"), "{wrong}");
    }
}

#[test]
fn rename_needs_unmatched_header_field() {
    let size = "size = { at = \"0x00.15:0\" }";
    for other in [
        "extent = { at = \"0x00.15:0\", sources = [\"trace\"] }",
        "extent = { at = \"0x00.15:0\", linux = \"gone\" }",
    ] {
        let text = WHOLE.replace(size, other);
        assert_eq!(imported(&text).0, text);
    }
    let kind = "kind = { at = \"0x00.31:28\", doc = \"Kind.\" }\n";
    let text = WHOLE.replace(kind, "").replace(size, "kind = { at = \"0x00.15:0\" }");
    assert!(!imported(&text).0.contains("linux = \""), "its name is another field's there");
}

#[test]
fn covered_field_is_not_added() {
    let path = "path = { at = \"0x04\", struct = \"inner\" }";
    let parts = "one = { at = \"0x04\", sources = [\"ucx\"] }\n\
                 two = { at = \"0x08\", sources = [\"ucx\"] }";
    let shorter = WHOLE
        .replace("size = { at = \"0x00.15:0\" }\n", "")
        .replace("\"0x00.27:16\"", "\"0x00.27:0\"")
        .replace("[thing.fields]", "without = [\"size\"]\n[thing.fields]")
        .replace(path, parts);
    assert_eq!(imported(&shorter), (shorter, Vec::new()));
}

#[test]
fn new_structure_lists_gaps_overlays_and_tails() {
    let facts: Facts = serde_json::from_str(HEADER).unwrap();
    let new = |name: &str| new_structure(&facts, &Description::default(), name, "x").unwrap();
    assert_eq!(
        new("thing"),
        r#"
[x]
bytes = 0x18
doc = ""
sources = ["linux: mlx5_ifc_thing_bits"]
reserved = ["0x00.27:16", "0x14.31"]
[x.fields]
kind = { at = "0x00.31:28", doc = "" }
size = { at = "0x00.15:0", doc = "" }
path = { at = "0x04", bits = 64, doc = "" }
addr = { at = "0x0c", bits = 64, doc = "" }
last = { at = "0x14.30:0", doc = "" }
pas  = { at = "0x18", tail = true, bits = 64, doc = "" }
"#
    );
    assert_eq!(
        new("mlx5_ifc_inner_bits"),
        r#"
[x]
bytes = 0x08
doc = ""
sources = ["linux: mlx5_ifc_inner_bits"]
[x.fields]
half  = { at = "0x00", overlay = true, doc = "" }
whole = { at = "0x00", bits = 64, overlay = true, doc = "" }
"#
    );
}

#[test]
fn common_command_fields_get_docs() {
    let texts = |fields: &str| -> Vec<String> {
        let layout = format!("{{ \"bits\": 96, \"fields\": {{ {fields} }} }}");
        let layout: Layout = serde_json::from_str(&layout).unwrap();
        let named = layout.named().into_iter();
        named.map(|(name, span)| new_field(name, span, &layout).to_string()).collect()
    };
    for (fields, without_text) in [
        (r#""status": [0, 8], "syndrome": [32, 32]"#, 0),
        (r#""status": [0, 8], "syndrome": [64, 32]"#, 1),
        (r#""status": [0, 16], "syndrome": [32, 32]"#, 2),
        (r#""opcode": [0, 16], "uid": [16, 16], "op_mod": [48, 16]"#, 0),
        (r#""opcode": [0, 8], "uid": [32, 16], "op_mod": [64, 16]"#, 3),
    ] {
        let texts = texts(fields);
        let without = texts.iter().filter(|text| text.contains("doc = \"\"")).count();
        assert_eq!(without, without_text, "{texts:?}");
    }
}

fn options(structures: &[&str]) -> Options {
    let structures = structures.iter().map(|&name| name.to_owned()).collect();
    let none = (None, Vec::new(), Vec::new(), None, Vec::new());
    let (from, new, command, file, adb) = none;
    Options { from, new, command, file, adb, evidence: None, version: None, structures }
}

#[test]
fn run_writes_selected_tables_and_reports_rest() {
    let wrong = "[a]\nbytes = 8\nsources = [\"linux: mlx5_ifc_inner_bits\"]\n\
                 fields.whole = { at = \"0x00\" }\n\
                 fields.half = { at = \"0x00\", overlay = true }\n";
    let text = format!("{wrong}{}", wrong.replace("[a]", "[b]"));
    let right = |text: &str| text.replace("at = \"0x00\" }", "at = \"0x00\", bits = 64 }");
    let scratch = Scratch::new("import", &[("prm/x.toml", &text), (FACTS, HEADER)]);
    run(scratch.path(), &options(&["b"])).unwrap();
    let (a, b) = text.split_at(wrong.len());
    assert_eq!(scratch.read("prm/x.toml"), format!("{a}{}", right(b)));
    run(scratch.path(), &options(&[])).unwrap();
    assert_eq!(scratch.read("prm/x.toml"), right(&text));

    scratch.write("prm/x.toml", text.replace("inner_bits", "none_bits"));
    let error = run(scratch.path(), &options(&[])).unwrap_err().to_string();
    assert!(error.starts_with("2 things to settle by hand:\n  prm/x.toml: [a]: no "), "{error}");
}

#[test]
fn new_tables_are_appended_to_file() {
    let stale = "[a]\nbytes = 8\nsources = [\"linux: mlx5_ifc_inner_bits\"]\n";
    let scratch = Scratch::new("import-new", &[("prm/x.toml", stale), (FACTS, HEADER)]);
    let file = scratch.path().join("prm/new.toml");
    let add = |new: &[&str], command: &[&str]| {
        let owned = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        let (new, command) = (owned(new), owned(command));
        let options = Options { new, command, file: Some(file.clone()), ..options(&[]) };
        run(scratch.path(), &options).unwrap();
        scratch.read("prm/new.toml")
    };
    let first = add(&["inner:b"], &[]);
    assert!(first.starts_with("[b]\n"), "{first}");
    let both = add(&[], &["make_thing"]);
    assert!(both.starts_with(&format!("{first}\n[make_thing]\n")), "{both}");
    assert_eq!(scratch.read("prm/x.toml"), stale);
}
