//! The lines of a recording.
//!
//! ```text
//! # verbless recording 1: …
//! recording {"program":"hwtest 0.1.0 …",…}
//! case {"name":"cq::…"}
//! [     0.012340] function 0: dump command data CREATE_CQ(0x400) INPUT
//! 000: 04000000 00000000 …
//!
//! [     0.012340] function 0: dump command data CREATE_CQ(0x400) OUTPUT
//! …
//! [     0.012340] ioctl {"file":0,"object":4097,"method":4096,"attributes":[…]}
//! end {"outcome":"passed","seconds":0.01}
//! ```
//!
//! Commands have the form of `verbless-model run --trace=FILE` (`verbless_prm::dump`), which skips
//! all other lines; the ioctl that carried a command follows it. Other lines are a word and a JSON
//! object, with the seconds since the start where something happened.
//!
//! Each text is read by `text` and each list by `list`: they come from a stranger.

use serde::{Deserialize, Serialize};
use verbless_devx::ErrorKind;

use super::bytes::{Bytes, list, some_text, text, texts};

/// The version of the form.
pub(super) const FORMAT: u32 = 1;
/// The first line of a recording begins so.
pub(super) const TITLE: &str = "# verbless recording 1";

/// What was recorded, and on which devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub format: u32,
    /// The program, its version and its commit.
    #[serde(deserialize_with = "text")]
    pub program: String,
    /// The device and its peer in words.
    #[serde(deserialize_with = "text")]
    pub device: String,
    /// Whether it has the devices' own GIDs, GUIDs and MAC addresses.
    pub identity: bool,
    /// Limit of its size in bytes.
    pub limit: u64,
    /// Bytes of a page of the kernel that has the devices.
    pub page_bytes: u64,
    /// Whether cases that change more than their own objects may run.
    pub destructive: bool,
    /// Whether cases repeat something for minutes.
    pub long: bool,
    /// The first device, and its peer if there is one.
    #[serde(deserialize_with = "list")]
    pub devices: Vec<RecordedDevice>,
}

/// `verbless_devx::DeviceInfo`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordedDevice {
    #[serde(deserialize_with = "text")]
    pub name: String,
    #[serde(deserialize_with = "text")]
    pub node: String,
    #[serde(default, deserialize_with = "some_text")]
    pub pci_address: Option<String>,
    #[serde(deserialize_with = "text")]
    pub function: String,
    pub vendor_id: u16,
    pub device_id: u16,
    #[serde(deserialize_with = "text")]
    pub board_id: String,
    #[serde(deserialize_with = "text")]
    pub firmware: String,
    pub node_guid: Bytes,
    pub system_image_guid: Bytes,
    pub embedded_cpu: bool,
    #[serde(deserialize_with = "texts")]
    pub netdevs: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub ports: Vec<RecordedPort>,
}

/// A port of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordedPort {
    pub number: u8,
    #[serde(deserialize_with = "text")]
    pub link_layer: String,
    pub state: u8,
    #[serde(deserialize_with = "list")]
    pub gids: Vec<RecordedGid>,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordedGid {
    pub index: u32,
    pub gid: Bytes,
    /// `enum ib_uverbs_gid_type`.
    pub kind: u32,
    #[serde(default, deserialize_with = "some_text")]
    pub netdev: Option<String>,
}

/// The start of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseStart {
    #[serde(deserialize_with = "text")]
    pub name: String,
}

/// The end of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseEnd {
    /// `passed`, `failed` or `skipped`.
    #[serde(deserialize_with = "text")]
    pub outcome: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "text")]
    pub reason: String,
    pub seconds: f64,
}

/// Something that happened within a case.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    Open(Open),
    Ioctl(Ioctl),
    Map(Map),
    Control(Control),
    Wqe(Wqe),
    Cqe(Cqe),
    Event(Event),
    Unseen(Unseen),
}

