//! Texts of users: device profiles, fault plans, and the input of `cargo xtask prm decode`.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use verbless_model::{FaultPlan, Link, Model, Profile};
use verbless_prm::command::Decoded;
use verbless_prm::dump;

/// Prints a command in every format.
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
        // An accepted profile makes a device; an accepted plan can be applied, or names the missing
        // object.
        0 => {
            if let Ok(plan) = FaultPlan::parse(&text) {
                let card = Profile::load("bluefield3").expect("a built-in profile");
                let model = Model::builder().device_with_sides(card).stepped().build();
                if let Err(error) = model.apply(&plan) {
                    assert!(error.to_string().contains("there is no "), "{error}");
                }
            }
            let Ok(profile) = Profile::from_toml(&text) else { return };
            // A device that is too large for this machine is not a finding.
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
