//! The process that acts as the kernel, if there is one: its memory and descriptors must not grow
//! with programs that come and go.

use std::fs;
use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

/// Its name.
const NAME: &str = "verbless-model";
/// How long the supervisor may take to close the descriptors of programs that have ended.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The supervisor of this process, and its first number of descriptors.
pub(crate) struct Supervisor {
    pid: u32,
    descriptors: usize,
    memory: u64,
}

impl Supervisor {
    /// Looks for it among the ancestors of this process. Behind a real kernel there is none.
    pub(crate) fn find() -> Option<Self> {
        let mut pid = std::process::id();
        while pid > 1 {
            pid = number(pid, "PPid:")? as u32;
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            if name.trim() == NAME {
                return Some(Self {
                    pid,
                    descriptors: descriptors(pid),
                    memory: number(pid, "VmRSS:")?,
                });
            }
        }
        None
    }

    /// Fails unless its number of descriptors is back at the first value.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        let end = Instant::now() + CLEANUP_TIMEOUT;
        let mut now = descriptors(self.pid);
        while now > self.descriptors && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            now = descriptors(self.pid);
        }
        let before = self.descriptors;
        ensure!(
            now <= before,
            "the supervisor has {now} descriptors, and had {before}: {}",
            self.list()
        );
        Ok(())
    }

    /// A list of the supervisor's descriptors.
    fn list(&self) -> String {
        let links = fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten();
        let links = links.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        links.map(|link| link.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Kilobytes by which its memory has grown.
    pub(crate) fn growth(&self) -> u64 {
        number(self.pid, "VmRSS:").unwrap_or(0).saturating_sub(self.memory)
    }
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A number in `/proc/<pid>/status`.
fn number(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}