/// A record that the program read from a channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Event {
    pub file: u32,
    /// The number of the channel in this case.
    pub channel: u32,
    pub bytes: Bytes,
    /// Of a completion event: the CQ, and the word by which the program had armed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arm: Option<[u32; 2]>,
}

/// A request that was posted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wqe {
    pub file: u32,
    /// `sq`, `rq` or `srq`.
    #[serde(deserialize_with = "text")]
    pub queue: String,
    /// The QP, SQ, RQ or SRQ.
    pub number: u32,
    /// Its index, as in the CQE's `wqe_counter`.
    pub index: u32,
    /// The WQE without data that it carries, and without the link of an SRQ's.
    pub bytes: Bytes,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cqe {
    pub file: u32,
    /// The CQ.
    pub number: u32,
    /// How many CQEs the CQ had before, modulo 2^24.
    pub index: u32,
    /// The 64 bytes of the CQE, without data that it carries.
    pub bytes: Bytes,
}

/// What a queue had and the recording has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Unseen {
    pub file: u32,
    /// `sq`, `rq`, `srq`, `cq` or `channel`.
    #[serde(deserialize_with = "text")]
    pub queue: String,
    pub number: u32,
    /// How many entries; 0 if they were not counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: u32,
    #[serde(deserialize_with = "text")]
    pub why: String,
}

/// A device was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Open {
    /// The number of the open file in this case, from 0; absent if it could not be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<u32>,
    #[serde(deserialize_with = "text")]
    pub device: String,
    /// Why it could not be opened: the kind of error, and what it says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "text")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "some_text")]
    pub error: Option<String>,
}

/// Names of kinds of errors when a device is opened.
pub(super) const OPEN_ERRORS: [(ErrorKind, &str); 8] = [
    (ErrorKind::Refused, "refused"),
    (ErrorKind::NoDevice, "no device"),
    (ErrorKind::NotFound, "not found"),
    (ErrorKind::Permission, "permission"),
    (ErrorKind::NoDevx, "no devx"),
    (ErrorKind::DeviceGone, "device gone"),
    (ErrorKind::ModuleMissing, "module missing"),
    (ErrorKind::InvalidInput, "invalid input"),
];

/// A request and its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ioctl {
    pub file: u32,
    /// The number of the thread in this case, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub thread: u32,
    /// The method's name, for readers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "text")]
    pub name: String,
    pub object: u16,
    pub method: u16,
    /// False for words that are no request.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub well_formed: bool,
    /// Fields of the header that are not as they should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub odd_header: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "list")]
    pub attributes: Vec<Attr>,
    /// The number of its command in the recording, from 0. A command that was recorded before, with
    /// the same answer, is not repeated: it has only its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<u32>,
    /// The errno; 0 if the call succeeded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errno: i32,
}

/// An attribute of a request with what the answer put there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attr {
    pub id: u16,
    /// Flags other than MANDATORY alone; `None`: MANDATORY.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<u16>,
    /// `elem_id` and `reserved`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub element: u16,
    /// Bytes that an output or a mailbox has room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub room: u16,
    /// Bytes of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Bytes>,
    /// Bytes of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Bytes>,
    /// A mailbox, whose bytes are in the command before the ioctl: `input` or `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mailbox: Option<Mailbox>,
    /// A handle of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
    /// A handle that the answer made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_handle: Option<u64>,
    /// A channel of the request, by its number in this case; -1 for any other file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<i64>,
    /// A channel that the answer opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_channel: Option<u32>,
    /// An address of the process, which no other run repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// The answer was written (VALID_OUTPUT).
    #[serde(default, skip_serializing_if = "is_false")]
    pub filled: bool,
}

/// Which mailbox of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mailbox {
    Input,
    Output,
}

/// Memory of the device that was mapped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Map {
    pub file: u32,
    pub offset: u64,
    pub length: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errno: i32,
}

/// The control file (`/dev/fwctl/fwctlN`) was looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Control {
    pub file: u32,
    pub found: bool,
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
