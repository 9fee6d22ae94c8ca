//! Explains log lines: mlx5_core's failed commands, timeouts, events, health report, firmware start
//! and PCIe slot; UCX's statuses; failed completions of NCCL, perftest, SPDK, UCX, DPDK and kernel
//! modules.

use self::scan::{after, bare_hex, number};
use super::entry::wc_status;
use super::known::Known;

mod event;
mod firmware;
mod queue;
mod scan;
mod ucx;

/// Explains a line in lines; `None` if the line is unknown.
pub(super) fn explain(known: &Known<'_>, line: &str) -> Option<String> {
    let lines = failed_command(known, line)
        .or_else(|| timeout(known, line))
        .or_else(|| cq_error(known, line))
        .or_else(|| event::explain(line))
        .or_else(|| firmware::explain(line))
        .or_else(|| health(known, line))
        .or_else(|| queue::explain(known, line))
        .or_else(|| ucx_wqe(line))
        .or_else(|| failed_devx(known, line))
        .or_else(|| failed_completion(known, line))
        .or_else(|| errno(known, line))
        .or_else(|| ucx::explain(line))?;
    Some(lines.iter().map(|line| format!("  {line}\n")).collect())
}

/// The name and opcode of a command that mlx5_core prints as `CREATE_CQ(0x400)`.
fn command(line: &str) -> Option<(&str, u16)> {
    let mut from = 0;
    while let Some(at) = line[from..].find("(0x") {
        let open = from + at;
        let found = number(&line[open..]).filter(|found| found.rest.starts_with(')'));
        let start = line[..open]
            .rfind(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
            .map_or(0, |at| at + 1);
        let name = &line[start..open];
        if let Some(found) = found
            && name.len() > 2
            && let Ok(opcode) = u16::try_from(found.value)
        {
            return Some((name, opcode));
        }
        from = open + 1;
    }
    None
}

fn named_command(known: &Known<'_>, (name, opcode): (&str, u16)) -> String {
    match known.runtime.command(opcode) {
        Some(command) if command.name == name => format!("command {name} ({opcode:#x})"),
        Some(command) => {
            format!("command {name} ({opcode:#x}), {} in prm/", command.name)
        }
        None => format!("command {name} ({opcode:#x}), which prm/ does not describe"),
    }
}

/// `CREATE_MKEY(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x35e6ec)`.
fn failed_command(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let failed = line.find("failed, status ")?;
    let command = command(&line[..failed])?;
    let words = &line[failed + "failed, status ".len()..];
    let status = number(&words[words.find("(0x").or(words.find('('))?..])?;
    let mut lines = vec![named_command(known, command) + " failed"];
    if let Some(op_mod) = after(line, &["op_mod"]).filter(|it| it.value != 0) {
        lines[0] += &format!(", op_mod {:#x}", op_mod.value);
    }
    lines.push(known.code("command status", status.value));
    let rule = known.rule(command.1, status.value);
    lines.extend(rule.map(|why| format!("of this command: {why}")));
    if let Some(syndrome) = after(status.rest, &["syndrome", "syndrom"]) {
        lines.push(known.firmware_syndrome(syndrome.value as u32));
    }
    if let Some(errno) = after(status.rest, &["err"]) {
        lines.push(known.code_name("errno", errno.value));
    }
    Some(lines)
}

/// Commands that the firmware did not answer, or not in time.
fn timeout(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    const LATE: &str = "The firmware completed it, but no interrupt came: the driver found the \
                        entry done when it polled.";
    const LOST: &str = "The firmware did not answer in time. The driver gives the entry up; if \
                        more follow, the firmware hangs: look for a health report before it.";
    let what = [
        ("recovered after timeout", LATE),
        ("no done completion", LOST),
        ("will cause a leak of a command resource", LOST),
        ("canceled on out of queue timeout", "It was not sent: no queue slot became free."),
        ("timed out while waiting for a slot", "It was not sent: no queue slot became free."),
        ("timeout while waiting for command semaphore", "It was not sent: no slot became free."),
        ("command completion arrived after timeout", "The firmware answered too late."),
    ];
    let lower = line.to_ascii_lowercase();
    let (_, meaning) = what.iter().find(|(words, _)| lower.contains(words))?;
    let mut lines = vec![match command(line) {
        Some(command) => named_command(known, command),
        None => "a command".to_owned(),
    }];
    if let Some(slot) = after(line, &["cmd[", "entry idx"]) {
        lines[0] += &format!(" in slot {}", slot.value);
    }
    lines.push((*meaning).to_owned());
    Some(lines)
}

/// `CQ error on CQN 0x41f, syndrome 0x1`: this syndrome has its own enum.
fn cq_error(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let rest = &line[line.find("CQ error on CQN")? + "CQ error on CQN".len()..];
    let cqn = number(rest)?;
    let syndrome = after(cqn.rest, &["syndrome", "syndrom"])?;
    Some(vec![
        format!("event: an error of CQ {:#x}; its queues get no more completions", cqn.value),
        known.code("syndrome of a CQ error event", syndrome.value),
    ])
}

/// The health report of mlx5_core.
fn health(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let lower = line.to_ascii_lowercase();
    // devlink health shows the buffer without the driver's name.
    let of_buffer = ["fw_ver ", "hw_id ", "irisc_index ", "ext_synd ", "raw fw_ver "];
    let is_core = ["mlx5", "health", "assert"].iter().any(|word| line.contains(word))
        || of_buffer.iter().any(|label| line.starts_with(label))
        || health_words(known, &lower);
    let one = |text: String| Some(vec![text]);
    if let Some(at) = line.find("assert_var[") {
        let index = number(&line[at + "assert_var[".len()..])?;
        let value = number(index.rest.strip_prefix(']')?)?;
        return one(format!(
            "health buffer: variable {} of the firmware's assertion is {:#010x}",
            index.value, value.value
        ));
    }
    for (label, meaning) in [
        ("assert_exit_ptr", "firmware address of the assertion's exit"),
        ("assert_callra", "firmware address of the assertion's caller"),
        ("ext_synd", "extended syndrome, which only the vendor can decode"),
        ("hw_id", "hardware identifier"),
        ("irisc_index", "firmware processor that failed"),
        ("raw fw_ver", "firmware version"),
    ] {
        if let Some(found) = after(line, &[label]).filter(|_| is_core) {
            return one(format!("health buffer: {label} {:#x}, {meaning}", found.value));
        }
    }
    if let Some(rfr) = after(line, &["rfr"]).filter(|_| is_core && lower.contains("health")) {
        let what = if rfr.value == 0 { "asks for no reset" } else { "asks for a reset" };
        return one(format!("health buffer: the firmware {what}"));
    }
    if is_core && lower.contains("synd 0x") && !lower.contains("vend") {
        let synd = after(line, &["synd"])?;
        return one(known.code("health syndrome", synd.value));
    }
    if let Some(severity) = after(line, &["severity"]).filter(|_| is_core) {
        let mut lines = vec![known.severity(severity.value)];
        let table = known.table("health syndrome");
        let mut values = table.iter().flat_map(|it| it.codes);
        let says = |it: &&str| lower.contains(&it.to_ascii_lowercase());
        if let Some(value) = values.find(|value| value.texts.iter().any(says)) {
            lines.insert(0, known.code("health syndrome", value.value));
        }
        return Some(lines);
    }
    if let Some((before, version)) = line.split_once("fw_ver ").filter(|_| is_core)
        && (before.is_empty() || before.ends_with(' '))
    {
        let version = version.trim();
        return one(format!("health buffer: firmware {version}"));
    }
    if lower.contains("health compromised - reached miss count") {
        let text = "The health counter does not advance: the firmware or the PCIe link hangs.";
        return one(text.to_owned());
    }
    let sensor = after(line, &["fatal error"]).filter(|it| it.rest.contains("detected"))?;
    let what = match sensor.value {
        1 => "PCIe reads return ones: the device is off the bus",
        2 => "the PCIe channel is offline",
        3 => "the device's interface is disabled",
        4 => "a software reset is in progress",
        5 => "the firmware reports a syndrome and asks for a reset",
        _ => "not a sensor of Linux 6.12",
    };
    one(format!("fatal sensor {} of mlx5_core: {what}", sensor.value))
}

/// Whether a line is a health syndrome with its words: `synd 0x8: unrecoverable hardware error`.
fn health_words(known: &Known<'_>, lower: &str) -> bool {
    let Some(synd) = lower.strip_prefix("synd ").and_then(number) else { return false };
    let value = known.table("health syndrome").and_then(|it| it.get(synd.value));
    value.is_some_and(|it| {
        it.code.texts.iter().any(|text| lower.contains(&text.to_ascii_lowercase()))
    })
}

/// UCX's second line for a failed completion: `RC QP 0x1ca1 wqe[6]: RDMA_READ s-- [rva … rkey …]
/// [va … len … lkey …] [rqpn …]`.
fn ucx_wqe(line: &str) -> Option<Vec<String>> {
    let at = line.find(" QP 0x")?;
    let service = line[..at].rsplit([' ', ':']).next()?;
    let qp = number(&line[at + " QP".len()..])?;
    let index = number(qp.rest.strip_prefix(" wqe[")?)?;
    let rest = index.rest.strip_prefix("]:")?.trim();
    let (operation, details) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
    let mut words = operation.split_whitespace();
    let name = words.next().unwrap_or("unknown");
    let mut lines =
        vec![format!("{service} queue pair {:#x}, WQE {}: {name}", qp.value, index.value)];
    if name == "next_wqe" {
        let (qp, index, operation) = (qp.value, index.value, operation.trim());
        lines[0] = format!("receive WQE {index} of the SRQ of queue {qp:#x}: {operation}");
    }
    if let Some(flags) = words.next().filter(|flags| flags.len() == 3) {
        let names = ["signalled", "fenced", "solicited"];
        let set = flags.chars().zip(names).filter(|(flag, _)| *flag != '-').map(|(_, name)| name);
        let set: Vec<&str> = set.collect();
        if !set.is_empty() {
            lines[0] += &format!(" ({})", set.join(", "));
        }
    }
    for part in details.split(['[', ']']).map(str::trim).filter(|part| !part.is_empty()) {
        let what = match part.split_whitespace().next().unwrap_or_default() {
            "rva" => "remote address and key",
            "va" => "local memory",
            "inl" => "inline data",
            "rqpn" | "dlid" | "rlid" => "peer",
            "add" | "fadd" | "cmp" | "compare" => "operands",
            "byte_count" | "seg" => "receive segment",
            _ => "and",
        };
        lines.push(format!("{what}: {part}"));
    }
    Some(lines)
}

/// A failed DevX command of DPDK or UCX: `DevX create CQ failed errno=121 status=0x3
/// syndrome=0x5a82ae`, `mlx5dv_devx_obj_create(QP) failed, syndrome 0x46a02`.
fn failed_devx(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let lower = line.to_ascii_lowercase();
    let syndrome =
        after(line, &["syndrome"]).filter(|it| it.value > 0xff || lower.contains("devx"));
    let syndrome = syndrome.filter(|_| lower.contains("fail") || lower.contains("devx"))?;
    let errno = after(line, &["errno", "err"]).map(|it| it.value);
    let errno = errno.or_else(|| errno_in_words(known, syndrome.rest));
    // Lines of mlx5_core have the kernel's own commands.
    let is_core = ["mlx5_cmd_check", "mlx5_core", "op_mod("].iter().any(|it| lower.contains(it));
    let is_devx = !is_core && (lower.contains("devx") || errno == Some(EREMOTEIO));
    let through = if is_devx { " through DevX" } else { "" };
    let mut lines = vec![format!("a command{through} failed")];
    let status = after(line, &["status"]);
    if let Some(status) = status {
        lines.push(known.code("command status", status.value));
    }
    match errno {
        Some(errno) if syndrome.value == 0 && status.is_none() && errno != EREMOTEIO => {
            lines.push(no_outbox(errno).to_owned());
        }
        _ => lines.push(known.firmware_syndrome(syndrome.value as u32)),
    }
    lines.extend(errno.map(|errno| known.code("errno", errno)));
    Some(lines)
}

const EREMOTEIO: u64 = 121;

/// The meaning of syndrome 0 with an errno other than EREMOTEIO. The kernel copies the outbox of a
/// failed command to the caller only with EREMOTEIO.
fn no_outbox(errno: u64) -> &'static str {
    match errno {
        110 | 125 => {
            "the command got no answer: the outbox was never written, so its syndrome 0 means \
             nothing; look for command timeouts in the kernel log"
        }
        _ => {
            "the kernel copied no outbox, so its syndrome 0 means nothing: the kernel refused the \
             call, or kept the answer; look for the command in the kernel log"
        }
    }
}

