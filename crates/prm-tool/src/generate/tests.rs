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
