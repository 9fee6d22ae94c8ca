//! The line of the kernel's log that says why a driver did not take a function.
//!
//! Sources of the words: Linux `drivers/net/ethernet/mellanox/mlx5/core/{main,cmd}.c`,
//! `drivers/infiniband/hw/mlx5/main.c` and `drivers/base/dd.c`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use crate::report::scrub::has_name;

/// Bytes of the log that are read at most.
const MAX_LOG_BYTES: usize = 16 << 20;

/// Words of lines about a failure.
const FAILURE: [&str; 7] =
    ["fail", "abort", "timeout", "error", "cannot", "couldn't", "unsupported"];

/// Words of lines that only say that the probe failed.
const GENERIC: [&str; 5] =
    ["mlx5_init_one failed", "mlx5_load_one failed", "init_one failed", "probe of", "probe with"];

/// What to do about a failure, by words of its line.
const ADVICE: [(&str, &str); 10] = [
    (
        "pre-initializing",
        "the firmware does not start: power-cycle the machine (a BlueField needs a cold boot), and \
         for a virtual function check that its host has it enabled",
    ),
    (
        "initializing state",
        "the firmware does not finish its start: power-cycle the machine, and query the card with \
         `mlxfwmanager`",
    ),
    (
        "timeout. Will cause a leak",
        "the firmware does not answer commands: look for IOMMU faults in the host's log (`dmesg | \
         grep -i dmar`), reset the card with `mlxfwreset`, or power-cycle the machine",
    ),
    (
        "initializing command interface",
        "driver and firmware do not agree on the command interface: update the older of the two",
    ),
    (
        "requesting BARs",
        "the function has no memory window, or another driver has it: compare `lspci -vs` with the \
         BIOS's setting for PCI windows above 4 GiB",
    ),
    ("enable PCI device", "the PCI function cannot be enabled: check the slot and the BIOS"),
    ("DMA", "the machine offers no 64-bit or 32-bit DMA to this slot: check the IOMMU's settings"),
    (
        "pages",
        "the driver cannot give the firmware its memory: free memory, or lower the number of \
         virtual functions",
    ),
    ("IRQ", "there are too few interrupt vectors: check MSI-X in the BIOS or the hypervisor"),
    ("issi", "the firmware is too old for this driver: update it with `mlxfwmanager`"),
];

/// The lines of the log, oldest first; the error says why it cannot be read.
pub(super) fn read(root: &Path) -> Result<Vec<String>, String> {
    let path = root.join("dev/kmsg");
    match read_records(&path) {
        Ok(text) => Ok(text.lines().filter_map(message).collect()),
        // The program may read it by another system call.
        Err(error) if root == Path::new("/") => {
            let said = Command::new("dmesg").output().ok().filter(|said| said.status.success());
            let text = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
            let text = text.ok_or_else(|| format!("{} is not readable ({error})", path.display()));
            Ok(text?.lines().map(str::to_string).collect())
        }
        Err(error) => Err(format!("{} is not readable ({error})", path.display())),
    }
}

/// A place in the kernel's log: what is logged from here on.
pub(crate) struct KernelLog(File);

/// Lines that are kept of a case: the last ones.
const KEPT: usize = 16;

impl KernelLog {
    /// The end of the log; `None` if it may not be read.
    pub(crate) fn end() -> Option<Self> {
        Self::end_of(Path::new("/dev/kmsg")).ok()
    }