/// An errno by its strerror words, at the end of a line or before its number.
fn errno_in_words(known: &Known<'_>, text: &str) -> Option<u64> {
    let text = text.trim_end_matches(|c: char| !c.is_alphabetic());
    let ends = |says: &&str| {
        text.strip_suffix(*says).is_some_and(|rest| rest.is_empty() || rest.ends_with(' '))
    };
    let mut values = known.table("errno")?.codes.iter();
    values.find(|value| value.texts.iter().any(ends)).map(|value| value.value)
}

/// A completion with an error: its CQE syndrome, its `ibv_wc_status`, its vendor syndrome.
fn failed_completion(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let lower = line.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let vendor = after(
        line,
        &[
            "vendor syndrome",
            "vendor_err_synd",
            "vendor err",
            "vendor_err",
            "vendor error",
            "vend_err",
            "vend",
            "vendor code",
            "vendor",
        ],
    )
    .or_else(|| bare_hex(&lower, "vend_err "));
    // perftest calls the vendor syndrome "syndrom".
    let is_perftest = has(&["failed status"]) && has(&["wr_id"]);
    let others = lower.replace("vendor syndrome", "vendor");
    let syndrome =
        after(&others, &["cqe error syndrome", "cqe err", "synd", "syndrome", "syndrom"]);
    let (syndrome, vendor) =
        if is_perftest { (None, vendor.or(syndrome)) } else { (syndrome, vendor) };
    let about_work = has(&[
        "completion",
        "cq ",
        "cqe",
        "wc ",
        "wc:",
        "wc->",
        "wr_id",
        "wrid",
        "ibv_wc",
        "work request",
        "mlx5",
        "rdma",
        "ib_",
        "iser",
        "nvme",
        "srp",
    ]);
    let is_about = about_work || vendor.is_some();
    // Any program may print some words of ibv_wc_status.
    let is_own = |says: &str| {
        let own = ["retry counter", "protection error", "flushed", "qp operation", "remote "];
        is_about || own.iter().any(|own| says.contains(own))
    };
    let statuses = known.table("ibv_wc_status");
    let words = statuses.iter().flat_map(|table| table.codes).find(|value| {
        let mut says = value.texts.iter().map(|text| text.to_ascii_lowercase());
        let name = format!("ibv_wc_{}", value.name.to_ascii_lowercase());
        let mut names = lower.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        value.value != 0
            && (says.any(|says| says.len() > 8 && lower.contains(&says) && is_own(&says))
                || names.any(|it| it == name))
    });
    let label = ["status number", "failed status", "status", "wc error", "with error", "error"];
    let status = after(line, &label)
        .filter(|found| !found.is_negative && found.value < 24 && is_about)
        .map(|found| found.value)
        .or(words.map(|value| value.value));
    let mut lines = Vec::new();
    if let Some(syndrome) = syndrome.filter(|it| it.value <= 0xff && is_about) {
        lines.push(known.code("CQE syndrome", syndrome.value));
        lines.push(known.code_name("ibv_wc_status", wc_status(syndrome.value as u8)));
    } else if let Some(status) = status.filter(|&it| it != 0) {
        lines.push(known.code("ibv_wc_status", status));
    }
    if let Some(vendor) = vendor.filter(|_| !lines.is_empty()) {
        lines.push(known.vendor_syndrome(vendor.value));
        lines.extend(queue::hardware_syndrome(line));
        if has(&["opcode="]) && has(&["len="]) {
            let valid = "opcode and len of a failed completion mean nothing: only wr_id, status, \
                         qp_num and vendor_err are valid";
            lines.push(valid.to_owned());
        }
    }
    for (label, what) in [
        ("cqn", "CQ"),
        ("sqn", "SQ"),
        ("rqn", "RQ"),
        ("qpn", "queue"),
        ("qn", "queue"),
        ("wqe_counter", "WQE counter"),
        ("qp_num", "queue"),
        ("wqe_cnt", "WQE counter"),
    ] {
        if let Some(found) = after(line, &[label]) {
            lines.push(format!("{what} {:#x} ({})", found.value, found.value));
        }
    }
    let side = [("requestor error cqe", "send"), ("responder error cqe", "receive")];
    if let Some((_, side)) = side.iter().find(|(words, _)| lower.contains(words)) {
        lines.insert(0, format!("an error CQE of the {side} side"));
    } else if lines.iter().all(|line| line.ends_with(')') && !line.contains("syndrome")) {
        // A line with only queue numbers is not a failure.
        return None;
    }
    Some(lines)
}

/// A failed verb or ioctl, by the number or the words of its errno.
fn errno(known: &Known<'_>, line: &str) -> Option<Vec<String>> {
    let lower = line.to_ascii_lowercase();
    let has = |marks: &[&str]| marks.iter().any(|mark| lower.contains(mark));
    let errno = match after(line, &["errno"]) {
        Some(errno) => errno.value,
        // In UCX's verbs files the words are strerror's; elsewhere in UCX they are its statuses.
        None if has(&["fail", "error", "<warn>"]) => {
            let is_verb = has(&["ibv_", "mlx5dv", "rdma_create", "devx", "ib_iface", "ib_mlx5"]);
            errno_in_words(known, line).filter(|_| is_verb)?
        }
        None => return None,
    };
    let known_errno = known.table("errno")?.get(errno)?;
    let marks = ["ibv_", "mlx5", "rdma", "uverbs", "devx", "verbs", "ib_iface"];
    has(&marks).then(|| vec![known_errno.line()])
}
