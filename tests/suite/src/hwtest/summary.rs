//! What a run closes with: failures with their commands and how to repeat them, then counts by
//! group, then skips by reason.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use verbless_conformance::{FailedCommand, Outcome, Row, Run};

use crate::options::SuiteOptions;

/// Names of cases that failed for one cause, at most.
const NAMED: usize = 10;

/// Writes the summary of a run with these options.
pub(crate) fn write(out: &mut dyn Write, run: &Run, options: &SuiteOptions) -> io::Result<()> {
    failures(out, run, options)?;
    groups(out, run)?;
    reasons(out, run)
}

/// The failures by cause, each with the commands of its first case.
fn failures(out: &mut dyn Write, run: &Run, options: &SuiteOptions) -> io::Result<()> {
    let causes = run.causes();
    if causes.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nWhat failed:")?;
    for (reason, cases) in causes {
        let Some((first, more)) = cases.split_first() else { continue };
        match more.len() {
            0 => writeln!(out, "FAIL  {first}")?,
            count => writeln!(out, "FAIL  {first} and {count} more")?,
        }
        writeln!(out, "      {reason}")?;
        let row = run.cases.iter().find(|row| row.case == *first);
        commands(out, row.map_or(&[][..], |row| &row.failed_commands))?;
        for line in row.map_or(&[][..], |row| &row.kernel_log) {
            writeln!(out, "      the kernel logged: {line}")?;
        }
        for case in more.iter().take(NAMED) {
            writeln!(out, "      also {case}")?;
        }
        if more.len() > NAMED {
            writeln!(out, "      and {} others", more.len() - NAMED)?;
        }
        writeln!(out, "      repeat it: {}", repeat(options, first))?;
    }
    Ok(())
}

/// The failed commands of a case: the last one with its fields, the others in one line each.
fn commands(out: &mut dyn Write, commands: &[FailedCommand]) -> io::Result<()> {
    let Some((last, before)) = commands.split_last() else { return Ok(()) };
    writeln!(out, "      failed commands, the last one with its mailboxes:")?;
    for command in before {
        writeln!(out, "        {}", command.describe().lines().next().unwrap_or_default())?;
    }
    for line in last.describe().lines() {
        writeln!(out, "        {line}")?;
    }
    Ok(())
}

/// The command line that runs one case with the options of this run.
fn repeat(options: &SuiteOptions, case: &str) -> String {
    let on = &options.on;
    let mut words = vec!["hwtest".to_string()];
    let defaults = [("--device", &on.device, "auto"), ("--peer", &on.peer, "auto")];
    let profile = ("--profile", &on.profile, "connectx6dx");
    for (option, value, default) in defaults.into_iter().chain([profile]) {
        if value != default {
            words.extend([option.into(), value.clone()]);
        }
    }
    let path = |file: &Option<PathBuf>| file.as_ref().map(|it| it.display().to_string());
    let given = [
        ("--link", on.link.clone()),
        ("--model-kernel", on.model_kernel.map(|it| it.to_string())),
        ("--model-pages", on.model_pages.map(|it| it.to_string())),
        ("--faults", path(&on.faults)),
        ("--between", options.between.clone()),
        ("--connect", options.connect.clone()),
        ("--dpa-program", path(&options.dpa_program)),
    ];
    for (option, value) in given {
        if let Some(value) = value {
            words.extend([option.into(), value]);
        }
    }
    let flags = [
        ("--packets", options.packets),
        ("--both-ways", options.both_ways),
        ("--long", options.long),
        ("--destructive", options.destructive),
    ];
    words.extend(flags.iter().filter(|(_, set)| *set).map(|(option, _)| option.to_string()));
    words.extend(["--filter".into(), case.into()]);
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The counts of each group, in the order in which the groups ran.
fn groups(out: &mut dyn Write, run: &Run) -> io::Result<()> {
    if run.cases.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<24} {:>7} {:>7} {:>7} {:>7}",
        "Group", "passed", "failed", "skipped", "blocked"
    )?;
    for rows in run.cases.chunk_by(|a, b| a.group() == b.group()) {
        let count = |is: fn(&Outcome) -> bool| rows.iter().filter(|row| is(&row.outcome)).count();
        let passed = count(|it| matches!(it, Outcome::Passed));
        let failed = count(|it| matches!(it, Outcome::Failed(_)));
        let skipped = count(|it| matches!(it, Outcome::Skipped(_)));
        let blocked = count(|it| matches!(it, Outcome::Blocked(_)));
        let group = rows.first().map_or("", Row::group);
        writeln!(out, "{group:<24} {passed:>7} {failed:>7} {skipped:>7} {blocked:>7}")?;
    }
    Ok(())
}

/// The reasons for which cases were skipped or blocked, the most frequent first.
fn reasons(out: &mut dyn Write, run: &Run) -> io::Result<()> {
    let mut reasons: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for row in &run.cases {
        match &row.outcome {
            Outcome::Skipped(reason) => *reasons.entry(("skipped", reason)).or_default() += 1,
            Outcome::Blocked(reason) => *reasons.entry(("blocked", reason)).or_default() += 1,
            Outcome::Passed | Outcome::Failed(_) => {}
        }
    }
    if reasons.is_empty() {
        return Ok(());
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|&((outcome, _), count)| (outcome, std::cmp::Reverse(count)));
    writeln!(out, "\nNot run, by reason:")?;
    for ((outcome, reason), count) in reasons {
        writeln!(out, "{count:>6} {outcome}: {reason}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::Options;

    #[test]
    fn repeat_keeps_every_choice() {
        let of = |words: &[&str]| Options::parse_from(words).suite;
        let on = ["--device", "model", "--peer", "none", "--profile", "bluefield3"];
        let model = ["--link", "ethernet", "--model-kernel", "5.10", "--between", "dpus"];
        let model = [&model[..], &["--model-pages", "64k"]].concat();
        let flags = ["--long", "--destructive", "--dpa-program", "a.elf"];
        for mode in [&["--packets", "--faults", "f.toml"][..], &["--both-ways"]] {
            let given = of(&[&["hwtest"][..], &on, &model, &flags, mode].concat());
            let line = repeat(&given, "rc::write");
            let again = of(&line.split(' ').collect::<Vec<_>>());
            assert_eq!(again.choice(), given.choice(), "{line}");
            assert_eq!(again.dpa_program, given.dpa_program, "{line}");
            assert_eq!(again.filter, ["rc::write"]);
        }
        let line = repeat(&of(&["hwtest", "--connect", "lab2", "--device", "mlx5_1"]), "kills::a");
        assert_eq!(line, "hwtest --device mlx5_1 --connect lab2 --filter kills::a");
        assert_eq!(repeat(&of(&["hwtest"]), "rc::write"), "hwtest --filter rc::write");
    }
}