    fn end_of(path: &Path) -> std::io::Result<Self> {
        let mut file = open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// The last few mlx5 lines since then about these devices. `names`: their PCI addresses and
    /// RDMA names. Lines of other devices stay private: a report is sent to other people.
    pub(crate) fn lines(mut self, names: &[String]) -> Vec<String> {
        let text = read_all(&mut self.0).unwrap_or_default();
        let is_about = |line: &String| names.iter().any(|name| has_name(line, name));
        let lines = text.lines().filter_map(message);
        let lines = lines.filter(|line| is_about_mlx5(line) && is_about(line));
        let lines: Vec<_> = lines.collect();
        lines[lines.len().saturating_sub(KEPT)..].to_vec()
    }
}

/// Whether a line is one of mlx5_core, mlx5_ib or of an RDMA device.
fn is_about_mlx5(line: &str) -> bool {
    line.contains("mlx5") || line.starts_with("infiniband ")
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// The records that are in the log now.
fn read_records(path: &Path) -> std::io::Result<String> {
    read_all(&mut open(path)?)
}

/// The records from the file's position on.
fn read_all(file: &mut File) -> std::io::Result<String> {
    let mut text = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    while text.len() < MAX_LOG_BYTES {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => text.extend(buffer.iter().take(length)),
            Err(error) => match error.raw_os_error() {
                // No record is left.
                Some(libc::EAGAIN) => break,
                // Records were overwritten meanwhile; the next one follows.
                Some(libc::EPIPE) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The text of a record of /dev/kmsg: `priority,number,microseconds,flags;text`. `None` for a
/// record's continuation lines, which begin with a space.
fn message(record: &str) -> Option<String> {
    let (prefix, text) = record.split_once(';')?;
    prefix.starts_with(|c: char| c.is_ascii_digit()).then(|| text.to_string())
}

/// The line about the failed probe of the function at `address`: the last specific one, or the
/// last one at all. Since Linux 5.11 mlx5_ib drives an auxiliary device, and its lines name that or
/// the RDMA device, not the address.
pub(super) fn failure<'a>(lines: &'a [String], module: &str, address: &str) -> Option<&'a str> {
    let is_about = |line: &&String| {
        let lower = line.to_lowercase();
        let is_functions = line.contains("mlx5") && line.contains(address);
        let is_rdma = line.contains("mlx5_ib") || line.contains("infiniband ");
        (is_functions || (module == "mlx5_ib" && is_rdma))
            && FAILURE.iter().any(|word| lower.contains(word))
    };
    let lines: Vec<_> = lines.iter().filter(is_about).map(String::as_str).collect();
    let is_specific = |line: &&&str| !GENERIC.iter().any(|words| line.contains(words));
    // The cause comes first: later lines are about its consequences.
    let newest = lines.iter().rposition(|line| GENERIC.iter().any(|words| line.contains(words)));
    let until = newest.map_or(&lines[..], |at| &lines[..=at]);
    let advised = until.iter().rev().find(|line| advice(line).is_some());
    advised.or(until.iter().rev().find(is_specific)).or(until.last()).copied()
}

/// What to do about a line.
pub(super) fn advice(line: &str) -> Option<&'static str> {
    ADVICE.iter().find(|(words, _)| line.contains(words)).map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a probe, as Linux prefixes them.
    fn log(text: &str) -> Vec<String> {
        let head = "mlx5_core 0000:08:00.0: ";
        text.lines().map(|line| format!("{head}{line}")).collect()
    }

    #[test]
    fn failure_is_the_line_that_names_the_cause() {
        let lines = log("firmware version: 22.35.2000\n\
                         wait_func:1151:(pid 9): ENABLE_HCA(0x104) timeout. Will cause a leak of a \
                         command resource\n\
                         mlx5_function_setup:1164:(pid 9): enable hca failed\n\
                         probe_one:1770:(pid 9): mlx5_init_one failed with error code -110");
        let line = failure(&lines, "mlx5_core", "0000:08:00.0").expect("a line");
        assert!(line.contains("ENABLE_HCA(0x104) timeout"), "{line}");
        assert!(advice(line).is_some_and(|text| text.contains("does not answer commands")));
        assert_eq!(failure(&lines, "mlx5_core", "0000:09:00.0"), None, "of another function");
    }

    #[test]
    fn rdma_failure_is_found_without_the_address() {
        let generic = "mlx5_ib.rdma: probe of mlx5_core.rdma.0 failed with error -12";
        let cause = "infiniband mlx5_0: Couldn't create per-port data";
        let lines = [cause, generic].map(String::from);
        assert_eq!(failure(&lines, "mlx5_ib", "0000:08:00.0"), Some(cause));
        assert_eq!(failure(&lines[1..], "mlx5_ib", "0000:08:00.0"), Some(generic));
        assert_eq!(failure(&lines, "mlx5_core", "0000:08:00.0"), None, "of another module");
    }

    #[test]
    fn every_known_line_has_its_advice() {
        for (line, expected) in [
            ("Firmware over 120000 MS in pre-initializing state, aborting", "does not start"),
            ("Firmware over 2000 MS in initializing state, aborting", "does not finish"),
            ("Failed initializing command interface, aborting", "command interface"),
            ("error requesting BARs, aborting", "memory window"),
            ("Cannot enable PCI device, aborting", "cannot be enabled"),
            ("Failed setting DMA capabilities mask, aborting", "64-bit"),
            ("failed to allocate init pages", "its memory"),
            ("Failed to alloc IRQs", "interrupt vectors"),
            ("failed to set issi", "too old"),
        ] {
            let lines = log(line);
            let found = failure(&lines, "mlx5_core", "0000:08:00.0").expect("a line");
            assert!(advice(found).is_some_and(|text| text.contains(expected)), "{line}");
        }
    }

    #[test]
    fn unknown_failure_falls_back_to_the_last_line() {
        let lines = log("init hca failed\nmlx5_init_one failed with error code -5");
        let line = failure(&lines, "mlx5_core", "0000:08:00.0");
        assert!(line.is_some_and(|line| line.ends_with("init hca failed")), "{line:?}");
        let lines = [String::from("mlx5_core: probe of 0000:08:00.0 failed with error -5")];
        assert_eq!(failure(&lines, "mlx5_core", "0000:08:00.0"), Some(&*lines[0]));
    }

    #[test]
    fn lines_of_a_case_are_those_of_mlx5_after_its_start() {
        let path = std::env::temp_dir().join(format!("verbless-kmsg-{}", std::process::id()));
        let record = |text: &str| format!("3,339,5140900,-;{text}\n");
        std::fs::write(&path, record("mlx5_core 0000:08:00.0: before")).expect("a file");
        let log = KernelLog::end_of(&path).expect("the log file exists");
        let mut file = OpenOptions::new().append(true).open(&path).expect("the log file exists");
        let refused = "mlx5_core 0000:08:00.0: mlx5_cmd_check:782: CREATE_QP(0x500) op_mod(0x0) \
                       failed, status bad parameter(0x3)";
        let others = ["infiniband mlx5_01: an error", "mlx5_core 0000:09:00.0 lan: Link up"];
        for line in ["usb 1-1: new device", refused, "infiniband mlx5_0: an error"]
            .into_iter()
            .chain(others)
        {
            std::io::Write::write_all(&mut file, record(line).as_bytes()).expect("room");
        }
        let names = ["0000:08:00.0", "mlx5_0"].map(str::to_owned);
        assert_eq!(log.lines(&names), [refused, "infiniband mlx5_0: an error"]);
        std::fs::remove_file(&path).expect("the log file exists");
        assert!(KernelLog::end_of(&path).is_err());
    }

    #[test]
    fn kmsg_records_lose_prefix_and_dictionary() {
        assert_eq!(message("3,339,5140900,-;mlx5_core: a;b").as_deref(), Some("mlx5_core: a;b"));
        assert_eq!(message(" SUBSYSTEM=pci"), None);
        assert_eq!(message(" DEVICE=;x"), None);
    }
}
