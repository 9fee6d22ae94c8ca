//! What import adds and corrects, and what it leaves as it was written.

use super::*;

const FACTS: &str = r#"{
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

/// The text after import, and what is left to settle by hand.
fn imported(text: &str) -> (String, Vec<String>) {
    let facts: Facts = serde_json::from_str(FACTS).unwrap();
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
fn missing_fields_are_added_in_memory_order_and_gaps_are_named() {
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
    // A second import finds nothing to do.
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
fn what_agrees_with_the_facts_stays_as_it_is() {
    assert_eq!(imported(WHOLE), (WHOLE.to_owned(), Vec::new()));
    let split = WHOLE.replace("\"0x00.27:16\"", "\"0x00.27:20\", \"0x00.19:16\"");
    assert_eq!(imported(&split), (split, Vec::new()));
    let bytes = WHOLE.replace("struct = \"inner\"", "bytes = 8");
    assert_eq!(imported(&bytes), (bytes, Vec::new()));
    let array = WHOLE.replace("struct = \"inner\"", "bits = 32, count = 2");
    assert_eq!(imported(&array), (array, Vec::new()));
}

#[test]
fn a_field_in_the_wrong_place_is_put_right_and_keeps_its_text() {
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
fn what_import_cannot_settle_it_says() {
    for (from, to, says) in [
        ("struct = \"inner\"", "bytes = 4", "[thing] path: holds 32 bits, but the facts say 64"),
        ("size = {", "extent = { sources = [],", ""),
        ("thing_bits\"]", "thong_bits\"]", "[thing]: no mlx5_ifc_thong_bits among the facts"),
        ("tail = true, bits = 64", "bits = 64", "disagree about tail"),
        (
            "last = { at = \"0x14.30:0\" }",
            "last = { at = \"0x14.30:0\" }\nmore = { at = \"0x14.31\" }",
            "[thing] more: mlx5_ifc_thing_bits has no `more`; say linux = ",
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
fn a_renamed_field_is_found_by_its_place() {
    let (text, problems) = imported(
        &WHOLE.replace("size = { at = \"0x00.15:0\" }", "extent = { at = \"0x00.15:0\" }"),
    );
    assert_eq!(problems, Vec::<String>::new());
    assert!(text.contains("extent = { at = \"0x00.15:0\", linux = \"size\" }"), "{text}");
}

#[test]
fn what_a_table_leaves_out_is_not_added_again() {
    let shorter: String =
        WHOLE.lines().filter(|l| !l.starts_with("size")).map(|l| format!("{l}\n")).collect();
    let shorter = shorter.replace("\"0x00.27:16\"", "\"0x00.27:0\"");
    assert!(imported(&shorter).0.contains("size = "));
    let without = shorter.replace("[thing.fields]", "without = [\"size\"]\n[thing.fields]");
    assert_eq!(imported(&without), (without, Vec::new()));
}

#[test]
fn a_new_command_comes_with_its_opcode_and_the_texts_that_all_commands_share() {
    let facts: Facts = serde_json::from_str(FACTS).unwrap();
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
