//! The reasons for refused commands: each has a syndrome and a status.
//!
//! Reasons of one kind of object are in its entry of the registry (`hca::kinds`); the others are
//! here.
//!
//! Syndromes are private to a firmware; these are the model's own. They begin with 0x564c, so that
//! a log identifies the model as their source.

use verbless_prm::{CommandStatus, Opcode};

use crate::hca::kinds::kinds;

/// The high half of every syndrome of the model.
const MARK: u32 = 0x564c_0000;

macro_rules! all_refusals {
    ($($name:ident = $number:literal, $status:ident, $text:literal;)*) => {
        /// Why a command is refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Refusal {
            $(#[doc = $text] $name,)*
        }

        impl Refusal {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The status that the outbox shows.
            pub const fn status(self) -> CommandStatus {
                match self { $(Self::$name => CommandStatus::$status,)* }
            }

            /// The syndrome that the outbox shows.
            pub const fn syndrome(self) -> u32 {
                MARK | match self { $(Self::$name => $number,)* }
            }

            /// The reason in words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The reason of a syndrome of the model; `None` for any other syndrome.
            pub fn of_syndrome(syndrome: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|refusal| refusal.syndrome() == syndrome)
            }
        }
    };
}

macro_rules! refusals {
    (
        { $($general:tt)* }
        $($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) => $object:ty {
            numbers: [$($numbers:tt)*],
            object: { $($entry:tt)* },
            refusals: {
                absent: $absent:ident = $absent_number:literal, $absent_text:literal,
                in_use: [$($in_use:ident = $in_use_number:literal, $in_use_text:literal)?],
                others: { $($others:tt)* },
            },
            removed: [$($removed:tt)*],
            commands: { $($commands:tt)* }
        })*
    ) => {
        all_refusals! {
            $($general)*
            $($absent = $absent_number, BAD_RES, $absent_text;
            $($in_use = $in_use_number, BAD_RES_STATE, $in_use_text;)?
            $($others)*)*
        }
    };
}

