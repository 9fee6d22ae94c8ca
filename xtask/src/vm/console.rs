//! Parses the guest's kernel log: the marks of its `/init`, and signs of trouble.
//!
//! The guest is not trusted: a line is cut at a length, the log at a size, a mark that does not
//! parse is ignored.

use std::collections::VecDeque;
use std::time::Duration;

/// The meaning of a line for the run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// `/init` has begun; boot is over.
    Init,
    /// A driver could not be loaded.
    LoadFailed(String),
    /// The guest has this number of uverbs devices; the program runs if that is enough.
    Devices(u32),
    /// The program has ended with this code.
    Exit(u8),
    /// The drivers were unloaded; zero is success.
    Unloaded(u8),
    /// A driver of the device warned of something.
    Warning(String),
    /// `/init` asks the kernel to start again.
    Down,
    /// The kernel has shut its devices down.
    Stopped,
    /// `/init` has finished.
    Done,
}

/// The last lines of a kernel that reboots, starts another by kexec, or powers off.
const LAST: [&str; 3] =
    ["reboot: Restarting system", "kexec_core: Starting new kernel", "reboot: Power down"];

/// The text of a log line, without its time stamp.
fn text(line: &str) -> &str {
    let mut text = line.trim();
    while let Some((_, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        text = rest.trim_start();
    }
    text
}

/// The mark in a line, if it is one.
pub(crate) fn mark(line: &str) -> Option<Mark> {
    if LAST.contains(&text(line)) {
        return Some(Mark::Stopped);
    }
    let said = text(line).strip_prefix("verbless: ")?;
    let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
    Some(match word {
        "init" => Mark::Init,
        "failed" => Mark::LoadFailed(rest.strip_prefix("to load ")?.to_string()),
        "devices" => Mark::Devices(rest.parse().ok()?),
        "exit" => Mark::Exit(rest.parse().ok()?),
        "unloaded" => Mark::Unloaded(rest.parse().ok()?),
        "warning" => Mark::Warning(rest.to_string()),
        "down" => Mark::Down,
        "done" => Mark::Done,
        _ => return None,
    })
}

/// Beginnings of a kernel's messages about its own trouble.
const TROUBLE: &[&str] = &[
    "Kernel panic - not syncing",
    "BUG: ",
    "kernel BUG at",
    "Oops",
    "general protection fault",
    "WARNING: ",
    "------------[ cut here ]------------",
    "Call Trace:",
    "Call trace:",
    "Internal error: ",
    "UBSAN: ",
    "KASAN: ",
    "refcount_t: ",
    "list_add corruption",
    "list_del corruption",
    "watchdog: BUG: ",
    "rcu: INFO: ",
    "INFO: rcu",
    "Out of memory: ",
    "INFO: task ",
    "INFO: possible ",
    "unregister_netdevice: waiting",
];

/// Whether a line of the kernel's log shows that the kernel is in trouble: a panic, an oops, a
/// warning with a trace, a stall.
pub(crate) fn is_trouble(line: &str) -> bool {
    let text = text(line);
    TROUBLE.iter().any(|start| text.starts_with(start))
}

/// The kernel's log as it comes in.
pub(crate) struct Console {
    line: Vec<u8>,
    tail: VecDeque<String>,
    trouble: Vec<String>,
    size: usize,
}

impl Console {
    const LINE: usize = 1000;
    const TAIL: usize = 40;
    const TROUBLE_LINES: usize = 60;
    /// A guest with a longer log is out of control.
    const SIZE: usize = 64 << 20;

    pub(crate) fn new() -> Self {
        Self { line: Vec::new(), tail: VecDeque::new(), trouble: Vec::new(), size: 0 }
    }

    /// Adds bytes and returns the marks of the lines that they complete.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<Mark> {
        self.size = self.size.saturating_add(bytes.len());
        let mut marks = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' => {
                    let line =
                        String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
                    marks.extend(self.keep(line));
                }
                byte if is_shown(byte) && self.line.len() < Self::LINE => self.line.push(byte),
                _ => {}
            }
        }
        marks
    }

    /// The end of the log: its last line may be unfinished.
    pub(crate) fn end(&mut self) -> Option<Mark> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if line.is_empty() { None } else { self.keep(line) }
    }

    fn keep(&mut self, line: String) -> Option<Mark> {
        let mark = mark(&line);
        // From the first sign of trouble on, all lines are kept: they may exceed the tail.
        if (!self.trouble.is_empty() || is_trouble(&line))
            && self.trouble.len() < Self::TROUBLE_LINES
        {
            self.trouble.push(line.clone());
        }
        if self.tail.len() == Self::TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
        mark
    }

    /// Whether the guest's log exceeds its limit.
    pub(crate) fn is_flooded(&self) -> bool {
        self.size > Self::SIZE
    }

    /// The lines from the first sign of trouble on; none if there was none.
    pub(crate) fn trouble(&self) -> &[String] {
        &self.trouble
    }

    /// The last lines.
    pub(crate) fn tail(&self) -> String {
        self.tail.iter().map(|line| format!("  {line}\n")).collect()
    }
}

