//! The command line.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, Parser, Subcommand};
use verbless_conformance::roles::Side;
use verbless_conformance::{Case, Choice, cases};
use verbless_model_kernel::{KernelRelease, SystemPage};

use crate::versions;

/// Runs the conformance suite on an mlx5 device, or on the model where there is none.
#[derive(Parser)]
#[command(name = "hwtest", version = versions::line())]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    /// What to do other than run the suite.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) suite: SuiteOptions,
}

/// The tasks of `hwtest` other than a run of the suite.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Checks the chain from the kernel's module to one message, and stops at the first link that
    /// fails: what failed, why, and what to do. Takes less than two seconds if every link holds.
    Doctor(DoctorOptions),
    /// Writes the HTML page of a report.
    Report(ReportOptions),
    /// Compares two reports, or a report and a profile of the model: capabilities and cases that
    /// differ. Exits with 1 if something does.
    Diff(DiffOptions),
    /// Writes a profile of the model from a report, so that the model is the reported card.
    Profile(ReportOptions),
    /// Runs the cases of a recording (`hwtest --record`) on its answers instead of a device. Exits
    /// with 1 if a case asks or ends otherwise: the request and its fields are named.
    Replay(ReplayOptions),
    /// Measures bandwidths, message rates and latencies, in the columns of perftest.
    Perf(PerfOptions),
    /// Plays the other end of `hwtest --connect` on another machine, until SIGINT.
    Serve(ServeOptions),
    /// Plays one role of a case of two machines; its director is on standard input.
    #[command(hide = true)]
    Role(RoleOptions),
}

/// A recording, and which of its cases run.
#[derive(Args)]
pub(crate) struct ReplayOptions {
    /// The recording: a file of `hwtest --record`.
    pub(crate) recording: PathBuf,
    /// Only cases whose name contains this, or one of these if it is given several times.
    #[arg(long, value_name = "PART")]
    pub(crate) filter: Vec<String>,
    /// Cases repeat something as often as in a run with --long: for the recording of such a run.
    #[arg(long)]
    pub(crate) long: bool,
}

/// Where `hwtest serve` listens, and on which device.
#[derive(Args)]
pub(crate) struct ServeOptions {
    #[command(flatten)]
    pub(crate) on: DeviceOptions,
    /// The address to listen on: HOST:PORT, or HOST with port 7472. By default every IPv4 address
    /// of this machine: any program that reaches the port can run the cases and measure, and
    /// nothing else.
    #[arg(default_value = "0.0.0.0")]
    pub(crate) address: String,
    /// End after one client.
    #[arg(long)]
    pub(crate) once: bool,
}

/// What `hwtest perf` measures, and where.
#[derive(Args)]
#[command(group(ArgGroup::new("perf_results").args(["json"])))]
pub(crate) struct PerfOptions {
    #[command(flatten)]
    pub(crate) on: DeviceOptions,
    /// What to measure: an operation (write, read, send, fetch_add, compare_swap, ud_send) with
    /// _bw or _lat [default: write_bw read_bw send_bw ud_send_bw write_lat read_lat send_lat
    /// ud_send_lat fetch_add_lat].
    pub(crate) tests: Vec<String>,
    /// The other end: `hwtest serve` at this address, HOST or HOST:PORT. Without it, the device
    /// talks to itself, or to that of --peer.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "peer")]
    pub(crate) connect: Option<String>,
    /// Bytes of a message; several are possible [default: some from 8 to 1 MiB].
    #[arg(long, short, value_name = "BYTES", value_delimiter = ',')]
    pub(crate) size: Vec<u32>,
    /// All powers of two from 2 bytes to 8 MiB.
    #[arg(long, short, conflicts_with = "size")]
    pub(crate) all: bool,
    /// Messages of each queue pair [default: 5000; 1000 of a latency].
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub(crate) iterations: Option<u32>,
    /// Requests in flight of each queue pair, where bandwidth is measured.
    #[arg(long, value_name = "COUNT", default_value = "128")]
    pub(crate) depth: u32,
    /// Queue pairs, where bandwidth is measured.
    #[arg(long, short, value_name = "COUNT", default_value = "1")]
    pub(crate) qps: u32,
    /// Requests per doorbell, where bandwidth is measured.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub(crate) batch: u32,
    /// Write a report as JSON to this file (`-`: standard output); docs/report.md says what it has.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The report also has GIDs, GUIDs, MAC and IP addresses of the devices.
    #[arg(long, requires = "perf_results")]
    pub(crate) identify: bool,
}

