//! Programs under `verbless-model run`: the rate of data between their memory, and the slowdown of
//! a program that does not use RDMA.
//!
//! **Rates**: runs the example `speed --kernel` under `verbless-model run`. The model accesses its
//! memory with `process_vm_readv` and `process_vm_writev`. [`speed`] explains the rows. If the
//! kernel's own copies are slow, the bound is a share of their rate.
//!
//! **Latencies**: two programs of rdma-core and perftest that poll all the time, while the model's
//! threads need processor time too. On two processors three or more threads compete, so the latency
//! shows whether the model's threads are scheduled in time. Real-time priority would hide that: the
//! programs keep ordinary priority among themselves, and the whole session gets a high priority
//! against the rest of the machine if the system allows it. The best of several short rounds
//! counts, and the rounds end once one reaches the bound.
//!
//! **A compile**: the overhead of `run` is a fixed time for each intercepted system call that takes
//! a path (openat, stat, execve), not a percentage. The number of such calls depends on the
//! programs that the compiler starts and the headers that it looks for, not on how much it
//! compiles. So the added time is measured with a file of headers only, compiled in turns by a
//! shell under `run` and by one without; the shortest of many short times has the least
//! disturbance. The added time is compared with the native compile time of the same file with
//! functions to optimize. A direct measurement could not show 2 % of that time: on a machine with
//! other work, the compile times themselves differ by more.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use super::kernel_copies;
use super::speed::{self, Row};
use super::tally::Tally;
use crate::workspace::{Result, workspace_root};

const RATES: [Row; 2] = [
    Row { name: "run: writes of 8 bytes", label: "8 B:", unit: "operations/s", bound: 400_000.0 },
    Row { name: "run: writes of 64 KiB", label: "65536 B:", unit: "GB/s", bound: 3.0 },
];

/// The share that a row must reach of the kernel's own copies of this size, one read and one write
/// each, if the kernel is too slow for the row's bound.
const SHARES: [(usize, f64); 2] = [(8, 0.35), (1 << 16, 0.22)];

/// The rows, with bounds that this machine's kernel allows.
fn rates_here() -> Result<[Row; 2]> {
    let mut rows = RATES;
    for (row, (bytes, share)) in rows.iter_mut().zip(SHARES) {
        let unit = if row.unit == "GB/s" { bytes as f64 / 1e9 } else { 1.0 };
        let kernel = kernel_copies::per_second(bytes)? * unit;
        println!(
            "the kernel's copies of {bytes} bytes, read and written: {kernel:.1} {}",
            row.unit
        );
        row.bound = row.bound.min((share * kernel * 10.0).round() / 10.0);
    }
    Ok(rows)
}

/// A latency that must not be exceeded, of a server and a client that poll.
struct Latency {
    name: &'static str,
    program: &'static str,
    /// Finds the microseconds in the client's output.
    read: fn(&str) -> Option<f64>,
    bound: f64,
}

const LATENCIES: [Latency; 2] = [
    Latency {
        name: "run: ibv_rc_pingpong, a round",
        program: "ibv_rc_pingpong",
        read: pingpong_round,
        bound: 120.0,
    },
    Latency {
        name: "run: ib_write_lat, on average",
        program: "ib_write_lat",
        read: average_latency,
        bound: 50.0,
    },
];
/// Messages in a round, and the most rounds.
const MESSAGES: u32 = 300;
const LATENCY_ROUNDS: u32 = 30;
/// TCP ports, a new one each round, because a closed port stays in TIME_WAIT.
const PORTS: std::ops::Range<u16> = 18_900..18_990;

