//! Decodes WQEs of each opcode and CQEs of each form, made by hand after the drivers that write
//! them, and all that libmlx5 recorded.

use std::sync::LazyLock;

use serde_json::Value;

use super::super::check::load_sound;
use super::super::description::Description;
use super::super::golden;
use super::super::repository::root;
use super::*;

/// The tables, loaded once for all tests here.
static TABLES: LazyLock<(Description, Runtime)> = LazyLock::new(|| {
    let description = load_sound(&root()).unwrap();
    let runtime = Runtime::new(&description);
    (description, runtime)
});

fn runtime() -> &'static Runtime {
    &TABLES.1
}

fn known() -> Known<'static> {
    Known::new(&TABLES.0, &TABLES.1, false)
}

/// Segments of a shown WQE: offset, then name or description.
fn segments(shown: &str) -> Vec<String> {
    let lines = shown.lines().filter_map(|line| line.strip_prefix("  +0x"));
    lines.map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect()
}

/// A WQE with this control segment and these bytes at their offsets.
fn wqe(opcode: u8, op_mod: u8, ds: u8, imm: u32, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut wqe = vec![0; 16 * usize::from(ds)];
    wqe[..8].copy_from_slice(&[op_mod, 0, 1, opcode, 0, 1, 0x23, ds]);
    wqe[12..16].copy_from_slice(&imm.to_be_bytes());
    parts.iter().for_each(|&(at, bytes)| wqe[at..at + bytes.len()].copy_from_slice(bytes));
    wqe
}

/// Checks the segments of a WQE, and that it shows all of `says`.
fn check(runtime: &Runtime, wqe: &[u8], wanted: &[&str], says: &[&str]) {
    let shown = wqe::show(runtime, wqe, false, false);
    assert_eq!(segments(&shown), wanted, "{shown}");
    says.iter().for_each(|part| assert!(shown.contains(part), "`{part}` is not in {shown}"));
    assert!(!shown.contains("reserved bits are not 0"), "{shown}");
}

#[test]
fn tls_wqes_show_their_parameters() {
    let runtime = runtime();
    // mlx5e's UMR of static parameters: 2 in bits 31:30, TLS 1.2, 1 in bits 25:24, then TLS.
    let of = |at| (at, [0x89, 0, 0, 1].as_slice());
    let umr = wqe(0x25, 1, 12, 0x123, &[of(0x80), (0xa0, &[0, 0, 0, 0x77])]);
    let parts =
        ["00 ctrl_segment", "10 umr_ctrl_segment", "40 mkey_context", "80 tls_static_params"];
    check(runtime, &umr, &parts, &["tls_version = 2", "dek_index = 0x77"]);
    let set = wqe(0x20, 2, 2, 0, &[(0x10, &[0, 0, 1, 0x23, 0, 0, 0x10, 0])]);
    let parts = ["00 ctrl_segment", "10 tls_progress_segment"];
    check(runtime, &set, &parts, &["tis_tir_num = 0x123", "next_record_tcp_sn = 0x1000"]);
    let get = wqe(0x21, 2, 4, 0, &[(0x20, &[0, 0, 0, 0x10, 0, 0, 0xab, 0xcd]), (0x33, &[0x45])]);
    let parts = ["00 ctrl_segment", "10 get_psv_segment"];
    check(runtime, &get, &parts, &["num_psv = 1", "l_key = 0xabcd"]);
    let dump = wqe(0x23, 0, 2, 0x123, &[(0x10, &[0, 0, 1, 0, 0, 0, 0x0d, 0xef])]);
    check(runtime, &dump, &["00 ctrl_segment", "10 data_segment"], &["lkey = 0xdef"]);
}

#[test]
fn aso_wqes_show_the_state_of_their_object() {
    let runtime = runtime();
    // Both conditions always true, one of them suffices, all 64 bytes: what every driver writes.
    let operands = (0x1c, [0x40, 0x11, 0, 0x40].as_slice());
    let says = ["data_mask_mode = BYTEWISE_64", "condition_0_operand = ALWAYS_TRUE"];
    for (op_mod, data) in [
        (0, "40 ipsec_aso"),
        (1, "40 conn_track_aso"),
        (2, "40 aso_meter_data"),
        (4, "40 aso_data_segment"),
        (5, "40 macsec_aso"),
    ] {
        let aso = wqe(0x2d, op_mod, 8, 0x99, &[operands]);
        check(runtime, &aso, &["00 ctrl_segment", "10 aso_ctrl_segment", data], &says);
    }
    let query = wqe(0x2d, 0, 4, 0x99, &[(0x17, &[1])]);
    check(runtime, &query, &["00 ctrl_segment", "10 aso_ctrl_segment"], &["read_enable = 1"]);
}

