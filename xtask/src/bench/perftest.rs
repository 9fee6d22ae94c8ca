//! `hwtest perf` beside perftest, on the same model in the same run: the ratio of both.

use std::path::Path;
use std::process::{Command, Stdio};

use super::tally::Tally;
use crate::run::{model, on_the_path, program};
use crate::workspace::Result;

/// Maximum number of rounds: the first in which ours reaches the bound is the last. A rate depends
/// on the machine's load, so the best of each counts.
const ROUNDS: usize = 4;
/// How much less than perftest's rate ours may be after all rounds, at least. Where the model is
/// the limit, as for long messages, both are equal but for the load: 0.91 to 1.04 were measured.
const LEAST_NOISE: f64 = 0.2;

/// What is compared: perftest's program, our test, and the options of both.
struct Row {
    theirs: &'static str,
    ours: &'static str,
    bytes: u32,
    messages: u32,
    /// The column of a row of numbers, from 0; whether more is better.
    column: (usize, bool),
}

/// Column `BW average` of a bandwidth, and `t_typical` of a latency.
const AVERAGE: (usize, bool) = (3, true);
const TYPICAL: (usize, bool) = (4, false);

const fn row(
    theirs: &'static str,
    ours: &'static str,
    bytes: u32,
    messages: u32,
    column: (usize, bool),
) -> Row {
    Row { theirs, ours, bytes, messages, column }
}

const ROWS: [Row; 6] = [
    row("ib_write_bw", "write_bw", 65_536, 20_000, AVERAGE),
    row("ib_write_bw", "write_bw", 8, 200_000, AVERAGE),
    row("ib_read_bw", "read_bw", 65_536, 20_000, AVERAGE),
    row("ib_send_bw", "send_bw", 65_536, 20_000, AVERAGE),
    row("ib_send_bw", "send_bw", 8, 200_000, AVERAGE),
    row("ib_write_lat", "write_lat", 8, 5000, TYPICAL),
];

/// Measures each row until ours is not slower, and prints the ratio. A check fails below 1.0 less
/// what perftest's own rounds differ by ([`noise`]): a smaller ratio says nothing of ours.
/// A latency is only printed: both wait for the model, and its thread for the scheduler.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let chosen = |row: &&Row| filter.is_none_or(|part| row.name().contains(part));
    let rows: Vec<_> = ROWS.iter().filter(chosen).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let missing = rows.iter().find(|row| !on_the_path(row.theirs));
    if let Some(row) = missing {
        tally.skip("perf: hwtest beside perftest", &format!("{} is not installed", row.theirs));
        return Ok(());
    }
    let (model, hwtest) = (model()?, program("hwtest")?);
    println!("\nhwtest perf beside perftest, the best of at most {ROUNDS} rounds\n");
    println!("{:36} {:>12} {:>12} {:>8} {:>6}", "", "ours", "perftest", "ratio", "bound");
    for row in rows {
        let (mut theirs, mut ours) = (None, None);
        let mut rates = Vec::new();
        for round in 0..ROUNDS {
            let (more_of_theirs, more_of_ours) = row.measure(&model, &hwtest, round)?;
            rates.extend(more_of_theirs);
            theirs = row.better(theirs, more_of_theirs);
            ours = row.better(ours, more_of_ours);
            if row.ratio(theirs, ours).is_some_and(|ratio| ratio >= 1.0 - LEAST_NOISE) {
                break;
            }
        }
        let name = row.name();
        let (Some(ours), Some(theirs), Some(ratio)) = (ours, theirs, row.ratio(theirs, ours))
        else {
            return Err(format!("{name}: {ours:?} of ours and {theirs:?} of perftest's").into());
        };
        let unit = if row.column == AVERAGE { "MiB/s" } else { "us" };
        print!("{name:36} {ours:>12.2} {theirs:>12.2} {ratio:>8.2}");
        match row.column == AVERAGE {
            true => {
                let bound = 1.0 - noise(&rates);
                let verdict = if ratio >= bound { "" } else { "  BELOW THE BOUND" };
                println!(" {bound:>6.2} {unit}{verdict}");
                tally.count(ratio >= bound);
            }
            false => println!(" {:>6} {unit}", ""),
        }
    }
    Ok(())
}

impl Row {
    fn name(&self) -> String {
        format!("perf: {}, {} bytes", self.ours, self.bytes)
    }

