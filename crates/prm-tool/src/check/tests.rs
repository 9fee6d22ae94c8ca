//! Every kind of mistake in a table, and its message.

use super::super::repository::{Scratch, root};
use super::*;

/// A description without mistakes; each test replaces a text in it.
const SOUND: &str = r#"
    [command_status]
    kind = "enum"
    bits = 8
    doc = "Status."
    sources = ["linux"]
    [command_status.values]
    OK = { value = 0, doc = "Done." }
    BAD_PARAM = { value = 3, doc = "No." }

    [thing]
    bytes = 0x10
    doc = "A thing."
    sources = ["linux: mlx5_ifc_thing_bits"]
    reserved = ["0x00.27:16", "0x04.31"]
    [thing.fields]
    kind = { at = "0x00.31:28", enum = "kind_of_thing", doc = "Which kind." }
    size = { at = "0x00.15:0", doc = "Size in bytes." }
    flags = { at = "0x04.30:0", doc = "Flags, one bit each." }
    addr = { at = "0x08", bits = 64, doc = "Address in memory." }

    [kind_of_thing]
    kind = "enum"
    bits = 4
    doc = "Kinds."
    sources = ["linux"]
    values.SMALL = { value = 1, doc = "Small one." }
    values.LARGE = { value = 2, doc = "Large one." }

    [make_thing]
    kind = "command"
    opcode = 0x900
    doc = "Makes a thing."
    input = "make_thing_in"
    output = "make_thing_out"
    devx = "create"
    op_mods = { FAST = { value = 1, doc = "Fast way." } }
    state = "kind_of_thing"
    states = ["SMALL"]
    transitions = ["SMALL -> LARGE"]
    capability = "thing.size, for large ones"
    statuses = { BAD_PARAM = { why = "wrong kind", from = "reading" } }
    variants = [{ field = "raw", when = "op_mod", values = [1], struct = "thing" }]
    sources = ["linux"]

    [make_thing_in]
    bytes = 0x28
    doc = "Input."
    sources = ["linux"]
    reserved = ["0x04.31:16"]
    fields.opcode = { at = "0x00.31:16", enum = "opcode", doc = "Which command." }
    fields.uid = { at = "0x00.15:0", doc = "Whose command." }
    fields.op_mod = { at = "0x04.15:0", doc = "Modifier." }
    fields.thing = { at = "0x08", struct = "thing", doc = "What to make." }
    fields.raw = { at = "0x18", bytes = 0x10, doc = "More." }
    fields.pas = { at = "0x28", tail = true, bits = 64, doc = "Pages." }

    [make_thing_out]
    bytes = 0x08
    doc = "Output."
    sources = ["linux"]
    reserved = ["0x00.23:0"]
    fields.status = { at = "0x00.31:24", enum = "command_status", doc = "How it went." }
    fields.syndrome = { at = "0x04", doc = "Why it failed." }
"#;

const STATUS: &str = "BAD_PARAM = { why = \"wrong kind\", from = \"reading\" }";

fn problems(text: &str) -> Vec<String> {
    let description = Description::parse([("prm/x.toml", text)]);
    all(&description).iter().map(Problem::to_string).collect()
}

#[test]
fn valid_description_passes() {
    assert_eq!(problems(SOUND), Vec::<String>::new());
}

