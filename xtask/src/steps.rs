//! A step of `cargo xtask test` as a process of its own, beside others: the output of the step and
//! its programs goes to a file, `target/test/NAME.log`, and is printed in full when the step ends.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::vm::child::Signals;
use crate::workspace::{Result, workspace_root};

/// The result of a step, from its last lines.
#[derive(Debug, PartialEq)]
pub(crate) struct Report {
    /// Its output before these lines.
    pub(crate) text: String,
    /// As in the summary.
    pub(crate) verdict: String,
    pub(crate) seconds: f64,
    /// Seconds of processor time, of the processes that it has waited for.
    pub(crate) cpu: u64,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// Set when the user has ended the run: no new step begins.
static ENDED_BY_USER: AtomicBool = AtomicBool::new(false);

/// Runs a step, with less priority if it may use only spare time; prints its report.
pub(crate) fn run(name: &str, spare: bool) -> Report {
    println!("started {name}");
    let start = Instant::now();
    let mut report = match process(name, spare) {
        Ok((status, text)) => Report::read(name, &text, status),
        Err(error) => Report::failure(String::new(), &error.to_string()),
    };
    report.seconds = start.elapsed().as_secs_f64();
    while ENDED_BY_USER.load(Ordering::Acquire) {
        std::thread::park();
    }
    let Report { text, verdict, seconds, cpu, .. } = &report;
    // One call, so that no output of another step comes in between.
    println!("\n=== {name}\n{text}--- {name}: {verdict} ({seconds:.0} s, {cpu} s of CPU)\n");
    report
}

fn process(name: &str, spare: bool) -> Result<(ExitStatus, String)> {
    let logs = workspace_root().join("target/test");
    std::fs::create_dir_all(&logs)?;
    let log: PathBuf = logs.join(format!("{}.log", name.replace(": ", "-").replace(' ', "-")));
    let output = File::create(&log)?;
    // A rebuild may replace the file of this program meanwhile.
    let own = format!("/proc/{}/exe", std::process::id());
    let mut command = Command::new(if spare { "nice" } else { &own });
    if spare {
        command.args(["-n", "10", &own]);
    }
    let status = command
        .args(["test", "--step", name])
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output)
        .status()?;
    Ok((status, String::from_utf8_lossy(&std::fs::read(&log)?).into_owned()))
}

impl Report {
    /// Reads the output of `cargo xtask test --step NAME`, whose last two lines are the verdict and
    /// the counts.
    fn read(name: &str, output: &str, status: ExitStatus) -> Self {
        let text = output.trim_end();
        let (text, counts) = text.rsplit_once('\n').unwrap_or_default();
        let (text, verdict) = text.rsplit_once('\n').unwrap_or(("", text));
        let verdict = verdict.strip_prefix(&format!("--- {name}: "));
        let verdict = verdict.and_then(|it| {
            let (verdict, times) = it.rsplit_once(" (")?;
            let (_, cpu) = times.strip_suffix(" s of CPU)")?.split_once(" s, ")?;
            Some((verdict, cpu.parse().ok()?))
        });
        let (Some((verdict, cpu)), Some([passed, failed, skipped])) = (verdict, numbers(counts))
        else {
            return Self::failure(output.into(), &format!("it ended without a verdict ({status})"));
        };
        if status.success() != (failed == 0) {
            return Self::failure(output.into(), &format!("it ended with {status}"));
        }
        let text = if text.is_empty() { String::new() } else { format!("{text}\n") };
        Self { text, verdict: verdict.into(), seconds: 0.0, cpu, passed, failed, skipped }
    }

