//! Compares WQEs, doorbells and CQEs with those of rdma-core's libmlx5 for the same requests.
//!
//! The vectors are in `prm/evidence/wqe-golden.json`, or in the file that the environment variable
//! `GOLDEN` names; the `schema` inside explains them. Bytes that the library leaves stale
//! (`written_mask`) are not compared.

use std::path::PathBuf;

use crate::support::{Completer, Receiver, Sender, Settings, bytes, unwrapped};
use serde_json::Value;
use verbless_prm::hot::{self, cqe_opcode, opcode};
use verbless_ring::cq::Notify;
use verbless_ring::qp::{BlueFlame, SendBatch};
use verbless_ring::wr::{
    CompareSwap, FetchAdd, Inline, LocalInvalidate, Nop, Payload, PostError, Read, Send, SendImm,
    SendInvalidate, SgList, WorkRequest, Write, WriteImm,
};
use verbless_ring::{
    CompletionError, Lkey, RemoteAddr, Rkey, SendQueue, Sge, WcOpcode, WcStatus, WqeIndex,
};

/// Whether `GOLDEN` names the vectors: they may then have operations that the ring lacks.
fn is_given() -> bool {
    std::env::var_os("GOLDEN").is_some()
}

fn golden() -> Value {
    let path = match std::env::var_os("GOLDEN") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../prm/evidence/wqe-golden.json"
        )),
    };
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A number, written as such or as a string of hexadecimal digits with 0x.
fn number(value: &Value) -> u64 {
    match value {
        Value::Number(number) => number.as_u64().unwrap(),
        Value::String(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
        other => panic!("not a number: {other}"),
    }
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn sges(request: &Value) -> Vec<Sge> {
    let sge = |sge: &Value| {
        Sge::new(
            number(&sge["addr"]),
            number(&sge["length"]) as u32,
            Lkey(number(&sge["lkey"]) as u32),
        )
    };
    list(&request["sge"]).iter().map(sge).collect()
}

/// Destination of a request: a queue that rings for each request, or a batch.
trait Post {
    fn put<W: WorkRequest>(&mut self, request: &W, cookie: u64) -> Result<WqeIndex, PostError>;
}

impl Post for SendQueue {
    fn put<W: WorkRequest>(&mut self, request: &W, cookie: u64) -> Result<WqeIndex, PostError> {
        self.post(request, cookie)
    }
}

impl Post for SendBatch<'_> {
    fn put<W: WorkRequest>(&mut self, request: &W, cookie: u64) -> Result<WqeIndex, PostError> {
        self.post(request, cookie)
    }
}

/// Posts with the options of `request`.
macro_rules! put {
    ($to:expr, $request:expr, $operation:expr) => {{
        let mut operation = $operation;
        if $request["fence"].as_bool().unwrap() {
            operation = operation.fence();
        }
        if $request["signaled"].as_bool().unwrap() {
            operation = operation.signaled();
        }
        if $request["solicited"].as_bool().unwrap() {
            operation = operation.solicited();
        }
        $to.put(&operation, number(&$request["wr_id"])).unwrap()
    }};
}

/// Posts what `request` describes. `None` if the ring has no such operation.
fn post(to: &mut impl Post, request: &Value, as_slice: bool) -> Option<WqeIndex> {
    if request["inline"].as_bool().unwrap() {
        let data = hex(&request["inline_data"]);
        return post_payload(to, request, Inline(&data));
    }
    match sges(request)[..] {
        [sge] if !as_slice => {
            post_payload(to, request, sge).or_else(|| post_gather(to, request, sge))
        }
        ref sges => post_payload(to, request, sges).or_else(|| post_gather(to, request, sges)),
    }
}

fn remote(request: &Value) -> RemoteAddr {
    RemoteAddr::new(number(&request["remote_addr"]), Rkey(number(&request["rkey"]) as u32))
}

fn post_payload(to: &mut impl Post, request: &Value, payload: impl Payload) -> Option<WqeIndex> {
    let immediate = || number(&request["imm_data_host_order"]) as u32;
    let invalidate = || Rkey(number(&request["invalidate_rkey"]) as u32);
    Some(match text(&request["opcode"]) {
        "SEND" => put!(to, request, Send::new(payload)),
        "SEND_WITH_IMM" => put!(to, request, SendImm::new(payload, immediate())),
        "SEND_WITH_INV" => put!(to, request, SendInvalidate::new(payload, invalidate())),
        "RDMA_WRITE" => put!(to, request, Write::new(payload, remote(request))),
        "RDMA_WRITE_WITH_IMM" => {
            put!(to, request, WriteImm::new(payload, remote(request), immediate()))
        }
        "LOCAL_INV" => put!(to, request, LocalInvalidate::new(invalidate())),
        "NOP" => put!(to, request, Nop::new()),
        _ => return None,
    })
}

fn post_gather(to: &mut impl Post, request: &Value, into: impl SgList) -> Option<WqeIndex> {
    let old = into.as_sges().first().copied();
    Some(match text(&request["opcode"]) {
        "RDMA_READ" => put!(to, request, Read::new(into, remote(request))),
        "ATOMIC_CMP_AND_SWP" => {
            let (compare, swap) = (number(&request["compare"]), number(&request["swap"]));
            put!(to, request, CompareSwap::new(old?, remote(request), compare, swap))
        }
        "ATOMIC_FETCH_AND_ADD" => {
            put!(to, request, FetchAdd::new(old?, remote(request), number(&request["add"])))
        }
        _ => return None,
    })
}

/// `ours` equals `theirs` wherever `mask` is set; the library did not write bytes after the mask.
fn assert_masked(what: &str, ours: &[u8], theirs: &[u8], mask: &[u8]) {
    assert_eq!(ours.len(), theirs.len(), "{what}: length");
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        if mask.get(i).is_some_and(|&mask| mask != 0) {
            assert_eq!(ours, theirs, "{what}: byte {i}");
        }
    }
}

