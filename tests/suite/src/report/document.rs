//! The report as a document: what its JSON has, and how it is read.
//!
//! A report is read on another machine than it was made on, and by others: no string of it is
//! trusted, and a mistake in it is an error with its place.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hex::Hex;
use super::performance::{MAX_MEASUREMENTS, Measurement};
use super::run::{Outcome, Row};
use super::text::plain;
use crate::FailedCommand;

/// The format that this program writes and reads.
pub const FORMAT: u32 = 1;
/// Limit for a report's file. That of a run of all cases has about 1 MiB.
const MAX_BYTES: u64 = 64 << 20;

/// Limit for devices: a run has two.
const MAX_DEVICES: usize = 8;
/// Limit for pages, queries and ports of a device, and for failed commands of a case.
const MAX_PARTS: usize = 256;
/// Limit for cases. A run of all has about 3000.
const MAX_CASES: usize = 100_000;
/// Limit for the seconds of a case: 30 years.
const MAX_SECONDS: f64 = 1e9;

/// A run of the suite on a device: everything that somebody else needs to understand it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    /// The format's number: 1.
    pub format: u32,
    /// The program that made the report.
    pub program: Program,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The machine of the second device, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Machine>,
    /// The device in one line: hardware or the model, its name, and what it talks to.
    pub device: String,
    /// What was checked before the run: port states, limits and privileges of the process.
    pub preconditions: Vec<String>,
    /// The devices of the run: the first is under test, a second one is its peer.
    pub devices: Vec<DeviceFacts>,
    /// Number of cases that passed.
    pub passed: usize,
    /// Number of cases that failed.
    pub failed: usize,
    /// Number of cases that were skipped.
    pub skipped: usize,
    /// Number of cases that were blocked by a failed check before the run.
    pub blocked: usize,
    /// The cases, in the order in which they ended.
    pub cases: Vec<CaseResult>,
    /// What `hwtest perf` has measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub performance: Vec<Measurement>,
}

/// The program that made a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Program {
    /// Its version.
    pub version: String,
    /// The commit that it was built from, if known.
    pub commit: Option<String>,
    /// Fingerprint of its PRM: two programs with the same decode alike.
    pub prm: String,
}

/// The machine that a report was made on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Machine {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// The processor's architecture, as Rust names it.
    pub architecture: String,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// What a device says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceFacts {
    /// The kernel's name for it, such as mlx5_0.
    pub name: String,
    /// Whether it identifies itself as the software model.
    pub model: bool,
    /// The processor that uses it: the host, or the embedded CPU of a DPU.
    pub side: FactSide,
    /// Type of its PCI function.
    pub function: FactFunction,
    /// Board id (PSID).
    pub psid: String,
    /// Firmware version.
    pub firmware: String,
    /// Its place on PCI.
    pub pci: Pci,
    /// Its character device; `null` for the model in the program's own process.
    pub file: Option<DeviceFile>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// All capability pages that it has.
    pub pages: Vec<Page>,
    /// Other commands that only read.
    pub queries: Vec<Query>,
    /// Why it could not be asked, if so: the lists above are then incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// What names this very device; only with `--identify`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// The processor that uses a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum FactSide {
    /// The machine that the card is plugged into.
    Host,
    /// The embedded CPU of a DPU.
    Dpu,
}

/// Type of a PCI function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum FactFunction {
    /// A physical function.
    Physical,
    /// A virtual function.
    Virtual,
    /// A sub-function.
    Sub,
}

/// A device's place on PCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pci {
    /// Address, such as 0000:08:00.0.
    pub address: Option<String>,
    /// Vendor id; 5555 (0x15b3) for hardware.
    pub vendor_id: u16,
    /// Device id.
    pub device_id: u16,
    /// The link, where sysfs shows it.
    pub link: Option<PciLink>,
}

/// A PCI link, in the words of sysfs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PciLink {
    /// Speed of a lane, such as `16.0 GT/s PCIe`.
    pub speed: String,
    /// Number of lanes.
    pub width: String,
    /// The highest speed of the device.
    pub max_speed: Option<String>,
    /// The most lanes of the device.
    pub max_width: Option<String>,
}

