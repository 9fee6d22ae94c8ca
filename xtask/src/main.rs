//! `cargo xtask`: the tasks of the project, one module per task.
//!
//! A task that needs the driver or the model is a program of its own that this one starts, so that
//! `cargo xtask prm` builds in seconds and works even if the rest of the tree does not compile.

use std::process::ExitCode;

use clap::Parser;

mod bench;
mod capture;
mod clients;
mod commands;
mod debian;
mod dependencies;
mod device;
mod dist;
mod dpa;
mod ends;
mod fuzz;
mod hwtest;
mod lanes;
mod ledger;
mod lines;
mod mutants;
mod outcome;
mod packages;
mod peers;
mod phrases;
mod pyverbs;
mod run;
mod sandbox;
mod steps;
mod test;
#[cfg(test)]
mod unsafe_code;
mod vm;
mod workspace;

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// The PRM as data: import, generate, check, verify, show, decode.
    #[command(subcommand)]
    Prm(verbless_prm_tool::Task),
    /// Runs the conformance suite on a device, or on the model where there is none.
    Hwtest(hwtest::Options),
    /// Counts the instructions of posting and polling, measures the speed of the model, and
    /// compares both with bounds.
    Bench(bench::Options),
    /// Runs the fuzz targets, each for a while.
    Fuzz(fuzz::Options),
    /// Makes small changes to the sources, and lists those that no test detects.
    Mutants(mutants::Options),
    /// Checks and lists the fixes of other mlx5 drivers, with the tests that cover them here.
    Ledger(ledger::Options),
    /// Builds static programs for machines without Rust.
    Dist(dist::Options),
    /// Runs every test that this machine can run.
    Test(test::Options),
    /// Boots a real kernel with the model as its PCI device and runs a program there.
    Vm(vm::Options),
    /// Builds and runs programs for a DPA's cores.
    #[command(subcommand)]
    Dpa(dpa::Task),
    /// Records the commands of Linux's mlx5_ib and rdma-core in a guest, as evidence for the tests
    /// that compare them with ours.
    Capture(capture::Options),
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Prm(task) => verbless_prm_tool::run(task).map(|()| true),
        Task::Hwtest(options) => hwtest::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Ledger(options) => ledger::run(&options),
        Task::Dist(options) => dist::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Dpa(task) => dpa::run(&task),
        Task::Capture(options) => capture::run(&options),
        Task::Vm(options) => match vm::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