/// Compares a UAR page with the writes in the vector; `wqe` is the last WQE in our ring, `mask` its
/// mask.
fn assert_uar(what: &str, page: &[u8], accesses: &[Value], wqe: &[u8], mask: &[u8]) {
    let mut untouched = vec![0xdd; page.len()];
    for access in accesses {
        let (at, theirs) = (number(&access["page_offset"]) as usize, hex(&access["hex"]));
        assert_eq!(theirs.len() as u64, number(&access["len"]), "{what}");
        let ours = &page[at..at + theirs.len()];
        assert_masked(&format!("{what}: UAR at {at:#x}"), ours, &theirs, mask);
        assert_eq!(ours, &wqe[..theirs.len()], "{what}: the UAR and the ring differ");
        untouched[at..at + theirs.len()].copy_from_slice(ours);
    }
    let stray = page.iter().zip(&untouched).position(|(ours, left)| ours != left);
    assert_eq!(stray, None, "{what}: the UAR was written elsewhere");
}

/// Posts a vector's requests on a queue with these settings. `None` if the ring lacks one of the
/// operations.
fn run(
    vector: &Value,
    uar: &[Value],
    settings: Settings,
    batched: bool,
    as_slice: bool,
) -> Option<()> {
    let name = format!("{} ({}, batched: {batched})", text(&vector["name"]), text(&vector["api"]));
    let offset = number(&uar[0]["page_offset"]) as usize;
    let mut sender = Sender::new(settings);
    // A vector after a local invalidate begins two WQEBBs after it.
    let behind = text(&vector["name"]).contains("after_local_inv");
    let index = number(&vector["wqe_index"]) as u16;
    sender.advance(if behind { index.wrapping_sub(2) } else { index }, offset & 0x100 != 0);
    if behind {
        let mut batch = sender.queue.batch();
        batch.post(&LocalInvalidate::new(Rkey(1)), 0).unwrap();
        batch.hold();
    }
    sender.ring.fill(0xee);
    sender.record.fill(0xee);
    sender.uar.fill(0xdd);

    let requests = list(&vector["in"]);
    assert_eq!(requests.len() as u64, number(&vector["batch"]));
    if requests.len() == 1 && !batched {
        post(&mut sender.queue, &requests[0], as_slice)?;
    } else {
        let mut batch = sender.queue.batch();
        for request in requests {
            post(&mut batch, request, as_slice)?;
        }
        batch.ring();
    }

    let record = &vector["doorbell_record"];
    let at = number(&record["offset"]) as usize;
    assert_eq!(bytes(&sender.record)[at..at + 4], hex(&record["hex"]), "{name}: doorbell record");
    assert_eq!(
        bytes(&sender.record)[4 - at..8 - at],
        [0xee; 4],
        "{name}: the other doorbell record"
    );
    let wqes = list(&vector["wqes"]);
    for wqe in wqes {
        let (theirs, mask) = (hex(&wqe["hex"]), hex(&wqe["written_mask"]));
        let ours = unwrapped(&sender.ring, 64 * number(&wqe["ring_slot"]) as usize, theirs.len());
        assert_masked(&name, &ours, &theirs, &mask);
    }
    let last = wqes.last().unwrap();
    let ours = unwrapped(
        &sender.ring,
        64 * number(&last["ring_slot"]) as usize,
        64 * number(&last["wqebbs"]) as usize,
    );
    assert_uar(&name, &bytes(&sender.uar), uar, &ours, &hex(&last["written_mask"]));
    Some(())
}