/// A character device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceFile {
    /// Its path.
    pub path: String,
    /// Permission bits in octal, such as 0666.
    pub mode: String,
    /// Owner: a system user's name, otherwise a number.
    pub owner: String,
    /// Group: a system group's name, otherwise a number.
    pub group: String,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// InfiniBand, Ethernet or unspecified.
    pub link_layer: FactLink,
    /// Its state, as InfiniBand numbers it: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE.
    pub state: u8,
    /// Its physical state, as InfiniBand numbers it: 3 disabled, 5 link up.
    pub physical_state: u8,
    /// Largest MTU in bytes; `null` if the code is unknown.
    pub max_mtu: Option<u32>,
    /// MTU in force in bytes; `null` if the code is unknown.
    pub active_mtu: Option<u32>,
    /// Active width, as InfiniBand encodes it: 1 for 1X, 2 for 4X, 4 for 8X, 8 for 12X, 16 for 2X.
    pub active_width: u8,
    /// Active speed of a lane, as InfiniBand encodes it: 32 for EDR, 64 for HDR, 128 for NDR.
    pub active_speed: u32,
    /// Entries of the GID table, used or not.
    pub gid_table_len: u32,
    /// Entries of the P_Key table.
    pub pkey_table_len: u16,
    /// Whether every packet needs a GRH.
    pub grh_required: bool,
    /// Kinds of the GIDs in use, in the order of their indexes.
    pub gid_kinds: Vec<String>,
}

/// The type of a port's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum FactLink {
    /// The kernel did not say.
    Unspecified,
    /// InfiniBand.
    Infiniband,
    /// Ethernet.
    Ethernet,
}

/// A capability page, as QUERY_HCA_CAP returns it. Zeros at the end are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Page {
    /// Its number.
    pub number: u16,
    /// Its name, if the PRM has one.
    pub name: Option<String>,
    /// Current values.
    pub current: Hex,
    /// Maximum values.
    pub maximum: Hex,
    /// The current values that are not 0, by field: for readers; programs decode the bytes.
    pub fields: Vec<Field>,
}

/// A field that is not 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Field {
    /// Its name in the PRM.
    pub name: String,
    /// Its value: a number, or a name where the PRM names the values.
    pub value: String,
}

/// A command that only reads, and what the device said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Query {
    /// Its name in the PRM.
    pub command: String,
    /// Its input.
    pub input: Hex,
    /// Its output; identifiers are 0 without `--identify`.
    pub output: Hex,
    /// Why there is no output, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What names one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Identity {
    /// Node GUID, in hexadecimal.
    pub node_guid: String,
    /// System image GUID, in hexadecimal.
    pub system_image_guid: String,
    /// Names of its network devices.
    pub netdevs: Vec<String>,
    /// The GIDs in use.
    pub gids: Vec<GidEntry>,
}

/// An entry of a GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GidEntry {
    /// The port's number.
    pub port: u8,
    /// Index in the table.
    pub index: u32,
    /// The GID.
    pub gid: String,
    /// Its kind.
    pub kind: String,
    /// Name of the network device that it belongs to.
    pub netdev: Option<String>,
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CaseResult {
    /// `group::name`.
    pub case: String,
    /// How it ended.
    pub outcome: Ending,
    /// Why it did not pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Wall-clock seconds that it took.
    #[cfg_attr(test, schemars(range(min = 0.0)))]
    pub seconds: f64,
    /// The last commands that failed before the case did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_commands: Vec<CommandFailure>,
    /// Lines of mlx5 that the kernel logged while the case failed, if its log may be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_log: Vec<String>,
}

/// A command that the kernel or the device refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CommandFailure {
    /// Opcode of the command.
    pub opcode: u16,
    /// Operation modifier.
    pub op_mod: u16,
    /// The device's status; 0 if the kernel returned no output.
    pub status: u8,
    /// The device's syndrome; 0 if the kernel returned no output.
    pub syndrome: u32,
    /// The kernel's error number; EREMOTEIO (121) if the device refused the command.
    pub errno: i32,
    /// The input mailbox; identifiers are 0 without `--identify`.
    pub input: Hex,
    /// The output mailbox; empty if the kernel returned none.
    pub output: Hex,
}

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Ending {
    /// It failed.
    Failed,
    /// A check before the run failed that it depends on.
    Blocked,
    /// It could not run.
    Skipped,
    /// It passed.
    Passed,
}

impl From<&Row> for CaseResult {
    fn from(row: &Row) -> Self {
        let (outcome, reason) = match &row.outcome {
            Outcome::Passed => (Ending::Passed, None),
            Outcome::Failed(reason) => (Ending::Failed, Some(reason.clone())),
            Outcome::Skipped(reason) => (Ending::Skipped, Some(reason.clone())),
            Outcome::Blocked(reason) => (Ending::Blocked, Some(reason.clone())),
        };
        let failed_commands = row.failed_commands.iter().map(CommandFailure::from).collect();
        Self {
            case: row.case.clone(),
            outcome,
            reason,
            seconds: row.seconds,
            failed_commands,
            kernel_log: row.kernel_log.clone(),
        }
    }
}