#[test]
fn mistakes_are_reported_with_location_and_remedy() {
    // (text to replace, replacement, location of the mistake, message)
    let cases: &[(&str, &str, &str, &str)] = &[
        // TOML itself and its shape
        ("[thing]", "[thing", "prm/x.toml: ", "not valid TOML"),
        ("[command_status]", "loose = 1\n[command_status]", "loose: ", "every top-level item"),
        ("bits = 4", "bits = \"4\"", "[kind_of_thing]", "invalid type: string"),
        ("bits = 4", "bit = 4", "[kind_of_thing]", "unknown field `bit`"),
        ("bytes = 0x10\n", "", "[thing]", "missing field `bytes`"),
        ("bytes = 0x10\n", "bytes = -1\n", "[thing]", "invalid value: integer `-1`"),
        ("kind = \"command\"", "kind = \"comand\"", "[make_thing]", "kind is one of"),
        ("kind = \"command\"", "kind = 1", "[make_thing]", "kind is one of"),
        ("opcode = 0x900", "opcode = 0x10000", "[make_thing]", "invalid value"),
        (
            "doc = \"Size in bytes.\"",
            "docs = \"Size in bytes.\"",
            "[thing] size",
            "unknown field `docs`",
        ),
        ("size = {", "size = 3 #", "[thing] size", "invalid type"),
        ("LARGE = { value = 2", "LARGE = { value = -2", "[kind_of_thing] LARGE", "invalid value"),
        (STATUS, "BAD_PARAM = 1", "[make_thing] BAD_PARAM", "NAME = {"),
        ("bytes = 0x10\n", "bytes = 0xffffffff\n", "[thing]", "more than a structure can have"),
        (
            "struct = \"thing\", doc",
            "struct = \"thing\", count = 4000000000, doc",
            "[make_thing_in] thing",
            "more elements",
        ),
        // names
        ("[thing]", "[Thing]", "[Thing]", "lower case"),
        ("addr = {", "Addr = {", "[thing] Addr", "lower case"),
        ("addr = {", "zeroed = {", "[thing] zeroed", "rename it"),
        ("addr = {", "set_size = {", "[thing] set_size", "clashes with one of `size`"),
        ("SMALL =", "small =", "[kind_of_thing] small", "upper case"),
        (
            "doc = \"Small one.\"",
            "doc = \"Small one.\", sources = []",
            "[kind_of_thing] SMALL",
            "has an empty source",
        ),
        (
            "doc = \"Small one.\"",
            "doc = \"Small one.\", sources = [\" \"]",
            "[kind_of_thing] SMALL",
            "has an empty source",
        ),
        ("SMALL =", "INFO =", "[kind_of_thing] INFO", "not INFO"),
        ("[make_thing_out]", "[make_thing]", "prm/x.toml: ", "duplicate key"),
        ("[kind_of_thing]", "[thing_]", "[thing_]", "would be `Thing` in Rust"),
        (
            "bits = 4\n",
            "bits = 4\naliases = [\"two words\"]\n",
            "[kind_of_thing] aliases",
            "not a C identifier",
        ),
        (
            "bits = 4\n",
            "bits = 4\naliases = [\"mlx5_ifc_thing_bits\"]\n",
            "[kind_of_thing] aliases",
            "already a name of thing",
        ),
        // positions
        ("0x00.15:0\", doc = \"S", "0x02.15:0\", doc = \"S", "[thing] size", "multiple of 4"),
        ("0x00.15:0\", doc = \"S", "0x00.0:15\", doc = \"S", "[thing] size", "high:low"),
        ("0x00.15:0\", doc = \"S", "0x00.35:0\", doc = \"S", "[thing] size", "within 31:0"),
        ("0x00.15:0\", doc = \"S", "0x00:2\", doc = \"S", "[thing] size", "bytes = n"),
        ("0x00.15:0\", doc = \"S", "0x00.16:0\", doc = \"S", "[thing]", "overlaps field `size`"),
        ("0x00.15:0\", doc = \"S", "0x00.29:0\", doc = \"S", "[thing] size", "overlaps `kind`"),
        (
            "0x00.15:0\", doc = \"S",
            "0x00.14:0\", doc = \"S",
            "[thing]",
            "add to reserved: \"0x00.15\"",
        ),
        ("reserved = [\"0x00.27:16\", ", "reserved = [", "[thing]", "\"0x00.27:16\""),
        ("\"0x04.31\"]", "\"0x04.31\", \"0x04.31\"]", "[thing]", "named twice"),
        ("\"0x04.31\"]", "\"0x04.31\", \"0x10\"]", "[thing]", "beyond its 0x10 bytes"),
        ("\"0x04.31\"]", "\"0x4.32\"]", "[thing]", "reserved: "),
        (
            "at = \"0x08\", bits = 64, doc",
            "at = \"0x0c\", bits = 64, doc",
            "[thing] addr",
            "ends at byte 0x14",
        ),
        ("bits = 64, doc = \"Address", "bits = 65, doc = \"Address", "[thing] addr", "whole bytes"),
        ("bits = 64, doc = \"Address", "bits = 0, doc = \"Address", "[thing] addr", "no bits"),
        (
            "bits = 64, doc = \"Address",
            "bits = 64, bytes = 8, doc = \"Address",
            "[thing] addr",
            "keep one",
        ),
        (
            "bits = 64, doc = \"Address",
            "bits = 64, count = 0, doc = \"Address",
            "[thing] addr",
            "tail = true",
        ),
        (
            "bits = 64, doc = \"Address",
            "bits = 4000000000, count = 9, doc = \"Address",
            "[thing] addr",
            "larger than a structure",
        ),
        ("\"0x00.31:28\"", "\"0x00.31:28\", bits = 5", "[thing] kind", "`at` has 4 bits"),
        ("\"0x28\", tail", "\"0x20\", tail", "[make_thing_in] pas", "begins before"),
        ("\"0x28\", tail", "\"0x28\", count = 2, tail", "[make_thing_in] pas", "no count"),
        // names that do not exist, and values that do not fit
        (
            "enum = \"kind_of_thing\"",
            "enum = \"kind\"",
            "[thing] kind",
            "there is no enum [kind]; did you mean kind_of_thing?",
        ),
        (
            "struct = \"thing\", doc",
            "struct = \"thin\", doc",
            "[make_thing_in] thing",
            "did you mean thing",
        ),
        (
            "at = \"0x08\", struct",
            "at = \"0x08.30:0\", struct",
            "[make_thing_in] thing",
            "whole byte",
        ),
        (
            "enum = \"kind_of_thing\"",
            "enum = \"kind_of_thing\", bytes = 1",
            "[thing] kind",
            "no bytes or struct",
        ),
        ("bits = 4\n", "bits = 3\n", "[thing] kind", "has 4 bits, but enum [kind_of_thing] has 3"),
        ("bits = 4\n", "bits = 65\n", "[kind_of_thing]", "from 1 to 64"),
        (
            "LARGE = { value = 2",
            "LARGE = { value = 1",
            "[kind_of_thing] LARGE",
            "value 1 of `SMALL`",
        ),
        (
            "LARGE = { value = 2",
            "LARGE = { value = 16",
            "[kind_of_thing] LARGE",
            "does not fit into 4 bits",
        ),
        (
            "at = \"0x08\", bits = 64, doc",
            "at = \"0x08\", struct = \"make_thing_in\", doc",
            "[thing]",
            "contains itself",
        ),
        // texts and sources
        ("doc = \"Size in bytes.\"", "doc = \" \"", "[thing] size", "has no doc"),
        ("doc = \"A thing.\"", "doc = \"\"", "[thing]", "has no doc"),
        ("doc = \"Small one.\"", "doc = \"\"", "[kind_of_thing] SMALL", "has no doc"),
        ("doc = \"Fast way.\"", "doc = \"\"", "[make_thing] FAST", "has no doc"),
        ("sources = [\"linux: mlx5_ifc_thing_bits\"]", "", "[thing]", "has no sources"),
        ("[\"linux: mlx5_ifc_thing_bits\"]", "[\"\"]", "[thing]", "empty source"),
        (
            "doc = \"Size in bytes.\"",
            "doc = \"Size in bytes.\", sources = []",
            "[thing] size",
            "empty list of sources",
        ),
        (
            "doc = \"Size in bytes.\"",
            "doc = \"Size in bytes.\", sources = [\"\"]",
            "[thing] size",
            "empty source",
        ),
        // commands
        ("opcode = 0x900", "opcode = 0", "[make_thing]", "opcode 0"),
        ("devx = \"create\"", "devx = \"maybe\"", "[make_thing]", "devx is one of"),
        ("devx = \"create\"", "", "[make_thing]", "missing field `devx`"),
        (
            "input = \"make_thing_in\"",
            "input = \"make\"",
            "[make_thing]",
            "input: there is no structure [make]",
        ),
        (
            "output = \"make_thing_out\"",
            "output = \"x\"",
            "[make_thing]",
            "output: there is no structure [x]",
        ),
        (
            "fields.uid = { at = \"0x00.15:0\", doc = \"Whose command.\" }",
            "",
            "[make_thing_in]",
            "which the kernel stamps",
        ),
        ("fields.op_mod = {", "fields.mod = {", "[make_thing_in]", "has no `op_mod` at 0x04.15:0"),
        (
            "fields.op_mod = { at = \"0x04.15:0\"",
            "fields.op_mod = { at = \"0x04.14:0\"",
            "[make_thing_in]",
            "its `op_mod` is at",
        ),
        (
            "fields.syndrome = {",
            "fields.reason = {",
            "[make_thing_out]",
            "has no `syndrome` at 0x04",
        ),
        ("enum = \"command_status\", ", "", "[make_thing_out]", "enum = \"command_status\""),
        ("BAD_PARAM = { why", "BAD_PARM = { why", "[make_thing] BAD_PARM", "not a value of enum"),
        ("why = \"wrong kind\"", "why = \"\"", "[make_thing] BAD_PARAM", "why it is returned"),
        (", from = \"reading\"", "", "[make_thing] BAD_PARAM", "missing field `from`"),
        (
            "\"reading\"",
            "\"hearsay\"",
            "[make_thing] BAD_PARAM",
            "from is \"reading\", or a source",
        ),
        (
            "\"reading\"",
            "\"linux: MLX5_CMD_STAT_LIM_ERR\"",
            "[make_thing] BAD_PARAM",
            "constant of another status",
        ),
        ("\"reading\"", "\"linux: \"", "[make_thing] BAD_PARAM", "from is \"reading\""),
        (
            "kind = { at = \"0x00.31:28\"",
            "kind = { at = \"0x00.31\"",
            "[thing] kind",
            "has 1 bits, but enum [kind_of_thing] has 4 and values up to 2",
        ),
        (
            "state = \"kind_of_thing\"\n    states = [\"SMALL\"]",
            "",
            "[make_thing] states",
            "without their enum",
        ),
        ("state = \"kind_of_thing\"", "", "[make_thing] states", "without their enum"),
        ("state = \"kind_of_thing\"", "state = \"kind\"", "[make_thing] states", "no enum [kind]"),
        ("states = [\"SMALL\"]", "states = []", "[make_thing] states", "in no state"),
        (
            "states = [\"SMALL\"]",
            "states = [\"TINY\"]",
            "[make_thing] states",
            "TINY is not a value",
        ),
        (
            "SMALL -> LARGE",
            "LARGE -> SMALL",
            "[make_thing] states",
            "does not start from one of its states",
        ),
        ("SMALL -> LARGE", "SMALL -> HUGE", "[make_thing] states", "HUGE is not a value"),
        ("SMALL -> LARGE", "SMALL to LARGE", "[make_thing] states", "not written A -> B"),
        (
            "thing.size, for",
            "thing.width, for",
            "[make_thing] capability",
            "no field width in [thing]",
        ),
        (
            "doc = \"Size in bytes.\"",
            "doc = \"The size.\"",
            "[thing] size",
            "only repeats the name",
        ),
        (
            "doc = \"Small one.\"",
            "doc = \"Small.\"",
            "[kind_of_thing] SMALL",
            "only repeats the name",
        ),
        ("FAST = { value = 1", "FAST = { value = 65536", "[make_thing] FAST", "fit into 16 bits"),
        ("field = \"raw\"", "field = \"rew\"", "[make_thing] variants", "has a field `rew`"),
        (
            "when = \"op_mod\"",
            "when = \"thing.mode\"",
            "[make_thing] variants",
            "no field `thing.mode`",
        ),
        ("values = [1]", "values = []", "[make_thing] variants", "has no values"),
        (
            "struct = \"thing\" }]",
            "struct = \"thong\" }]",
            "[make_thing] variants",
            "no structure [thong]",
        ),
        (
            "struct = \"thing\" }]",
            "struct = \"make_thing_in\" }]",
            "[make_thing] variants",
            "larger than `raw`",
        ),
        (
            "struct = \"thing\" }]",
            "structure = \"thing\" }]",
            "[make_thing]",
            "unknown field `structure`",
        ),
    ];
    for (from, to, location, says) in cases {
        let text = SOUND.replacen(from, to, 1);
        assert_ne!(text, SOUND, "{from} is not in the description");
        let problems = problems(&text);
        let found = problems
            .iter()
            .any(|p| p.starts_with("prm/x.toml: ") && p.contains(location) && p.contains(says));
        assert!(found, "{from} -> {to}\nwanted {location} … {says}\ngot {problems:#?}");
    }
}