fn settings(vector: &Value, register: usize) -> Settings {
    Settings {
        qpn: number(&vector["qp"]["qpn"]) as u32,
        wqebbs: number(&vector["qp"]["sq_wqebb_cnt"]) as usize,
        signal_all: vector["qp"]["sq_sig_all"].as_bool().unwrap(),
        register: Some(register),
        max_sges: 59,
        max_inline: 940,
        ..Settings::default()
    }
}

#[test]
fn posts_match_rdma_core_bytes() {
    let golden = golden();
    let (mut compared, mut skipped) = (0, Vec::new());
    for vector in list(&golden["post"]) {
        let uar = list(&vector["uar"]);
        let register = number(&uar[0]["page_offset"]) as usize & !0x1ff;
        let settings = settings(vector, register.max(0x800));
        for (batched, as_slice) in [(false, false), (true, false), (true, true)] {
            match run(vector, uar, settings, batched, as_slice) {
                Some(()) => compared += 1,
                None => skipped.push(text(&vector["name"])),
            }
        }
    }
    println!("{compared} posts compared; no such operation here: {skipped:?}");
    assert!(compared > 0);
    assert!(is_given() || (compared >= 3 * 90 && skipped.is_empty()), "{compared} {skipped:?}");
}

#[test]
fn uar_modes_match_rdma_core_accesses() {
    let golden = golden();
    let mut compared = 0;
    for (mode, entry) in golden["modes"].as_object().unwrap() {
        let (register, blueflame) = match mode.as_str() {
            "MLX5_SHUT_UP_BF=1" => (None, BlueFlame::Always),
            "MLX5_POST_SEND_PREFER_BF=0" => (Some(0x800), BlueFlame::Inline),
            "kernel_without_dynamic_uar" => (Some(0xc00), BlueFlame::Always),
            other => panic!("unknown mode {other}"),
        };
        for (vector, post) in list(&golden["post"]).iter().zip(list(&entry["uar_per_post"])) {
            assert_eq!((&vector["name"], &vector["api"]), (&post["name"], &post["api"]));
            let uar = list(&post["uar"]);
            let register = register.map(|_| number(&uar[0]["page_offset"]) as usize & !0x1ff);
            let settings = Settings { register, blueflame, ..settings(vector, 0x800) };
            compared += usize::from(run(vector, uar, settings, false, false).is_some());
        }
    }
    assert!(compared >= if is_given() { 1 } else { 3 * 90 }, "{compared}");
}

