//! `verbless-model run` with unmodified programs.

mod control;
mod devices;
mod escape;
mod failing;
mod fuse;
mod hang;
mod joining;
mod links;
mod messages;
mod opening;
mod program;
mod sides;

use std::io::Write;
use std::process::{Command, Output};

/// Reports that this thread's test is skipped. The harness hides `eprintln!` output of a passing
/// test; `cargo xtask test` counts these lines.
fn skipped(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("skipped: {name}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
}

/// The command `verbless-model run OPTIONS -- PROGRAM`.
fn command(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
    command.arg("run").args(options).arg("--").args(program);
    command
}

fn run(options: &[&str], script: &str) -> Output {
    command(options, &["sh", "-c", script]).output().expect("the binary runs")
}

/// The output of a script, which must succeed.
fn output_of(options: &[&str], script: &str) -> String {
    let output = run(options, script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {:?}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("text").trim_end().to_string()
}

/// A script that retries `command`, a client, until its server listens.
fn client(command: &str) -> String {
    format!("for try in $(seq 50); do sleep 0.1; {command} && exit 0; done; exit 1")
}

/// Exit code and output of the binary with these arguments.
fn model(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
    let output = command.args(arguments).output().expect("the binary runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}
