//! Every case on the model in this process, as a test of its own: on both kinds of port and of
//! device. The long matrix runs on one of them here; `cargo xtask test` runs the suite with
//! `hwtest` on the other, and on devices with fewer capabilities.

use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use verbless_conformance::{
    Case, Choice, Lab, Outcome, Stop, cases, environments, run_case, unexpected_skips,
};

/// Name, profile, link and device owners of each model; whether a case runs there.
type Kind = (&'static str, &'static str, &'static str, Option<&'static str>, fn(&Case) -> bool);

const KINDS: &[Kind] = &[
    ("infiniband", "bluefield3", "infiniband", None, |_| true),
    ("ethernet", "connectx6dx", "ethernet", None, |case| case.group != "matrix"),
    ("bond", "connectx6dx-bond", "ethernet", None, |case| case.id().contains("_bond_")),
    ("fwctl", "bluefield3-fwctl", "infiniband", None, |case| case.group == "dpa_registers"),
    ("relaxed", "bluefield3-relaxed", "infiniband", None, |case| {
        ["memory", "umr", "foreign"].contains(&case.group)
    }),
    ("hosts", "bluefield3", "infiniband", Some("hosts"), connects),
    ("dpus", "bluefield3", "infiniband", Some("dpus"), connects),
    ("dpus by ethernet", "bluefield3", "ethernet", Some("dpus"), connects),
    ("host and dpu by ethernet", "bluefield3", "ethernet", Some("host-and-dpu"), connects),
];

/// Environments of `hwtest`, in the step "hwtest on the model".
const OF_HWTEST: [&str; 3] = ["model realtime", "model vf", "model linux 5.10"];

/// The cases of DOCA RDMA run between all sides that can be connected.
fn connects(case: &Case) -> bool {
    case.group.starts_with("doca_rdma")
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = vec![Trial::test("every_model_in_the_list_of_expected_skips_is_run", known)];
    for &(name, profile, link, between, runs) in KINDS {
        let choice = Choice {
            profile: profile.into(),
            link: Some(link.into()),
            between: between.map(str::to_string),
            ..Choice::default()
        };
        match Lab::open(&choice) {
            Ok(lab) => {
                let lab = Arc::new(lab);
                let these = move || cases().filter(move |case| runs(case));
                trials.extend(these().map(|case| trial(name, lab.clone(), case)));
                let name = format!("model {name}");
                trials.push(Trial::test(format!("{name}: only expected skips"), move || {
                    match unexpected_skips(
                        &lab,
                        &name,
                        these().map(|case| (case.id(), &case.needs[..])),
                    ) {
                        Ok(lines) if lines.is_empty() => Ok(()),
                        Ok(lines) => Err(lines.join("\n").into()),
                        Err(Stop(why)) => Err(why.into()),
                    }
                }));
            }
            Err(Stop(why)) => {
                trials.push(Trial::test(format!("{name}::model"), move || Err(why.into())));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn known() -> Result<(), Failed> {
    let listed = environments().map_err(|Stop(why)| why)?;
    let run: Vec<_> = KINDS.iter().map(|(name, ..)| format!("model {name}")).collect();
    let runs = |name: &String| run.contains(name) || OF_HWTEST.contains(&&**name);
    match listed.iter().find(|name| name.starts_with("model ") && !runs(name)) {
        Some(name) => Err(format!("nothing runs in the environment {name:?}").into()),
        None => Ok(()),
    }
}

fn trial(name: &str, lab: Arc<Lab>, case: &'static Case) -> Trial {
    Trial::ignorable_test(format!("{name}::{}", case.id()), move || {
        match run_case(&lab, case).outcome {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
            Outcome::Failed(reason) | Outcome::Blocked(reason) => Err(Failed::from(reason)),
        }
    })
}
