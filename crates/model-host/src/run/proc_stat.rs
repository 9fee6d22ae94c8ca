//! Texts below `/proc`, and the fields of `/proc/PID/stat` by the numbers of proc(5).

use std::{fs, io};

/// The text of a file below `/proc`. A program's name in it may have any bytes.
pub(super) fn text_of(path: &str) -> io::Result<String> {
    fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// The fields after the name. The name is in parentheses and may have any bytes, such as `)`,
/// spaces and newlines; the fields after it are numbers and letters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProcStat(String);

impl ProcStat {
    /// Reads the file of a process, or of a thread by its path below `/proc`.
    pub(super) fn read(of: impl std::fmt::Display) -> io::Result<Self> {
        let text = text_of(&format!("/proc/{of}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &str) -> Option<Self> {
        text.rsplit_once(") ").map(|(_, fields)| Self(fields.into()))
    }

    /// The field with a number of proc(5), from 3.
    pub(super) fn field(&self, number: usize) -> Option<&str> {
        self.0.split_whitespace().nth(number.checked_sub(3)?)
    }

    /// Field 3: whether the process has not ended.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.field(3), None | Some("Z" | "X"))
    }

    /// Field 4.
    pub(super) fn parent(&self) -> Option<i32> {
        self.field(4)?.parse().ok()
    }

    /// Field 22: ticks from boot to the start of the process.
    pub(super) fn start(&self) -> Option<u64> {
        self.field(22)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_name_may_contain_parentheses() {
        for name in ["sleep", "a b", ")", ") Z 1 ", "(x) S 9 9", "\n) X 0\n", "\u{fffd}"] {
            let numbers: String = (4..53).map(|it| format!(" {it}")).collect();
            let stat = ProcStat::parse(&format!("17 ({name}) R{numbers}\n")).expect("a name");
            assert_eq!((stat.is_alive(), stat.parent(), stat.start()), (true, Some(4), Some(22)));
            let fields = [2, 3, 52, 53].map(|it| stat.field(it));
            assert_eq!(fields, [None, Some("R"), Some("52"), None], "{name:?}");
        }
    }

    #[test]
    fn stat_of_ended_process_is_not_alive() {
        for state in ["Z", "X", ""] {
            let stat = ProcStat::parse(&format!("17 (sh) {state}")).expect("a name");
            assert!(!stat.is_alive(), "{state:?}");
        }
        assert_eq!(ProcStat::parse(""), None);
        assert_eq!(ProcStat::parse("17 (sh)"), None);
    }

    #[test]
    fn stat_read_is_of_the_process() {
        let stat = ProcStat::read(std::process::id()).expect("this process");
        assert!(stat.is_alive() && stat.start().is_some());
        assert_eq!(stat.parent(), Some(nix::unistd::getppid().as_raw()));
        assert!(ProcStat::read(u32::MAX).is_err());
    }
}
