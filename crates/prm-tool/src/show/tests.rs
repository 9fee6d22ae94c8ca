//! Pages of the repository's entries, and whole pages of a small description.

use std::collections::BTreeSet;

use super::*;
use crate::check::load_sound;
use crate::repository::root;

fn shown(names: &[&str]) -> Vec<String> {
    let description = load_sound(&root()).unwrap();
    let evidence = Evidence::gather(&root(), &description).unwrap();
    names.iter().map(|name| page(&description, &evidence, name).unwrap()).collect()
}

#[test]
fn command_is_shown_by_any_name() {
    let pages = shown(&["create_cq", "CREATE_CQ", "0x400", "1024", "MLX5_CMD_OP_CREATE_CQ"]);
    assert!(pages.iter().all(|page| *page == pages[0]));
    for part in ["CREATE_CQ (opcode 0x400)", "DevX: create", "create_cq_in", "create_cq_out"] {
        assert!(pages[0].contains(part), "{part}");
    }
}

#[test]
fn list_truncates_with_remaining_count() {
    let description = load_sound(&root()).unwrap();
    let targets: Vec<_> = description.structures.iter().map(Target::Structure).collect();
    for (count, last) in [(CANDIDATES, None), (CANDIDATES + 2, Some("  and 2 more"))] {
        let mut out = String::new();
        list(&mut out, &targets[..count]);
        let names = out.lines().filter(|line| line.contains(": ")).count();
        let more = out.lines().find(|line| line.ends_with(" more"));
        assert_eq!((names, more), (CANDIDATES, last), "{out}");
    }
}

#[test]
fn command_page_lists_transitions_and_failures() {
    let pages = shown(&["modify_rq", "init2rtr_qp"]);
    for part in ["legal in: RST, RDY, ERR (rq_state)", "RDY -> ERR, ERR -> RST"] {
        assert!(pages[0].contains(part), "{part}");
    }
    assert!(pages[0].contains("BAD_RES: No such RQ for this uid. (our reading)"));
    assert!(pages[1].contains("(linux: MLX5_CMD_STAT_BAD_QP_STATE_ERR)"));
}

#[test]
fn page_shows_every_dword_field_and_user() {
    let shown = shown(&["cqc"]).remove(0);
    let description = load_sound(&root()).unwrap();
    for field in &description.structure("cq_context").unwrap().fields {
        assert!(shown.contains(&field.name), "{}", field.name);
    }
    assert!(shown.contains("0x03c|") && shown.contains("used by: create_cq_in"));
    let widths: Vec<usize> = shown
        .lines()
        .filter(|l| l.starts_with("  0x0") && l.contains('|'))
        .map(|l| l.chars().count())
        .collect();
    assert!(widths.len() >= 16 && widths.iter().all(|&w| w == COLUMNS + 9), "{widths:?}");
}

#[test]
fn field_page_lists_confirmations() {
    let pages = shown(&["cq_context", "cqc.cqe_sz", "dpa_thread.polling", "cqe.vlan_info"]);
    let row = pages[0].lines().find(|line| line.contains("  cqe_sz  ")).unwrap();
    let counts = "6/1";
    assert!(row.contains(&format!("  {counts}  ")), "{row}");
    assert!(pages[1].contains(&format!("confirmed by: {counts}, ")), "{}", pages[1]);
    assert!(pages[1].contains("mailbox") && pages[1].contains("dpdk"), "{}", pages[1]);
    assert!(pages[2].contains("confirmed by: no other description"), "{}", pages[2]);
    assert!(pages[3].contains("called mlcqe_up_cfi_vid in: illumos"), "{}", pages[3]);
    assert_eq!(shown(&["mlcqe_up_cfi_vid"])[0], pages[3]);
    let diverges = shown(&["flow_meter_parameters.meter_mode"]).remove(0);
    assert!(diverges.contains("elsewhere in dpdk: DPDK's structure lacks"), "{diverges}");
}

#[test]
fn register_is_shown_by_number() {
    let pages = shown(&["0x5003", "dbr_umem_valid", "opcode"]);
    assert!(pages[0].contains("register_id.PMTU") && pages[0].contains("pmtu_reg (structure"));
    assert!(pages[1].contains("cq_context.dbr_umem_valid") && pages[1].contains("is one of"));
    assert!(pages[2].starts_with("opcode (enum") && pages[2].contains("create_cq_in.opcode"));
}

#[test]
fn every_entry_has_a_page() {
    let description = load_sound(&root()).unwrap();
    let evidence = Evidence::gather(&root(), &description).unwrap();
    let entries = (description.structures.iter().map(Target::Structure))
        .chain(description.enums.iter().map(Target::Enum))
        .chain(description.commands.iter().map(Target::Command));
    let mut names = BTreeSet::new();
    for entry in entries {
        let (name, mut out) = (entry.name().to_lowercase(), String::new());
        target(&mut out, &description, &evidence, &entry);
        assert!(out.to_lowercase().starts_with(&format!("{name} (")), "{name}");
        // Each name refers to one entry.
        assert!(names.insert(name.clone()), "{name}");
    }
    for name in ["cq_context", "opcode", "create_cq"] {
        let page = page(&description, &evidence, name).unwrap();
        assert!(page.to_lowercase().starts_with(name), "{name}");
    }
    let error = page(&description, &evidence, "cq_contex").unwrap_err().to_string();
    assert!(error.contains("near: cq_context"), "{error}");
    assert!(page(&description, &evidence, "zzzzqqqqzzzz").is_err());
}

