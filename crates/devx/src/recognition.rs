//! What a context knows of its device: whether it was recognised as the software model.

use std::sync::atomic::AtomicBool;

use verbless_prm::CommandInfo;

/// A context's knowledge of whether its device is the software model.
pub(crate) struct ModelRecognition {
    /// Whether the model's PSID was seen.
    pub(crate) model: AtomicBool,
    /// Finds the description of a command by opcode; tests use another function.
    pub(crate) commands: fn(u16) -> Option<&'static CommandInfo>,
}

impl Default for ModelRecognition {
    fn default() -> Self {
        Self { model: AtomicBool::new(false), commands: CommandInfo::by_opcode }
    }
}
