//! Decodes the inputs in `logs/`, which imitate public reports: what each shows, and its leftover
//! lines.

use std::io::Write as _;

use super::super::check::load_sound;
use super::super::repository::root;
use super::*;
use crate::repository::Scratch;
use verbless_prm::dump;

fn decoded(
    of: Option<&str>,
    text: &str,
    output: Option<&str>,
) -> crate::repository::Result<String> {
    let description = load_sound(&root()).unwrap();
    let runtime = Runtime::new(&description);
    let (file, of) = (PathBuf::new(), of.map(str::to_owned));
    let options = Options { file, output: None, of, all: false };
    decode_text(&Known::new(&description, &runtime, false), &options, text, output)
}

/// Checks that an input shows all of `says` in that order, and that the lines `left` are left over.
fn check(name: &str, text: &str, says: &[&str], left: &[usize]) {
    let shown = decoded(None, text, None).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (mut rest, over) = shown.split_once("\nnot decoded, ").unwrap_or((&shown, ""));
    for part in says {
        let Some(at) = rest.find(part) else { panic!("{name}: `{part}` is not in {rest}") };
        rest = &rest[at + part.len()..];
    }
    let numbers = over.lines().skip(1);
    let numbers: Vec<usize> =
        numbers.map(|line| line.trim().split(':').next().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, left, "{name}: {shown}");
}

#[test]
fn quoted_text_does_not_steer_the_terminal() {
    let row = "000: 01040000 00000000 00000000 00000000";
    let text = format!(
        "\u{1b}]0;a\u{7}: dump command data NOP\u{8}(0x80d) INPUT\n{row}\n\
         \u{9b}2J left \u{202e}over\n"
    );
    let shown = decoded(None, &text, None).expect("a command");
    assert!(shown.contains("\\u{1b}]0;a\\u{7}") && shown.contains("\\u{202e}over"), "{shown:?}");
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    let why = decoded(None, "\u{1b}]0;no dump\u{7}", None).expect_err("no dump").to_string();
    assert!(why.contains("\\u{1b}]0;no dump\\u{7}"), "{why:?}");
}

macro_rules! logs {
    ($($test:ident: $file:literal, $says:expr, $left:expr;)*) => {
        const LOGS: &[(&str, &str)] = &[$(($file, include_str!(concat!("logs/", $file)))),*];

        $(#[test]
        fn $test() {
            check($file, include_str!(concat!("logs/", $file)), &$says, &$left);
        })*
    };
}