#[test]
fn destroy_command_needs_capability_of_create() {
    let text = SOUND.replace("make_thing", "create_thing");
    let destroy = r#"
        [destroy_thing]
        kind = "command"
        opcode = 0x901
        doc = "Destroys a thing."
        input = "destroy_thing_in"
        output = "create_thing_out"
        devx = "none"
        sources = ["linux"]
        [destroy_thing_in]
        bytes = 0x08
        doc = "Input."
        sources = ["linux"]
        reserved = ["0x00.15:0", "0x04.31:16"]
        fields.opcode = { at = "0x00.31:16", enum = "opcode", doc = "Which command." }
        fields.op_mod = { at = "0x04.15:0", doc = "Modifier." }
    "#;
    let text = format!("{text}{destroy}");
    let problems = problems(&text);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(problems[0].contains("[destroy_thing] capability: is missing"));
}

#[test]
fn duplicate_opcode_or_input_is_rejected() {
    let second = r#"
        [break_thing]
        kind = "command"
        opcode = 0x900
        doc = "Breaks a thing."
        input = "make_thing_in"
        output = "make_thing_out"
        devx = "none"
        sources = ["linux"]
    "#;
    let problems = problems(&format!("{SOUND}{second}"));
    assert!(problems.iter().any(|p| p.contains("has the opcode 0x900 of [make_thing]")));
    assert!(problems.iter().any(|p| p.contains("shares its input with [break_thing]")));
}

