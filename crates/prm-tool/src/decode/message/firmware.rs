//! Lines about the device's start and its PCIe slot: waits for the firmware, power, bandwidth, and
//! link errors (AER, DPC) with mlx5_core's recovery.

use super::scan::{after, number};

/// Explains such a line with a remedy; `None` for any other line.
pub(super) fn explain(line: &str) -> Option<Vec<String>> {
    waiting(line)
        .or_else(|| power(line))
        .or_else(|| bandwidth(line))
        .or_else(|| containment(line))
        .or_else(|| bus_error(line))
        .or_else(|| recovery(line))
}

/// `Waiting for FW initialization, timeout abort in 100s (0x80000000)`, `Firmware over 120000 MS in
/// pre-initializing state, aborting` (mlx5_core's `wait_fw_init`).
fn waiting(line: &str) -> Option<Vec<String>> {
    const DO: &str = "if it never ends: power the machine off and on (a reboot leaves the card \
                      powered), then read the firmware's version with flint and burn it again";
    let what = |state: &str| match state.starts_with("pre-init") {
        true => "the firmware loads itself from flash (pre-initializing)",
        false => "the firmware is loaded and sets itself up (initializing)",
    };
    if let Some((_, rest)) = line.split_once("Waiting for FW ") {
        let (_, abort) = rest.split_once("timeout abort in ")?;
        let mut lines = vec![format!("{}; the driver waits", what(rest))];
        lines.push(format!("it gives up in {} s; {DO}", leading(abort)?));
        if let Some(word) = abort.split_once('(').and_then(|(_, rest)| number(rest)) {
            let is = if word.value >> 31 & 1 == 1 { "is set" } else { "is clear" };
            lines.push(format!("initializing word {:#x}: bit 31, initializing, {is}", word.value));
        }
        return Some(lines);
    }
    if let Some(over) = after(line, &["firmware over"]) {
        let (_, state) = over.rest.split_once(" in ")?;
        return Some(vec![
            format!("{}, and was not done in {} ms", what(state), over.value),
            format!("the driver gives the device up, with errno 110, ETIMEDOUT; {DO}"),
        ]);
    }
    if line.contains("stop waiting for FW") {
        let text = "the device was removed or shut down while its firmware started";
        return Some(vec![text.to_owned()]);
    }
    let steps = ["mlx5_function_setup", "mlx5_init_one", "probe_one", "mlx5_core: probe of "];
    let failed = steps.iter().any(|it| line.contains(it)) && line.contains("fail");
    let code = failed.then(|| after(line, &["error code", "with error", "err"])).flatten()?;
    let name = match code.value {
        12 => "ENOMEM: no memory for the driver",
        16 => "EBUSY: the firmware did not start in time (older kernels)",
        110 => "ETIMEDOUT: the firmware did not start in time, or did not answer a command",
        5 => "EIO: the device or its firmware failed",
        _ => "see errno(3)",
    };
    Some(vec![
        "mlx5_core gives the device up".to_owned(),
        format!("errno {}, {name}; the cause is in the lines before it", code.value),
    ])
}

/// Power of the slot, as the firmware reports it (register MPEIN).
fn power(line: &str) -> Option<Vec<String>> {
    if line.contains("PCIe slot power capability was not advertised") {
        return Some(vec![
            "the slot does not advertise its power (Slot Power Limit)".to_owned(),
            "the card uses its firmware's default; if ports stay down, look for BIOS settings of \
             the slot"
                .to_owned(),
        ]);
    }
    if line.contains("Detected insufficient power on the PCIe slot") {
        let watts = line.split_once("slot (").and_then(|(_, rest)| leading(rest));
        let gives = watts.map(|it| format!("the slot gives {it} W, less than the card asks for"));
        return Some(vec![
            gives.unwrap_or_else(|| "the slot gives less power than the card asks for".to_owned()),
            "ports may be powered down and links unstable: use a slot that gives 75 W, connect \
             the auxiliary cable of the card, or change the limit in the BIOS"
                .to_owned(),
        ]);
    }
    if line.contains("PCIe slot advertised sufficient power") {
        return Some(vec!["the slot gives enough power: no error".to_owned()]);
    }
    if line.contains("powered down due to insufficient/unadvertised power") {
        return Some(vec![
            "a port is down: the slot gives too little power, or does not advertise its power"
                .to_owned(),
        ]);
    }
    None
}