logs! {
    spdk_log_shows_cqe_and_statuses: "spdk.txt", [
        "lines 3 to 6: mlx5: stor-b4.example: got completion with error:",
        "error CQE of the send side", "CQE syndrome 0x4, LOCAL_PROTECTION", "vendor syndrome 0x51",
        "queue 0x0034c2, WQE counter 0x01f4 (500), WQE opcode READ (0x10)",
        "line 8:", "ibv_wc_status 4, LOC_PROT_ERR",
        "line 9:", "ibv_wc_status 5, WR_FLUSH_ERR",
    ], [1, 10];
    ucx_log_shows_syndromes_and_the_wqe: "ucx.txt", [
        "CQE syndrome 0x13, REMOTE_ACCESS", "ibv_wc_status 10", "vendor syndrome 0x88",
        "RC queue pair 0x8e1, WQE 212: RDMA_READ (signalled)",
        "remote address and key: rva 0x7f2ab4400000 rkey 0x20ab1f",
        "local memory: va 0x7f9c12e00000 len 8192", "peer: rqpn 0x9a3 dlid=31",
        "CQE syndrome 0x4, LOCAL_PROTECTION",
        "DCI queue pair 0x1cc4, WQE 9: SEND (signalled, fenced, solicited)",
        "receive WQE 17 of the SRQ of queue 0x1cd1: next_wqe 18",
        "receive segment: byte_count 8256",
        "ibv_wc_status 4, LOC_PROT_ERR", "vendor syndrome 0x51", "queue 0xf9db",
    ], [1, 8, 9];
    lines_about_one_queue_show_every_number: "queues.txt", [
        "line 1:", "CQE syndrome 0x15, TRANSPORT_RETRY_EXCEEDED", "ibv_wc_status 12",
        "vendor syndrome 0x81", "queue 0xc6d1 (50897), WQE 7820, SEND, on mlx5_3:1",
        "line 2:", "CQE syndrome 0x13", "vendor syndrome 0x88", "queue 0xdb81 (56193), WQE 0",
        "line 3:", "ibv_wc_status 9, REM_INV_REQ_ERR", "vendor syndrome 0x8a",
        "queue 0x2a8ac (174252)",
        "line 4:", "ibv_wc_status 12", "vendor syndrome 0x81", "queue 0x10e51",
        "line 5:", "CQE syndrome 0x4", "vendor syndrome 0x3a",
        "hw_syndrome_type 0x0, hw_error_syndrome 0x93 (147)", "queue 0x1348 (4936), on mlx5_13/1",
        "line 6:", "CQE syndrome 0x13, REMOTE_ACCESS", "ibv_wc_status 10",
        "\"fatal error\" is status 19", "vendor syndrome 0x88", "hw_syndrome_type 0x1",
        "line 7:", "\"unrecognized status\"", "CQE syndrome 0x16", "CQE syndrome 0x22",
        "vendor syndrome 0x41", "queue 0x8b (139), on rocep2s0/1",
    ], [];
    devx_lines_show_their_errno_by_its_words: "devx.txt", [
        "line 1:", "through DevX failed", "command got no answer: the outbox was never written",
        "errno 110, ETIMEDOUT",
        "line 2:", "got no answer", "errno 125, ECANCELED", "line 3:", "errno 125, ECANCELED",
        "line 4:", "the kernel copied no outbox", "errno 12, ENOMEM",
        "line 5:", "through DevX failed", "syndrome 0x31ed00: the firmware's own", "errno 121",
        "line 6:", "through DevX failed", "0x2c4150", "errno 121, EREMOTEIO",
        "line 7:", "errno 22, EINVAL", "line 8:", "errno 12, ENOMEM", "line 9:", "errno 12, ENOMEM",
        "line 10:", "command CREATE_QP (0x500) failed\n", "command status 0x8, LIM", "0x19c6d0",
        "line 11:", "a command failed\n",
        "line 12:", "errno 95, EOPNOTSUPP", "line 13:", "UCX status -3, UCS_ERR_IO_ERROR",
    ], [];
    lines_that_mail_broke_are_joined: "wrapped.txt", [
        "lines 1 to 3:", "command SET_FLOW_TABLE_ENTRY (0x936) failed", "BAD_PARAM", "0xa9c091",
        "lines 4 to 6:", "ibv_wc_status 10, REM_ACCESS_ERR", "vendor syndrome 0x88",
        "lines 7 to 9:", "ibv_wc_status 10, REM_ACCESS_ERR", "vendor syndrome 0x87",
        "lines 10 to 11:", "DCI queue pair 0x221d1", "va 0x3984c00 len 8230 lkey 0x152d01",
    ], [];
    quoted_printable_is_decoded: "quoted-printable.txt", [
        "line 1:", "DESTROY_FLOW_GROUP (0x934) failed", "0x563e21",
        "line 6:", "ibv_wc_status 4", "lines 9 to 12:", "CQE syndrome 0x4", "vendor syndrome 0x56",
        "line 13:", "ibv_wc_status 4",
    ], [4];
    events_and_devlink_health_are_explained: "events.txt", [
        "line 1:", "event DCT_ACCESS_ERR", "DCT 0x2a8a1", "line 2:", "event QP_LAST_WQE_REACHED",
        "queue 0xa11", "line 3:", "event QP_ACCESS_ERR", "line 4:", "hw_error_syndrome 0x93 (147)",
        "the same 2 more times: lines 5 to 6", "line 8:", "firmware 16.24.1000", "line 9:", "hw_id",
        "line 10:", "irisc_index", "line 11:", "health syndrome 0x8", "line 12:", "ext_synd 0x3d",
        "line 13:", "raw fw_ver",
    ], [7, 14];
    nccl_status_is_ibv_wc_status: "nccl.txt", [
        "ibv_wc_status 12, RETRY_EXC_ERR", "vendor syndrome 0x81: Comes with CQE syndrome TRANS",
        "opcode and len of a failed completion mean nothing",
        "line 4:", "ibv_wc_status 5, WR_FLUSH_ERR", "vendor syndrome 0xf9",
        "line 5:", "ibv_wc_status 13, RNR_RETRY_EXC_ERR", "queue 0x841 (2113)",
        "line 7:", "errno 12, ENOMEM: Memory registration",
    ], [1, 3, 6];
    perftest_syndrom_is_the_vendor_syndrome: "perftest.txt", [
        "line 5: Failed status 12", "ibv_wc_status 12, RETRY_EXC_ERR", "vendor syndrome 0x81",
    ], [1, 2, 3, 4, 6, 7];
    dpdk_words_are_turned_round: "dpdk-aso.txt", [
        "lines 2 to 5: mlx5_net: Error cqe:", "4-byte words of a little-endian machine",
        "CQE syndrome 0x2, LOCAL_QP_OPERATION", "queue 0x0002f1, WQE counter 0x0010",
        "WQE opcode ACCESS_ASO (0x2d)",
        "lines 8 to 11: Error wqe:", "send WQE at 0x0: ACCESS_ASO", "qpn = 0x2f1",
        "segments that prm/ does not describe: 01020304 05060708",
        "line 13:", "command status 0x8, LIM", "syndrome 0x47b2c1: the firmware's own",
        "errno 121, EREMOTEIO",
    ], [6, 12];
    dpdk_file_shows_failed_entries_of_whole_queues: "dpdk-file.txt", [
        "CQE syndrome 0x4, LOCAL_PROTECTION", "CQ 0x91 (145)", "SQ 0x1a22 (6690)",
        "lines 5 to 20: MLX5 Error CQ: at [0x17f9c1000], len=256",
        "entry 0: no error (REQUESTER), of queue 0x001a22", "entry 1:\n  error CQE",
        "vendor syndrome 0x53: Comes with CQE syndrome LOCAL_PROTECTION (0x04): an SGE is longer",
        "reserved bytes from 0x01 are not 0: 7365656e (DPDK writes \"seen\"",
        "entries 2 to 3: not written yet",
        "MLX5 Error SQ", "send WQE at 0x0: SEND", "an Ethernet segment follows",
        "inline_hdr_sz = 0x12", "byte_count = 0x5ca", "zeros from 0x40 to 0x7f",
    ], [];
    mlx5e_shows_cqe_and_ethernet_wqe: "mlx5e.txt", [
        "line 1:", "CQE syndrome 0x2", "vendor syndrome 0x68", "CQ 0x49a", "queue 0x12ab",
        "lines 2 to 5:", "error CQE of the send side", "WQE counter 0x003f (63)",
        "lines 7 to 10: [ 5120.110240] WQE DUMP", "send WQE at 0x0: SEND", "eth_segment",
    ], [11];
    kernel_6_12_shows_status_dump_and_consumers: "kernel-6.12.txt", [
        "line 1:", "ibv_wc_status 6, MW_BIND_ERR", "lines 2 to 5:", "WQE opcode UMR (0x25)",
        "line 7:", "an error CQE of the receive side", "line 8:", "CQE syndrome 0x5, FLUSHED",
        "line 9:", "ibv_wc_status 5", "vendor syndrome 0xf9",
        "line 10:", "ibv_wc_status 13", "vendor syndrome 0x82",
    ], [11];
    health_report_is_explained: "health.txt", [
        "line 1:", "health syndrome 0x1, FW_INTERNAL_ERR", "health severity 3, ERROR",
        "variable 0 of the firmware's assertion is 0x0000013a", "firmware 22.39.1002",
        "asks for no reset", "health syndrome 0x1, FW_INTERNAL_ERR", "ext_synd 0x8a31",
        "health counter does not advance", "fatal sensor 3 of mlx5_core",
    ], [7];
    firmware_start_power_and_bandwidth_are_explained: "start.txt", [
        "line 2:", "PCIe bandwidth 63.008 Gb/s, less than the card can: 8.0 GT/s PCIe x8 link at \
         0000:80:01.1", "the card can do 252.048 Gb/s", "put the card into a slot",
        "line 3:", "252.048 Gb/s: the link runs as fast as the card can",
        "line 4:", "gives 25 W, less than the card asks for", "auxiliary cable",
        "line 5:", "does not advertise its power",
        "line 6:", "(initializing); the driver waits", "gives up in 100 s", "bit 31, initializing, \
         is set",
        "line 7:", "(pre-initializing); the driver waits", "gives up in 79 s",
        "line 8:", "(pre-initializing), and was not done in 120000 ms", "power the machine off",
        "line 9:", "gives the device up", "errno 110, ETIMEDOUT",
        "line 10:", "errno 110, ETIMEDOUT", "line 11:", "errno 110, ETIMEDOUT",
    ], [1];
    errors_of_the_pcie_link_are_explained: "pcie.txt", [
        "line 1:", "port 0000:80:01.1 has cut the link below it, because of an ERR_FATAL message",
        "line 2:", "received an error message", "line 3:", "Uncorrectable (Fatal), Transaction \
         Layer: the link is reset", "seat the card again",
        "line 4:", "registers of the AER capability",
        "line 5:", "AER CmpltTO: no completion came in time",
        "line 6:", "PCIe error, Correctable, Physical Layer: the link corrected it",
        "line 7:", "AER RxErr", "line 8:", "PCIe reported an error", "state 2, frozen",
        "line 9:", "the slot was reset",
    ], [10];
    ucx_statuses_are_explained: "ucx-status.txt", [
        "line 1:", "UCX status -80, UCS_ERR_ENDPOINT_TIMEOUT", "CQE syndrome 0x15, 0x16 or 0x22",
        "line 2:", "UCX status -80", "line 3:", "UCX status -25, UCS_ERR_CONNECTION_RESET",
        "line 4:", "UCX status -3, UCS_ERR_IO_ERROR", "line 5:", "UCX status -6",
        "line 6:", "UCX status -80", "line 7:", "UCX status -80",
    ], [8];
    timeouts_and_failed_commands_are_explained: "timeouts.txt", [
        "command MODIFY_RQ (0x909)", "It was not sent", "command MANAGE_PAGES (0x108) in slot 4",
        "no interrupt came", "command ACCESS_REG (0x805)", "did not answer in time",
        "a command in slot 4", "too late", "an error of CQ 0x7d2", "0x2, ACCESS_VIOLATION",
        "command status 0x2, BAD_OP", "errno 22, EINVAL",
        "syndrome 0x564c0008 of the model, with status BAD_PARAM",
    ], [9];
    reported_cause_of_firmware_syndrome_is_shown: "firmware-syndromes.txt", [
        "line 1:", "command CREATE_SQ (0x904) failed",
        "syndrome 0xd61c0b, SQ_CLOCK_FORMAT by public reports: Reported with CREATE_SQ",
        "line 2:", "syndrome 0xef0c8a, PD_IN_USE_OR_UNKNOWN by public reports: Reported with",
        "line 3:", "syndrome 0x35e6ec: the firmware's own, not published",
    ], [];
    gdb_words_are_turned_round: "gdb.txt", [
        "lines 4 to 7: (gdb) x/16xw wqe", "send WQE at 0x0: WRITE", "raddr = 0x7f5510002000",
        "byte_count = 0x1000", "lines 9 to 12:", "CQE syndrome 0x14, REMOTE_OPERATION",
    ], [1, 2, 13, 14];
    wqes_of_a_queue_are_shown_by_their_control_segments: "wqes.txt", [
        "send WQE at 0x0: SEND", "an address vector follows", "dqp_dct = 0x1c1",
        "rgid = 00000000000000000000ffffc0000201", "lkey = 0x1b33",
        "send WQE at 0x80: FETCH_ADD", "swap_add = 5", "send WQE at 0xc0: UMR",
        "umr_ctrl_segment", "mkey_context", "klm\n    byte_count = 0x1000",
    ], [];
    ranks_quotes_and_empty_lines_are_read_through: "ranks.txt", [
        "lines 2 to 5: [1,3]<stderr>: mlx5: cn03", "CQE syndrome 0x22, REMOTE_ABORTED",
        "vendor syndrome 0x93: A page fault", "lines 11 to 15: mlx5: cn04",
        "error CQE of the receive side", "CQE syndrome 0x1, LOCAL_LENGTH",
    ], [6, 8];
    lost_rows_are_named: "lost-rows.txt", [
        "bytes 0x10 to 0x1f are not in the dump", "CQE syndrome 0x16, RNR_RETRY_EXCEEDED",
    ], [5];
    commands_and_cqes_of_one_log_are_both_shown: "commands.txt", [
        "QUERY_PAGES (0x107)", "out status = BAD_OP", "out syndrome = 0x1b2c3",
        "lines 13 to 16:", "error CQE of the receive side",
        "lines 17 to 21: DESTROY_CQ(0x401)\n  an output without an input before it",
        "lines 22 to 24: INIT_HCA(0x102)\n  cut off",
    ], [6];
    hex_without_spaces_and_c_arrays_are_rows: "bare.txt", [
        "lines 2 to 5: mlx5: cn12", "CQE syndrome 0x2", "WQE opcode READ (0x10)",
        "line 7:", "ibv_wc_status 2, LOC_QP_OP_ERR",
        "lines 9 to 12\n", "CQE syndrome 0x5, FLUSHED", "WQE counter 0x0032",
    ], [6, 8, 13, 14];
}

