//! The files that generation writes, removes and finds stale.

use super::*;
use crate::repository::Scratch;

/// A structure with an unknown enum and a field without a doc: generation needs neither.
const THING: &str = r#"
    [thing]
    bytes = 0x04
    doc = "A thing."
    sources = ["linux"]
    reserved = ["0x00.23:0"]
    fields.kind = { at = "0x00.31:24", enum = "nothing" }
"#;
const GENERATED: [&str; 6] = [
    "crates/model/src/profile/generated/mod.rs",
    "crates/model/src/profile/generated/small.rs",
    "crates/prm/src/generated/hot.rs",
    "crates/prm/src/generated/mod.rs",
    "crates/prm/src/generated/numbers.rs",
    "crates/prm/src/generated/thing.rs",
];

fn scratch(test: &str) -> Scratch {
    Scratch::new(
        test,
        &[
            ("rustfmt.toml", ""),
            ("prm/thing.toml", THING),
            ("crates/model/profiles/small.toml", "flows = 7\n"),
        ],
    )
}

#[test]
fn write_updates_changed_and_removes_orphans() {
    let scratch = scratch("write");
    let root = scratch.path();
    let description = Description::load(root).unwrap();
    let texts = "2 texts are still missing; `cargo xtask prm check` lists them".to_owned();
    let mut wanted = GENERATED.map(|file| format!("{file}: written")).to_vec();
    wanted.push(texts.clone());
    assert_eq!(write(root, &description).unwrap(), wanted);
    assert_eq!(write(root, &description).unwrap(), [texts.as_str()]);
    assert!(scratch.read(GENERATED[1]).contains("flows: 7,"));
    // An enum that does not exist counts as a number.
    assert!(scratch.read(GENERATED[5]).contains("kind set_kind: number(u8, 0, 8);"));

    scratch.write("crates/prm/src/generated/old.rs", "");
    scratch.write(GENERATED[5], "");
    run(root).unwrap();
    assert!(!root.join("crates/prm/src/generated/old.rs").exists());
    assert!(scratch.read(GENERATED[5]).contains("Thing"));
}

#[test]
fn stale_lists_missing_changed_and_orphan_files() {
    let scratch = scratch("stale");
    let root = scratch.path();
    let description = Description::load(root).unwrap();
    let stale_file = |file: &str| format!("{file}: is stale; run `cargo xtask prm generate`");
    assert_eq!(stale(root, &description).unwrap(), GENERATED.map(stale_file));
    write(root, &description).unwrap();
    assert_eq!(stale(root, &description).unwrap(), Vec::<String>::new());
    scratch.write("crates/prm/src/generated/old.rs", "");
    scratch.write(GENERATED[3], "");
    let old = "crates/prm/src/generated/old.rs: no table generates it; run `cargo xtask prm \
               generate`";
    assert_eq!(stale(root, &description).unwrap(), [old, &stale_file(GENERATED[3])]);
}

#[test]
fn rustfmt_error_is_reported() {
    let scratch = scratch("rustfmt");
    let error = rustfmt_one(scratch.path(), "fn (").unwrap_err();
    assert!(error.starts_with("the generated code is not valid Rust ("), "{error}");
    assert!(error.contains("unclosed delimiter"), "{error}");
}

/// The part of `hot.rs` for a structure of `bytes` bytes with these words and fields.
fn hot_structure(bytes: u32, words: &str, fields: &str) -> String {
    let text = format!(
        "[kind]\nkind = \"enum\"\nbits = 8\n[cold]\nbytes = 4\n\
         [s]\nhot = true\nbytes = {bytes}\nwords = {{ {words} }}\n[s.fields]\n{fields}"
    );
    let description = Description::parse([("prm/wqe.toml", text.as_str())]);
    assert_eq!(description.problems, []);
    let module = hot::module(&description);
    let (_, structure) = module.split_once("pub use crate::wqe::{OCTOWORD, WQEBB};\n").unwrap();
    structure.to_owned()
}

#[test]
fn hot_structure_has_its_words_and_numbers_in_order() {
    let words = r#"
        head = "0x00", low = "0x00.7:0",
        one = { at = "0x08", fields = ["high", "first"] },
        other = { at = "0x08", fields = ["second"] }
    "#;
    let fields = r#"
        flag = { at = "0x00.31:24", doc = "A flag." }
        type = { at = "0x00.23:16" }
        left = { at = "0x00.15:8" }
        size = { at = "0x00.4:0" }
        number = { at = "0x04.23:0" }
        high = { at = "0x08.31:16" }
        first = { at = "0x08.15:0", overlay = true }
        second = { at = "0x08.15:9", overlay = true }
        rest = { at = "0x0c" }
        address = { at = "0x10", bits = 64 }
    "#;
    let expected = "
/// `s`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct S {
    /// `flag`, `type`, `left`, `size`.
    pub head: Head,
    /// `number`.
    pub number: U32,
    /// `high`, `first`.
    pub one: One,
    /// `rest`.
    pub rest: U32,
    /// `address`.
    pub address: U64,
}

impl S {
    /// Makes the structure; a number must fit its field.
    #[inline(always)]
    pub const fn new(head: Head, number: u32, one: One, rest: u32, address: u64) -> Self {
        Self { head, number: U32::new(number), one, rest: U32::new(rest), \
                    address: U64::new(address) }
    }
}