/// A role of a case, and its device.
#[derive(Args)]
pub(crate) struct RoleOptions {
    #[command(flatten)]
    pub(crate) on: DeviceOptions,
    pub(crate) case: String,
    pub(crate) side: Side,
    pub(crate) life: u32,
}

/// A report, and what is made of it.
#[derive(Args)]
pub(crate) struct ReportOptions {
    /// The report: a file of `hwtest --json`.
    pub(crate) report: PathBuf,
    /// The file to write (`-`: standard output).
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
}

/// What `hwtest diff` compares.
#[derive(Args)]
pub(crate) struct DiffOptions {
    /// A report, the name of a built-in profile, or a profile's TOML file.
    pub(crate) one: String,
    /// The other one.
    pub(crate) other: String,
}

/// The device that a command is on.
#[derive(Args)]
pub(crate) struct DeviceOptions {
    /// `auto` (the first mlx5 device whose port is ACTIVE and, on Ethernet, has a GID; if none is
    /// usable, the first that is ACTIVE, or the first; the model if the machine has no mlx5
    /// function), `model`, or a device's name (mlx5_0).
    #[arg(long, default_value = "auto")]
    pub(crate) device: String,
    /// The device that it talks to: `auto` (a second one on the same fabric where devices are
    /// modelled; none on cards), `none` (the port loops back), or a device's name.
    #[arg(long, default_value = "auto")]
    pub(crate) peer: String,
    /// The model's profile: connectx5, connectx6dx, connectx6dx-bond, connectx6dx-realtime,
    /// connectx6vf, connectx7, bluefield3, bluefield3-fwctl, bluefield3-relaxed, or a TOML file.
    #[arg(long, default_value = "connectx6dx")]
    pub(crate) profile: String,
    /// The model's port type: infiniband or ethernet; the profile's own if not given.
    #[arg(long)]
    pub(crate) link: Option<String>,
    /// The Linux release that the model's kernel is like in this process: 5.10, 5.15 or newest.
    #[arg(long, value_name = "RELEASE")]
    pub(crate) model_kernel: Option<KernelRelease>,
    /// The size of that kernel's pages: 4k, 16k or 64k; the machine's own if not given. What larger
    /// pages than the machine's show: docs/lab.md.
    #[arg(long, value_name = "SIZE")]
    pub(crate) model_pages: Option<SystemPage>,
    /// Faults of the model's links: a file as described in docs/faults.md. In this process, a run
    /// of all cases fails if an effect of the file happened to no frame; under `verbless-model run
    /// --faults FILE` this option only declares that links lose messages of the cases.
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,
}

impl DeviceOptions {
    /// The choice for one of two machines: the device behind a kernel, without a second one.
    pub(crate) fn one_end(&self) -> Choice {
        Choice { peer: "none".into(), ..self.choice() }
    }

    /// The arguments with which this program plays a role on the same device.
    pub(crate) fn of_role(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["role".into(), "--device".into()];
        words.push(self.device.clone().into());
        if let Some(faults) = &self.faults {
            words.extend(["--faults".into(), faults.clone().into()]);
        }
        words
    }

    pub(crate) fn choice(&self) -> Choice {
        Choice {
            device: self.device.clone(),
            peer: self.peer.clone(),
            profile: self.profile.clone(),
            link: self.link.clone(),
            model_kernel: self.model_kernel,
            model_pages: self.model_pages,
            faults: self.faults.clone(),
            ..Choice::default()
        }
    }
}