/// A log with cut, inserted or overwritten bytes is shown or refused without a panic.
#[test]
fn damaged_logs_are_no_panic() {
    let description = load_sound(&root()).unwrap();
    let runtime = Runtime::new(&description);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    for (_, text) in LOGS {
        for round in 0..60 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..1 + random(12) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] = b"0f \n:|x-(["[random(10)],
                    1 => drop(bytes.drain(at..(at + random(40)).min(bytes.len()))),
                    2 => bytes.insert(at, b"0123456789abcdef"[random(16)]),
                    _ => bytes.truncate(at.max(1)),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            let all = round % 2 == 0;
            let options = Options { file: PathBuf::new(), output: None, of: None, all };
            let known = Known::new(&description, &runtime, all);
            let _ = decode_text(&known, &options, &text, None);
        }
    }
}

#[test]
fn vendor_error_above_8_bits_is_unknown() {
    let line = "Got completion from peer 10.0.0.1<4> with status=12 opcode=0 len=0 vendor err 4660";
    let shown = decoded(None, line, None).unwrap();
    assert!(shown.contains("vendor error 4660 (0x1234), not an mlx5 number"), "{shown}");
}

#[test]
fn cqe_syndrome_is_decoded_with_hint() {
    for (syndrome, next) in [
        ("0x14", "look at the peer's own completion"),
        ("0x15", "check the path, link, GID index and MTU"),
        ("0x4", "compare each SGE of the WQE with its region"),
    ] {
        let line = format!("x on mlx5_0:1/IB (synd {syndrome} vend 0x81 hw_synd 0/0)");
        let shown = decoded(None, &line, None).unwrap();
        let first = shown.lines().find(|line| line.contains("CQE syndrome")).unwrap();
        assert!(first.contains(next), "{shown}");
    }
}