#[test]
fn consecutive_doorbells_alternate_as_recorded() {
    let golden = golden();
    // On the recorded register, and on the next one.
    let pairs = [0, 0x200].map(|moved| doorbells_of_pairs(&golden, moved));
    assert_eq!(pairs[0], pairs[1]);
    assert!(pairs[0] >= if is_given() { 0 } else { 5 }, "{pairs:?}");
}

/// Counts consecutive posts of one queue; each rings at its recorded offset plus `moved` bytes.
fn doorbells_of_pairs(golden: &Value, moved: usize) -> usize {
    let mut pairs = 0;
    'pairs: for pair in list(&golden["post"]).windows(2) {
        let end = list(&pair[0]["wqes"]).iter().map(|wqe| number(&wqe["wqebbs"])).sum::<u64>()
            + number(&pair[0]["wqe_index"]);
        if pair[0]["qp"] != pair[1]["qp"] || end & 0xffff != number(&pair[1]["wqe_index"]) {
            continue;
        }
        let offset = |i: usize| number(&pair[i]["uar"][0]["page_offset"]) as usize + moved;
        let [first, second] = [0, 1].map(offset);
        let mut sender = Sender::new(settings(&pair[0], first & !0x1ff));
        sender.advance(number(&pair[0]["wqe_index"]) as u16, first & 0x100 != 0);
        for (vector, at) in [(&pair[0], first), (&pair[1], second)] {
            sender.uar.fill(0xdd);
            let mut batch = sender.queue.batch();
            let known = list(&vector["in"]).iter().all(|r| post(&mut batch, r, false).is_some());
            if !known {
                continue 'pairs;
            }
            batch.ring();
            let page = bytes(&sender.uar);
            assert_eq!(page.iter().position(|&byte| byte != 0xdd), Some(at), "{}", vector["name"]);
        }
        pairs += 1;
    }
    pairs
}

#[test]
fn receives_match_rdma_core_bytes() {
    for vector in list(&golden()["recv"]) {
        let (index, stride) = (number(&vector["wqe_index"]), number(&vector["rq_stride"]) as usize);
        let mut receiver = Receiver::new(0x123, 16, stride);
        receiver.advance(0x123, index as u16);
        receiver.ring.fill(0xee);
        receiver.record.fill(0xee);
        match sges(vector)[..] {
            [sge] => receiver.queue.post(sge, 1).unwrap(),
            ref sges => receiver.queue.post(sges, 1).unwrap(),
        };
        let ours = unwrapped(&receiver.ring, index as usize * stride, stride);
        assert_eq!(ours, hex(&vector["hex"]), "{}", vector["name"]);
        let record = &vector["doorbell_record"];
        assert_eq!(number(&record["offset"]), 0);
        let mut expected = hex(&record["hex"]);
        expected.extend([0xee; 4]);
        assert_eq!(bytes(&receiver.record), expected, "{}", vector["name"]);
    }
}

/// The `ibv_wc_status` of a status.
fn wc_status(status: WcStatus) -> u64 {
    match status {
        WcStatus::LocalLength => 1,
        WcStatus::LocalQpOperation => 2,
        WcStatus::LocalProtection => 4,
        WcStatus::Flushed => 5,
        WcStatus::MemoryWindowBind => 6,
        WcStatus::BadResponse => 7,
        WcStatus::LocalAccess => 8,
        WcStatus::RemoteInvalidRequest => 9,
        WcStatus::RemoteAccess => 10,
        WcStatus::RemoteOperation => 11,
        WcStatus::TransportRetryExceeded => 12,
        WcStatus::RnrRetryExceeded => 13,
        WcStatus::RemoteAborted => 16,
        WcStatus::Other(_) => 21,
    }
}

