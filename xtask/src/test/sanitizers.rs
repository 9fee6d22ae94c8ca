//! Runs the tests of the crates that touch raw memory under the sanitizers.

use std::fs;
use std::process::Command;

use super::counted;
use crate::commands::{cargo, host, std_sources};
use crate::outcome::Outcome;
use crate::workspace::{Result, workspace_root};

/// The tests of the crates that touch raw memory, under a sanitizer. The pinned toolchain carries
/// the runtimes; a stable compiler accepts the flag only with RUSTC_BOOTSTRAP.
fn sanitized(name: &str) -> Result<Command> {
    let mut command = cargo(&["test", "--lib", "--tests", "--no-fail-fast", "--target", &host()?]);
    // Unoptimised: the compile saves more than the tests cost.
    command
        .args(SANITIZED.iter().flat_map(|package| ["--package", package]))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("-Zsanitizer={name}"))
        .env("CARGO_TARGET_DIR", workspace_root().join("target").join(format!("sanitizer-{name}")));
    Ok(command)
}

pub(super) fn address() -> Result<Outcome> {
    let mut command = sanitized("address")?;
    // The fuzz targets, which have this sanitizer too, run longer.
    command.env("PROPTEST_CASES", "64").arg("--").args(skips(&BULK)).args(skips(&LEAKING_TESTS));
    counted(command)
}

/// Crates under the sanitizers: those that touch raw memory or share it between threads.
const SANITIZED: &[&str] = &[
    "verbless-ring",
    "verbless-queue",
    "verbless-model",
    "verbless-model-kernel",
    "verbless-model-host",
];

/// Tests that do one thing very often, or read source files: a sanitizer finds nothing in them that
/// it does not find in others, and they take minutes there.
const BULK: [&str; 9] = [
    "cycles_are_found_through_every_path_form",
    "free_handle_is_lowest_and_bounded",
    "table_and_group_sizes_are_bounded",
    "indirect_upward_use_is_found",
    "undelivered_frames_are_bounded",
    "crates_have_no_large_module_cycle",
    "model_layers_use_only_lower_ones",
    "excess_driver_pages_are_rejected",
    "translated_code_is_bounded_across_harts",
];

/// Tests that leave memory behind: a device that keeps a queue may write to it as long as the
/// program runs. The address sanitizer would report it as a leak.
const LEAKING_TESTS: [&str; 4] = [
    "undestroyed_ethernet_queues_count_as_leaks",
    "uar_pages_of_a_filter_leave_mappings_to_others",
    "failed_destroy_with_unknown_status_is_leaked",
    "close_keeps_memory_of_undestroyed_objects",
];

/// Long tests of one thread outside [`ENGINE_TESTS`]: they cannot show a race. The address
/// sanitizer runs them.
const OF_ONE_THREAD: [&str; 1] = ["scapy_computes_the_same_icrc_for_every_opcode"];

/// Directory of the engine's tests. Most step the engine in the test's own thread.
const ENGINE_TESTS: &str = "crates/model/src/engine/tests";

/// Modules of [`ENGINE_TESTS`] whose tests have one thread: their files do not name threads.
fn engine_modules_of_one_thread() -> Result<Vec<String>> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(workspace_root().join(ENGINE_TESTS))? {
        let path = entry?.path();
        if let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
            && !fs::read_to_string(&path)?.contains("thread")
        {
            modules.push(format!("engine::tests::{name}::"));
        }
    }
    Ok(modules)
}

/// Tests of `verbless-model run` about files and messages of one program.
const OF_ONE_PROGRAM: [&str; 2] = ["devices::", "messages::"];

fn skips<'a>(tests: &[&'a str]) -> impl Iterator<Item = &'a str> {
    tests.iter().flat_map(|test| ["--skip", test])
}

/// The thread sanitizer needs a standard library that was built with it, or it reports std's own
/// locks as races.
pub(super) fn thread() -> Result<Outcome> {
    match std_sources() {
        Ok(sources) => {
            let mut command = sanitized("thread")?;
            let modules = engine_modules_of_one_thread()?;
            command
                .arg("-Zbuild-std")
                .env("__CARGO_TESTS_ONLY_SRC_ROOT", sources)
                // A random case has one thread, and the address sanitizer tries more of them.
                .env("PROPTEST_CASES", "16")
                // A race may not recur: its report names the lines.
                .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
                // The lines of a backtrace take twenty seconds there, and caught panics have a
                // backtrace, too.
                .env("RUST_BACKTRACE", "0")
                .arg("--")
                .args(skips(&BULK))
                .args(skips(&OF_ONE_THREAD))
                .args(modules.iter().flat_map(|module| ["--skip", module]))
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

    use super::{
        BULK, LEAKING_TESTS, OF_ONE_PROGRAM, OF_ONE_THREAD, SANITIZED, engine_modules_of_one_thread,
    };
    use crate::workspace::workspace_root;

    /// The Rust files of the crates, concatenated.
    fn sources(directory: &Path) -> String {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.fold(String::new(), |text, path| match path.extension() {
            _ if path.is_dir() => text + &sources(&path),
            Some(end) if end == "rs" => text + &fs::read_to_string(path).unwrap(),
            _ => text,
        })
    }

    #[test]
    fn sanitizer_exclusions_name_existing_tests() {
        let crates = workspace_root().join("crates");
        let there: String =
            SANITIZED.iter().map(|it| sources(&crates.join(&it["verbless-".len()..]))).collect();
        for test in BULK.iter().chain(&LEAKING_TESTS).chain(&OF_ONE_THREAD) {
            assert!(there.contains(&format!("fn {test}(")), "{test}");
        }
        for module in OF_ONE_PROGRAM.map(|it| it.trim_end_matches(':')) {
            assert!(crates.join(format!("model-host/tests/run/{module}.rs")).is_file(), "{module}");
        }
    }

    #[test]
    fn thread_sanitizer_keeps_engine_tests_with_threads() {
        let skipped = engine_modules_of_one_thread().unwrap();
        let has = |name: &str| skipped.contains(&format!("engine::tests::{name}::"));
        assert!(has("lossy") && has("operations"), "{skipped:?}");
        assert!(!has("threads") && !has("dpa"), "{skipped:?}");
    }
}