#[test]
fn leftover_lines_are_reported() {
    let noise: String = (0..200).map(|at| format!("tick {at} of the clock\n")).collect();
    let text = format!("{noise}{}", include_str!("logs/perftest.txt"));
    let shown = decoded(None, &text, None).unwrap();
    let (_, left) = shown.split_once("not decoded, 206 lines:\n").unwrap();
    assert!(left.contains("1 to 204, 204 lines: tick 0 of the clock … "), "{left}");
    assert!(left.contains("206 to 207") || left.contains("206: scnt"), "{left}");
}

#[test]
fn command_hex_is_decoded_to_fields() {
    let shown = decoded(None, "0107 0000 0000 0001", Some("00000000 00000000 00000000 00000006"));
    let shown = shown.unwrap();
    for part in ["QUERY_PAGES (0x107)", "in  op_mod = ", "out num_pages = 6", "only 8 of 16"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
}

#[test]
fn recorded_command_is_decoded_with_origin() {
    let mut text = Vec::new();
    let origin = "[     0.500000] function 3";
    let input = [1, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    dump::write_command(&mut text, origin, "QUERY_PAGES(0x107)", &input, &[0; 16]).unwrap();
    let shown = decoded(None, &String::from_utf8(text).unwrap(), None).unwrap();
    assert!(shown.starts_with(origin), "{shown}");
    assert!(shown.contains("QUERY_PAGES (0x107)") && shown.contains("op_mod = 1"), "{shown}");
}

#[test]
fn structure_hex_is_decoded_by_name() {
    let shown = decoded(Some("ctrl_segment"), "00001008 00012303 00000008", None).unwrap();
    for part in ["opcode = WRITE", "wqe_index = 0x10", "ds = 3", "ce = ALWAYS", "12 of 16"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(decoded(Some("nonsense"), "00", None).is_err());
}

#[test]
fn masked_atomic_has_segments_of_its_operand_size() {
    let description = load_sound(&root()).unwrap();
    let runtime = Runtime::new(&description);
    let shown = |opcode: u8, op_mod: u8, ds: u8| {
        let mut wqe = vec![0; 16 * usize::from(ds)];
        wqe[..8].copy_from_slice(&[op_mod, 0, 1, opcode, 0, 1, 0x23, ds]);
        // The remote address and its key; the data segment ends the WQE.
        wqe[16..28].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x70, 0, 0, 0, 0x0a, 0xbc]);
        let end = wqe.len() - 16;
        wqe[end..end + 8].copy_from_slice(&[0, 0, 0, 8, 0, 0, 0x0d, 0xef]);
        let shown = wqe::show(&runtime, &wqe, false, false);
        assert!(shown.contains("+0x10 raddr_segment"), "{shown}");
        shown
    };
    let (swap, add) = (0x14, 0x15);
    for (opcode, op_mod, ds, operands, data) in [
        (swap, 8, 4, "+0x20 masked_swap_32_segment\n", "+0x30 data_segment\n"),
        (swap, 9, 5, "+0x20 masked_atomic_segment\n", "+0x40 data_segment\n"),
        (add, 8, 4, "+0x20 masked_add_32_segment\n", "+0x30 data_segment\n"),
        (add, 9, 4, "+0x20 masked_add_64_segment\n", "+0x30 data_segment\n"),
    ] {
        let shown = shown(opcode, op_mod, ds);
        let (_, after) = shown.split_once(operands).unwrap_or_else(|| panic!("{shown}"));
        assert!(after.contains(data) && after.contains("lkey = 0xdef"), "{shown}");
    }
    for opcode in [swap, add] {
        let shown = shown(opcode, 10, 5);
        assert!(
            shown.contains("+0x20 operands of more than 8 bytes, and what follows:"),
            "{shown}"
        );
        assert!(!shown.contains("masked_") && !shown.contains("data_segment"), "{shown}");
    }
}

#[test]
fn unknown_opcode_and_non_hex_are_reported() {
    assert!(decoded(None, "ffff 0000", None).unwrap().contains("opcode 0xffff is unknown"));
    assert!(decoded(None, "this is not hex", None).is_err());
    assert!(decoded(None, "", None).is_err());
}

#[test]
fn decode_reads_text_and_gzip_files() {
    let description = load_sound(&root()).unwrap();
    let runtime = Runtime::new(&description);
    let input = "0107 0000 0000 0001 0000 0000 0000 0000";
    let scratch = Scratch::new("decode", &[("in", input), ("out", "00000000 00000005")]);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(input.as_bytes()).unwrap();
    scratch.write("in.gz", packed.finish().unwrap());
    scratch.write("binary", [0xff, 0xfe]);
    let shown = |input: &str, output: Option<&str>, all| {
        let path = |name: &str| scratch.path().join(name);
        let options = Options { file: path(input), output: output.map(path), of: None, all };
        let known = Known::new(&description, &runtime, all);
        decode(&known, &options).map_err(|error| error.to_string())
    };
    let plain = shown("in", None, false).unwrap();
    assert!(plain.contains("QUERY_PAGES") && !plain.contains("only"), "{plain}");
    assert!(!plain.contains("function_id"), "{plain}");
    assert_eq!(shown("in.gz", None, false).unwrap(), plain);
    let whole = shown("in", None, true).unwrap();
    assert!(whole.contains("function_id = 0"), "{whole}");
    assert!(shown("in", Some("out"), false).unwrap().contains("syndrome = 5"));
    assert!(shown("binary", None, false).unwrap_err().ends_with("binary is not text"));
    assert!(shown("none", None, false).unwrap_err().contains("none: "));
}
