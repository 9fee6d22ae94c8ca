//! `capture [theirs] [ours] [requests]`: runs the cases on the first device of this machine, with a
//! recorder behind it, and prints libmlx5's ioctls. Without an argument it does all three. `cargo
//! xtask capture` runs it in a guest.

mod ioctl;

use std::process::ExitCode;

use verbless_capture::verbs::Verbs;
use verbless_capture::{Result, ours, requests, scenario, theirs};
use verbless_devx::Kernel;

/// The line before the requests in the output.
const REQUESTS: &str = "=== requests";

fn run(words: &[String]) -> Result {
    let wanted = |word: &str| words.is_empty() || words.iter().any(|it| it == word);
    let cases = scenario::cases();
    if wanted(theirs::SIDE) {
        theirs::run(&Verbs::load()?, &cases)?;
        println!("libmlx5 did {} cases", cases.len());
    }
    if wanted(ours::SIDE) {
        ours::run(&Kernel::new(), &cases)?;
        println!("our driver did {} cases", cases.len());
    }
    if wanted("requests") {
        let verbs = Verbs::load()?;
        requests::run(&verbs, &ioctl::title)?;
        println!("{REQUESTS}\n{}", ioctl::finish());
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
