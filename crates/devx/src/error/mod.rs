//! Errors: what was attempted, what went wrong, and what to check next.

mod convert;
mod hints;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use nix::errno::Errno;

use crate::abi::Method;

/// Result of anything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of any layer; errors of the data path and of the system convert into it. It prints what
/// failed, and after a semicolon what to check next.
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    kind: ErrorKind,
    attempted: Cow<'static, str>,
    command: Option<Command>,
    errno: Option<Errno>,
    status: Option<u8>,
    syndrome: Option<u32>,
    hint: Cow<'static, str>,
    /// The error of another layer that this one carries; its text is in `attempted`.
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The kind of a failure, in this layer or one above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no mlx5 device, or it has no device node.
    NoDevice,
    /// No mlx5 device has the requested name; the hint lists the names that exist.
    NotFound,
    /// The device exists, but a kernel module that it needs is not loaded.
    ModuleMissing,
    /// The device exists and its kernel module is loaded, but not bound to it: the probe failed, or
    /// the module does not know the device.
    NotProbed,
    /// The kernel refuses access to the device's file.
    Permission,
    /// Memory could not be pinned: the limit of locked memory is too low, or the machine is out of
    /// memory.
    MemoryLimit,
    /// The device or its firmware does not support DevX.
    NoDevx,
    /// The device refused a command; status and syndrome say why. A kernel that passes neither on
    /// ([`Context::hides_refusals`](crate::Context::hides_refusals)) leaves only an errno, and the
    /// hint says where the kernel logs both.
    Command,
    /// The kernel refused a request before it reached the device.
    Refused,
    /// The device was removed or reset; the context can no longer be used.
    DeviceGone,
    /// The event channel overflowed: events were lost, so every queue must be polled and armed
    /// again.
    EventsLost,
    /// The device stopped a queue: a CQ overran or could not be written, or a QP or SRQ met a
    /// catastrophic error. Destroy the queue and make it again; the hint names the reason.
    QueueFailed,
    /// A port left the state ACTIVE: nothing arrives until its link is up again.
    PortDown,
    /// An argument is invalid: out of range, too long or too short, or not possible in this state.
    InvalidInput,
    /// The kernel reported success, but its answer is inconsistent.
    InvalidResponse,
    /// The layout of a command is defined by the software model only, and the device has not been
    /// identified as the model; nothing was sent.
    ModelOnly,
    /// The device, its firmware or the kernel lacks what the operation needs; the hint names each
    /// way to do it.
    NotSupported,
    /// A queue is full: poll its completion queue, then try again.
    Full,
    /// A work request completed with an error.
    Failed,
    /// The peer program sent invalid data.
    Peer,
    /// Reading or writing failed outside of the device: the system's own error.
    Io,
}

/// A device command named in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Opcode, from the first two bytes of the input.
    pub opcode: u16,
    /// Operation modifier, from bytes 6 and 7 of the input.
    pub op_mod: u16,
}

impl Command {
    /// The command that an input mailbox carries; `None` if it is too short for a header.
    #[must_use]
    pub fn of(input: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes([*input.get(at)?, *input.get(at + 1)?]));
        Some(Self { opcode: word(0)?, op_mod: word(6)? })
    }

    /// Name of the command, or `None` if the PRM data does not know the opcode.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        hints::command_name(self.opcode)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x}", self.opcode)?,
            None => write!(f, "command ({:#x}", self.opcode)?,
        }
        if self.op_mod != 0 {
            write!(f, " op_mod {:#x}", self.op_mod)?;
        }
        f.write_str(")")
    }
}