kinds! { refusals {
    InputTooShort = 0x01, BAD_INP_LEN, "The inbox is shorter than the command.";
    OutputTooShort = 0x02, BAD_OUTP_LEN, "The outbox is shorter than the answer.";
    ListTooShort = 0x03, BAD_INP_LEN, "The inbox is shorter than the list that it announces.";
    UnknownOpcode = 0x04, BAD_OP, "No such command.";
    NotModelled = 0x05, BAD_OP, "The model does not implement this command.";
    UnknownOpMod = 0x06, BAD_OP, "The command has no such op_mod.";
    Reserved = 0x07, BAD_PARAM, "A reserved field is not 0.";
    Unsupported = 0x08, BAD_PARAM, "A field requests a feature that the capabilities do not offer.";
    KernelOnlyField = 0x0a, BAD_PARAM,
        "A field requests a feature that only uid 0 (the kernel) may use.";
    DeviceFatal = 0x09, INTERNAL_ERR, "The device is in a fatal error state.";

    NotEnabled = 0x10, BAD_SYS_STATE, "The function is not enabled: ENABLE_HCA comes first.";
    NotInitialised = 0x11, BAD_SYS_STATE, "The function is not initialised: INIT_HCA comes first.";
    AlreadyEnabled = 0x12, BAD_SYS_STATE, "The function is enabled already.";
    AlreadyInitialised = 0x13, BAD_SYS_STATE, "The function is initialised already.";
    PagesLacking = 0x14, BAD_SYS_STATE, "The function needs more pages: send MANAGE_PAGES first.";
    PageOnCard = 0x1e, BAD_PARAM, "A page address is in the card's memory, not in the host's.";
    NoSwitchManager = 0xf1, BAD_PARAM, "The function manages no embedded switch.";
    NoSuchFunction = 0x15, BAD_PARAM, "There is no such function, or this one does not manage it.";
    PageMisaligned = 0x16, BAD_PARAM, "A page address is not aligned to its size.";
    PageTwice = 0x17, BAD_PARAM, "The function has the page already.";
    CapabilityExceeded = 0x18, BAD_PARAM, "A capability is set above its maximum.";
    NoSuchPage = 0x19, BAD_PARAM, "The device has no such capability page.";
    NoSuchIssi = 0x1a, BAD_PARAM, "The interface version is not supported.";
    TooManyPages = 0x1d, BAD_PARAM, "The function has far more pages than it requested.";
    BadProfile = 0x1b, BAD_PARAM, "The teardown profile is unknown.";
    ObjectsExist = 0x1c, BAD_RES_STATE, "Objects still exist: destroy them first.";

    KernelOnly = 0x20, BAD_OP, "Only uid 0 may send this command.";
    ToolsOnly = 0x26, BAD_OP,
        "Only uid 0 may send this command, and user contexts with TOOLS_RESOURCES of uctx_cap.";
    TooMany = 0x23, LIM, "As many objects of this kind exist as the capability allows.";
    NoNumber = 0x24, NO_RES, "All numbers for objects of this kind are in use.";
    OverBudget = 0x25, NO_RES,
        "The function's objects and translation tables take as much memory as the model allows.";

    BufferMisaligned = 0x45, BAD_PARAM, "A queue buffer is not aligned to its entries.";
    BufferOffset = 0x47, BAD_PARAM,
        "A queue buffer does not begin at a multiple of a 64th of its UMEM's page, or begins at a \
         larger offset than page_offset can express.";
    RecordMisaligned = 0x46, BAD_PARAM, "A doorbell record is not aligned to 8 bytes.";

    TransportService = 0x82, BAD_PARAM,
        "The model does not implement this transport service, or this uid may not use it.";

    TimestampFormat = 0x96, BAD_PARAM,
        "ts_format requests a clock that this device does not offer for such queues.";

    WqShape = 0xb5, BAD_PARAM,
        "The work queue is not cyclic, or its stride is not the one for its type.";
    WqSize = 0xb6, LIM, "The work queue is larger than log_max_wq_sz.";

    DpaConfigInUse = 0xc5, BAD_RES_STATE,
        "Threads or calls still begin with the outbox or window: destroy them first.";
    NoSuchDpaGroup = 0xf0, BAD_RES,
        "No such group of execution units, or not this uid's to change or destroy.";
    DpaFull = 0xca, NO_RES,
        "The DPA has no memory left for it, or the process no stack, outbox or window.";
    DpaUnit = 0xcc, BAD_PARAM, "There is no such execution unit or group of them.";
    DpaConfig = 0xcd, BAD_PARAM, "The process has no such outbox or window.";
    DpaAbsent = 0xce, BAD_PARAM, "The device has no DPA.";
    DpaUnitsInUse = 0xd0, BAD_RES_STATE,
        "Threads or calls are bound to the execution units, groups are of them, or a function \
         whose partition would change has processes: destroy those first.";
    DpaPartitionless = 0xd9, BAD_PARAM,
        "The function is in no partition of execution units: the function that manages them must \
         make one that names its vhca_id (register NIC_DPA_EU_PARTITION).";
    DpaPartition = 0xda, BAD_PARAM,
        "There is no such partition, execution unit or function on the card, or the partition \
         would have no units.";
    DpaUnitTaken = 0xdb, BAD_PARAM,
        "An execution unit or function is in another partition: take it out of that first.";
    DpaNotManager = 0xdc, BAD_OP,
        "Only the function that manages the card's execution units may do that: a PF of the DPU \
         side, or without one PF 0.";
    DpaModifySelect = 0xde, BAD_PARAM, "modify_field_select names a field that is not there.";
    DpaNumberAmbiguous = 0xf2, BAD_PARAM,
        "The function has a thread of this number, and so has a process that the CQ's UAR page is \
         extended to: name a page that is extended to none.";
    DpaTooManyGroups = 0xdd, NO_RES,
        "The DPA has as many groups of execution units, or partitions, as it supports.";
    DpaEntry = 0xcf, BAD_PARAM, "The address of the handler or function is 0 or odd.";

    WrongLink = 0xa0, BAD_PARAM, "The command is not for the link layer of the ports.";
    GidIndex = 0xa1, BAD_PARAM, "The index is outside the GID table.";
    PkeyIndex = 0xa2, BAD_PARAM, "The index is outside the P_Key table.";
    RoceAddress = 0xa3, BAD_PARAM, "The RoCE version or address kind is not supported.";
    NoSuchPort = 0xa6, BAD_PARAM, "There is no such port.";
    NoSuchRegister = 0xa4, BAD_PARAM, "The device has no such register.";
    VportField = 0xa8, BAD_PARAM, "A selected field of the vport cannot be changed.";
    MadPacket = 0xa7, BAD_PKT, "The datagram is malformed, or no agent of the device serves it.";
    RegisterReadOnly = 0xa5, BAD_OP, "The register cannot be written.";
} }

/// A refused command, for the log. It is logged after its thread has put the functions back, since
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_maps_back_to_its_refusal() {
        for &refusal in Refusal::ALL {
            assert_eq!(Refusal::of_syndrome(refusal.syndrome()), Some(refusal));
            assert_ne!(refusal.status(), CommandStatus::OK);
        }
    }
}
