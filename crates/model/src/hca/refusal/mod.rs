//! The reasons for refused commands: each has a syndrome and a status.
//!
//! Syndromes are private to a firmware; these are the model's own. They begin with 0x564c, so that
//! a log identifies the model as their source.

mod table;

use verbless_prm::Opcode;

pub use table::Refusal;

/// A refused command, for the log. It is logged after its thread has released the functions, since
/// a subscriber may take long or call the model.
#[derive(Debug)]
pub(crate) struct Refused {
    pub opcode: u16,
    /// Whether the sender's uid is 0, the kernel's.
    pub kernel: bool,
    pub refusal: Refusal,
    /// The field or number that the reason concerns, if the reason does not name it.
    pub detail: Option<String>,
}

impl Refused {
    /// The command's name, if it has one.
    pub(crate) fn command(&self) -> Option<&'static str> {
        Opcode(self.opcode).name()
    }

    /// Logs the refusal.
    pub(crate) fn log(&self) {
        let Self { opcode, kernel, refusal, .. } = *self;
        let detail = self.detail.as_deref();
        let command = self.command().unwrap_or_default();
        let number = format_args!("{opcode:#x}");
        match refusal {
            Refusal::UnknownOpcode => tracing::warn!("opcode {number} is unknown"),
            Refusal::NotModelled => tracing::warn!("{command} ({number}) is not modelled"),
            // A kernel queries every capability page that it knows.
            Refusal::NoSuchPage if kernel => {
                tracing::debug!(command, opcode = number, ?refusal, "{}", refusal.text());
            }
            // A driver may only be probing, yet this is a limit of the model.
            Refusal::Unsupported | Refusal::TransportService | Refusal::NoSuchRegister
                if detail.is_some() =>
            {
                tracing::warn!(command, opcode = number, ?refusal, detail, "{}", refusal.text());
            }
            _ => tracing::info!(command, opcode = number, ?refusal, detail, "{}", refusal.text()),
        }
    }
}