#[test]
fn linux_names_are_checked_against_facts() {
    let text = SOUND.replace(
        "sources = [\"linux\"]\n\n    [make_thing_in]",
        "sources = [\"linux: MLX5_CMD_OP_MAKE\"]\n\n    [make_thing_in]",
    );
    let description = Description::parse([("prm/x.toml", text.as_str())]);
    let facts = |value: u64| Facts {
        structs: BTreeMap::from([("mlx5_ifc_thing_bits".to_owned(), Default::default())]),
        enums: BTreeMap::from([("MLX5_CMD_OP_MAKE".to_owned(), value)]),
    };
    assert_eq!(linux_names(&description, &facts(0x900)), []);
    let only_problem = |facts: &Facts| {
        let problems = linux_names(&description, facts);
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].to_string()
    };
    assert!(only_problem(&facts(0x901)).contains("opcode is 0x900, but MLX5_CMD_OP_MAKE is 0x901"));
    let none = Facts { structs: BTreeMap::new(), ..facts(0x900) };
    assert!(only_problem(&none).contains("has no mlx5_ifc_thing_bits"));
}

#[test]
fn duplicate_name_across_files_is_rejected() {
    let description = Description::parse([("prm/x.toml", SOUND), ("prm/y.toml", SOUND)]);
    let problems = all(&description);
    let twice = problems.iter().filter(|p| p.message.contains("prm/x.toml already has"));
    assert_eq!(twice.count(), 6, "{problems:#?}");
}