/// Bounds of a compile's time under `run`, as ratios. A compile of headers only is the worst case
/// of a build under `run`.
const COMPILE: (&str, f64) = ("run: a compile", 1.02);
const HEADERS: (&str, f64) = ("run: a compile of headers only", 2.5);
/// Functions to compile: a second or two.
const FUNCTIONS: usize = 270;
/// Minimum and maximum turns of each shell with headers only. Both shells share the machine's load
/// by turns.
const MIN_TURNS: u32 = 40;
const MAX_TURNS: u32 = 400;
/// Compiles of the whole file.
const WHOLE: u32 = 3;

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let chosen = |name: &str| filter.is_none_or(|part| name.contains(part));
    let rates = RATES.iter().any(|row| row.is_chosen(filter));
    let compiles = [COMPILE, HEADERS].iter().any(|(name, _)| chosen(name));
    let latencies = LATENCIES.iter().any(|latency| chosen(latency.name));
    if !compiles && !rates && !latencies {
        return Ok(());
    }
    let model = crate::run::model()?;
    if rates {
        let mut command = speed::realtime_command(&model);
        command.args(["run", "--"]).arg(speed::program()?).arg("--kernel");
        let rows = rates_here()?;
        let report = speed::measure(&mut command, &rows)?;
        speed::print(filter, &rows, &report, speed::priority(), tally)?;
    }
    if latencies {
        check_latencies(&model, chosen, tally)?;
    }
    if !compiles {
        return Ok(());
    }
    if !crate::run::on_the_path("cc") {
        tally.skip("run: compiles", "there is no cc: apt-get install gcc libc6-dev");
        return Ok(());
    }
    let times = Times::measure(&model)?;
    println!("\nthe shortest of {MIN_TURNS} to {MAX_TURNS} times in turns, milliseconds\n");
    println!("{:36} {:>8} {:>8} {:>6} {:>6}", "", "native", "run", "ratio", "bound");
    for ((name, bound), native) in [(HEADERS, times.headers), (COMPILE, times.whole)] {
        if !chosen(name) {
            continue;
        }
        let ratio = 1.0 + times.added / native;
        let under = native + times.added;
        let verdict = if ratio <= bound { "" } else { "  ABOVE THE BOUND" };
        println!("{name:36} {native:>8.1} {under:>8.1} {ratio:>6.3} {bound:>6}{verdict}");
        tally.count(ratio <= bound);
    }
    Ok(())
}

fn check_latencies(model: &Path, chosen: impl Fn(&str) -> bool, tally: &mut Tally) -> Result<()> {
    println!(
        "\nthe best of at most {LATENCY_ROUNDS} rounds of {MESSAGES} messages, two programs that \
         poll\n"
    );
    let mut ports = PORTS;
    for latency in LATENCIES.iter().filter(|latency| chosen(latency.name)) {
        if !crate::run::on_the_path(latency.program) {
            tally.skip(latency.name, "apt-get install ibverbs-utils perftest");
            continue;
        }
        let mut best = f64::INFINITY;
        for port in ports.by_ref().take(LATENCY_ROUNDS as usize) {
            best = best.min(latency.round(model, port)?);
            if best <= latency.bound {
                break;
            }
        }
        let verdict = if best <= latency.bound { "" } else { "  ABOVE THE BOUND" };
        println!("{:36} {best:>12.1} {:12} {:>10}{verdict}", latency.name, "us", latency.bound);
        tally.count(best <= latency.bound);
    }
    Ok(())
}

impl Latency {
    /// Runs server and client under one `run`; microseconds from the client's output.
    fn round(&self, model: &Path, port: u16) -> Result<f64> {
        let command = format!("{} -d mlx5_0 -n {MESSAGES} -p {port}", self.program);
        // The scheduler first weighs sessions (autogroups) against each other, and only then the
        // threads in one.
        let script = format!(
            "echo -20 2>/dev/null >/proc/self/autogroup; exec timeout 60 \"$MODEL\" run -- bash \
             -c '{}'",
            crate::run::both_of(&command, &format!("{command} localhost"))
        );
        let output = Command::new("setsid")
            .args(["--wait", "bash", "-c", &script])
            .env("MODEL", model)
            .stdin(Stdio::null())
            .output()?;
        let report = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{command} under run failed: {report}{errors}").into());
        }
        (self.read)(&report).ok_or_else(|| format!("{command} printed no latency: {report}").into())
    }
}

/// The number in a line like `300 iters in 0.03 seconds = 97.31 usec/iter`.
fn pingpong_round(report: &str) -> Option<f64> {
    let (line, _) = report.rsplit_once(" usec/iter")?;
    line.rsplit(' ').next()?.parse().ok()
}