impl Error {
    /// A failure of `kind` in `attempted` (as in "opening mlx5_0"), with what to check next.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        attempted: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Details {
            kind,
            attempted: attempted.into(),
            command: None,
            errno: None,
            status: None,
            syndrome: None,
            hint: hint.into(),
            source: None,
        }))
    }

    /// Adds the errno of a system call.
    #[must_use]
    pub fn with_errno(mut self, errno: Errno) -> Self {
        self.0.errno = Some(errno);
        self
    }

    /// Adds the error of another layer as the source of this one.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Replaces the advice on what to check next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = hint.into();
        self
    }

    /// Adds the command that an input mailbox carries.
    pub(crate) fn with_command(mut self, input: &[u8]) -> Self {
        self.0.command = Command::of(input);
        self
    }

    /// A request that the kernel refused with `errno`.
    pub(crate) fn refused(method: Method, errno: Errno) -> Self {
        let kind = hints::kind(method, errno);
        Self::new(kind, method.name(), hints::refused(method, errno)).with_errno(errno)
    }

    /// The error for EIO when the device still answers: device or driver refused a command of the
    /// kernel's own, and the kernel hides the status.
    pub(crate) fn status_unknown(method: Method, errno: Errno) -> Self {
        let hint = "the device answers other commands: it refused this one with a status that the \
                    kernel does not pass on (INTERNAL_ERR, BAD_SYS_STATE, a wrong length); the \
                    kernel log has the status and the syndrome";
        Self::new(ErrorKind::Refused, method.name(), hint).with_errno(errno)
    }

    /// Whether the errno may be a refusal by the device whose status the kernel hides.
    pub(crate) fn may_hide_refusal(errno: Errno) -> bool {
        hints::may_hide(errno)
    }

    /// The error for a command that the device refused, on a kernel that passes on neither status
    /// nor syndrome.
    pub(crate) fn refusal_hidden(method: Method, input: &[u8], errno: Errno) -> Self {
        Self::new(ErrorKind::Command, method.name(), hints::hidden(errno))
            .with_errno(errno)
            .with_command(input)
    }

    /// The error for an errno of a method that carries a command. EREMOTEIO: the device refused,
    /// and `output` has status and syndrome.
    pub(crate) fn from_command(method: Method, input: &[u8], output: &[u8], errno: Errno) -> Self {
        let mut error = Self::refused(method, errno);
        error.0.command = Command::of(input);
        if errno == Errno::EREMOTEIO {
            error.explain(output);
        }
        error
    }

    /// The error for a command sent by `way` that the device refused with `output`.
    pub(crate) fn refused_by_device(way: &'static str, input: &[u8], output: &[u8]) -> Self {
        let mut error = Self::new(ErrorKind::Command, way, "").with_command(input);
        error.explain(output);
        error
    }

    /// Adds the status and syndrome of a refused command from its output.
    fn explain(&mut self, output: &[u8]) {
        self.0.kind = ErrorKind::Command;
        self.0.status = output.first().copied();
        self.0.syndrome =
            output.get(4..8).map(|word| u32::from_be_bytes(word.try_into().unwrap_or_default()));
        let opcode = self.0.command.map(|command| command.opcode);
        self.0.hint = hints::status(opcode, self.0.status.unwrap_or_default()).into();
    }

    /// The error for an inconsistent answer.
    pub(crate) fn answer(method: Method, what: impl fmt::Display) -> Self {
        Self::new(
            ErrorKind::InvalidResponse,
            format!("{}: {what}", method.name()),
            "the kernel, or the software that answers in its place, violates the uverbs ABI; \
             try another kernel",
        )
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The attempted operation: a method such as `DEVX_OBJ_CREATE`, or a step such as `opening
    /// /dev/infiniband/uverbs0`.
    #[must_use]
    pub fn attempted(&self) -> &str {
        &self.0.attempted
    }

    /// The device command that failed, if the operation sent one.
    #[must_use]
    pub fn command(&self) -> Option<Command> {
        self.0.command
    }

    /// The errno of the system call.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        self.0.errno
    }

    /// Status of the command (`command_status` of the PRM).
    #[must_use]
    pub fn status(&self) -> Option<u8> {
        self.0.status
    }

    /// Syndrome of the command: a firmware-private number that support can look up. For some, the
    /// error's text has the name of a cause that public threads report; `verbless-model explain`
    /// tells more about it.
    #[must_use]
    pub fn syndrome(&self) -> Option<u32> {
        self.0.syndrome
    }

    /// Advice on what to check next.
    #[must_use]
    pub fn hint(&self) -> &str {
        &self.0.hint
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &*self.0;
        match details.command {
            Some(command) => write!(f, "{command} by {}", details.attempted)?,
            None => f.write_str(&details.attempted)?,
        }
        if let Some(status) = details.status {
            write!(f, ": status {status:#x} ({})", hints::status_name(status))?;
        }
        if let Some(syndrome) = details.syndrome {
            write!(f, ", syndrome {syndrome:#x}")?;
            if let Some(name) = hints::reported_cause(syndrome) {
                write!(f, " ({name} by public reports)")?;
            }
        }
        if let Some(errno) = details.errno.filter(|_| details.source.is_none()) {
            write!(f, ": {errno}")?;
        }
        let explained = details.status.is_some()
            || details.errno.is_some()
            || details.source.is_some()
            || details.attempted.contains(": ");
        if !explained {
            f.write_str(" failed")?;
        }
        if !details.hint.is_empty() {
            write!(f, "; {}", details.hint)?;
        }
        Ok(())
    }
}

/// The text of `Display`, which a `main` that returns an error prints; `{:#?}` shows the parts.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { fmt::Debug::fmt(&self.0, f) } else { fmt::Display::fmt(self, f) }
    }
}

impl std::error::Error for Error {
    /// The error of another layer: of a queue, of a completion, of the system.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
