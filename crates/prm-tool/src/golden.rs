//! Compares golden WQEs, doorbells and CQEs with the segment tables: libmlx5's bytes for a request,
//! decoded to our fields, must give the request.
//!
//! A vector confirms a field if the field has the expected value, and the value is not zero.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use verbless_prm::reflect::{Kind, View};

use super::runtime::Runtime;

/// Path of the vectors from the root of the repository.
pub(crate) const GOLDEN: &str = "prm/evidence/wqe-golden.json";

/// Results of checking the vectors.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// WQEs, records, doorbells and CQEs read.
    pub(crate) vectors: usize,
    /// Fields compared.
    pub(crate) comparisons: usize,
    /// Fields with a wrong value.
    pub(crate) problems: Vec<String>,
    /// (structure, field) pairs that the vectors confirm.
    pub(crate) confirmed: BTreeSet<(&'static str, &'static str)>,
}

/// Reads the vectors of the repository at `root`.
pub(crate) fn read(root: &Path) -> crate::repository::Result<Value> {
    let path = root.join(GOLDEN);
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Compares every vector with the tables.
pub(crate) fn check(runtime: &Runtime, golden: &Value) -> Checked {
    let mut checker = Checker { runtime, checked: Checked::default(), vector: String::new() };
    for post in list(golden, "post") {
        checker.post(post);
    }
    for recv in list(golden, "recv") {
        checker.recv(recv);
    }
    for arm in list(golden, "arm_cq") {
        checker.arm(arm);
    }
    for cqe in list(golden, "cqe") {
        checker.cqe(cqe);
    }
    checker.checked
}

struct Checker<'a> {
    runtime: &'a Runtime,
    checked: Checked,
    vector: String,
}