impl From<&FailedCommand> for CommandFailure {
    fn from(failed: &FailedCommand) -> Self {
        let &FailedCommand { opcode, op_mod, status, syndrome, errno, .. } = failed;
        let (input, output) = (Hex::new(&failed.input), Hex::new(&failed.output));
        Self { opcode, op_mod, status, syndrome, errno, input, output }
    }
}

impl CaseResult {
    /// Whether the case ran.
    pub fn ran(&self) -> bool {
        matches!(self.outcome, Ending::Passed | Ending::Failed)
    }
}

impl CommandFailure {
    /// The command as text, with the nonzero fields of both mailboxes.
    pub fn describe(&self) -> String {
        let &Self { opcode, op_mod, status, syndrome, errno, .. } = self;
        let (input, output) = (self.input.bytes().to_vec(), self.output.bytes().to_vec());
        FailedCommand { opcode, op_mod, status, syndrome, errno, input, output }.describe()
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Skipped => "skipped",
            Self::Passed => "passed",
        })
    }
}

/// Why a report cannot be read.
#[derive(Debug)]
pub enum ReportError {
    /// The file cannot be read.
    File(PathBuf, std::io::Error),
    /// The file has more bytes than a report may have.
    TooLarge(PathBuf),
    /// The text is not a report; says what is wrong and where.
    Wrong(PathBuf, String),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => {
                write!(f, "cannot read the report {}: {error}", path.display())
            }
            Self::TooLarge(path) => {
                let limit = MAX_BYTES >> 20;
                write!(f, "{} is no report: it has more than {limit} MiB", path.display())
            }
            Self::Wrong(path, why) => {
                // `why` has texts of the report.
                let why = plain(why);
                write!(f, "{} is no report of `hwtest --json`: {why}", path.display())
            }
        }
    }
}

impl std::error::Error for ReportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File(_, error) => Some(error),
            _ => None,
        }
    }
}

fn within(count: usize, limit: usize, of: &str, whole: &str) -> Result<(), String> {
    match count > limit {
        true => Err(format!("{whole:?} has {count} {of}; the limit is {limit}")),
        false => Ok(()),
    }
}

impl DeviceFacts {
    /// What the types do not say of a device whose facts come from another machine.
    pub(crate) fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let parts = [
            (self.pages.len(), "pages"),
            (self.queries.len(), "queries"),
            (self.ports.len(), "ports"),
        ];
        parts.iter().try_for_each(|&(count, of)| within(count, MAX_PARTS, of, name))?;
        let mut before = None;
        for page in &self.pages {
            let number = page.number;
            if before >= Some(number) {
                return Err(format!("{name:?}: page {number:#x} is twice or not in order"));
            }
            if [&page.current, &page.maximum].iter().any(|it| it.bytes().len() > 0x1000) {
                return Err(format!("{name:?}: page {number:#x} has over 4096 bytes"));
            }
            before = Some(number);
        }
        Ok(())
    }
}

impl Report {
    /// Reads a report from a file.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or is no report of this format.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let failed = |error| ReportError::File(path.into(), error);
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        let length = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if length as u64 > MAX_BYTES {
            return Err(ReportError::TooLarge(path.into()));
        }
        Self::parse(&text).map_err(|why| ReportError::Wrong(path.into(), why))
    }

    /// Reads a report from its text.
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if head.format != FORMAT {
            let other = head.format;
            return Err(format!(
                "its format is {other}, and this hwtest reads {FORMAT}: use the hwtest of its \
                 program version"
            ));
        }
        let report: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        report.check()?;
        Ok(report)
    }

    /// What the types do not say. The limits keep a page or a comparison of a small report small.
    fn check(&self) -> Result<(), String> {
        within(self.devices.len(), MAX_DEVICES, "devices", "the report")?;
        within(self.cases.len(), MAX_CASES, "cases", "the report")?;
        within(self.performance.len(), MAX_MEASUREMENTS, "measurements", "the report")?;
        self.performance.iter().try_for_each(Measurement::check)?;
        for case in &self.cases {
            within(case.failed_commands.len(), MAX_PARTS, "failed commands", &case.case)?;
            within(case.kernel_log.len(), MAX_PARTS, "lines of the kernel's log", &case.case)?;
        }
        self.devices.iter().try_for_each(DeviceFacts::check)?;
        match self.cases.iter().find(|case| !(0.0..=MAX_SECONDS).contains(&case.seconds)) {
            Some(case) => Err(format!("case {:?} took {} seconds", case.case, case.seconds)),
            None => Ok(()),
        }
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// The writer refuses: writing to memory does not fail.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}
