//! Which files generation writes and removes, and which it finds stale.

use super::*;
use crate::repository::Scratch;

/// Without a doc and a known enum, which generation does not need.
const THING: &str = r#"
    [thing]
    bytes = 0x04
    doc = "A thing."
    sources = ["linux"]
    reserved = ["0x00.23:0"]
    fields.kind = { at = "0x00.31:24", enum = "nothing" }
"#;
const GENERATED: [&str; 4] = [
    "crates/model/src/profile/builtin.rs",
    "crates/prm/src/generated/hot.rs",
    "crates/prm/src/generated/mod.rs",
    "crates/prm/src/generated/thing.rs",
];

fn scratch(test: &str) -> Scratch {
    Scratch::new(
        test,
        &[
            ("rustfmt.toml", ""),
            ("prm/thing.toml", THING),
            ("crates/model/profiles/small.toml", "flows = 7\n"),
            ("crates/model/src/profile/mod.rs", ""),
        ],
    )
}

#[test]
fn what_differs_is_written_what_no_table_generates_is_removed_and_the_rest_left_alone() {
    let scratch = scratch("write");
    let root = scratch.path();
    let description = Description::load(root).unwrap();
    let texts = "2 texts are still missing; `cargo xtask prm check` lists them".to_owned();
    let mut wanted = GENERATED.map(|file| format!("{file}: written")).to_vec();
    wanted.push(texts.clone());
    assert_eq!(write(root, &description).unwrap(), wanted);
    assert_eq!(write(root, &description).unwrap(), [texts.as_str()]);
    assert!(scratch.read(GENERATED[0]).contains("(\"flows\", Integer(0x7))"));
    // An enum that does not exist counts as a number.
    assert!(scratch.read(GENERATED[3]).contains("kind set_kind: number(u8, 0, 8);"));

    scratch.write("crates/prm/src/generated/old.rs", "");
    scratch.write(GENERATED[3], "");
    run(root).unwrap();
    assert!(!root.join("crates/prm/src/generated/old.rs").exists());
    assert!(scratch.read(GENERATED[3]).contains("Thing"));
}

#[test]
fn every_file_that_is_missing_or_changed_or_that_no_table_generates_is_stale() {
    let scratch = scratch("stale");
    let root = scratch.path();
    let description = Description::load(root).unwrap();
    let stale_file = |file: &str| format!("{file}: is stale; run `cargo xtask prm generate`");
    assert_eq!(stale(root, &description).unwrap(), GENERATED.map(stale_file));
    write(root, &description).unwrap();
    assert_eq!(stale(root, &description).unwrap(), Vec::<String>::new());
    scratch.write("crates/prm/src/generated/old.rs", "");
    scratch.write(GENERATED[2], "");
    let old = "crates/prm/src/generated/old.rs: no table generates it; run `cargo xtask prm \
               generate`";
    assert_eq!(stale(root, &description).unwrap(), [old, &stale_file(GENERATED[2])]);
}

#[test]
fn text_that_is_not_rust_is_refused_with_what_rustfmt_says() {
    let scratch = scratch("rustfmt");
    let error = rustfmt_one(scratch.path(), "fn (").unwrap_err();
    assert!(error.starts_with("the generated code is not valid Rust ("), "{error}");
    assert!(error.contains("unclosed delimiter"), "{error}");
}

/// What `hot.rs` has of a structure of so many bytes with these words and fields.
fn hot_structure(bytes: u32, words: &str, fields: &str) -> String {
    let text = format!(
        "[kind]\nkind = \"enum\"\nbits = 8\n[s]\nhot = true\nbytes = {bytes}\n\
         words = {{ {words} }}\n[s.fields]\n{fields}"
    );
    let description = Description::parse([("prm/wqe.toml", text.as_str())]);
    assert_eq!(description.problems, []);
    let module = hot::module(&description);
    let (_, structure) = module.split_once("pub use crate::wqe::{OCTOWORD, WQEBB};\n").unwrap();
    structure.to_owned()
}