/// What `hwtest doctor` checks.
#[derive(Args)]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    on: DeviceOptions,
    /// Print the checks as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl DoctorOptions {
    pub(crate) fn choice(&self) -> Choice {
        self.on.choice()
    }
}

/// What a run of the suite is on, which cases it has and what it writes.
#[derive(Args)]
#[command(group(ArgGroup::new("results").args(["json", "junit", "record"]).multiple(true)))]
pub(crate) struct SuiteOptions {
    #[command(flatten)]
    pub(crate) on: DeviceOptions,
    /// Owners of the model's two devices: hosts, host-and-dpu (of one card) or dpus [default:
    /// host-and-dpu if the profile has a DPU, otherwise hosts].
    #[arg(long)]
    pub(crate) between: Option<String>,
    /// The model sends messages in packets of the path MTU; by default it carries them whole.
    #[arg(long)]
    pub(crate) packets: bool,
    /// Each case runs twice on the model in this process, with messages carried whole and in
    /// packets, and its queues must get the same CQEs and data.
    #[arg(long, conflicts_with_all = ["packets", "faults"])]
    pub(crate) both_ways: bool,
    /// Run the cases of two machines, with `hwtest serve` at this address, HOST or HOST:PORT, as
    /// the other end.
    #[arg(long, value_name = "ADDRESS")]
    #[arg(conflicts_with_all = ["packets", "both_ways", "sweep", "expect", "jobs", "peer"])]
    #[arg(conflicts_with_all = ["record", "matrix_step", "between", "long", "destructive"])]
    #[arg(conflicts_with_all = ["dpa_program"])]
    pub(crate) connect: Option<String>,
    /// Only cases whose name contains this, or one of these if it is given several times.
    #[arg(long, value_name = "PART")]
    pub(crate) filter: Vec<String>,
    /// Run only every Nth case of the matrix, whose cases differ in one word each, and the first of
    /// each service, operation and form of data.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) matrix_step: NonZero<usize>,
    /// List the groups, their cases and what each needs, and stop.
    #[arg(long)]
    pub(crate) list: bool,
    /// Run only the cases that answer a question about hardware which no public source answers, and
    /// report these questions.
    #[arg(long, conflicts_with_all = ["connect", "sweep"])]
    pub(crate) unknowns: bool,
    /// How many cases run at once. On the model each case has a model of its own; on a shared
    /// device, concurrent cases may disturb each other.
    #[arg(long)]
    pub(crate) jobs: Option<usize>,
    /// Fail if a case is skipped unexpectedly in this environment, or if an expected skip is
    /// missing: an entry of tests/suite/expected-skips.toml.
    #[arg(long, value_name = "ENVIRONMENT")]
    pub(crate) expect: Option<String>,
    /// Write a report as JSON to this file (`-`: standard output): results, capabilities, versions;
    /// docs/report.md says what it has.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Record what the cases ask and what the device answers to this file, for `hwtest replay`;
    /// docs/report.md says what it has. One case runs at a time.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "both_ways", "jobs"])]
    pub(crate) record: Option<PathBuf>,
    /// The largest size of the recording in MiB; the case that reaches it is cut short.
    #[arg(long, value_name = "MIB", default_value = "256", requires = "record")]
    pub(crate) record_limit: u16,
    /// Record also what messages write to memory, so that cases that read it can be replayed. Of
    /// a card with other traffic on its port, these may be the bytes of others.
    #[arg(long, requires = "record")]
    pub(crate) record_payload: bool,
    /// The results also have GIDs, GUIDs, MAC and IP addresses of the devices. Without this, a
    /// recording has others in their place.
    #[arg(long, requires = "results")]
    pub(crate) identify: bool,
    /// Write the results as JUnit XML to this file (`-`: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// The program for the DPA of the cases `dpa_programs`:
    /// `cargo xtask dpa build crates/flexio-dev/tests/program` makes it.
    #[arg(long, value_name = "FILE")]
    pub(crate) dpa_program: Option<PathBuf>,
    /// Runs the cases once for each capability of the model's profile, with that capability lowered
    /// or removed: a case may be skipped there, but not fail. The number is the part that runs, as
    /// in `1/4`, which is every fourth of them from the first.
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "1/1")]
    #[arg(conflicts_with_all = ["json", "junit", "expect", "faults", "device"])]
    pub(crate) sweep: Option<SweepPart>,
    /// Cases that repeat something do so as many times as FlexIO's documents suggest: a million
    /// events, 10,000 frames, 16 threads of 1,000 messages. It takes minutes on the model.
    #[arg(long)]
    pub(crate) long: bool,
    /// On hardware, also run cases that change more than objects of their own.
    #[arg(long)]
    pub(crate) destructive: bool,
    /// Print every check of the doctor before the run, and not only one line.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// One of `of` equal parts of a list: every `of`th entry from the `first`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SweepPart {
    /// From 0.
    pub(crate) first: usize,
    pub(crate) of: usize,
}