/// The number at the start of a text; any text may follow.
fn leading(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// `63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:00:02.0 (capable
/// of 126.024 Gb/s with 8.0 GT/s PCIe x16 link)` (`__pcie_print_link_status` of Linux).
fn bandwidth(line: &str) -> Option<Vec<String>> {
    let (before, rest) = line.split_once(" available PCIe bandwidth")?;
    let rate = before.split_whitespace().rev().nth(1)?;
    rate.starts_with(|c: char| c.is_ascii_digit()).then_some(())?;
    let Some((_, limit)) = rest.split_once("limited by ") else {
        let text = "the link runs as fast as the card can: no error";
        return Some(vec![format!("PCIe bandwidth {rate} Gb/s: {text}")]);
    };
    let (by, rest) = limit.split_once(" at ")?;
    let slot = rest.split_whitespace().next()?;
    let mut lines =
        vec![format!("PCIe bandwidth {rate} Gb/s, less than the card can: {by} at {slot}")];
    if let Some((_, of)) = rest.split_once("(capable of ") {
        let of = of.split(')').next().unwrap_or(of);
        lines.push(format!("the card can do {of}"));
    }
    lines.push(
        "put the card into a slot with more lanes or a newer generation, or seat it again; in a \
         virtual machine the number may mean nothing"
            .to_owned(),
    );
    Some(lines)
}

/// Downstream port containment: `pcieport 0000:80:01.1: DPC: containment event, status:0x1f01
/// source:0x0000`.
fn containment(line: &str) -> Option<Vec<String>> {
    let (before, rest) = line.split_once("DPC: ")?;
    let port = before.trim().trim_end_matches(':').rsplit(' ').next().unwrap_or_default();
    if rest.starts_with("containment event") {
        let status = after(rest, &["status"]).map(|it| it.value);
        // Bits 2:1 of the DPC Status register.
        let why = match status.map(|it| it >> 1 & 3) {
            Some(0) => "an uncorrectable error that the port itself saw",
            Some(1) => "an ERR_NONFATAL message from below it",
            Some(2) => "an ERR_FATAL message from below it",
            Some(_) => "a reason of its own (RP PIO, or software)",
            None => "an error",
        };
        return Some(vec![
            format!("port {port} has cut the link below it, because of {why}"),
            "every device below the port is off the bus until it recovers: mlx5 reads return \
             ones, and commands time out; look for the first AER line before it"
                .to_owned(),
        ]);
    }
    let what = match () {
        () if rest.contains("unmasked uncorrectable error") => "saw an uncorrectable error",
        () if rest.contains("recovery successful") || rest.contains("recovered") => {
            "restored its link: the devices below it were reset"
        }
        () if rest.contains("recovery failed") => "could not restore its link: power cycle",
        () if rest.contains("RP PIO") => "saw a failed request of the processor",
        () => return None,
    };
    Some(vec![format!("port {port} {what}")])
}

/// Errors of the AER capability in lines with mlx5_core, NVIDIA's vendor id or `pcieport`.
fn bus_error(line: &str) -> Option<Vec<String>> {
    let is_ours = line.contains("mlx5_core") || line.contains("[15b3:");
    let port = line.contains("pcieport") && line.contains("AER:");
    if !is_ours && !port {
        return None;
    }
    const FIX: &str = "seat the card again, try another slot or riser, and look at the link with \
                       lspci -vv (LnkSta)";
    if let Some((_, rest)) = line.split_once("PCIe Bus Error: severity=") {
        let severity = rest.split([',', ';']).next()?.trim();
        let layer = rest.split_once("type=").map(|(_, it)| it.split(',').next().unwrap_or(it));
        let lower = severity.to_ascii_lowercase();
        let meaning = match () {
            () if lower.starts_with("correct") => {
                "the link corrected it; a few are harmless, many slow it down"
            }
            () if lower.contains("non-fatal") => {
                "one transaction failed, and the link works: commands or DMA may be lost"
            }
            () => "the link is reset, and the device with it",
        };
        let layer = layer.map(|it| format!(", {}", it.trim())).unwrap_or_default();
        return Some(vec![
            format!("PCIe error, {severity}{layer}: {meaning}"),
            format!("to fix it: {FIX}"),
        ]);
    }
    if line.contains("error status/mask=") {
        return Some(vec!["registers of the AER capability; the bits have names below".to_owned()]);
    }
    if line.contains("AER: ") && line.contains("error") && line.contains("received") {
        return Some(vec!["a port received an error message from the device that it names".into()]);
    }
    if line.contains("can't recover (no error_detected callback)") {
        let text = "the driver of a device below cannot recover: load it again, or reboot";
        return Some(vec![text.to_owned()]);
    }
    for (words, meaning) in [
        ("AER: device recovery successful", "the device was reset and works again"),
        ("AER: device recovery failed", "the device could not be reset: power cycle"),
    ] {
        if line.contains(words) {
            return Some(vec![meaning.to_owned()]);
        }
    }
    let (_, bit) = line.rsplit_once('[')?;
    let (bit, name) = bit.split_once(']')?;
    bit.trim().parse::<u8>().ok().filter(|bit| *bit < 32)?;
    let name = name.split_whitespace().next()?;
    let (_, meaning) = BITS.iter().find(|(bit, _)| *bit == name)?;
    Some(vec![format!("AER {name}: {meaning}")])
}

/// Bits of the AER status registers by their Linux names (`aer_*_error_string`).
const BITS: &[(&str, &str)] = &[
    ("RxErr", "the receiver saw a bad symbol: signal quality"),
    ("BadTLP", "a packet failed its link CRC and was sent again: signal quality"),
    ("BadDLLP", "an acknowledgement of the link was bad: signal quality"),
    ("Rollover", "a packet was sent again four times: the link retrains"),
    ("Timeout", "an acknowledgement came late and the packet was sent again"),
    ("NonFatalErr", "an error that is reported as correctable, such as UnsupReq"),
    ("DLP", "the link's protocol was violated"),
    ("SDES", "the link went down unexpectedly: power or seating"),
    ("TLP", "a packet was marked as poisoned: memory or a bridge failed"),
    ("FCP", "flow control was violated"),
    ("CmpltTO", "no completion came in time: the other side hangs or is gone"),
    ("CmpltAbrt", "the other side aborted a request"),
    ("UnxCmplt", "an unrequested completion came"),
    ("RxOF", "a receive buffer overran"),
    ("MalfTLP", "a packet is malformed: often a wrong MaxPayload or atomics through a bridge"),
    ("ECRC", "a packet failed its end-to-end CRC"),
    ("UnsupReq", "a request was not supported: often an address that is not mapped"),
    ("ACSViol", "access control services refused a request between devices"),
    ("AtomicOpBlocked", "an atomic was blocked on its way"),
];

/// mlx5_core's recovery steps: `mlx5_pci_err_detected Device state = 1 health sensors: 1
/// pci_status: 1. Enter, pci channel state = 2`.
fn recovery(line: &str) -> Option<Vec<String>> {
    let steps = [
        ("mlx5_pci_err_detected", "PCIe reported an error: the driver stops the device"),
        ("mlx5_pci_slot_reset", "the slot was reset: the driver enables the device again"),
        ("mlx5_pci_resume", "the slot works again: the driver loads the device"),
    ];
    let (_, meaning) = steps.iter().find(|(step, _)| line.contains(step))?;
    let mut lines = vec![(*meaning).to_owned()];
    if let Some(state) = after(line, &["pci channel state"]) {
        let name = match state.value {
            1 => "normal",
            2 => "frozen: I/O is blocked until a reset",
            3 => "failed for good: the device is gone",
            _ => "unknown",
        };
        lines.push(format!("pci channel state {}, {name}", state.value));
    }
    Some(lines)
}
