//! `hwtest` as a program: the doctor, blocked cases, and what a run closes with.

use std::path::PathBuf;
use std::process::{Command, Output};

use nix::unistd::geteuid;

fn hwtest(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hwtest"));
    command.args(arguments).output().expect("the command starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("verbless-hwtest-{}-{name}", std::process::id());
        let scratch = Self(std::env::temp_dir().join(name));
        std::fs::write(&scratch.0, text).expect("a folder for temporary files");
        scratch
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("plain text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is in the folder of temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn doctor_on_the_model_succeeds_with_a_table_or_json() {
    let output = hwtest(&["doctor", "--device", "model"]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("Doctor: all 13 links hold"), "{said}");
    assert!(said.lines().all(|line| !line.starts_with("FAIL")), "{said}");
    let output = hwtest(&["doctor", "--device", "model", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["holds"], true);
    assert_eq!(json["checks"][12]["link"], "event");
    assert_eq!(json["checks"][12]["finding"], "holds");
}

#[test]
fn doctor_fails_at_memlock_in_a_child_with_a_low_limit() {
    let program = env!("CARGO_BIN_EXE_hwtest");
    // Root's CAP_IPC_LOCK would lift the limit.
    let without = if geteuid().is_root() { "setpriv --bounding-set=-ipc_lock" } else { "" };
    let script = format!("ulimit -l 512 && exec {without} {program} doctor --device model");
    let output = Command::new("sh").args(["-c", &script]).output().expect("there is a shell");
    let said = text(&output);
    if said.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        eprintln!("skipped: doctor_fails_at_memlock_in_a_child_with_a_low_limit: {why}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("Doctor: memlock fails: "), "{said}");
    assert!(
        last.contains("512 KiB") && last.contains("2 MiB") && last.contains("ulimit"),
        "{last}"
    );
}

#[test]
fn port_down_blocks_cases_and_fails_run() {
    let down = Scratch::new("down.toml", "[[link]]\nup = false\n");
    let (json, junit) = (Scratch::new("down.json", ""), Scratch::new("down.xml", ""));
    let run = ["--device", "model", "--faults", down.path(), "--filter", "shape::"];
    let sinks = ["--filter", "refusal::", "--json", json.path(), "--junit", junit.path()];
    let output = hwtest(&[&run[..], &sinks[..]].concat());
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Doctor: port fails: port 1 of mlx5_0: Ethernet, DOWN"), "{said}");
    assert!(said.contains("blocked by port"), "{said}");
    // Cases that send nothing pass; the failed link counts as one failure.
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("19 passed, 1 failed, ") && last.contains(" blocked in "), "{last}");
    let report = std::fs::read_to_string(&json.0).expect("the file was written");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["passed"], &report["failed"]), (&19.into(), &0.into()));
    assert!(report["blocked"].as_u64().is_some_and(|blocked| blocked == 9), "{report}");
    let junit = std::fs::read_to_string(&junit.0).expect("the file was written");
    assert!(junit.contains("<skipped message=\"blocked by port\"/>"), "{junit}");
}

#[test]
fn identify_needs_results_for_a_program() {
    let run = ["--device", "model", "--filter", "open::vuid_is_not_empty", "--identify"];
    let refused = hwtest(&run);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    for sink in ["--json", "--junit"] {
        let output = hwtest(&[&run[..], &[sink, "-"]].concat());
        assert!(output.status.success(), "{sink}: {}", text(&output));
    }
}

#[test]
fn missing_device_blocks_every_case() {
    let output = hwtest(&["--device", "mlx5_no_such", "--filter", "open::", "--junit", "-"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("0 passed, 1 failed, 0 skipped, "), "{said}");
    assert!(said.contains("blocked by d") && !said.contains("pass  "), "{said}");
    assert!(text(&output).contains("<skipped message=\"blocked by d"));
}

#[test]
fn failed_case_summary_names_command_and_rerun() {
    let plan = "[[command]]\ndevice = 1\nopcode = \"CREATE_RMP\"\nalways = true\nstatus = 0x0f\n\
                syndrome = 0x1234\n";
    let plan = Scratch::new("rmp.toml", plan);
    let run = ["--device", "model", "--faults", plan.path(), "--filter", "srq::"];
    let output = hwtest(&run);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let (_, closing) = said.split_once("\nWhat failed:\n").expect("something failed");
    for part in [
        "CREATE_RMP (opcode 0x90c): status NO_RES (0xf), syndrome 0x00001234",
        "  in  ",
        "  out ",
        "\nGroup ",
    ] {
        assert!(closing.contains(part), "{part}: {closing}");
    }
    let repeat = closing.lines().find_map(|line| line.trim().strip_prefix("repeat it: hwtest "));
    let words: Vec<_> = repeat.expect("how to repeat it").split(' ').collect();
    assert_eq!(words[..5], ["--device", "model", "--faults", plan.path(), "--filter"]);
    let repeated = hwtest(&words);
    let last = text(&repeated).lines().last().unwrap_or_default().to_string();
    assert!(last.starts_with("0 passed, 1 failed, 0 skipped in "), "{last}");
}

#[test]
fn passing_run_prints_one_doctor_line_and_group_counts() {
    let output = hwtest(&["--device", "model", "--filter", "refusal::"]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("Doctor: all 13 links hold").count(), 1, "{said}");
    assert!(!said.contains("What failed:") && !said.contains("ok    kernel"), "{said}");
    let row = said.lines().find(|line| line.starts_with("refusal ")).expect("the group's row");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["refusal", "19", "0", "0", "0"]);
    let verbose = hwtest(&["--device", "model", "--filter", "refusal::", "-v"]);
    assert!(text(&verbose).contains("ok    kernel"), "{}", text(&verbose));
}

#[test]
fn report_becomes_page_difference_and_profile() {
    let scratch = |name| Scratch::new(name, "");
    let (json, page, card) = (scratch("it.json"), scratch("it.html"), scratch("card.toml"));
    let run = ["--device", "model", "--filter", "refusal::", "--json", json.path()];
    let output = hwtest(&run);
    assert!(output.status.success(), "{}", text(&output));

    assert!(hwtest(&["report", json.path(), "-o", page.path()]).status.success());
    let html = std::fs::read_to_string(&page.0).expect("the file was written");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("refusal"), "{html:.300}");

    assert!(hwtest(&["profile", json.path(), "-o", card.path()]).status.success());
    for (other, code) in [(card.path(), 0), ("connectx6dx", 0), ("bluefield3", 1), ("none", 2)] {
        let output = hwtest(&["diff", json.path(), other]);
        assert_eq!(output.status.code(), Some(code), "{other}: {}", text(&output));
    }
    let run = ["--device", "model", "--profile", card.path(), "--filter", "refusal::"];
    assert!(hwtest(&run).status.success());

    let output = hwtest(&["report", page.path()]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("it.html is no report of `hwtest --json`: expected value"), "{error}");
}