#[test]
fn fields_out_of_memory_order_are_rejected() {
    let text = SOUND.replace("size = { at = \"0x00.15:0\"", "size = { at = \"0x0c\"");
    let problems = problems(&text);
    assert!(problems.iter().any(|p| p.contains("put it before `size`")), "{problems:#?}");
    // Fields that begin at the same bit are in order.
    let twice = "all = { at = \"0x00.31:28\", overlay = true, doc = \"Same bits.\" }\n    size =";
    let problems = self::problems(&text.replace("size =", twice));
    assert!(problems.iter().any(|p| p.contains("put it before `size`")), "{problems:#?}");
}

#[test]
fn only_overlays_may_overlap() {
    let over = "fields.both = { at = \"0x04\", overlay = true, doc = \"Both halves.\" }";
    let text = SOUND.replace("fields.syndrome", &format!("{over}\n        fields.syndrome"));
    assert_eq!(problems(&text), Vec::<String>::new());
    assert!(!problems(&text.replace("overlay = true, ", "")).is_empty());
}

#[test]
fn repository_description_is_sound_and_generated() {
    let description = Description::load(&root()).unwrap();
    let problems: Vec<String> = all(&description).iter().map(Problem::to_string).collect();
    assert_eq!(problems, Vec::<String>::new());
    let facts = Facts::read(&root().join(FACTS)).unwrap();
    assert_eq!(linux_names(&description, &facts), []);
    assert_eq!(generate::stale(&root(), &description).unwrap(), Vec::<String>::new());
    assert!(load_sound(&root()).is_ok());
}

