//! `hwtest --sweep`: the cases on each variant of the model's profile.

use std::error::Error;
use std::io;

use verbless_conformance::{
    Case, Choice, Lab, Outcome, Run, Stop, default_jobs, run_cases, variants,
};

use crate::options::{SuiteOptions, SweepPart};

/// Runs the cases on each variant of the profile; returns whether no case failed.
pub(crate) fn run(
    options: &SuiteOptions,
    part: SweepPart,
    selected: &[&'static Case],
) -> Result<bool, Box<dyn Error>> {
    let all = variants(&options.on.profile).map_err(|Stop(what)| what)?;
    let folder = std::env::temp_dir().join(format!("verbless-sweep-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (number, variant) in all.iter().enumerate().skip(part.first).step_by(part.of) {
        let file = variant.write(&folder).map_err(|Stop(what)| what)?;
        let choice = Choice {
            device: "model".into(),
            profile: file.display().to_string(),
            ..options.choice()
        };
        print!("{}/{}  {}: ", number + 1, all.len(), variant.name);
        let lab = match Lab::open(&choice).and_then(|lab| lab.check().map(|()| lab)) {
            Ok(lab) => lab,
            // The driver cannot work without this capability.
            Err(Stop(why)) => {
                println!("no device: {why}");
                skipped += 1;
                continue;
            }
        };
        let mut run = Run { device: variant.name.clone(), preconditions: vec![], cases: vec![] };
        let jobs = options.jobs.unwrap_or_else(|| default_jobs(&lab));
        run_cases(&lab, selected, jobs, |row| {
            run.cases.push(row);
            Ok::<_, io::Error>(())
        })?;
        let (good, bad, without) = run.counts();
        println!("{good} passed, {bad} failed, {without} skipped");
        for row in run.cases.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))) {
            println!("{}", row.line());
        }
        if bad == 0 { passed += 1 } else { failed += 1 }
    }
    std::fs::remove_dir_all(&folder)?;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}
