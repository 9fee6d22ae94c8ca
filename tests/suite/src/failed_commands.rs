//! Commands that failed during a case: a backend that keeps the last few with their bytes.
//!
//! [`FailureBackend`] wraps the backend of a case's lab. It looks only at requests that failed and
//! that carry a command, so queues and doorbells do not pass through it.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbless_devx::abi::{Attribute, Header, Method, attr, method};
use verbless_devx::{
    Backend, DeviceInfo, Errno, Error, Mapping, OpenDevice, OpenFwctl, Protection, RepresentorInfo,
};
use verbless_prm::{CommandInfo, CommandStatus};

use crate::own_memory;

/// Commands that are kept of each case: the last ones.
const KEPT: usize = 4;
/// Bytes that are kept of each mailbox.
const KEPT_BYTES: usize = 8 << 10;

/// A command that kernel or device refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedCommand {
    /// Opcode of the command.
    pub opcode: u16,
    /// Operation modifier.
    pub op_mod: u16,
    /// The device's status; 0 if the kernel returned no output.
    pub status: u8,
    /// The device's syndrome; 0 if the kernel returned no output.
    pub syndrome: u32,
    /// The kernel's error number; EREMOTEIO if the device refused the command.
    pub errno: i32,
    /// The input mailbox, at most its first 8 KiB.
    pub input: Vec<u8>,
    /// The output mailbox, at most its first 8 KiB; empty if the kernel returned none.
    pub output: Vec<u8>,
}

impl FailedCommand {
    /// A command by its mailboxes; `None` if the input is too short for a header.
    pub(crate) fn new(input: Vec<u8>, output: Vec<u8>, errno: Errno) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes(*input.get(at..)?.first_chunk()?));
        let (opcode, op_mod) = (word(0)?, word(6)?);
        // Only with EREMOTEIO has the kernel written the output.
        let output = if errno == Errno::EREMOTEIO { output } else { Vec::new() };
        let syndrome = output.get(4..).and_then(|rest| rest.first_chunk().copied());
        Some(Self {
            opcode,
            op_mod,
            status: output.first().copied().unwrap_or(0),
            syndrome: syndrome.map_or(0, u32::from_be_bytes),
            errno: errno as i32,
            input,
            output,
        })
    }

    /// The command as bytes: the errno, the length of the input, both mailboxes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.errno.to_be_bytes().to_vec();
        bytes.extend((self.input.len() as u32).to_be_bytes());
        bytes.extend([&self.input[..], &self.output[..]].concat());
        bytes
    }

    /// The command of such bytes, which are another program's; `None` if they are no command.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (errno, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (input, output) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let is_long = input.len() > KEPT_BYTES || output.len() > KEPT_BYTES;
        let errno = Errno::from_raw(i32::from_be_bytes(*errno));
        Self::new(input.to_vec(), output.to_vec(), errno).filter(|_| !is_long)
    }

    /// The command as text: opcode, op_mod, status and syndrome, then the nonzero fields of both
    /// mailboxes, one a line.
    pub fn describe(&self) -> String {
        let info = CommandInfo::by_opcode(self.opcode);
        let name = info.map_or("unknown command", |info| info.name);
        let mut text = format!("{name} (opcode {:#x}", self.opcode);
        if self.op_mod != 0 {
            let op_mods = info.map_or(&[][..], |info| info.op_mods);
            let called = op_mods.iter().find(|(_, value)| *value == self.op_mod);
            let called = called.map_or(String::new(), |(name, _)| format!(" {name}"));
            text += &format!(", op_mod {:#x}{called}", self.op_mod);
        }
        text += ")";
        if self.output.is_empty() {
            let errno = Errno::from_raw(self.errno);
            text += &format!(": the kernel returned {errno:?} and no output");
            text += "; Linux before 5.18 logs the status (mlx5_cmd_check)\n";
        } else {
            let status = CommandStatus(self.status);
            let status = status.name().unwrap_or("unknown status");
            text += &format!(": status {status} ({:#x})", self.status);
            text += &format!(", syndrome {:#010x}\n", self.syndrome);
        }
        let Some(info) = info else {
            let bytes: String = self.input.iter().map(|byte| format!("{byte:02x}")).collect();
            return text + &format!("  in  {bytes}\n");
        };
        let views = [
            ("in ", info.view_input(&self.input)),
            ("out", info.view_output(&self.input, &self.output)),
        ];
        for (direction, view) in views {
            for line in format!("{view}").lines() {
                text += &format!("  {direction} {line}\n");
            }
        }
        text
    }
}

