//! What people hand over: device profiles, plans of faults, and what `cargo xtask prm decode`
//! reads.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use verbless_model::{FaultPlan, Link, Model, Profile};
use verbless_prm::command::Decoded;
use verbless_prm::dump;

/// Writes a command out in every way that there is.
fn show(input: &[u8], output: Option<&[u8]>) {
    if let Some(decoded) = Decoded::new(input, output) {
        let mut text = String::new();
        let _ = write!(text, "{decoded}{decoded:#}");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    match kind % 4 {
        // A profile that is accepted makes a device, a plan that is accepted can be applied or says
        // what is not there.
        0 => {
            if let Ok(plan) = FaultPlan::parse(&text) {
                let card = Profile::load("bluefield3").expect("a profile that comes along");
                let model = Model::builder().device_with_sides(card).stepped().build();
                if let Err(error) = model.apply(&plan) {
                    assert!(error.to_string().contains("there is no "), "{error}");
                }
            }
            let Ok(profile) = Profile::from_toml(&text) else { return };
            // What is too large for this machine is not what is looked for.
            if profile.device().uar_pages <= 1 << 16 && profile.device().vectors <= 1 << 16 {
                for link in [Link::Infiniband, Link::Ethernet] {
                    Model::builder().device(profile.clone().with_link(link)).stepped().build();
                }
            }
        }
        1 => {
            for command in dump::parse_log(&text).unwrap_or_default() {
                show(&command.input, command.output.as_deref());
            }
        }
        2 => {
            let _ = dump::parse_hex(&text);
        }
        _ => {
            let (input, output) = rest.split_at(rest.len() / 2);
            show(input, Some(output));
        }
    }
});
