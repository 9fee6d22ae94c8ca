//! The cases on the model in this process, where the two programs are threads.

use std::process::Command;

/// Runs the program on a port of this kind; it must succeed.
fn passes_on(link: &str, arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_process"))
        .args(["--device", "model", "--link", link])
        .args(arguments)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "on {link}:\n{text}{errors}");
    assert!(text.contains(" passed, 0 failed, "), "on {link}:\n{text}");
}

/// Runs it on both kinds.
fn passes(arguments: &[&str]) {
    ["infiniband", "ethernet"].into_iter().for_each(|link| passes_on(link, arguments));
}

#[test]
fn host_and_dpu_cases_pass() {
    passes(&["--profile", "bluefield3", "--filter", "dpu", "--expect", "process dpu"]);
}

#[test]
fn cases_pass_in_process_model() {
    passes(&["--expect", "process model"]);
}

#[test]
fn cases_pass_over_lossy_links() {
    let plan = concat!(env!("CARGO_MANIFEST_DIR"), "/../suite/lossy.toml");
    passes(&["--expect", "process lossy", "--faults", plan]);
}