    /// The lines about failures, for readers who see only the end of a long output: a check's name,
    /// or a sanitizer's report or a signal, and the lines that follow.
    pub(crate) fn failure_lines(&self) -> impl Iterator<Item = &str> {
        /// Maximum number of lines of one step.
        const MAX_LINES: usize = 60;
        let mut left = 0_u32;
        let shown = self.text.lines().filter(move |line| {
            let after = if line.contains("ERROR: AddressSanitizer")
                || line.contains("WARNING: ThreadSanitizer")
            {
                24
            } else if line.contains(": FAILED: ") {
                // A failed guest; its console follows.
                16
            } else if line.starts_with("---- ") && line.ends_with(" stdout ----") {
                8
            } else if line.trim_start().starts_with("process didn't exit successfully") {
                1
            } else if line.starts_with("FAIL") || line.starts_with("error") {
                3
            } else {
                left
            };
            left = after.saturating_sub(1);
            after > 0 && !line.trim().is_empty()
        });
        shown.take(if self.failed > 0 { MAX_LINES } else { 0 })
    }

    fn failure(text: String, why: &str) -> Self {
        let verdict = format!("FAILED: {why}");
        Self { text, verdict, seconds: 0.0, cpu: 0, passed: 0, failed: 1, skipped: 0 }
    }
}

/// `N passed, N failed, N skipped`
fn numbers(line: &str) -> Option<[u64; 3]> {
    let mut parts = line.split(", ").zip(["passed", "failed", "skipped"]);
    let mut next = || {
        let (part, word) = parts.next()?;
        part.strip_suffix(word)?.trim_end().parse().ok()
    };
    Some([next()?, next()?, next()?])
}

/// From here on SIGINT and the other signals of [`Signals`] end every process that this one
/// started, and their descendants; then this one ends.
pub(crate) fn end_all_when_interrupted() -> Result {
    let signals = Signals::catch()?;
    std::thread::spawn(move || {
        while !signals.came().unwrap_or(true) {
            std::thread::sleep(Duration::from_millis(100));
        }
        ENDED_BY_USER.store(true, Ordering::Release);
        eprintln!("interrupted");
        end_all();
        std::process::exit(130);
    });
    Ok(())
}

/// In the process of a step: unblocks the signals that [`end_all_when_interrupted`] blocked in its
/// parent, so that they end the step and its programs.
pub(crate) fn take_signals() -> Result {
    Ok(Signals::set().thread_unblock()?)
}