/// The `ibv_wc_opcode` and the flags of an operation.
fn wc_operation(operation: WcOpcode) -> (u64, u64) {
    const IMM: u64 = 2;
    const INVALIDATED: u64 = 8;
    match operation {
        WcOpcode::Send | WcOpcode::SendInvalidate | WcOpcode::Nop => (0, 0),
        WcOpcode::SendImm => (0, IMM),
        WcOpcode::Write => (1, 0),
        WcOpcode::WriteImm => (1, IMM),
        WcOpcode::Read => (2, 0),
        WcOpcode::CompareSwap => (3, 0),
        WcOpcode::FetchAdd => (4, 0),
        WcOpcode::Umr => (6, 0),
        WcOpcode::DmaMmo => panic!("the recordings have no memory copy"),
        WcOpcode::Wait => panic!("the recordings have no wait"),
        WcOpcode::Receive => (128, 0),
        WcOpcode::ReceiveImm => (128, IMM),
        WcOpcode::ReceiveInvalidate => (128, INVALIDATED),
        WcOpcode::ReceiveWriteImm => (129, IMM),
    }
}

/// Posts the request that a CQE of this work request opcode completes.
fn post_what_completes(queue: &mut SendQueue, wqe_opcode: u8, cookie: u64) {
    let (old, remote) = (Sge::new(0, 8, Lkey(1)), RemoteAddr::new(0, Rkey(1)));
    let posted = match wqe_opcode {
        opcode::SEND => queue.post(&Send::new(old), cookie),
        opcode::SEND_IMM => queue.post(&SendImm::new(old, 0), cookie),
        opcode::SEND_INVALIDATE => queue.post(&SendInvalidate::new(old, Rkey(1)), cookie),
        opcode::WRITE => queue.post(&Write::new(old, remote), cookie),
        opcode::WRITE_IMM => queue.post(&WriteImm::new(old, remote, 0), cookie),
        opcode::READ => queue.post(&Read::new(old, remote), cookie),
        opcode::COMPARE_SWAP => queue.post(&CompareSwap::new(old, remote, 0, 0), cookie),
        opcode::FETCH_ADD => queue.post(&FetchAdd::new(old, remote, 0), cookie),
        opcode::UMR => queue.post(&LocalInvalidate::new(Rkey(1)), cookie),
        _ => queue.post(&Nop::new(), cookie),
    };
    posted.unwrap();
}