#[test]
fn table_access_wqe_shows_entry_or_argument() {
    let runtime = runtime();
    let (deactivate, templates) = ((0x10, [0x10, 0, 0, 5].as_slice()), (0x14, [0x60].as_slice()));
    let ste = wqe(0x2c, 0, 8, 0x55, &[deactivate, templates, (0x60, &[0xaa])]);
    let parts = ["00 ctrl_segment", "10 table_access_ctrl_segment", "40 table_access_ste_segment"];
    check(runtime, &ste, &parts, &["operation = DEACTIVATE", "direct_index = 5"]);
    let range = wqe(0x2c, 0, 12, 0x55, &[]);
    let more = [&parts[..], &["80 table_access_ste_segment"]].concat();
    check(runtime, &range, &more, &[]);
    let argument = wqe(0x2c, 1, 8, 0x55, &[(0x40, &[1, 2, 3])]);
    let parts = [parts[0], parts[1], "40 table_access_argument_segment"];
    check(runtime, &argument, &parts, &["argument_list"]);
}

#[test]
fn umr_shows_translation_entries_then_byte_stream_formats() {
    let runtime = runtime();
    // Inline; four KLMs; 8 octowords of BSF; mkey_mask BSF_EN. rdma-core's signature and AES-XTS.
    let head = (0x10, [0x80, 0, 0, 0, 0, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0x10, 0].as_slice());
    let klm = (0x80, [0, 0, 2, 0, 0, 0, 0x0a, 0xbc].as_slice());
    let signature = (0xc0, [0xd0, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff].as_slice());
    let crypto = (0x100, [0xc1, 2, 0, 0, 0xff, 0xff, 0xff, 0xff, 3].as_slice());
    let umr = wqe(0x25, 0, 20, 0x1234_5678, &[head, klm, signature, crypto]);
    let parts = [
        "00 ctrl_segment",
        "10 umr_ctrl_segment",
        "40 mkey_context",
        "80 klm",
        "90 klm",
        "a0 klm",
        "b0 klm",
        "c0 bsf",
        "100 crypto_bsf",
    ];
    let says =
        ["m_block_size = BYTES_512", "encryption_order = RAW_WIRE", "block_size = BYTES_4096"];
    check(runtime, &umr, &parts, &says);
    // A strided layout of two entries, and one of padding.
    let head = (0x10, [0x80, 0, 0, 0, 0, 3].as_slice());
    let repeat = [0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0, 9, 0, 0, 0, 2];
    let strided = wqe(0x25, 0, 12, 0x1234_5678, &[head, (0x80, &repeat), (0x90, &[0, 64, 0, 32])]);
    let parts = [
        "00 ctrl_segment",
        "10 umr_ctrl_segment",
        "40 mkey_context",
        "80 umr_repeat_block_segment",
        "90 umr_repeat_entry",
        "a0 umr_repeat_entry",
        "b0 padding of the translation entries",
    ];
    check(runtime, &strided, &parts, &["repeat_count = 9", "stride = 0x40"]);
}

#[test]
fn mmo_wqe_shows_the_parameters_of_its_operation() {
    let runtime = runtime();
    let gather = (0x20, [0, 0, 1, 0, 0, 0, 0x0a, 0xbc].as_slice());
    let scatter = (0x30, [0, 0, 1, 0, 0, 0, 0x0d, 0xef].as_slice());
    for (op_mod, imm, name, says) in [
        (1, 0, None, ""),
        (2, 0x00ff_5000, Some("0c mmo_compress_control"), "log_window_size = 5"),
        (3, 0x0060_0200, Some("0c mmo_decompress_control"), "type = LZ4"),
        (4, 0x0123_0456, Some("0c mmo_regex_control"), "subset_id_0 = 0x123"),
        (6, 0x0310_0000, Some("0c mmo_crypto_control"), "operation = 1"),
    ] {
        let mmo = wqe(0x2f, op_mod, 4, imm, &[gather, scatter]);
        let parts = [
            Some("00 ctrl_segment"),
            name,
            Some("10 mmo_segment"),
            Some("20 data_segment"),
            Some("30 data_segment"),
        ];
        let parts: Vec<&str> = parts.into_iter().flatten().collect();
        check(runtime, &mmo, &parts, &[says]);
    }
}

#[test]
fn xrc_segment_precedes_the_others() {
    let runtime = runtime();
    let srq = (0x10, [0, 0, 0, 0x42].as_slice());
    let data = [0, 0, 0, 8, 0, 0, 0x0d, 0xef];
    let send = wqe(0x0a, 0, 3, 0, &[srq, (0x20, &data)]);
    let parts = ["00 ctrl_segment", "10 xrc_segment", "20 data_segment"];
    check(runtime, &send, &parts, &["xrc_srqn = 0x42"]);
    let address = [0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0x0a, 0xbc];
    let write = wqe(0x08, 0, 4, 0, &[srq, (0x20, &address), (0x30, &data)]);
    let parts = ["00 ctrl_segment", "10 xrc_segment", "20 raddr_segment", "30 data_segment"];
    check(runtime, &write, &parts, &["xrc_srqn = 0x42", "rkey = 0xabc"]);
}