impl Checker<'_> {
    /// Compares fields of structure `name` in `bytes` with their expected values.
    fn expect(&mut self, name: &str, bytes: &[u8], fields: &[(&str, u64)]) {
        let Some(info) = self.runtime.structure(name) else {
            return self.wrong(format!("there is no structure [{name}]"));
        };
        let view = View::new(info, bytes);
        for &(name, wanted) in fields {
            self.checked.comparisons += 1;
            let Some(field) = info.field(name) else {
                self.wrong(format!("[{}] has no field {name}", info.name));
                continue;
            };
            match view.get(name) {
                Some(value) if value == wanted => {
                    if value != 0 {
                        self.checked.confirmed.insert((info.name, field.name));
                    }
                }
                value => {
                    let value = value.map_or("nothing".to_owned(), |value| format!("{value:#x}"));
                    self.wrong(format!("[{}] {name} is {value}, not {wanted:#x}", info.name));
                }
            }
        }
    }

    fn wrong(&mut self, what: String) {
        let problem = format!("{}: {what}", self.vector);
        self.checked.problems.push(problem);
    }

    /// A named value of a field's enum.
    fn named(&mut self, structure: &str, field: &str, value: &str) -> u64 {
        let info = self.runtime.structure(structure).and_then(|info| info.field(field));
        let found = match info.map(|field| field.kind) {
            Some(Kind::Enum(e)) => e.values.iter().find(|(name, _)| *name == value),
            _ => None,
        };
        match found {
            Some(&(_, value)) => value,
            None => {
                self.wrong(format!("[{structure}] {field} has no value {value}"));
                u64::MAX
            }
        }
    }

    fn post(&mut self, post: &Value) {
        let qpn = number(&post["qp"]["qpn"]);
        let all_signaled = post["qp"]["sq_sig_all"] == true;
        let mut last = Vec::new();
        for (request, wqe) in list(post, "in").iter().zip(list(post, "wqes")) {
            self.checked.vectors += 1;
            self.vector = format!("post {} ({})", text(&post["name"]), text(&post["api"]));
            let bytes = hex(&wqe["hex"]);
            let written = hex(&wqe["written_mask"]);
            self.control(request, wqe, &bytes, &written, qpn, all_signaled);
            self.segments(request, &bytes);
            last = bytes;
        }
        // A doorbell writes the head of its last WQE to the UAR.
        for uar in list(post, "uar") {
            if uar["kind"] == "doorbell" && last.len() >= 8 {
                let rung = hex(&uar["hex"]);
                self.checked.vectors += 1;
                let index = u64::from(u16::from_be_bytes([last[1], last[2]]));
                let (opcode, ds) = (u64::from(last[3]), u64::from(last[7]));
                let fields = [("wqe_index", index), ("opcode", opcode), ("qpn", qpn), ("ds", ds)];
                self.expect("send_doorbell", &rung, &fields);
            }
        }
        if let Some(wqe) = list(post, "wqes").last() {
            let mut record = vec![0; 4];
            record.extend(hex(&post["doorbell_record"]["hex"]));
            let after = (number(&wqe["wqe_index"]) + number(&wqe["wqebbs"])) & 0xffff;
            self.checked.vectors += 1;
            self.expect("qp_doorbell_record", &record, &[("send_counter", after)]);
        }
    }

    fn control(
        &mut self,
        request: &Value,
        wqe: &Value,
        bytes: &[u8],
        written: &[u8],
        qpn: u64,
        all_signaled: bool,
    ) {
        let opcode = match text(&request["opcode"]) {
            "RDMA_WRITE" => "WRITE",
            "RDMA_WRITE_WITH_IMM" => "WRITE_IMM",
            "SEND" => "SEND",
            "SEND_WITH_INV" => "SEND_INVALIDATE",
            "RDMA_READ" => "READ",
            "ATOMIC_CMP_AND_SWP" => "COMPARE_SWAP",
            "ATOMIC_FETCH_AND_ADD" => "FETCH_ADD",
            "LOCAL_INV" => "UMR",
            other => return self.wrong(format!("request {other} is unknown")),
        };
        let segment = "ctrl_segment";
        let signaled = all_signaled || request["signaled"] == true;
        let completion = if signaled { "ALWAYS" } else { "ON_ERROR" };
        let mut fields = vec![
            ("opmod", 0),
            ("wqe_index", number(&wqe["wqe_index"])),
            ("opcode", self.named(segment, "opcode", opcode)),
            ("qpn", qpn),
            ("ds", number(&wqe["ds"])),
            ("ce", self.named(segment, "ce", completion)),
            ("se", u64::from(request["solicited"] == true)),
        ];
        if request["fence"] == true {
            fields.push(("fm", self.named(segment, "fm", "FENCE_AND_INITIATOR_SMALL")));
        }
        let imm = match (&request["imm_data_host_order"], &request["invalidate_rkey"]) {
            (Value::Null, Value::Null) => 0,
            (Value::Null, key) => number(key),
            (imm, _) => number(imm),
        };
        // Some calls leave imm unwritten for an opcode without immediate data.
        if written.get(12..16).is_some_and(|written| written.iter().all(|&byte| byte == 0xff)) {
            fields.push(("imm", imm));
        }
        self.expect(segment, bytes, &fields);
    }

    fn segments(&mut self, request: &Value, bytes: &[u8]) {
        let mut at = 16;
        let mut take = |length: usize| {
            let segment = bytes.get(at..at + length).unwrap_or(&[]);
            at += length;
            segment
        };
        if request["opcode"] == "LOCAL_INV" {
            return; // the library, not the request, chooses the UMR segments
        }
        if request["remote_addr"] != Value::Null {
            let (raddr, rkey) = (number(&request["remote_addr"]), number(&request["rkey"]));
            self.expect("raddr_segment", take(16), &[("raddr", raddr), ("rkey", rkey)]);
        }
        if request["add"] != Value::Null {
            self.expect("atomic_segment", take(16), &[("swap_add", number(&request["add"]))]);
        } else if request["swap"] != Value::Null {
            let (swap, compare) = (number(&request["swap"]), number(&request["compare"]));
            let fields = [("swap_add", swap), ("compare", compare)];
            self.expect("atomic_segment", take(16), &fields);
        }
        if request["inline"] == true {
            let data = hex(&request["inline_data"]);
            if data.is_empty() {
                return; // nothing follows
            }
            let fields = [("inline", 1), ("byte_count", data.len() as u64)];
            self.expect("inline_header", take(4), &fields);
            if take(data.len()) != data {
                self.wrong("the inline data differs from the request".to_owned());
            }
            return;
        }
        for sge in list(request, "sge").iter().filter(|sge| number(&sge["length"]) > 0) {
            let segment = take(16);
            self.data(sge, segment);
        }
    }

    fn data(&mut self, sge: &Value, segment: &[u8]) {
        let fields = [
            // 2 GiB is written as 0.
            ("byte_count", number(&sge["length"]) & 0x7fff_ffff),
            ("lkey", number(&sge["lkey"])),
            ("addr", number(&sge["addr"])),
        ];
        self.expect("data_segment", segment, &fields);
    }

    fn recv(&mut self, recv: &Value) {
        self.checked.vectors += 2;
        self.vector = format!("recv {}", text(&recv["name"]));
        let bytes = hex(&recv["hex"]);
        let sges = list(recv, "sge");
        for (sge, segment) in sges.iter().zip(bytes.chunks(16)) {
            self.data(sge, segment);
        }
        if let Some(end) = bytes.chunks(16).nth(sges.len()) {
            self.expect("data_segment", end, &[("byte_count", 0), ("lkey", 0x100)]);
        }
        let record = hex(&recv["doorbell_record"]["hex"]);
        let after = (number(&recv["wqe_index"]) + 1) & 0xffff;
        self.expect("qp_doorbell_record", &record, &[("receive_counter", after)]);
    }

    fn arm(&mut self, arm: &Value) {
        self.checked.vectors += 2;
        self.vector = format!("arm_cq {}", text(&arm["name"]));
        let common = [
            ("arm_sn", number(&arm["arm_sn"])),
            ("arm_solicited_only", u64::from(text(&arm["name"]).contains("solicited"))),
            ("arm_consumer_index", number(&arm["consumer_index"]) & 0xff_ffff),
        ];
        let mut record = vec![0; 4];
        record.extend(hex(&arm["doorbell_record"]["hex"]));
        self.expect("cq_doorbell_record", &record, &common);
        for uar in list(arm, "uar") {
            let bytes = hex(&uar["hex"]);
            self.expect("cq_arm_doorbell", &bytes, &common);
            self.expect("cq_arm_doorbell", &bytes, &[("cqn", number(&arm["cqn"]))]);
            let mut page = vec![0; 4096];
            let at = number(&uar["page_offset"]) as usize;
            if let Some(bytes_of_page) = page.get_mut(at..at + bytes.len()) {
                bytes_of_page.copy_from_slice(&bytes);
            }
            let path = "cq_arm.cqn";
            let found = self.runtime.structure("uar_page").map(|info| View::new(info, &page));
            match found.and_then(|view| view.get(path)) {
                Some(cqn) if cqn == number(&arm["cqn"]) => {
                    self.checked.confirmed.insert(("uar_page", "cq_arm"));
                }
                _ => self.wrong("[uar_page] cq_arm is not where libmlx5 writes".to_owned()),
            }
        }
    }

    fn cqe(&mut self, cqe: &Value) {
        self.checked.vectors += 2;
        let (name, wc) = (text(&cqe["name"]), &cqe["wc"]);
        self.vector = format!("cqe {name} ({})", text(&cqe["api"]));
        let bytes = hex(&cqe["cqe_hex"]);
        let owner = u64::from(number(&cqe["cqe_index"]) & number(&cqe["cq_cqe_cnt"]) != 0);
        let (qpn, counter) = (number(&wc["qp_num"]), number(&wc["wr_id"]) & 0xff);
        let structure = match name {
            _ if name.contains("_err") => "cqe_error",
            _ if name.contains("inline_scatter_32") => "cqe_inline_32",
            _ => "cqe",
        };
        let opcode = match name {
            _ if name.starts_with("req_err") => "REQUESTER_ERROR",
            _ if name.starts_with("resp_err") => "RESPONDER_ERROR",
            "resp_send_inv" => "RESPONDER_SEND_INVALIDATE",
            _ if name.starts_with("resp_send") => "RESPONDER_SEND",
            _ => "REQUESTER",
        };
        let mut fields = vec![
            ("opcode", self.named(structure, "opcode", opcode)),
            ("owner", owner),
            ("qpn", qpn),
        ];
        if structure == "cqe_error" {
            fields.push(("vendor_err_synd", number(&wc["vendor_err"])));
            let syndrome = match name.strip_prefix("req_err_syndrome_0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap_or(0),
                None => self.named(structure, "syndrome", "FLUSHED"),
            };
            fields.push(("syndrome", syndrome));
        } else {
            fields.push(("byte_cnt", number(&wc["byte_len"])));
            if opcode == "REQUESTER" {
                let opcode = match name.trim_start_matches("req_") {
                    "RDMA_WRITE" => "WRITE",
                    "RDMA_READ" => "READ",
                    "RDMA_WRITE_WITH_IMM" => "WRITE_IMM",
                    "SEND_WITH_IMM" => "SEND_IMM",
                    "SEND_WITH_INV" => "SEND_INVALIDATE",
                    same => same,
                };
                fields.push(("wqe_opcode", self.named(structure, "wqe_opcode", opcode)));
            }
        }
        if name == "resp_send_inv" {
            // The API gives the key in the host's order.
            let key = u32::from_str_radix(text(&wc["imm_data_be_hex"]), 16).unwrap_or(0);
            fields.push(("imm_inval_pkey", u64::from(key.swap_bytes())));
        }
        if structure == "cqe_inline_32" {
            fields.push(("format", self.named(structure, "format", "INLINE_32")));
        }
        if structure == "cqe" && opcode != "REQUESTER" {
            fields.push(("rqpn", wc.get("src_qp").map_or(0x99, number)));
        }
        // The low byte of wr_id counts the posted WQEs.
        if opcode != "RESPONDER_ERROR" && opcode != "REQUESTER_ERROR" {
            fields.push(("wqe_counter", counter));
        }
        self.expect(structure, &bytes, &fields);
        let mut record = hex(&cqe["consumer_doorbell_record"]["hex"]);
        record.extend([0; 4]);
        let after = (number(&cqe["cqe_index"]) + 1) & 0xff_ffff;
        self.expect("cq_doorbell_record", &record, &[("consumer_index", after)]);
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// A JSON number, or a hexadecimal number in a string.
fn number(value: &Value) -> u64 {
    match value {
        Value::String(text) => {
            u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).unwrap_or(0)
        }
        other => other.as_u64().unwrap_or(0),
    }
}

