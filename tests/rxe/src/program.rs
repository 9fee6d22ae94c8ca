//! The supported programs, by their command lines.

use std::fmt;
use std::str::FromStr;

/// A program and how much it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    line: String,
    pub kind: Kind,
    /// Messages in each direction (`-n`).
    pub iterations: usize,
    /// Bytes of each (`-s`).
    pub size: usize,
    /// Requests in each of its lists (`-l`); without `-l`, or with 1, all requests count as one
    /// list.
    pub list: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RcPingpong,
    UcPingpong,
    UdPingpong,
    Perftest(Verb),
}

/// What a program of perftest measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Write,
    Read,
    Send,
    Atomic,
}

impl FromStr for Program {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let name = line.split(' ').next().unwrap_or_default();
        let (kind, size) = match name {
            "ibv_rc_pingpong" => (Kind::RcPingpong, 4096),
            "ibv_uc_pingpong" => (Kind::UcPingpong, 4096),
            "ibv_ud_pingpong" => (Kind::UdPingpong, 1024),
            "ib_write_bw" => (Kind::Perftest(Verb::Write), 65536),
            "ib_read_bw" => (Kind::Perftest(Verb::Read), 65536),
            "ib_send_bw" => (Kind::Perftest(Verb::Send), 65536),
            "ib_atomic_bw" => (Kind::Perftest(Verb::Atomic), 8),
            _ => return Err(format!("{name} is not a supported program")),
        };
        let has = |option| line.split(' ').any(|word| word == option);
        if matches!(kind, Kind::Perftest(_)) && !has("-b") {
            return Err(format!("{line} sends one way only: add -b"));
        }
        if !matches!(kind, Kind::Perftest(_)) && !has("-c") {
            return Err(format!("{line} does not check the received data: add -c"));
        }
        Ok(Self {
            line: line.to_string(),
            kind,
            iterations: number(line, "-n")?.unwrap_or(1000),
            size: number(line, "-s")?.unwrap_or(size),
            list: number(line, "-l")?.filter(|&list| list > 1).unwrap_or(usize::MAX),
        })
    }
}

/// The number after an option.
fn number(line: &str, option: &str) -> Result<Option<usize>, String> {
    let mut words = line.split(' ').skip_while(|&word| word != option);
    if words.next().is_none() {
        return Ok(None);
    }
    let number = words.next().unwrap_or_default();
    number.parse().map(Some).map_err(|_| format!("{line}: {option} is followed by no number"))
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_parses_size_iterations_and_list() {
        let program: Program = "ib_read_bw -F -b -m 1024 -s 16384 -n 50".parse().unwrap();
        assert_eq!(program.kind, Kind::Perftest(Verb::Read));
        assert_eq!((program.iterations, program.size), (50, 16384));
        let usual: Program = "ibv_rc_pingpong -c".parse().unwrap();
        assert_eq!((usual.iterations, usual.size), (1000, 4096));
        let lists: Program = "ib_atomic_bw -b -n 500 -l 100".parse().unwrap();
        assert_eq!((lists.iterations, lists.size, lists.list), (500, 8, 100));
    }

    #[test]
    fn program_rejects_unjudgeable_options() {
        for line in ["ib_read_bw -n 5", "ibv_rc_pingpong -e", "ibv_devinfo", "ib_send_bw -b -n x"] {
            assert!(line.parse::<Program>().is_err(), "{line}");
        }
    }
}