/// The word at 0x0 of `s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Head {
    /// A flag.
    pub flag: u8,
    /// `type`.
    pub r#type: u8,
    /// `left`.
    pub left: u8,
    /// `size`.
    pub low: Low,
}

raw!(Head: u32);

/// The word at 0x3 of `s`.
#[bitfield(u8, order = Msb, new = false, default = false, conversion = false)]
#[derive(Default, PartialEq, Eq, Hash)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Low {
    #[bits(3)]
    __: u8,
    /// `size`.
    #[inline(always)]
    #[bits(5, into = fit_u8::<5>)]
    pub size: u8,
}

raw!(Low: u8);

/// The word at 0x8 of `s`.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get, order = Msb, new = false, \
                    default = false, conversion = false)]
#[derive(Default, PartialEq, Eq, Hash)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct One {
    /// `high`.
    #[inline(always)]
    pub high: u16,
    /// `first`.
    #[inline(always)]
    pub first: u16,
}

raw!(One: u32);

/// The word at 0x8 of `s`.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get, order = Msb, new = false, \
                    default = false, conversion = false)]
#[derive(Default, PartialEq, Eq, Hash)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Other {
    #[bits(16)]
    __: u16,
    /// `second`.
    #[inline(always)]
    #[bits(7, into = fit_u8::<7>)]
    pub second: u8,
    #[bits(9)]
    __: u16,
}

raw!(Other: u32);
";
    assert_eq!(hot_structure(0x18, words, fields), expected);
}

#[test]
fn hot_member_is_whole_or_has_its_own_dword() {
    let number = |at: &str| format!("n = {{ at = {at} }}");
    let one = |member: &str| Some(member.to_owned());
    for (bytes, fields, member, made) in [
        (4, number(r#""0x00.23:0""#), one("U32"), true),
        (4, number(r#""0x00""#), one("U32"), true),
        (8, number(r#""0x00", bits = 64"#), one("U64"), true),
        (4, number(r#""0x00.31:8""#), one("U32"), true),
        (4, number(r#""0x00.31:16""#), one("U16"), false),
        (4, number(r#""0x00.15:8""#), one("u8"), false),
        (8, number(r#""0x00.23:0", bits = 56"#), None, true),
        (12, number(r#""0x04", bits = 64"#), one("U64"), true),
        (8, number(r#""0x00", bits = 32, count = 2"#), one("[U32; 2]"), false),
        (16, number(r#""0x00", bytes = 0x10"#), one("[u8; 0x10]"), false),
        (4, number(r#""0x00", struct = "cold""#), one("Cold"), false),
        (4, number(r#""0x00.7:0", enum = "kind""#), one("u8"), false),
        (4, number(r#""0x04", bits = 32, tail = true"#), None, true),
        // Other fields at both ends of its word.
        (4, number(r#""0x00.22:0" }, a = { at = "0x00.31:24""#), None, false),
        (4, number(r#""0x00.14:0" }, a = { at = "0x00.31""#), None, true),
    ] {
        let fields = fields.replace("}, ", "}\n");
        let text = hot_structure(bytes, "", &fields);
        let found = text.lines().find_map(|line| line.trim().strip_prefix("pub n: "));
        let found = found.map(|of| of.trim_end_matches(',').to_owned());
        assert_eq!(found, member, "{fields}: {text}");
        assert_eq!(text.contains("pub const fn new("), made, "{fields}: {text}");
    }
}

#[test]
fn data_path_enum_is_module_of_constants() {
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
fn doc_is_wrapped_and_escaped_for_rustdoc() {
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
fn doc_ends_with_full_stop_and_sources() {
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
fn long_list_wraps_at_seven_items() {
    let items = |count: usize, last: &str| {
        let mut items = vec!["(1, 23456)".to_owned(); count];
        items.push(last.to_owned());
        items
    };
    // Six items of ten columns, each with a comma and a space after it.
    assert_eq!(wrapped(items(6, &"x".repeat(8))).len(), 80);
    assert_eq!(wrapped(items(6, &"x".repeat(9))).lines().count(), 3);
    let nine = wrapped(items(8, "(3, 4)"));
    let lines: Vec<_> = nine.lines().map(|line| line.matches('(').count()).collect();
    assert_eq!(lines, [0, 7, 2, 0], "{nine}");
    assert!(nine.ends_with("            (1, 23456), (3, 4),\n        "), "{nine}");
}

#[test]
fn variant_of_optional_family_is_compiled_with_it() {
    let command = r#"
        [do]
        kind = "command"
        opcode = 1
        input = "do_in"
        output = "do_out"
        devx = "none"
        variants = [{ field = "raw", when = "op_mod", values = [1], struct = "object" }]
        [do_in]
        bytes = 4
        [do_out]
        bytes = 4
    "#;
    let object = "[object]\nbytes = 4";
    let description = Description::parse([("prm/do.toml", command), ("prm/steering.toml", object)]);
    let text = one_file(&description, "prm/do.toml");
    let gate = "#[cfg(feature = \"steering\")]\n";
    assert!(text.contains(&format!("{gate}use super::steering::{{Object}};")), "{text}");
    assert!(text.contains(&format!("&[{gate}Variant {{")), "{text}");
    assert_eq!(missing_feature("prm/steering.toml", "prm/flow.toml"), None);
    assert_eq!(missing_feature("prm/flow.toml", "prm/steering.toml"), Some("steering"));
    assert_eq!(missing_feature("prm/flow.toml", "prm/cq.toml"), None);
}
