//! Every case on the model in this process, as a test of its own: on both kinds of port, and on both kinds of device.

use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use verbless_conformance::{Case, Choice, Lab, Outcome, Stop, cases, run_case};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (profile, link) in [("bluefield3", "infiniband"), ("connectx6dx", "ethernet")] {
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
                trials.extend(cases().map(|case| trial(link, lab.clone(), case)));
            }
            Err(Stop::Fail(why) | Stop::Skip(why)) => {
                trials.push(Trial::test(format!("{link}::model"), move || Err(why.into())));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(link: &str, lab: Arc<Lab>, case: &'static Case) -> Trial {
    Trial::ignorable_test(format!("{link}::{}", case.id()), move || match run_case(&lab, case).0 {
        Outcome::Passed => Ok(Completion::Completed),
        Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
        Outcome::Failed(reason) => Err(Failed::from(reason)),
    })
}