impl FromStr for SweepPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(part, of)| {
            let (part, of): (usize, usize) = (part.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&part).then(|| Self { first: part - 1, of })
        });
        parsed.ok_or_else(|| format!("{text}: a part is written as 1/4 to 4/4"))
    }
}

impl SuiteOptions {
    pub(crate) fn choice(&self) -> Choice {
        Choice {
            between: self.between.clone(),
            packets: self.packets,
            both_ways: self.both_ways,
            destructive: self.destructive,
            long: self.long,
            ..self.on.choice()
        }
    }

    pub(crate) fn chooses(&self, id: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| id.contains(part.as_str()))
    }

    pub(crate) fn select(&self) -> Vec<&'static Case> {
        let chosen = cases().filter(|case| self.chooses(&case.id()));
        let (mut cells, mut kinds) = (0_usize, BTreeSet::new());
        let mut is_due = |id: &str| {
            cells += 1;
            kinds.insert(kind(id)) || cells.is_multiple_of(self.matrix_step.get())
        };
        chosen.filter(|case| case.group != "matrix" || is_due(&case.id())).collect()
    }
}

/// The name of a case of the matrix without its length and its way of posting.
fn kind(id: &str) -> String {
    let kind = ["_signaled_", "_in_a_batch"].iter().find_map(|end| id.split_once(end));
    kind.map_or(id, |it| it.0).replace(|c: char| c.is_ascii_digit(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommand_takes_no_option_of_the_suite() {
        let parsed = Options::parse_from(["hwtest", "doctor", "--device", "mlx5_1"]);
        assert!(matches!(parsed.command, Some(Command::Doctor(it)) if it.on.device == "mlx5_1"));
        assert!(Options::parse_from(["hwtest", "--long"]).command.is_none());
        assert!(Options::try_parse_from(["hwtest", "--long", "doctor"]).is_err());
    }

    /// The summary of a run repeats a case so.
    #[test]
    fn filter_with_a_whole_name_selects_one_case() {
        let ids: Vec<_> = cases().map(Case::id).collect();
        for id in &ids {
            let within: Vec<_> = ids.iter().filter(|other| other.contains(id)).collect();
            assert_eq!(within, [id]);
        }
    }

    #[test]
    fn matrix_step_keeps_every_kind_of_case() {
        let kinds = |options: &SuiteOptions| {
            let cells = options.select().into_iter().filter(|case| case.group == "matrix");
            cells.map(|case| kind(&case.id())).collect::<Vec<_>>()
        };
        let all = kinds(&Options::parse_from(["hwtest"]).suite);
        let distinct: BTreeSet<_> = all.iter().collect();
        assert!(distinct.len() > 40 && all.len() > 10 * distinct.len(), "{distinct:?}");
        let step_of =
            |step: usize| Options::parse_from(["hwtest", "--matrix-step", &step.to_string()]).suite;
        for step in 2..12 {
            let left = kinds(&step_of(step));
            assert_eq!(left.iter().collect::<BTreeSet<_>>(), distinct, "{step}");
            assert!(left.len() < all.len() / step + distinct.len() + 1, "{step}: {}", left.len());
        }
    }
}
