//! Tries the mutants of a crate that one program can contain: first with the crate's own tests,
//! then those that survive with the conformance suite.

use std::collections::BTreeSet;
use std::time::Instant;

use super::list::Mutant;
use super::program::{Program, Refusal};
use super::reach::{Tests, Trace};
use super::trial::{Fate, OF_THE_SUITE, SUITE, Tree};
use crate::workspace::Result;

/// A line of the report: a mutant, its fate and a note.
pub(super) struct Report<'run> {
    pub(super) mutant: &'run Mutant,
    pub(super) fate: Fate,
    /// The reason, or the time.
    pub(super) note: String,
}

/// Reports the fate of each mutant of a package.
pub(super) fn of_package<'run>(
    tree: &Tree,
    package: &str,
    mutants: &[&'run Mutant],
    report: &mut impl FnMut(Report<'run>) -> Result,
) -> Result {
    let start = Instant::now();
    let mut program = Program::new(tree, package, mutants)?;
    let mut left: BTreeSet<u32> = (1..).zip(mutants).map(|(number, _)| number).collect();
    left.retain(|number| !program.refused.contains_key(number));
    let mut of = |number: u32, fate: Fate, note: String| {
        report(Report { mutant: mutants[number as usize - 1], fate, note })
    };
    let executables = match left.is_empty() {
        true => Vec::new(),
        false => program.build(package)?,
    };
    let mut reported = BTreeSet::new();
    report_refused(&program, &mut reported, &mut left, &mut of)?;
    println!(
        "{package}: one program has {} of {} mutants ({} s)",
        left.len(),
        mutants.len(),
        start.elapsed().as_secs()
    );
    let mut trace = Trace::default();
    let mut own = Tests::list(tree, executables, None)?;
    if !left.is_empty() {
        let start = Instant::now();
        own.trace_each()?;
        println!("{package}: traced {} tests ({} s)", own.count(), start.elapsed().as_secs());
    }
    let mut left = survivors(&program, &own, left, Fate::KilledByOwn, &mut of)?;
    trace.add(own.trace());
    if OF_THE_SUITE.contains(&package) && !left.is_empty() {
        let start = Instant::now();
        let executables = program.build(SUITE)?;
        // This build may enable other features, with which a mutant may not compile.
        report_refused(&program, &mut reported, &mut left, &mut of)?;
        let mut suite = Tests::list(tree, executables, tree.skip())?;
        println!(
            "{package}: the suite, for {} mutants: {} tests ({} s)",
            left.len(),
            suite.count(),
            start.elapsed().as_secs()
        );
        let passed = suite.trace_whole()?;
        let may = left.iter().filter(|&&it| suite.may_kill(it, program.is_observed(it))).count();
        let whole = suite.whole_time().saturating_mul(u32::try_from(may)?);
        if !passed || whole > suite.each_time() {
            suite.trace_each()?;
        }
        left = survivors(&program, &suite, left, Fate::KilledBySuite, &mut of)?;
        trace.add(suite.trace());
    }
    for number in left {
        let reached = trace.reached.contains(&number);
        let (fate, note) = if program.is_in_const_fn(number) {
            (Fate::Unswitched, "it survives, but the compiler may evaluate the original")
        } else if !reached {
            (Fate::NotReached, "not reached")
        } else if program.is_observed(number) && !trace.overlapped.contains(&number) {
            (Fate::Equivalent, "the operands have no bit in common")
        } else {
            (Fate::Missed, "tests reach it")
        };
        of(number, fate, note.into())?;
    }
    Ok(())
}

/// Runs the tests that reach each mutant; the mutants that no test kills.
fn survivors(
    program: &Program<'_>,
    tests: &Tests<'_>,
    left: BTreeSet<u32>,
    killed: Fate,
    of: &mut impl FnMut(u32, Fate, String) -> Result,
) -> Result<BTreeSet<u32>> {
    let mut survivors = BTreeSet::new();
    for number in left {
        let start = Instant::now();
        if tests.may_kill(number, program.is_observed(number)) && tests.kill(number)? {
            of(number, killed, format!("{:.1} s", start.elapsed().as_secs_f64()))?;
        } else {
            survivors.insert(number);
        }
    }
    Ok(survivors)
}

/// Reports the mutants that were left out of the program.
fn report_refused(
    program: &Program<'_>,
    reported: &mut BTreeSet<u32>,
    left: &mut BTreeSet<u32>,
    of: &mut impl FnMut(u32, Fate, String) -> Result,
) -> Result {
    for (number, refusal) in &program.refused {
        left.remove(number);
        if reported.insert(*number) {
            match refusal {
                Refusal::Unviable => of(*number, Fate::Unviable, "does not compile".into())?,
                Refusal::Unswitchable(why) => of(*number, Fate::Unswitched, why.clone())?,
            }
        }
    }
    Ok(())
}
