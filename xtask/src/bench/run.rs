//! Programs under `verbless-model run`: how fast data moves between their memory, and how much slower a program is that has
//! nothing to do with RDMA.
//!
//! **Rates**: the example `speed` on the kernel's device, which is the model's here, so that every byte passes through
//! `process_vm_readv` and `process_vm_writev`; what it says of the rows is taken as in [`speed`].
//!
//! **A compile**: what `run` costs it is a sum, not a share. Calls with a path stop, and how many there are depends on the programs
//! that the compiler starts and the headers that it looks for, not on how much there is to compile. So the sum is taken
//! where it shows, in a file that is headers only, compiled in turns by a shell under `run` and one that is not; the shortest of many
//! short times is one that nothing else disturbed, whatever else the machine does. Next to it stands the time
//! of the same file with functions to optimize, natively and undisturbed as well as the system lets it. One cannot
//! measure 2 % of the latter directly on a machine that does something else: its own times differ by more.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use super::Tally;
use super::speed::{self, Row};
use crate::{Result, workspace_root};

const RATES: [Row; 2] = [
    Row { name: "run: writes of 8 bytes", label: "8 B:", unit: "operations/s", bound: 200_000.0 },
    Row { name: "run: writes of 64 KiB", label: "65536 B:", unit: "GB/s", bound: 3.0 },
];

/// How much longer a compile may take, and one of nothing but headers: the worst that `run` does to a build.
const COMPILE: (&str, f64) = ("run: a compile", 1.02);
const HEADERS: (&str, f64) = ("run: a compile of headers only", 2.5);
/// Functions to compile: a second or two.
const FUNCTIONS: usize = 270;
/// Turns of each shell with headers only, at least and at most; nobody wins by the other's bad luck.
const LEAST: u32 = 40;
const MOST: u32 = 400;
/// Times that the whole is compiled.
const WHOLE: u32 = 3;

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let chosen = |name: &str| filter.is_none_or(|part| name.contains(part));
    let rates = RATES.iter().any(|row| row.is_chosen(filter));
    let compiles = [COMPILE, HEADERS].iter().any(|(name, _)| chosen(name));
    if !compiles && !rates {
        return Ok(());
    }
    let model = crate::run::model()?;
    if rates {
        let mut command = speed::urgent(&model);
        command.args(["run", "--"]).arg(speed::program()?).arg("--kernel");
        let report = speed::measure(&mut command, &RATES)?;
        speed::print(filter, &RATES, &report, speed::priority(), tally)?;
    }
    if !compiles {
        return Ok(());
    }
    if !crate::run::on_the_path("cc") {
        tally.skip("run: compiles", "there is no cc: apt-get install gcc libc6-dev");
        return Ok(());
    }
    let times = Times::measure(&model)?;
    println!("\nthe shortest of {LEAST} to {MOST} times in turns, milliseconds\n");
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

/// Milliseconds.
struct Times {
    /// A file of headers only, natively.
    headers: f64,
    /// The same with functions.
    whole: f64,
    /// What is added under `run`.
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
        let whole = start(speed::urgent(Path::new("sh")), &script("whole"))?.shortest(WHOLE)?;
        let mut shells =
            [start(Command::new("sh"), &script("headers"))?, start(under, &script("headers"))?];
        let mut shortest = [f64::INFINITY; 2];
        for round in 0..MOST {
            // Who goes first changes, so that nothing in the order is for or against one of them.
            for turn in [round as usize % 2, 1 - round as usize % 2] {
                shortest[turn] = shortest[turn].min(shells[turn].turn()?);
            }
            if round + 1 >= LEAST && shortest[1] - shortest[0] <= whole * (COMPILE.1 - 1.0) {
                break;
            }
        }
        let [headers, under] = shortest;
        Ok(Self { headers, whole, added: under - headers })
    }
}

/// A file of C with so many functions to optimize. It includes what programs include.
fn source(functions: usize) -> String {
    const INCLUDED: [&str; 6] =
        ["stdio.h", "stdlib.h", "string.h", "unistd.h", "pthread.h", "sys/socket.h"];
    let mut source: String =
        INCLUDED.iter().map(|header| format!("#include <{header}>\n")).collect();
    for i in 0..functions {
        source += &format!(
            "int f{i}(int *a, int n) {{\n    int s = {i};\n    for (int k = 0; k < n; k++) {{\n        \
             s += a[k] * {i};\n        if (s & 1) s ^= a[k * {i} % n];\n        \
             else s = s / 3 + strlen((char *)a);\n    }}\n    return s;\n}}\n"
        );
    }
    source
}

/// A shell that does the same thing whenever it is told to.
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

    /// Lets it do its thing; how many milliseconds that takes.
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
