//! The cases on the model in this process, where the two programs are threads.

use std::process::Command;

/// Runs the program on a kind of port; it succeeds.
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

/// The same on both kinds.
fn passes(arguments: &[&str]) {
    ["infiniband", "ethernet"].into_iter().for_each(|link| passes_on(link, arguments));
}

#[test]
fn cases_of_a_host_and_its_dpu_pass() {
    passes(&["--profile", "bluefield3", "--filter", "dpu", "--expect", "process dpu"]);
}

#[test]
fn cases_pass_on_the_model_in_one_process() {
    passes(&["--expect", "process model"]);
}

#[test]
fn cases_pass_over_links_that_lose_double_and_delay_frames() {
    let plan = concat!(env!("CARGO_MANIFEST_DIR"), "/../suite/lossy.toml");
    passes(&["--expect", "process lossy", "--faults", plan]);
}