/// `t_avg`, the sixth column of perftest's last row of numbers.
fn average_latency(report: &str) -> Option<f64> {
    let is_row = |line: &&str| {
        let mut words = line.split_whitespace();
        words.clone().count() >= 8 && words.all(|word| word.parse::<f64>().is_ok())
    };
    let row = report.lines().rfind(is_row)?;
    row.split_whitespace().nth(5)?.parse().ok()
}

/// Milliseconds.
struct Times {
    /// A file of headers only, natively.
    headers: f64,
    /// The same file with functions.
    whole: f64,
    /// The time that `run` adds.
    added: f64,
}

impl Times {
    fn measure(model: &Path) -> Result<Self> {
        let directory = workspace_root().join("target/bench-run");
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join("headers.c"), source(0))?;
        std::fs::write(directory.join("whole.c"), source(FUNCTIONS))?;
        let start = |mut command: Command, script: &str| {
            Shell::start(command.args(["-c", script]).current_dir(&directory))
        };
        let script = |name: &str| {
            format!("while read turn; do cc -O2 -c {name}.c -o $turn.o || exit; echo done; done")
        };
        let mut under = Command::new(model);
        under.args(["run", "--", "sh"]);
        let whole =
            start(speed::realtime_command(Path::new("sh")), &script("whole"))?.shortest(WHOLE)?;
        let mut shells =
            [start(Command::new("sh"), &script("headers"))?, start(under, &script("headers"))?];
        let mut shortest = [f64::INFINITY; 2];
        for round in 0..MAX_TURNS {
            // The first shell changes each round, so that the order favours neither.
            for turn in [round as usize % 2, 1 - round as usize % 2] {
                shortest[turn] = shortest[turn].min(shells[turn].turn()?);
            }
            if round + 1 >= MIN_TURNS && shortest[1] - shortest[0] <= whole * (COMPILE.1 - 1.0) {
                break;
            }
        }
        let [headers, under] = shortest;
        Ok(Self { headers, whole, added: under - headers })
    }
}

/// A C file with this many functions to optimize. It includes the usual headers of programs.
fn source(functions: usize) -> String {
    const INCLUDED: [&str; 6] =
        ["stdio.h", "stdlib.h", "string.h", "unistd.h", "pthread.h", "sys/socket.h"];
    let mut source: String =
        INCLUDED.iter().map(|header| format!("#include <{header}>\n")).collect();
    for i in 0..functions {
        source += &format!(
            "int f{i}(int *a, int n) \
             {{\n    int s = {i};\n    for (int k = 0; k < n; k++) {{\n        \
             s += a[k] * {i};\n        if (s & 1) s ^= a[k * {i} % n];\n        \
             else s = s / 3 + strlen((char *)a);\n    }}\n    return s;\n}}\n"
        );
    }
    source
}

/// A shell that does one task on request.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("the shell's output was not captured")?;
        let input = child.stdin.take();
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// Runs its task; returns the milliseconds.
    fn turn(&mut self) -> Result<f64> {
        let input = self.input.as_mut().ok_or("the shell has no input")?;
        let start = Instant::now();
        writeln!(input, "{}", self.child.id())?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line != "done\n" {
            return Err("the file does not compile".into());
        }
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    fn shortest(mut self, turns: u32) -> Result<f64> {
        let mut shortest = f64::INFINITY;
        for _ in 0..turns {
            shortest = shortest.min(self.turn()?);
        }
        Ok(shortest)
    }
}

/// Without its input the shell ends.
impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{average_latency, pingpong_round};

    #[test]
    fn latency_is_parsed_from_program_output() {
        let pingpong = "2457600 bytes in 0.04 seconds = 539.04 Mbit/sec\n\
            300 iters in 0.04 seconds = 121.58 usec/iter\n";
        assert_eq!(pingpong_round(pingpong), Some(121.58));
        let perftest = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    \
            t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
            2       1000          28.70          4039.62      29.52    \t       42.83       \t\
            157.17 \t\t124.68  \t\t4039.62\n----------\n";
        assert_eq!(average_latency(perftest), Some(42.83));
        assert_eq!(average_latency("no such device"), None);
    }
}
