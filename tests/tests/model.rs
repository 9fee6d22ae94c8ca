//! Every case on the model in this process, as a test of its own: on both kinds of port, on both kinds of device, and on
//! devices that can do less.

use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use verbless_conformance::{Case, Choice, Lab, Outcome, Stop, cases, run_case};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    let (all, of_a_bond) = ("", "take_turns");
    for (name, profile, link, filter) in [
        ("infiniband", "bluefield3", "infiniband", all),
        ("ethernet", "connectx6dx", "ethernet", all),
        ("realtime", "connectx6dx-realtime", "ethernet", all),
        ("vf", "connectx6vf", "infiniband", all),
        ("bond", "connectx6dx-bond", "ethernet", of_a_bond),
    ] {
        let choice = Choice {
            device: "model".into(),
            peer: "auto".into(),
            profile: profile.into(),
            link: Some(link.into()),
            destructive: false,
        };
        match Lab::open(&choice) {
            Ok(lab) => {
                let lab = Arc::new(lab);
                trials.extend(
                    cases()
                        .filter(|case| case.id().contains(filter))
                        .map(|case| trial(name, lab.clone(), case)),
                );
            }
            Err(Stop::Fail(why) | Stop::Skip(why)) => {
                trials.push(Trial::test(format!("{name}::model"), move || Err(why.into())));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, lab: Arc<Lab>, case: &'static Case) -> Trial {
    Trial::ignorable_test(format!("{name}::{}", case.id()), move || match run_case(&lab, case).0 {
        Outcome::Passed => Ok(Completion::Completed),
        Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
        Outcome::Failed(reason) => Err(Failed::from(reason)),
    })
}