#[test]
fn a_hot_structure_has_its_words_where_its_fields_are_and_how_it_is_made() {
    let words = r#"head = "0x00", both = "0x08""#;
    let fields = r#"
        flag = { at = "0x00.31", doc = "A flag." }
        type = { at = "0x00.30:16" }
        low = { at = "0x00.7:0" }
        number = { at = "0x04.23:0" }
        high = { at = "0x08.31:16" }
        first = { at = "0x08.15:0", overlay = true }
        second = { at = "0x08.15:8", overlay = true }
        rest = { at = "0x0c" }
        address = { at = "0x10", bits = 64 }
        raw = { at = "0x18", bits = 64 }
    "#;
    let expected = "
word! {
    /// The word at 0x0 of `s`.
    Head(u32) at 0x0 packs {
        /// A flag.
        flag with_flag: flag(31);
        /// `type`.
        r#type with_type: bits(u16, 16, 15);
        /// `low`.
        low with_low: bits(u8, 0, 8);
    }
}

word! {
    /// The word at 0x8 of `s`.
    Both(u32) at 0x8 {
        /// `high`.
        high with_high: bits(u16, 16, 16);
        /// `first`.
        first with_first: bits(u16, 0, 16);
        /// `second`.
        second with_second: bits(u8, 8, 8);
    }
}

impl S {
    /// Where `rest` is, in bytes.
    pub const REST_AT: usize = 0xc;
    /// Where `address` is, in bytes.
    pub const ADDRESS_AT: usize = 0x10;
    /// Where `raw` is, in bytes.
    pub const RAW_AT: usize = 0x18;
}

new! {
    S {
        head: packed(Head, 0x0);
        number: plain(u32, 0x4);
        both: packed(Both, 0x8);
        rest: plain(u32, 0xc);
        address: plain(u64, 0x10);
        raw: plain(u64, 0x18);
    }
}
";
    assert_eq!(hot_structure(0x20, words, fields), expected);
}