/// The last failed commands of a case.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailedCommands(Arc<Mutex<VecDeque<FailedCommand>>>);

impl FailedCommands {
    /// Keeps a command, instead of the oldest if there are enough.
    pub(crate) fn add(&self, command: FailedCommand) {
        let mut kept = self.kept();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(command);
    }

    /// The commands so far, oldest first.
    pub(crate) fn list(&self) -> Vec<FailedCommand> {
        self.kept().iter().cloned().collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<FailedCommand>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A backend whose devices record failed commands.
pub(crate) struct FailureBackend {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) failed: FailedCommands,
}

impl Backend for FailureBackend {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.backend.enumerate()
    }

    fn find(&self, name: &str) -> Result<DeviceInfo, Error> {
        self.backend.find(name)
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        self.backend.representors(device)
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let device = self.backend.open(device)?;
        Ok(Arc::new(FailureDevice { device, failed: self.failed.clone() }))
    }
}

/// An open device of a [`FailureBackend`].
struct FailureDevice {
    device: Arc<dyn OpenDevice>,
    failed: FailedCommands,
}

#[allow(unsafe_code, reason = "the trait's method is unsafe to call; it forwards the promise")]
// SAFETY: requests and answers are those of the device inside.
unsafe impl OpenDevice for FailureDevice {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        let result = unsafe { self.device.ioctl(request) };
        if let Err(errno) = result
            && let Some(command) = command_of(request, errno)
        {
            self.failed.add(command);
        }
        result
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.device.mmap(offset, length, protection)
    }

    fn page_size(&self) -> usize {
        self.device.page_size()
    }

    fn read_channel(&self, channel: BorrowedFd<'_>, record: &mut [u8]) -> Result<usize, Errno> {
        self.device.read_channel(channel, record)
    }

    fn open_fwctl(&self) -> Result<Option<Arc<dyn OpenFwctl>>, Error> {
        self.device.open_fwctl()
    }
}

/// The attributes that hold the input and output mailboxes of a method's command.
fn mailboxes(method: Method) -> Option<(u16, Option<u16>)> {
    use attr::{devx_obj_async_query, devx_obj_create, devx_obj_modify, devx_obj_query};
    Some(match method {
        method::DEVX_OTHER => (attr::devx_other::CMD_IN, Some(attr::devx_other::CMD_OUT)),
        method::DEVX_OBJ_CREATE => (devx_obj_create::CMD_IN, Some(devx_obj_create::CMD_OUT)),
        method::DEVX_OBJ_MODIFY => (devx_obj_modify::CMD_IN, Some(devx_obj_modify::CMD_OUT)),
        method::DEVX_OBJ_QUERY => (devx_obj_query::CMD_IN, Some(devx_obj_query::CMD_OUT)),
        method::DEVX_OBJ_ASYNC_QUERY => (devx_obj_async_query::CMD_IN, None),
        _ => return None,
    })
}

/// The command of a request that failed; `None` if the method carries none.
fn command_of(request: &mut [u64], errno: Errno) -> Option<FailedCommand> {
    let (header, attributes) = Header::split(request)?;
    let (input, output) = mailboxes(header.method())?;
    let of = |id: u16| attributes.iter().find(|attribute| attribute.attr_id == id).map(bytes_of);
    let output = output.and_then(of).unwrap_or_default();
    FailedCommand::new(of(input)?, output, errno)
}