#[test]
fn cqes_decode_like_rdma_core() {
    let golden = golden();
    let mut device: Option<(String, Completer)> = None;
    for vector in list(&golden["cqe"]) {
        let (name, api) = (text(&vector["name"]), text(&vector["api"]));
        let bytes_in = hex(&vector["cqe_hex"]);
        let (before, cqe) = bytes_in.split_at(bytes_in.len() - 64);
        let cqe = *hot::Cqe::from_prefix(cqe).unwrap();
        let qpn = cqe.qpn();
        // One completion queue for each API, which the vectors advance.
        let index = number(&vector["cqe_index"]) as u32;
        if device
            .as_ref()
            .is_none_or(|(of, device)| of != api || device.queue.consumer_index() > index)
        {
            let entries = number(&vector["cq_cqe_cnt"]) as usize;
            device = Some((api.to_owned(), Completer::with(qpn, entries, bytes_in.len())));
        }
        let completer = &mut device.as_mut().unwrap().1;
        completer.advance(index);
        completer.push_with(before, cqe);
        let polled = completer.queue.poll().expect(name);
        let record = hex(&vector["consumer_doorbell_record"]["hex"]);
        assert_eq!(bytes(&completer.record)[..4], record, "{name}: consumer record");
        assert!(completer.queue.poll().is_none());

        let wc = &vector["wc"];
        let cookie = number(&wc["wr_id"]);
        let counter = cqe.wqe_counter();
        assert_eq!(u64::from(polled.qpn().0), number(&wc["qp_num"]), "{name}");
        if let Some(peer) = wc.get("src_qp") {
            assert_eq!(u64::from(polled.peer_qpn().0), number(peer), "{name}");
        }
        let inline = polled.format() != 0;
        let result =
            if matches!(polled.opcode(), cqe_opcode::REQUESTER | cqe_opcode::REQUESTER_ERROR) {
                let mut sender = Sender::new(Settings { qpn, ..Settings::default() });
                sender.advance(counter, false);
                post_what_completes(&mut sender.queue, polled.wqe_opcode(), cookie);
                sender.queue.complete(polled)
            } else {
                let mut receiver = Receiver::new(qpn, 16, 32);
                receiver.advance(qpn, counter);
                receiver.queue.post([], cookie).unwrap();
                receiver.queue.complete(polled)
            };
        match result {
            Ok(completion) => {
                let (opcode, flags) = wc_operation(completion.operation());
                assert_eq!(number(&wc["status"]), 0, "{name}");
                assert_eq!(completion.cookie, cookie, "{name}");
                assert_eq!(opcode, number(&wc["opcode"]), "{name}: opcode");
                // ibv_start_poll computes flags on request, and never for our own sends.
                if api == "ibv_poll_cq" || opcode >= 128 {
                    assert_eq!(flags, number(&wc["wc_flags"]), "{name}: flags");
                }
                assert_eq!(
                    u64::from(completion.byte_len()),
                    number(&wc["byte_len"]),
                    "{name}: length"
                );
                if let Some(immediate) = completion.immediate() {
                    assert_eq!(
                        immediate.to_be_bytes(),
                        *hex(&wc["imm_data_be_hex"]),
                        "{name}: immediate"
                    );
                }
                if let Some(Rkey(key)) = completion.invalidated() {
                    // The library gives a key in host order.
                    assert_eq!(
                        key.to_le_bytes(),
                        *hex(&wc["imm_data_be_hex"]),
                        "{name}: invalidated key"
                    );
                }
                if inline {
                    let length = completion.byte_len() as usize;
                    assert_eq!(
                        completer.queue.inline_data(),
                        &bytes_in[..length],
                        "{name}: inline data"
                    );
                }
            }
            Err(CompletionError::Failed(failure)) => {
                assert_eq!(wc_status(failure.status), number(&wc["status"]), "{name}: {failure}");
                assert_eq!(failure.cookie, cookie, "{name}");
                assert_eq!(u64::from(failure.vendor_syndrome), number(&wc["vendor_err"]), "{name}");
                assert_eq!(failure.wqe_index, WqeIndex(counter), "{name}");
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn arm_matches_rdma_core_record_and_doorbell() {
    for vector in list(&golden()["arm_cq"]) {
        let name = text(&vector["name"]);
        let mut device = Completer::with(0x123, 256, 64);
        assert_eq!(u64::from(device.queue.cqn().0), number(&vector["cqn"]));
        device.advance(number(&vector["consumer_index"]) as u32);
        for _ in 0..number(&vector["arm_sn"]) {
            device.queue.arm(Notify::Next);
            device.queue.event_received();
        }
        device.uar.fill(0xdd);
        let notify = if name.contains("solicited") { Notify::Solicited } else { Notify::Next };
        device.queue.arm(notify);
        let record = &vector["doorbell_record"];
        let at = number(&record["offset"]) as usize;
        assert_eq!(bytes(&device.record)[at..at + 4], hex(&record["hex"]), "{name}");
        let doorbell = hex(&vector["uar"][0]["hex"]);
        assert_uar(name, &bytes(&device.uar), list(&vector["uar"]), &doorbell, &[0xff; 8]);
    }
}