#[test]
fn enhanced_multi_packet_wqe_shows_each_packet() {
    let runtime = runtime();
    let inline = [0x80, 0, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let pointer = [0, 0, 1, 0, 0, 0, 0x0a, 0xbc];
    let empw = wqe(0x29, 0, 4, 0, &[(0x14, &[0xc0]), (0x20, &inline), (0x30, &pointer)]);
    let parts = [
        "00 ctrl_segment",
        "10 eth_segment",
        "20 inline_header",
        "24 inline data",
        "30 data_segment",
    ];
    check(runtime, &empw, &parts, &["l4_cs = 1", "lkey = 0xabc"]);
}

#[test]
fn every_recorded_wqe_has_the_segments_of_its_request() {
    let runtime = runtime();
    let golden = golden::read(&root()).unwrap();
    let mut seen = 0;
    for post in golden["post"].as_array().unwrap() {
        let requests = post["in"].as_array().unwrap().iter();
        for (request, recorded) in requests.zip(post["wqes"].as_array().unwrap()) {
            let bytes = bytes(&recorded["hex"]);
            let shown = segments(&wqe::show(runtime, &bytes, false, false));
            let names: Vec<&str> =
                shown.iter().filter_map(|it| it.split_once(' ')).map(|it| it.1).collect();
            let head: &[&str] = match request["opcode"].as_str().unwrap() {
                "RDMA_WRITE" | "RDMA_WRITE_WITH_IMM" | "RDMA_READ" => {
                    &["ctrl_segment", "raddr_segment"]
                }
                "ATOMIC_CMP_AND_SWP" | "ATOMIC_FETCH_AND_ADD" => {
                    &["ctrl_segment", "raddr_segment", "atomic_segment"]
                }
                "LOCAL_INV" => &["ctrl_segment", "umr_ctrl_segment", "mkey_context"],
                _ => &["ctrl_segment"],
            };
            assert!(names.starts_with(head), "{}: {names:?}", post["name"]);
            let rest = &names[head.len()..];
            let is_data =
                |name: &&str| matches!(*name, "data_segment" | "inline_header" | "inline data");
            let is_local_inv = request["opcode"] == "LOCAL_INV";
            assert!(is_local_inv || rest.iter().all(is_data), "{}: {names:?}", post["name"]);
            seen += 1;
        }
    }
    assert!(seen > 150, "only {seen} WQEs");
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    let pairs = (0..hex.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn cqe_forms_are_told_apart() {
    let known = known();
    let cqe = |last: u8, parts: &[(usize, u8)]| {
        let mut cqe = [0; 64];
        cqe[0x3f] = last;
        parts.iter().for_each(|&(at, byte)| cqe[at] = byte);
        entry::cqes(&known, &cqe)
    };
    for (shown, name, says) in [
        (cqe(0x50, &[]), "cqe_resize", "RESIZE"),
        (cqe(0x24, &[(0, 0xab), (0x3a, 4)]), "cqe_inline_32", "data ="),
        (cqe(0xc0, &[(0x24, 1)]), "cqe_signature_error", "SIGNATURE_ERROR"),
        (cqe(0x60, &[(0, 0x80)]), "cqe_tag_matching", "success = 1"),
        (cqe(0x20, &[(0x1c, 7), (0x1d, 0x80)]), "cqe", "ip_fragment = 1"),
        (cqe(0x2c, &[(0x2f, 5), (0x3d, 9)]), "cqe", "title of 5 mini CQEs, which follow"),
        (cqe(0x2c, &[(0x07, 60)]), "mini_cqe_block", "num_minis_minus_1 = 2"),
    ] {
        assert!(shown.contains(&format!("  {name}\n")), "{name}: {shown}");
        assert!(shown.contains(says), "{name}: {shown}");
    }
}

#[test]
fn every_recorded_cqe_is_decoded() {
    let known = known();
    let golden = golden::read(&root()).unwrap();
    for recorded in golden["cqe"].as_array().unwrap() {
        let name = recorded["name"].as_str().unwrap();
        let shown = entry::cqes(&known, &bytes(&recorded["cqe_hex"]));
        let wanted = match name {
            _ if name.contains("_err_") => "  cqe_error\n",
            _ if name.contains("inline_scatter_32") => "  cqe_inline_32\n",
            _ => "  cqe\n",
        };
        assert!(shown.contains(wanted), "{name}: {shown}");
    }
}