/// Ends all descendants: by SIGTERM, so that a guest powers off, then by SIGKILL.
fn end_all() {
    let start = Instant::now();
    // Processes whose parents end first become children of this one.
    let _ = nix::sys::prctl::set_child_subreaper(true);
    while start.elapsed() < Duration::from_secs(10) {
        let left = descendants(std::process::id() as i32, &processes());
        if left.is_empty() {
            break;
        }
        let patient = start.elapsed() < Duration::from_secs(5);
        let signal = if patient { Signal::SIGTERM } else { Signal::SIGKILL };
        for process in left {
            // It may have ended by now.
            let _ = kill(Pid::from_raw(process), signal);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Every live process, with its parent.
fn processes() -> Vec<(i32, i32)> {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        // The name in parentheses may have spaces.
        let (process, rest) = stat.split_once(" (")?;
        let mut words = rest.rsplit_once(") ")?.1.split(' ');
        let (state, parent) = (words.next()?, words.next()?);
        (state != "Z").then_some((process.parse().ok()?, parent.parse().ok()?))
    };
    std::fs::read_dir("/proc").into_iter().flatten().filter_map(of).collect()
}

/// The descendants of `root`, from pairs of a process and its parent.
fn descendants(root: i32, processes: &[(i32, i32)]) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(processes.iter().filter(|it| it.1 == parent).map(|it| it.0));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn read(output: &str, status: i32) -> Report {
        Report::read("VM: hwtest", output, ExitStatus::from_raw(status))
    }

    #[test]
    fn report_ends_with_verdict_and_counts() {
        let output = "a\nb\n--- VM: hwtest: ok, 61 passed, 2 skipped (12 s, 20 s of CPU)\n\
                      61 passed, 0 failed, 2 skipped\n";
        let report = read(output, 0);
        assert_eq!((&*report.text, &*report.verdict), ("a\nb\n", "ok, 61 passed, 2 skipped"));
        assert_eq!((report.passed, report.failed, report.skipped, report.cpu), (61, 0, 2, 20));
        let alone = output.strip_prefix("a\nb\n").unwrap();
        assert_eq!(read(alone, 0), Report { text: String::new(), ..report });
    }

    #[test]
    fn inconsistent_step_end_is_failure() {
        let good =
            "--- VM: hwtest: ok, 1 passed (1 s, 2 s of CPU)\n1 passed, 0 failed, 0 skipped\n";
        for (output, status) in
            [("", 0), ("a\nb\n", 0), (good, 9), (good, 1 << 8), (&good.replace("1 p", "x p"), 0)]
        {
            let report = read(output, status);
            assert_eq!((report.passed, report.failed), (0, 1), "{output:?} {status}");
            assert!(report.verdict.starts_with("FAILED: it ended"), "{}", report.verdict);
            assert_eq!(report.text, output);
        }
        assert_eq!(read(&good.replace("1 passed, 0 f", "0 passed, 1 f"), 1 << 8).failed, 1);
    }

    #[test]
    fn failure_lines_are_about_failures_only() {
        let output = "test a ... ok\ntest b::c ... FAILED\n\nfailures:\n\n---- b::c stdout ----\n\n\
                      thread 'b::c' panicked at b.rs:1:2:\nit is 7\n\n\n\n\n\nfailures:\n    b::c\n\
                      FAIL  write\n      it is 9\n      not 8\npass  read\n";
        let ends =
            "--- VM: hwtest: FAILED, 2 of 4 (1 s, 2 s of CPU)\n2 passed, 2 failed, 0 skipped\n";
        let report = read(&format!("{output}{ends}"), 1 << 8);
        let shown: Vec<&str> = report.failure_lines().collect();
        let expected = [
            "---- b::c stdout ----",
            "thread 'b::c' panicked at b.rs:1:2:",
            "it is 7",
            "FAIL  write",
            "      it is 9",
            "      not 8",
        ];
        assert_eq!(shown, expected);
        assert_eq!(Report { failed: 0, ..report }.failure_lines().count(), 0);
    }

    #[test]
    fn failure_lines_include_failed_guest() {
        let output = "27 passed, 0 failed, 0 skipped\nthe guest's kernel warned: it\n\
                      Linux 6.1.0: FAILED: the guest's kernel is in trouble: BUG\n  BUG: lockup\n";
        let ends = "--- VM: rdma-core: FAILED, 1 of 28 (1 s, 2 s of CPU)\n\
                    27 passed, 1 failed, 0 skipped\n";
        let report = read(&format!("{output}{ends}").replace("rdma-core", "hwtest"), 1 << 8);
        let shown: Vec<&str> = report.failure_lines().collect();
        let expected =
            ["Linux 6.1.0: FAILED: the guest's kernel is in trouble: BUG", "  BUG: lockup"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn failure_lines_include_cause_of_process_death() {
        let output = "test a ... ok\n==7==ERROR: AddressSanitizer: heap-use-after-free\n    #0 f\n\
                      SUMMARY: it\nerror: test failed, to rerun pass `-p a --lib`\n\nCaused by:\n  \
                      process didn't exit successfully: `a` (signal: 6)\nnothing\n";
        let ends =
            "--- sanitizer: FAILED, 1 of 2 (1 s, 2 s of CPU)\n1 passed, 1 failed, 0 skipped\n";
        let report = read(&format!("{output}{ends}"), 1 << 8);
        let shown = report.failure_lines().collect::<Vec<_>>().join("\n");
        for part in ["heap-use-after-free", "#0 f", "SUMMARY", "-p a --lib", "(signal: 6)"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("nothing"), "{shown}");
    }

    #[test]
    fn only_descendants_are_found() {
        let processes = [(10, 1), (11, 10), (12, 11), (13, 10), (20, 1), (21, 20)];
        let mut found = descendants(10, &processes);
        found.sort_unstable();
        assert_eq!(found, [11, 12, 13]);
        let own = std::process::id() as i32;
        let mut child = Command::new("sleep").arg("100").spawn().expect("the child starts");
        assert!(descendants(own, &super::processes()).contains(&(child.id() as i32)));
        child.kill().expect("the child runs");
        child.wait().expect("the child ends");
    }
}