#[test]
fn only_whole_bytes_have_an_offset_and_only_words_and_numbers_that_fill_one_make_a_structure() {
    let number = |place: &str| format!("n = {{ at = {place} }}");
    let made = |repr: &str| Some(format!("plain({repr}, 0x0)"));
    for (bytes, fields, offset, made) in [
        (4, number(r#""0x00.23:0""#), None, made("u32")),
        (4, number(r#""0x00""#), Some("0x0"), made("u32")),
        (8, number(r#""0x00", bits = 64"#), Some("0x0"), made("u64")),
        (4, number(r#""0x00.31:8""#), None, None),
        (8, number(r#""0x00.23:0", bits = 56"#), Some("0x1"), None),
        (8, number(r#""0x00.30:0", bits = 63"#), None, None),
        (8, number(r#""0x00", bits = 56"#), Some("0x0"), None),
        (8, number(r#""0x00", bits = 57"#), None, None),
        (12, number(r#""0x04", bits = 64"#), Some("0x4"), None),
        (8, number(r#""0x04.7:0""#), None, Some("plain(u32, 0x4)".into())),
        (8, number(r#""0x00", bits = 32, count = 2"#), Some("0x0"), None),
        (16, number(r#""0x00", bytes = 0x10"#), Some("0x0"), None),
        (4, number(r#""0x00.7:0", enum = "kind""#), None, None),
        (4, number(r#""0x04", bits = 32, tail = true"#), None, None),
        (4, number(r#""0x00.7:0", bits = 8, count = 1"#), None, None),
        // Others in its word, at both ends and across it.
        (4, number(r#""0x00.23:0" }, a = { at = "0x00.31:24""#), None, None),
        (4, number(r#""0x00.15:0" }, a = { at = "0x00.31", overlay = true"#), None, None),
        (8, number(r#""0x04.7:0" }, a = { at = "0x00", bits = 33"#), None, None),
    ] {
        let fields = fields.replace("}, ", "}\n");
        let text = hot_structure(bytes, "", &fields);
        let line = |begin: &str| {
            let found = text.lines().find_map(|line| line.trim().strip_prefix(begin));
            found.map(|rest| rest.trim_end_matches(';').to_owned())
        };
        assert_eq!(line("pub const N_AT: usize = ").as_deref(), offset, "{fields}: {text}");
        assert_eq!(line("n: "), made, "{fields}: {text}");
    }
}

#[test]
fn an_enum_of_the_data_path_is_a_module_of_plain_numbers() {
    let text = r#"
        [kind]
        kind = "enum"
        bits = 16
        hot = "kinds"
        doc = "Kinds."
        values.A = { value = 9, doc = "First." }
        values.B = { value = 10 }
        [other]
        kind = "enum"
        bits = 8
        values.C = { value = 1 }
    "#;
    let description = Description::parse([("prm/eq.toml", text)]);
    let module = hot::module(&description);
    let expected = "
/// Values of `kind`: Kinds.
pub mod kinds {
    /// First.
    pub const A: u16 = 9;
    /// `B`.
    pub const B: u16 = 0xa;
}
";
    assert!(module.ends_with(expected), "{module}");
    assert!(!module.contains("C:"), "{module}");
}

#[test]
fn docs_are_wrapped_at_a_hundred_columns_and_shown_by_rustdoc_as_they_are_written() {
    for (text, expected) in [
        ("plain words", "plain words"),
        ("", "`name`."),
        ("  ", "`name`."),
        ("`a[0] <b> _c` [0]", "`a[0] <b> _c` \\[0\\]"),
        ("<a> and * and \\", "\\<a\\> and \\* and \\\\"),
        ("_a b_ c_d", "\\_a b\\_ c_d"),
        ("see https://a.b/c_d.", "see <https://a.b/c_d>."),
        ("(http://a.b/[x]): more", "(<http://a.b/[x>]): more"),
        ("two  spaces", "two spaces"),
    ] {
        let mut out = String::new();
        doc(&mut out, "    ", text, "name");
        assert_eq!(out, format!("    /// {expected}\n"), "{text}");
    }
    for (first, second, lines) in [(88, 3, 1), (88, 4, 2), (1, 90, 1), (1, 91, 2)] {
        let mut out = String::new();
        let text = format!("{} {}", "a".repeat(first), "b".repeat(second));
        doc(&mut out, "    ", &text, "name");
        assert_eq!(out.lines().count(), lines, "{out}");
        assert!(out.lines().all(|line| line.len() <= 100), "{out}");
    }
}

#[test]
fn a_doc_ends_with_a_full_stop_and_names_its_sources() {
    for (text, expected) in [
        ("", ""),
        (" a ", "a."),
        ("a.", "a."),
        ("a!", "a!"),
        ("a?", "a?"),
        ("a:", "a:"),
        ("a)", "a)."),
    ] {
        assert_eq!(full_stop(text), expected);
    }
    let mut out = String::new();
    doc_with_sources(&mut out, "", "A thing.", "thing", &[]);
    assert_eq!(out, "/// A thing.\n");
    doc_with_sources(&mut out, " ", "", "b", &["linux: x".into(), "dpdk".into()]);
    assert_eq!(out, "/// A thing.\n /// `b`.\n ///\n /// Source: linux: x; dpdk.\n");
}

#[test]
fn a_list_of_more_than_eighty_columns_is_of_seven_items_a_line() {
    let items = |count: usize, last: &str| {
        let mut items = vec!["(1, 23456)".to_owned(); count];
        items.push(last.to_owned());
        items
    };
    // Six items of ten columns, each with a comma and a space behind it.
    assert_eq!(wrapped(items(6, &"x".repeat(8))).len(), 80);
    assert_eq!(wrapped(items(6, &"x".repeat(9))).lines().count(), 3);
    let nine = wrapped(items(8, "(3, 4)"));
    let lines: Vec<_> = nine.lines().map(|line| line.matches('(').count()).collect();
    assert_eq!(lines, [0, 7, 2, 0], "{nine}");
    assert!(nine.ends_with("            (1, 23456), (3, 4),\n        "), "{nine}");
}