/// A description with every kind of entry, and with every way in which a page draws a field.
const THINGS: &str = r#"
    [command_status]
    kind = "enum"
    bits = 8
    doc = "Statuses."
    sources = ["linux"]
    values.BAD_PARAM = { value = 3, doc = "A parameter is wrong." }

    [thing_kind]
    kind = "enum"
    bits = 16
    doc = "Kinds of things."
    sources = ["linux", "dpdk: shared_name"]
    aliases = ["mlx5_kind", "mlx5_kinds"]
    values.SHARED_NAME = { value = 0, doc = "None." }
    values.A = { value = 1, doc = "The first." }
    values.LONG_ONE = { value = 0x7000, sources = ["model"], doc = "The last." }

    [make_thing]
    kind = "command"
    opcode = 0x900
    doc = "Makes a thing."
    input = "make_thing_in"
    output = "make_thing_out"
    devx = "none"
    op_mods = { FAST = { value = 1, doc = "Fast way." } }
    state = "thing_kind"
    states = ["A", "LONG_ONE"]
    transitions = ["A -> LONG_ONE"]
    capability = "caps.thing"
    statuses.BAD_PARAM = { why = "No kind.", from = "reading" }
    statuses.LIM = { why = "Full.", from = "linux: x" }
    variants = [
        { field = "body", when = "in.thing_kind", values = [1, 2], struct = "segment" },
        { field = "body", when = "in.other", values = [0x7000], struct = "thing" },
    ]
    sources = ["linux: shared_name", "trace"]
    aliases = ["mlx5_make"]

    [make_thing_in]
    bytes = 0x04
    doc = "Input."
    sources = ["linux"]
    fields.opcode = { at = "0x00.31:16", doc = "Opcode." }
    fields.thing_kind = { at = "0x00.15:0", enum = "thing_kind", doc = "Kind." }

    [make_thing_out]
    bytes = 0x04
    doc = "Output."
    sources = ["linux"]
    reserved = ["0x00.23:0"]
    fields.status = { at = "0x00.31:24", doc = "Status." }

    [thing]
    bytes = 0x32
    doc = "A thing."
    sources = ["linux: shared_name", "dpdk"]
    aliases = ["mlx5_thing"]
    reserved = ["0x00.19:0", "0x18:12"]
    [thing.fields]
    kind = { at = "0x00.31:28", enum = "thing_kind", doc = "Which kind." }
    v = { at = "0x00.27", doc = "Valid." }
    exact = { at = "0x00.26:25", doc = "Fills its cell." }
    longer = { at = "0x00.24:23", doc = "Too long by one." }
    much_longer = { at = "0x00.22:20", linux = "longest", doc = "Too long by more." }
    addr = { at = "0x04", bits = 64, sources = ["trace", "ucx"], doc = "Two dwords." }
    list = { at = "0x0c", bits = 32, count = 3, doc = "Three dwords." }
    first = { at = "0x0c", overlay = true, doc = "The first of them." }
    data = { at = "0x24", bytes = 8, doc = "Bytes." }
    inner = { at = "0x2c", struct = "segment", doc = "Another structure." }
    end = { at = "0x30.31:16", doc = "Half a dword." }
    pas = { at = "0x34", bits = 64, tail = true, doc = "Pages." }

    [segment]
    kind = "segment"
    bytes = 0x04
    doc = "A segment."
    sources = ["rdma-core"]
    fields.all = { at = "0x00", linux = "shared_name", doc = "The whole." }
"#;

/// `pages.txt` has each page below its command.
#[test]
fn pages_match_recorded_text() {
    let description = Description::parse([("prm/x.toml", THINGS)]);
    assert_eq!(description.problems, []);
    let recorded = include_str!("pages.txt");
    let mut pages = String::new();
    for command in recorded.lines().filter(|line| line.starts_with("$ ")) {
        let name = command.trim_start_matches("$ prm show ");
        let page = page(&description, &Evidence::default(), name).unwrap();
        pages += &format!("{command}\n{page}\n");
    }
    assert_eq!(pages.trim_end(), recorded.trim_end());
}

#[test]
fn unknown_name_is_answered_with_near_names() {
    let description = Description::parse([("prm/x.toml", THINGS)]);
    let error = |name| page(&description, &Evidence::default(), name).unwrap_err().to_string();
    let number = error("0x12345678");
    assert!(number.starts_with("prm/ has no entry `0x12345678`: 305419896"), "{number}");
    assert!(error("9999").contains("at most 8 bits"));
    assert_eq!(error("thingy"), "prm/ has no entry named `thingy`; near: thing");
    let hint = error("qqqqqqqqqqqq");
    assert!(hint.starts_with("prm/ has no entry named `qqqqqqqqqqqq`; names are as in"), "{hint}");
}

#[test]
fn number_of_a_message_shows_every_meaning() {
    let [number, hex, words, refusal, value] =
        shown(&["12", "0x15", "bad parameter", "0x564c0008", "retry_exc_err"]).try_into().unwrap();
    assert!(number.starts_with("ibv_wc_status 12, RETRY_EXC_ERR: "), "{number}");
    assert!(number.contains("\nCQE syndrome 0x12, REMOTE_INVALID_REQUEST: "), "{number}");
    assert!(hex.starts_with("CQE syndrome 0x15, TRANSPORT_RETRY_EXCEEDED: "), "{hex}");
    assert!(words.starts_with("command status 0x3, BAD_PARAM: "), "{words}");
    assert!(refusal.contains("of the model, with status BAD_PARAM: "), "{refusal}");
    assert!(value.contains("  occurs as ibv_wc_status in:\n    NCCL: "), "{value}");
}