    /// Both in one run, each as a server and a client: perftest's number and ours.
    fn measure(
        &self,
        model: &Path,
        hwtest: &Path,
        round: usize,
    ) -> Result<(Option<f64>, Option<f64>)> {
        let Self { theirs, ours, bytes, messages, .. } = self;
        let hwtest = hwtest.display();
        let perftest = format!("{theirs} -d mlx5_0 -s {bytes} -n {messages} -F -p 18840");
        let theirs = format!(
            "{perftest} >/dev/null & server=$!\n\
             for try in $(seq 100); do\n\
                 sleep 0.1; said=$({perftest} localhost 2>/dev/null) && break\n\
             done\n\
             wait $server; sed 's/^/theirs /' <<<\"$said\"\n"
        );
        let ours = format!(
            "'{hwtest}' serve 127.0.0.1:18841 --once --device mlx5_0 >/dev/null & server=$!\n\
             said=$('{hwtest}' perf {ours} --connect 127.0.0.1:18841 --device mlx5_0 \
                 --size {bytes} --iterations {messages})\n\
             wait $server; sed 's/^/ours /' <<<\"$said\"\n"
        );
        // The first one changes each round, so that the order favours neither.
        let script = if round.is_multiple_of(2) { theirs + &ours } else { ours + &theirs };
        let output = Command::new("timeout")
            .args(["--kill-after=5", "120"])
            .arg(model)
            .args(["run", "--", "bash", "-c", &script])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        let report = String::from_utf8_lossy(&output.stdout);
        Ok((self.number(&report, "theirs "), self.number(&report, "ours ")))
    }

    /// The number of the last row of numbers among these lines.
    fn number(&self, report: &str, of: &str) -> Option<f64> {
        let lines = report.lines().filter_map(|line| line.strip_prefix(of));
        lines.filter_map(numbers).next_back()?.get(self.column.0).copied()
    }

    fn better(&self, one: Option<f64>, other: Option<f64>) -> Option<f64> {
        match (one, other) {
            (Some(one), Some(other)) if self.column.1 => Some(one.max(other)),
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// How many times as good as theirs ours is.
    fn ratio(&self, theirs: Option<f64>, ours: Option<f64>) -> Option<f64> {
        let (theirs, ours) = (theirs?, ours?);
        Some(if self.column.1 { ours / theirs } else { theirs / ours })
    }
}

/// What part of the best of these rates the middle one lacks: what the load of the machine takes
/// from half of the rounds. At least [`LEAST_NOISE`].
fn noise(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    let (middle, best) = (rates.get(rates.len() / 2), rates.last());
    let lacks = middle.zip(best).map_or(0.0, |(middle, best)| 1.0 - middle / best);
    lacks.max(LEAST_NOISE)
}

/// The numbers of a line that has nothing else.
fn numbers(line: &str) -> Option<Vec<f64>> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() >= 5)
}

#[cfg(test)]
mod tests {
    use super::{AVERAGE, LEAST_NOISE, TYPICAL, noise, row};

    #[test]
    fn noise_is_what_the_middle_of_the_rates_lacks() {
        assert_eq!(noise(&[75.0, 100.0, 50.0]), 0.25);
        assert_eq!(noise(&[100.0, 99.0, 98.0]), LEAST_NOISE);
        assert_eq!(noise(&[100.0]), LEAST_NOISE);
        assert_eq!(noise(&[]), LEAST_NOISE);
    }

    #[test]
    fn numbers_come_from_the_row_of_the_right_program() {
        let report = "theirs  #bytes     #iterations    BW peak[MiB/sec]\n\
                      theirs  65536      5000             9180.24   9110.54\t 0.145769\n\
                      ours  #bytes     #iterations    BW peak[MiB/sec]   port[%]\n\
                      ours  65536      5000  10000.00  9500.25  0.152004  80.0\n\
                      ours done";
        let bandwidth = row("ib_write_bw", "write_bw", 65_536, 5000, AVERAGE);
        let theirs = bandwidth.number(report, "theirs ");
        let ours = bandwidth.number(report, "ours ");
        assert_eq!((theirs, ours), (Some(9110.54), Some(9500.25)));
        assert!(bandwidth.ratio(theirs, ours).is_some_and(|ratio| ratio > 1.04));
        let latency = row("ib_write_lat", "write_lat", 8, 5000, TYPICAL);
        assert_eq!(latency.ratio(Some(6.0), Some(3.0)), Some(2.0));
        assert_eq!(latency.better(Some(6.0), Some(3.0)), Some(3.0));
        assert_eq!(latency.number("theirs nothing", "theirs "), None);
    }
}