/// The bytes of a mailbox, up to [`KEPT_BYTES`]; a mailbox behind a wild pointer is empty.
fn bytes_of(attribute: &Attribute) -> Vec<u8> {
    own_memory::read(attribute.data, usize::from(attribute.len).min(KEPT_BYTES))
}

#[cfg(test)]
mod tests {
    use verbless_command::Device;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;
    use verbless_prm::{CommandStatus, Opcode};
    use verbless_queue::{CqConfig, Domain};

    use super::*;

    /// A device of a model behind a recorder.
    fn recorded() -> (Model, Device, FailedCommands) {
        let profile = Profile::load("connectx6dx").expect("the profile is built in");
        let model = Model::builder().device(profile).build();
        let failed = FailedCommands::default();
        let backend =
            FailureBackend { backend: Arc::new(InProcess::of(&model)), failed: failed.clone() };
        let device = Device::open(&backend, &backend.find("mlx5_0").expect("a device"));
        (model, device.expect("the device opens"), failed)
    }

    #[test]
    fn recorder_keeps_last_refused_commands_with_both_mailboxes() {
        let (model, device, failed) = recorded();
        let domain = Domain::new(&device).expect("a domain");
        assert_eq!(failed.list(), [], "opening fails at nothing");
        for syndrome in 1..=6 {
            model.fail_command(0, Opcode::CREATE_CQ, 1, CommandStatus::LIM, syndrome);
            assert!(domain.completion_queue(&CqConfig::new(64)).is_err());
        }
        let kept = failed.list();
        assert_eq!(kept.iter().map(|it| it.syndrome).collect::<Vec<_>>(), [3, 4, 5, 6]);
        let last = &kept[3];
        assert_eq!((last.opcode, last.status), (Opcode::CREATE_CQ.0, CommandStatus::LIM.0));
        assert_eq!(last.errno, Errno::EREMOTEIO as i32);
        assert_eq!(last.input[..2], Opcode::CREATE_CQ.0.to_be_bytes());
        assert_eq!(last.output[4..8], 6_u32.to_be_bytes());
        let text = last.describe();
        let head = "CREATE_CQ (opcode 0x400): status LIM (0x8), syndrome 0x00000006";
        assert_eq!(text.lines().next(), Some(head));
        assert!(text.contains("  in  ") && text.contains("log_cq_size"), "{text}");
        assert!(text.contains("  out ") && text.contains("syndrome"), "{text}");
    }

    #[test]
    fn failed_command_without_output_names_errno() {
        let mut input = vec![0; 16];
        input[..2].copy_from_slice(&Opcode::ALLOC_PD.0.to_be_bytes());
        let command = FailedCommand::new(input, vec![7; 16], Errno::EINVAL).expect("a header");
        assert_eq!((command.status, command.syndrome, command.output.len()), (0, 0, 0));
        let text = command.describe();
        assert!(text.starts_with("ALLOC_PD (opcode 0x800): the kernel returned EINVAL"), "{text}");
        assert_eq!(FailedCommand::new(vec![8, 0], Vec::new(), Errno::EINVAL), None);
    }

    #[test]
    fn unknown_command_is_described_by_its_bytes() {
        let input = vec![0xff, 0xfe, 0, 0, 0, 0, 0, 9, 0xab];
        let text = FailedCommand::new(input, vec![], Errno::EINVAL).expect("a header").describe();
        assert!(text.starts_with("unknown command (opcode 0xfffe, op_mod 0x9)"), "{text}");
        assert!(text.contains("fffe00000000000") && text.contains("09ab"), "{text}");
    }

    #[test]
    fn mailbox_behind_wild_pointer_is_empty() {
        let attribute = Attribute { len: 64, data: 8, ..Default::default() };
        assert!(bytes_of(&attribute).is_empty());
    }

    #[test]
    fn mailbox_is_cut_to_8_kib() {
        let long = vec![7_u8; 9000];
        let data = long.as_ptr().expose_provenance() as u64;
        let attribute = Attribute { len: 9000, data, ..Default::default() };
        assert_eq!(bytes_of(&attribute), long[..KEPT_BYTES]);
    }
}