#[test]
fn hot_word_must_be_aligned_and_hold_whole_fields() {
    const HEAD: &str = "    doc = \"A thing.\"\n";
    let with = |words: &str| {
        problems(
            &SOUND.replace(HEAD, &format!("{HEAD}    hot = true\n    words = {{ {words} }}\n")),
        )
    };
    assert_eq!(with("thing_head = \"0x00\""), [""; 0]);
    assert_eq!(with("thing_head = \"0x00\", thing_addr = \"0x08:8\""), [""; 0]);
    for (words, says) in [
        ("thing_head = \"0x00.15:8\"", "is not a whole number in it"),
        ("thing_head = \"0x00.11:4\"", "not an aligned word"),
        ("thing_head = \"0x04:8\"", "not an aligned word"),
        ("thing_head = \"0x10\"", "ends after"),
        ("thing_head = \"0x00.23:16\"", "holds no field"),
        ("thing_flags = \"0x04\"", "kind: is neither in a word nor a whole number"),
        ("thing_head = \"0x00\", thing_size = \"0x00.15:0\"", "kind: is neither in a word"),
        ("thing_head = 4", "did not match any variant"),
        ("thing_head = { at = \"0x00\", fields = [\"other\"] }", "`other` is not a field in it"),
        ("thing_head = { at = \"0x00\", of = \"other\" }", "[other] has no such word"),
        ("thing = \"0x00\"", "already has an entry of that name"),
        ("Thing = \"0x00\"", "lower case"),
    ] {
        let problems = with(words);
        assert!(problems.iter().any(|problem| problem.contains(says)), "{words}: {problems:?}");
    }
    let cold = SOUND.replace(HEAD, &format!("{HEAD}    words = {{ thing_head = \"0x00\" }}\n"));
    assert!(problems(&cold).iter().any(|problem| problem.contains("add hot = true")));
}

#[test]
fn hot_enum_module_name_must_be_unique() {
    let hot = |name: &str| {
        let text =
            SOUND.replace("    bits = 4\n", &format!("    bits = 4\n    hot = \"{name}\"\n"));
        problems(&text.replace("    bits = 8\n", "    bits = 8\n    hot = \"status\"\n"))
    };
    assert_eq!(hot("kind"), [""; 0]);
    assert!(hot("status").iter().any(|problem| problem.contains("no other enum")));
    assert!(hot("Kind").iter().any(|problem| problem.contains("lower case")));
}

#[test]
fn problems_follow_file_order() {
    let kinds = "[kinds]\nkind = \"enum\"\nbits = 4\ndoc = \"\"\nsources = [\"linux\"]\n\
                 values.SMALL = { value = 1, doc = \"Small one.\" }\n";
    let thing = "[thing]\nbytes = 4\ndoc = \"\"\nsources = [\"linux\"]\n\
                 fields.size = { at = \"0x00\", doc = \"Bytes.\" }\n";
    for files in [["prm/kinds.toml", "prm/thing.toml"], ["prm/thing.toml", "prm/kinds.toml"]] {
        let text = |file| if file == "prm/kinds.toml" { kinds } else { thing };
        let description = Description::parse(files.map(|file| (file, text(file))));
        let mut files_named: Vec<_> =
            all(&description).into_iter().map(|problem| problem.file).collect();
        files_named.dedup();
        assert_eq!(files_named, files);
    }
}

