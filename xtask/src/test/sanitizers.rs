//! The tests of the crates that touch raw memory, under the sanitizers.

use std::process::Command;

use super::counted;
use crate::commands::{cargo, host, std_sources};
use crate::outcome::Outcome;
use crate::workspace::{Result, workspace_root};

/// The tests of the crates that touch raw memory, under a sanitizer. The pinned toolchain carries
/// the runtimes; the flag is one of those that a stable compiler takes only when it is told to.
fn sanitized(name: &str) -> Result<Command> {
    let mut command = cargo(&["test", "--lib", "--tests", "--no-fail-fast", "--target", &host()?]);
    // Unoptimised: what runs takes three times as long, and what it takes to compile is far more.
    command
        .args(SANITIZED.iter().flat_map(|package| ["--package", package]))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("-Zsanitizer={name}"))
        .env("CARGO_TARGET_DIR", workspace_root().join("target").join(format!("sanitizer-{name}")));
    Ok(command)
}

pub(super) fn address() -> Result<Outcome> {
    let mut command = sanitized("address")?;
    // The fuzz targets, which have this sanitizer too, go on for longer.
    command.env("PROPTEST_CASES", "64").arg("--").args(skips(&BULK)).args(skips(&LEAVING));
    counted(command)
}

/// Crates that the sanitizers look at: those that touch raw memory or share it between threads.
const SANITIZED: &[&str] = &[
    "verbless-ring",
    "verbless-queue",
    "verbless-model",
    "verbless-model-kernel",
    "verbless-model-host",
];

/// Tests that do one thing very often, or read source files: a sanitizer sees nothing in them that
/// it does not see in others, and they take minutes there.
const BULK: [&str; 9] = [
    "a_circle_is_found_through_every_form_of_path",
    "a_handle_is_the_lowest_that_is_free_and_a_file_holds_so_many",
    "a_table_has_room_for_so_many_masks_and_a_group_for_so_many_values",
    "a_use_of_a_higher_layer_is_found_though_another_module_stands_between",
    "frames_that_nobody_takes_do_not_fill_the_memory",
    "no_crate_has_a_large_circle_of_modules",
    "no_layer_of_the_model_uses_one_above_it",
    "pages_that_nobody_asked_for_are_refused_in_the_end",
    "what_harts_have_translated_is_bounded_together",
];

/// Tests that leave memory behind: a device that keeps a queue may write to it as long as the
/// program runs. The address sanitizer would count it as lost.
const LEAVING: [&str; 1] = ["queues_of_frames_that_the_device_keeps_are_given_up_and_counted"];

/// Tests of one thread that do much: between threads there is nothing to be seen. The address
/// sanitizer runs them.
const OF_ONE_THREAD: [&str; 10] = [
    "a_lying_record_behind_a_delayed_completion_is_flushed_in_no_time",
    "an_unknown_opcode_is_a_local_qp_operation_error",
    "both_ways_leave_the_same",
    "completions_before_and_after_a_resize_are_all_there_in_order",
    "parts_of_a_read_whose_request_was_lost_are_asked_for_one_by_one",
    "requests_survive_a_link_that_loses_doubles_delays_and_corrupts",
    "scapy_computes_the_same_icrc_for_every_opcode",
    "what_a_service_does_not_carry_is_a_local_qp_operation_error",
    "what_is_missing_of_a_long_read_is_asked_for_again_in_parts",
    "what_is_missing_of_a_part_is_asked_for_without_more_than_that_part",
];

/// Tests of `verbless-model run` that look at files and messages of one program.
const OF_ONE_PROGRAM: [&str; 2] = ["devices::", "told::"];

fn skips<'a>(tests: &[&'a str]) -> impl Iterator<Item = &'a str> {
    tests.iter().flat_map(|test| ["--skip", test])
}

/// The thread sanitizer needs a standard library that was built with it, or it takes std's own
/// locks for races.
pub(super) fn thread() -> Result<Outcome> {
    match std_sources() {
        Ok(sources) => {
            let mut command = sanitized("thread")?;
            command
                .arg("-Zbuild-std")
                .env("__CARGO_TESTS_ONLY_SRC_ROOT", sources)
                // A random case is of one thread, and the address sanitizer tries more of them.
                .env("PROPTEST_CASES", "16")
                // A race may not come again: its report names the lines.
                .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
                // To find the lines of a backtrace takes twenty seconds there, and panics that are
                // caught have one, too.
                .env("RUST_BACKTRACE", "0")
                .arg("--")
                .args(skips(&BULK))
                .args(skips(&OF_ONE_THREAD))
                .args(skips(&OF_ONE_PROGRAM));
            counted(command)
        }
        Err(error) => Ok(Outcome::Skipped(format!("the standard library's sources: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{BULK, LEAVING, OF_ONE_PROGRAM, OF_ONE_THREAD, SANITIZED};
    use crate::workspace::workspace_root;

    /// The Rust files of the crates, in one.
    fn sources(directory: &Path) -> String {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.fold(String::new(), |text, path| match path.extension() {
            _ if path.is_dir() => text + &sources(&path),
            Some(end) if end == "rs" => text + &fs::read_to_string(path).unwrap(),
            _ => text,
        })
    }

    #[test]
    fn what_the_sanitizers_leave_out_is_there() {
        let crates = workspace_root().join("crates");
        let there: String =
            SANITIZED.iter().map(|it| sources(&crates.join(&it["verbless-".len()..]))).collect();
        for test in BULK.iter().chain(&LEAVING).chain(&OF_ONE_THREAD) {
            assert!(there.contains(&format!("fn {test}(")), "{test}");
        }
        for module in OF_ONE_PROGRAM.map(|it| it.trim_end_matches(':')) {
            assert!(crates.join(format!("model-host/tests/run/{module}.rs")).is_file(), "{module}");
        }
    }
}