#[test]
fn recording_replays_and_a_changed_one_names_the_field() {
    let recording = Scratch::new("recording", "");
    let filters = ["--filter", "refusal::", "--filter", "memory::mkey"];
    // A replay answers with the pages of the recorded kernel, whatever this machine has.
    let model = ["--device", "model", "--model-pages", "64k", "--record", recording.path()];
    let run = [&model[..], &filters[..]].concat();
    let output = hwtest(&run);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("\nRecorded "), "{}", text(&output));
    let output = hwtest(&["replay", recording.path()]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(" as recorded, 0 differ, "), "{said}");
    assert!(!said.contains("\n0 as recorded"), "{said}");
    // The protection domain of a key, in the last word of the command's second line.
    let whole = std::fs::read_to_string(recording.path()).expect("the file was written");
    let key = whole.find("CREATE_MKEY(0x200) INPUT").expect("a key is made");
    let word = whole[key..].find("\n010: ").expect("a line") + key + "\n010: ".len() + 27;
    let other = if whole[word + 7..].starts_with('0') { "1" } else { "0" };
    let changed = [&whole[..word + 7], other, &whole[word + 8..]].concat();
    let changed = Scratch::new("changed", &changed);
    let output = hwtest(&["replay", changed.path()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("(DEVX_OBJ_CREATE, CREATE_MKEY): "), "{}", text(&output));
    assert!(text(&output).contains(", 1 differ, "), "{}", text(&output));
}

#[test]
fn perf_on_the_model_says_so_and_makes_a_report() {
    let (json, page) = (Scratch::new("perf.json", ""), Scratch::new("perf.html", ""));
    let run = ["perf", "write_bw", "send_lat", "--size", "64,4096", "-n", "100"];
    let output = hwtest(&[&run[..], &["--device", "model", "--json", json.path()]].concat());
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("numbers of the software model") && !said.contains("hardware"), "{said}");
    assert!(
        said.contains("MsgRate[Mpps]   port[%]") && said.contains("99.9% percentile"),
        "{said}"
    );
    let report = std::fs::read_to_string(&json.0).expect("the file was written");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["performance"].as_array().expect("measurements");
    assert_eq!(rows.len(), 4);
    assert!(rows[1]["bandwidth"]["average"].as_f64().is_some_and(|it| it > 0.0), "{}", rows[1]);
    assert!(rows[2]["latency"]["percentile_99"].as_f64().is_some_and(|it| it > 0.0), "{}", rows[2]);
    assert!(hwtest(&["report", json.path(), "-o", page.path()]).status.success());
    let page = std::fs::read_to_string(&page.0).expect("the file was written");
    assert!(page.contains("<polyline") && page.contains("these are numbers of the model"));
}

#[test]
fn perf_that_fails_says_why_and_goes_on() {
    let run = ["perf", "ud_send_bw", "write_lat", "--size", "8192", "-n", "20"];
    let output = hwtest(&[&run[..], &["--device", "model"]].concat());
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("FAIL 8192 bytes: "), "{said}");
    assert!(said.contains("a datagram of 8192 bytes: "), "{said}");
    assert!(said.contains("t_typical"), "the next one is measured: {said}");
    let refused = hwtest(&["perf", "write_xx", "--device", "model"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn model_in_process_is_no_end_of_two_machines() {
    for command in [&["serve"][..], &["--connect", "127.0.0.1:1"]] {
        let output = hwtest(&[command, &["--device", "model"]].concat());
        assert_eq!(output.status.code(), Some(2));
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(why.contains("verbless-model run"), "{why}");
    }
}