#[test]
fn doc_restating_field_name_is_detected() {
    for (name, doc, restates_it) in [
        ("log_num_cqes", "The number of CQEs.", true),
        ("log_num_cqes", "The number, a logarithm.", false),
        ("timeout", "Time out.", true),
        ("addr", "An address.", true),
        ("cnt", "Count of pages.", false),
    ] {
        assert_eq!(restates(name, doc), restates_it, "{name}: {doc}");
    }
}

#[test]
fn load_sound_accepts_missing_docs_only() {
    let text = |doc: &str, bits| {
        format!("[e]\nkind = \"enum\"\nbits = {bits}\nsources = [\"linux\"]\n{doc}values.A = 1")
    };
    let files = [("prm/e.toml", &*text("", 1)), (FACTS, "{ \"structs\": {} }")];
    let scratch = Scratch::new("check", &files);
    assert!(load_sound(scratch.path()).is_ok());
    scratch.write("prm/e.toml", text("", 0));
    let error = load_sound(scratch.path()).unwrap_err().to_string();
    assert_eq!(error, "1 mistakes in the description:\n  prm/e.toml: [e]: bits is from 1 to 64");
    let error = run(scratch.path()).unwrap_err().to_string();
    assert_eq!(error, "3 mistakes in the description");
}

#[test]
fn limit_cases_are_sound() {
    for (from, to) in [
        // a variant that a nested field selects
        ("when = \"op_mod\"", "when = \"thing.size\""),
        // a uid that the kernel does not stamp, and the type of an object instead of an op_mod
        ("fields.uid = { at = \"0x00.15:0\"", "fields.uid = { at = \"0x04.31:16\""),
        ("fields.op_mod = {", "fields.obj_type = {"),
        // fields of 64 bits with values of 64 bits
        ("bits = 64, doc = \"Address", "bits = 64, enum = \"wide\", doc = \"Address"),
        // gaps that adjoin, and one at the end
        ("reserved = [\"0x00.23:0\"]", "reserved = [\"0x00.11:0\", \"0x00.23:12\"]"),
    ] {
        let wide = "[wide]\nkind = \"enum\"\nbits = 64\ndoc = \"Wide ones.\"\n\
                    sources = [\"linux\"]\nvalues.TOP = { value = 1, doc = \"Highest.\" }\n\
                    [behind]\nbytes = 8\ndoc = \"Ends with a gap.\"\nsources = [\"linux\"]\n\
                    reserved = [\"0x04\"]\nfields.one = { at = \"0x00\", doc = \"First.\" }\n";
        assert!(SOUND.contains(from), "{from}");
        let mut text = format!("{}{wide}", SOUND.replacen(from, to, 1));
        if to.starts_with("fields.uid") {
            text = text
                .replacen("reserved = [\"0x04.31:16\"]", "reserved = [\"0x00.15:0\"]", 1)
                .replacen("when = \"op_mod\"", "when = \"uid\"", 1);
        }
        if to.starts_with("fields.obj_type") {
            text = text.replacen("when = \"op_mod\"", "when = \"obj_type\"", 1);
        }
        assert_eq!(problems(&text), [""; 0], "{to}");
    }
}

#[test]
fn always_compiled_table_rejects_optional_field() {
    let outer = "[outer]\nbytes = 4\ndoc = \"Outer one.\"\nsources = [\"linux\"]\n\
                 fields.of = { at = \"0x00\", struct = \"inner\", doc = \"Inner one.\" }";
    let inner = "[inner]\nbytes = 4\ndoc = \"Inner one.\"\nsources = [\"linux\"]\n\
                 fields.number = { at = \"0x00\", doc = \"How many.\" }";
    let problems = |outer_file| {
        let files = [(outer_file, outer), ("prm/flow.toml", inner)];
        all(&Description::parse(files)).iter().map(Problem::to_string).collect::<Vec<_>>().join("")
    };
    let message = "only the feature queues compiles";
    assert!(problems("prm/cq.toml").contains(message), "{}", problems("prm/cq.toml"));
    assert!(!problems("prm/steering.toml").contains(message));
}