/// Whether a byte of the guest may reach a terminal: the only control characters are newline and
/// tab.
pub(crate) fn is_shown(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\t' | b' '..=b'~' | 0x80..)
}

/// The results of a run, for its verdict.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// How often `/init` has begun.
    pub(crate) lives: u32,
    /// The time from QEMU's start to the first `/init`.
    pub(crate) booted: Option<Duration>,
    /// The uverbs devices found.
    pub(crate) devices: Option<u32>,
    /// The program's code.
    pub(crate) exit: Option<u8>,
    /// Failures before, during and after the program.
    pub(crate) failures: Vec<String>,
    /// Warnings of the device's drivers.
    pub(crate) warnings: Vec<String>,
    /// When `/init` began to power the guest off, since QEMU was started.
    pub(crate) done: Option<Duration>,
    /// When it last began to leave, in whatever way.
    leaving: Option<Duration>,
    /// The kernel has shut its devices down before `/init` came to its end.
    pub(crate) left_early: bool,
    /// The longest that a kernel took to shut its devices down.
    pub(crate) shutdown: Duration,
}

impl Account {
    /// Records a mark. `since` is the time since QEMU was started.
    pub(crate) fn note(&mut self, mark: Mark, since: Duration) {
        match mark {
            Mark::Init => {
                self.lives += 1;
                self.booted.get_or_insert(since);
            }
            Mark::LoadFailed(module) => {
                self.failures.push(format!("the guest cannot load {module}"))
            }
            Mark::Devices(count) => self.devices = Some(count),
            Mark::Exit(code) => self.exit = Some(code),
            Mark::Unloaded(0) => {}
            Mark::Unloaded(code) => {
                self.failures.push(format!("the drivers do not unload (rmmod returned {code})"));
            }
            Mark::Warning(line) => self.warnings.push(line),
            Mark::Down => self.leaving = Some(since),
            Mark::Stopped => {
                let began = self.leaving.take();
                self.left_early |= began.is_none();
                let took = began.map_or(Duration::ZERO, |began| since.saturating_sub(began));
                self.shutdown = self.shutdown.max(took);
            }
            Mark::Done => {
                self.done = Some(since);
                self.leaving = Some(since);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Account, Console, Mark, is_trouble, mark};

    #[test]
    fn mark_is_found_after_kernel_timestamp() {
        assert_eq!(mark("[    2.345678] verbless: exit 0"), Some(Mark::Exit(0)));
        assert_eq!(mark("[    2.345678][  T101] verbless: exit 139\r"), Some(Mark::Exit(139)));
        assert_eq!(mark("verbless: devices 2"), Some(Mark::Devices(2)));
        assert_eq!(
            mark("[ 2.3] verbless: failed to load mlx5_ib"),
            Some(Mark::LoadFailed("mlx5_ib".into()))
        );
    }

    #[test]
    fn last_line_marks_kernel_shutdown() {
        let mut account = Account::default();
        let lines = [
            ("verbless: init", 3),
            ("verbless: down", 5),
            ("[    9.876543] reboot: Restarting system", 7),
            ("verbless: init", 10),
            ("verbless: down", 11),
            ("[    2.345678] kexec_core: Starting new kernel", 12),
            ("verbless: init", 15),
            ("verbless: done", 16),
            ("[    4.345678] reboot: Power down", 17),
        ];
        for (line, second) in lines {
            account.note(mark(line).expect(line), Duration::from_secs(second));
        }
        let seconds = Duration::from_secs;
        assert_eq!((account.lives, account.booted), (3, Some(seconds(3))));
        assert_eq!((account.done, account.shutdown), (Some(seconds(16)), seconds(2)));
    }

    #[test]
    fn malformed_mark_is_ignored() {
        for line in [
            "verbless: exit",
            "verbless: exit 256",
            "verbless: exit -1",
            "verbless: exit 0x1",
            "verbless: exits 0",
            "says verbless: exit 0",
            "",
            "[",
            "[ ] ] ",
        ] {
            assert_eq!(mark(line), None, "{line}");
        }
    }

    #[test]
    fn panics_oopses_warnings_and_stalls_are_trouble() {
        for line in [
            "[    1.9] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00007f00",
            "[    1.9] BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "[    1.9] BUG: unable to handle page fault for address: ffffb0c6c0023000",
            "[    1.9] Oops: 0002 [#1] PREEMPT SMP NOPTI",
            "[    1.9] general protection fault, probably for non-canonical address 0xdead: 0000",
            "[    1.9] ------------[ cut here ]------------",
            "[    1.9] WARNING: CPU: 0 PID: 71 at drivers/infiniband/core/rdma_core.c:950",
            "[    1.9] WARNING: drivers/infiniband/core/rdma_core.c:950 at ufile_destroy+0x1/0x2",
            "[    1.9][  T71] Call Trace:",
            "[   61.9] rcu: INFO: rcu_preempt self-detected stall on CPU",
            "[  123.4] INFO: task insmod:71 blocked for more than 120 seconds.",
            "[   30.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [insmod:71]",
        ] {
            assert!(is_trouble(line), "{line}");
        }
    }

    #[test]
    fn healthy_kernel_lines_are_no_trouble() {
        for line in [
            "[    0.0] Linux version 6.1.0-42-cloud-amd64 (debian-kernel@lists.debian.org)",
            "[    0.1] Spectre V2 : Kernel not compiled with retpoline; no mitigation available!",
            "[    0.2] mlx5_core: loading out-of-tree module taints kernel.",
            "[    0.4] rcu: Hierarchical RCU implementation.",
            "[    0.4] kernel command line: console=ttyS0 oops=panic panic=-1",
            "[    2.0] mlx5_core 0000:01:00.0: firmware version: 22.35.0",
            "[    2.0] verbless: warning Oops: a program may say so",
        ] {
            assert!(!is_trouble(line), "{line}");
        }
    }

    #[test]
    fn lines_are_joined_and_truncated() {
        let mut console = Console::new();
        assert_eq!(console.take(b"[ 1.0] verbl"), []);
        assert_eq!(console.take(b"ess: in\x1b\x07it\r\n[ 1.1] verbless: ex"), [Mark::Init]);
        assert_eq!(console.end(), None);
        console.take(&[b'x'; 5000]);
        console.take(b"\n");
        assert!(console.tail().lines().all(|line| line.len() <= Console::LINE + 2));
        assert!(!console.is_flooded());
    }

    #[test]
    fn console_keeps_first_trouble_and_tail() {
        let mut console = Console::new();
        for number in 0..100 {
            console.take(format!("before {number}\n").as_bytes());
        }
        assert!(console.trouble().is_empty());
        console.take(b"[ 1.0] BUG: bad\n");
        for number in 0..1000 {
            console.take(format!("after {number}\n").as_bytes());
        }
        assert_eq!(console.trouble()[0], "[ 1.0] BUG: bad");
        assert_eq!(console.trouble().len(), Console::TROUBLE_LINES);
        assert!(console.tail().ends_with("after 999\n"));
        assert_eq!(console.tail().lines().count(), Console::TAIL);
    }

    #[test]
    fn driver_load_and_unload_failures_are_counted() {
        let mut account = Account::default();
        for mark in [Mark::Init, Mark::Devices(1), Mark::Exit(3), Mark::Unloaded(0), Mark::Done] {
            account.note(mark, Duration::from_secs(2));
        }
        assert_eq!((account.exit, account.done), (Some(3), Some(Duration::from_secs(2))));
        assert!(account.failures.is_empty());
        account.note(Mark::LoadFailed("mlx5_ib".into()), Duration::ZERO);
        account.note(Mark::Unloaded(1), Duration::ZERO);
        assert_eq!(account.failures.len(), 2);
    }
}