fn hex(value: &Value) -> Vec<u8> {
    match text(value) {
        "" => Vec::new(),
        digits => verbless_prm::dump::parse_hex(digits).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::load_sound;
    use super::super::repository::root;
    use super::*;

    #[test]
    fn golden_vectors_match_requests() {
        let runtime = Runtime::new(&load_sound(&root()).unwrap());
        let checked = check(&runtime, &read(&root()).unwrap());
        assert_eq!(checked.problems, Vec::<String>::new());
        assert_eq!((checked.vectors, checked.comparisons), (423, 3213), "all vectors of the file");
        assert_eq!(checked.confirmed.len(), 45, "{:?}", checked.confirmed);
        for confirmed in [("ctrl_segment", "ds"), ("uar_page", "cq_arm"), ("cqe", "byte_cnt")] {
            assert!(checked.confirmed.contains(&confirmed), "{confirmed:?}");
        }
        let zero = ("ctrl_segment", "opmod");
        assert!(!checked.confirmed.contains(&zero), "a field that is always 0 proves nothing");
    }

    #[test]
    fn wrong_golden_digit_names_its_field() {
        let runtime = Runtime::new(&load_sound(&root()).unwrap());
        let golden = read(&root()).unwrap();
        // (vector; path of its hexadecimal text; digit to change; expected problem)
        for (vector, path, digit, says) in [
            ("/post/0", "/wqes/0/hex", 7, "[ctrl_segment] opcode is 0xf, not 0x8"),
            ("/post/0", "/wqes/0/hex", 5, "[ctrl_segment] wqe_index is 0x7, not 0x0"),
            ("/post/0", "/wqes/0/hex", 13, "[ctrl_segment] qpn is "),
            ("/post/3", "/wqes/0/hex", 22, "[ctrl_segment] fm is "),
            ("/post/4", "/wqes/0/hex", 31, "[ctrl_segment] imm is "),
            ("/post/8", "/wqes/0/hex", 31, "[ctrl_segment] imm is "),
            ("/post/0", "/wqes/0/hex", 47, "[raddr_segment] raddr is "),
            ("/post/12", "/wqes/0/hex", 79, "[atomic_segment] swap_add is "),
            ("/post/12", "/wqes/0/hex", 95, "[atomic_segment] compare is "),
            ("/post/12", "/wqes/0/hex", 103, "[data_segment] byte_count is "),
            ("/post/13", "/wqes/0/hex", 79, "[atomic_segment] swap_add is "),
            ("/post/0", "/wqes/0/hex", 71, "[inline_header] byte_count is 0xf, not 0x8"),
            ("/post/0", "/wqes/0/hex", 73, "the inline data differs from the request"),
            ("/post/5", "/wqes/0/hex", 127, "[data_segment] addr is "),
            ("/post/0", "/doorbell_record/hex", 7, "[qp_doorbell_record] send_counter is "),
            ("/recv/1", "/hex", 7, "[data_segment] byte_count is "),
            ("/recv/0", "/hex", 15, "[data_segment] lkey is "),
            ("/recv/0", "/doorbell_record/hex", 7, "[qp_doorbell_record] receive_counter is "),
            ("/arm_cq/0", "/doorbell_record/hex", 7, "[cq_doorbell_record] arm_consumer_index is"),
            ("/arm_cq/1", "/uar/0/hex", 1, "[cq_arm_doorbell] arm_solicited_only is "),
            ("/arm_cq/0", "/uar/0/hex", 15, "[cq_arm_doorbell] cqn is "),
            ("/arm_cq/0", "/uar/0/hex", 15, "[uar_page] cq_arm is not where"),
            ("/arm_cq/0", "/uar/0/page_offset", 4, "[uar_page] cq_arm is not where"),
            ("/cqe/0", "/cqe_hex", 119, "[cqe] qpn is "),
            ("/cqe/0", "/cqe_hex", 126, "[cqe] opcode is "),
            ("/cqe/0", "/cqe_hex", 127, "[cqe] owner is "),
            ("/cqe/0", "/cqe_hex", 95, "[cqe] byte_cnt is "),
            ("/cqe/0", "/cqe_hex", 113, "[cqe] wqe_opcode is "),
            ("/cqe/0", "/cqe_hex", 123, "[cqe] wqe_counter is "),
            ("/cqe/6", "/cqe_hex", 111, "[cqe_error] syndrome is "),
            ("/cqe/6", "/cqe_hex", 109, "[cqe_error] vendor_err_synd is "),
            ("/cqe/18", "/cqe_hex", 111, "[cqe_error] syndrome is "),
            ("/cqe/16", "/cqe_hex", 55, "[cqe] rqpn is "),
            ("/cqe/17", "/cqe_hex", 127, "[cqe_inline_32] owner is "),
            ("/cqe/17", "/cqe_hex", 127, "[cqe_inline_32] format is "),
            ("/cqe/31", "/cqe_hex", 79, "[cqe] imm_inval_pkey is "),
            ("/cqe/0", "/consumer_doorbell_record/hex", 7, "[cq_doorbell_record] consumer_index"),
        ] {
            let mut golden = golden.clone();
            let digits = golden.pointer_mut(&format!("{vector}{path}")).expect(path);
            let mut text = text(digits).to_owned();
            let right = u8::from_str_radix(&text[digit..=digit], 16).unwrap();
            text.replace_range(digit..=digit, &format!("{:x}", right ^ 7));
            *digits = text.into();
            let problems = check(&runtime, &golden).problems;
            let found = problems.iter().any(|problem| problem.contains(says));
            assert!(found, "{vector}{path}, digit {digit}: {says} is not in {problems:?}");
        }
        let index = golden["post"].as_array().unwrap().iter().position(|post| {
            post["uar"].as_array().unwrap().iter().any(|uar| uar["kind"] == "doorbell")
        });
        let (mut golden, index) = (golden, index.unwrap());
        golden["post"][index]["uar"][0]["hex"] = "0000000000000000".into();
        let problems = check(&runtime, &golden).problems;
        for field in ["opcode", "qpn", "ds"] {
            let says = format!("[send_doorbell] {field} is 0x0, not ");
            assert!(problems.iter().any(|problem| problem.contains(&says)), "{problems:?}");
        }
    }

    #[test]
    fn golden_numbers_are_json_or_hex() {
        let value = serde_json::json!({ "a": 17, "b": "0x1f", "c": "1f", "d": "", "e": [1] });
        let numbers = ["a", "b", "c", "d"].map(|key| number(&value[key]));
        assert_eq!(numbers, [17, 0x1f, 0x1f, 0]);
        assert_eq!(hex(&value["c"]), [0x1f]);
        assert_eq!(hex(&value["d"]), Vec::<u8>::new());
        assert_eq!((list(&value, "e").len(), list(&value, "f").len()), (1, 0));
    }
}
