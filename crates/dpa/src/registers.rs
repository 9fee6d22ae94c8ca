//! Accesses of programs to the device: the registers of outboxes, the configuration of windows, and
//! the windows.
//!
//! Source of the outbox page: the FlexIO SDK's device headers, 25.1 (BSD-3-Clause). No public
//! source describes the rest, so the model defines it: among it, that a doorbell is lost if UCTL
//! was not read before it.

use verbless_riscv::{PAGE, Transfer};

use super::context::{
    LOG_WINDOW, LOG_WINDOW_CONFIG, LOG_WINDOWS, OUTBOXES, WINDOW_CONFIGS, WINDOWS,
};

/// Registers of an outbox page.
mod outbox {
    pub(super) const UCTL: u64 = 0x000;
    pub(super) const BUFFER: u64 = 0x040;
    pub(super) const CQ_DB: u64 = 0x100;
    pub(super) const EQ_DB_REARM: u64 = 0x140;
    pub(super) const EQ_DB_NO_REARM: u64 = 0x180;
    pub(super) const SXD_DB: u64 = 0x1c0;
    pub(super) const EMU_CAP: u64 = 0x200;
    pub(super) const EMU_CAP_TRIGGER: u64 = 0x240;
    pub(super) const RXT_DB: u64 = 0x280;
    pub(super) const RXC_RD: u64 = 0x300;
    pub(super) const CC_DB: u64 = 0x340;
    pub(super) const CC_DB_MSB: u64 = 0x348;
    pub(super) const SW_RESERVE: u64 = 0xfc0;

    pub(super) const BUSY: u64 = 1;
    pub(super) const ERROR: u64 = 2;
}

/// Errors in os_errno that do not end the run.
pub(super) mod errno {
    /// A doorbell was written while the doorbell before it was in progress: it is lost.
    pub(crate) const BUSY: u32 = 1;
    /// The process does not have the thread that is to run.
    pub(crate) const NO_THREAD: u32 = 3;
    /// The doorbell's queue is out of the outbox's reach, does not exist, or is not modelled.
    pub(crate) const NO_QUEUE: u32 = 2;
    /// The process has no such outbox or window.
    pub(crate) const NO_CONFIG: u32 = 4;
}

/// The queues that an outbox rings for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// The queues of its function on this UAR page.
    Page(u32),
    /// The queues of a function that has extended a UAR to this process.
    Extension {
        /// The extension's number.
        device_id: u32,
        /// The serial number of the process.
        process: u64,
    },
}

/// An outbox of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outbox {
    /// The outbox's own UAR page.
    uar_page: u32,
    /// The queues that the outbox now rings.
    queues: Queues,
    busy: bool,
    error: bool,
    /// BUFFER: the value that a doorbell has read.
    buffer: u32,
    /// SW_RESERVE: a value for software.
    kept: u64,
}

impl Outbox {
    pub(super) fn new(uar_page: u32) -> Self {
        let queues = Queues::Page(uar_page);
        Self { uar_page, queues, busy: false, error: false, buffer: 0, kept: 0 }
    }

    /// Makes the outbox ring the queues of a UAR extension; `None`: those of its own UAR page
    /// again.
    pub(super) fn extend(&mut self, process: u64, device_id: Option<u32>) {
        self.queues = match device_id {
            Some(device_id) => Queues::Extension { device_id, process },
            None => Queues::Page(self.uar_page),
        };
    }

    pub(super) fn fail(&mut self) {
        self.error = true;
    }

    pub(super) fn set_buffer(&mut self, value: u32) {
        self.buffer = value;
    }
}

/// A window of a process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub pd: u32,
    pub mkey: u32,
}

/// A doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbell {
    /// Sets the consumer index of a CQ; the next CQE causes an event.
    ArmCq {
        /// The CQ.
        cqn: u32,
        /// Its consumer index.
        consumer: u32,
    },
    /// Sets the producer index of a send queue, in WQEBBs.
    Send {
        /// The number of the QP or SQ.
        number: u32,
        /// The index after its last WQE.
        index: u16,
    },
    /// Writes a CQE of zeros.
    Trigger {
        /// The CQ.
        cqn: u32,
    },
    /// Sets the consumer index of an EQ; with `arm` the next EQE raises its
    /// vector.
    UpdateEq {
        /// The EQ.
        eqn: u32,
        /// Its consumer index.
        consumer: u32,
        /// Whether the next EQE raises its vector.
        arm: bool,
    },
    /// Makes the next doorbell of an emulated device write a CQE on its CQ, or without `arm` this
    /// doorbell.
    Emulated {
        /// The CQ.
        cqn: u32,
        /// The number of the emulated device's doorbell.
        number: u32,
        /// Whether the next doorbell writes the CQE.
        arm: bool,
    },
    /// Reads the value last written to a doorbell of an emulated device.
    ReadEmulated {
        /// The number of the emulated device's doorbell.
        number: u32,
    },
    /// A doorbell without a meaning here, at this offset in the outbox's page.
    Other(u64),
}

/// A request of a run to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceRequest {
    /// A doorbell.
    Ring {
        /// The outbox; `None` for a system call.
        outbox: Option<u16>,
        /// The queues that the doorbell may reach.
        queues: Queues,
        /// The doorbell.
        doorbell: Doorbell,
    },
    /// An access to memory through a window.
    RemoteMemory {
        /// The window.
        window: u16,
        /// The window's PD.
        pd: u32,
        /// The mkey of the window.
        mkey: u32,
        /// The address of the memory by the mkey.
        address: u64,
        /// 1, 2, 4 or 8 bytes.
        size: u64,
        /// The bytes of a store, in the low bits; `None` for a load.
        store: Option<u64>,
    },
}

/// The result of a load or store to an environment region.
pub(super) enum AccessResult {
    /// The access is done; this is the value of a load.
    Done(u64),
    /// The access is done, with this error for os_errno.
    Errno(u32),
    /// The access needs this request to the device.
    Device(DeviceRequest),
    /// The address has no register: an access fault.
    NoRegister,
}

/// The device's answer to a [`DeviceRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAnswer {
    /// The access is done; this is the value of a load.
    Value(u64),
    /// The access is done, and sets BUFFER of the outbox to this value.
    Buffer(u32),
    /// The doorbell names no queue.
    NoQueue,
    /// The window does not lead to this memory.
    Refused,
}

impl super::process::Process {
    /// Whether the process still has the outbox or window of a request.
    pub(super) fn has(&self, request: &DeviceRequest) -> bool {
        match *request {
            DeviceRequest::Ring { outbox: Some(outbox), queues, .. } => {
                self.outboxes.get(&outbox).is_some_and(|it| it.queues == queues)
            }
            DeviceRequest::Ring { outbox: None, .. } => true,
            DeviceRequest::RemoteMemory { window, pd, .. } => {
                self.windows.get(&window).is_some_and(|it| it.pd == pd)
            }
        }
    }

    /// Executes a load or store outside the process's memory.
    pub(super) fn transfer(&mut self, transfer: &Transfer) -> AccessResult {
        let Transfer { address, size, store } = *transfer;
        if address >= WINDOWS {
            let id = (address - WINDOWS) >> LOG_WINDOW;
            debug_assert!(id >> LOG_WINDOWS == 0, "the region ends there");
            let Some(window) = self.windows.get(&(id as u16)) else {
                return AccessResult::NoRegister;
            };
            let address = address & ((1 << LOG_WINDOW) - 1);
            let Window { pd, mkey } = *window;
            let window = id as u16;
            return AccessResult::Device(DeviceRequest::RemoteMemory {
                window,
                pd,
                mkey,
                address,
                size,
                store,
            });
        }
        if address >= WINDOW_CONFIGS {
            let at = address - WINDOW_CONFIGS;
            let window = self.windows.get_mut(&((at >> LOG_WINDOW_CONFIG) as u16));
            let (Some(window), 0, 4) = (window, at % (1 << LOG_WINDOW_CONFIG), size) else {
                return AccessResult::NoRegister;
            };
            return match store {
                Some(mkey) => {
                    window.mkey = mkey as u32;
                    AccessResult::Done(0)
                }
                None => AccessResult::Done(window.mkey.into()),
            };
        }
        let (id, register) = ((address - OUTBOXES) / PAGE, (address - OUTBOXES) % PAGE);
        match self.outboxes.get_mut(&(id as u16)) {
            Some(outbox) => outbox.transfer(id as u16, register, size, store),
            None => AccessResult::NoRegister,
        }
    }
}

impl Outbox {
    fn transfer(&mut self, id: u16, register: u64, size: u64, store: Option<u64>) -> AccessResult {
        let Some(value) = store else {
            return match (register, size) {
                (outbox::UCTL, 4 | 8) => {
                    let busy = if std::mem::take(&mut self.busy) { outbox::BUSY } else { 0 };
                    let error = if self.error { outbox::ERROR } else { 0 };
                    AccessResult::Done(busy | error)
                }
                (outbox::SW_RESERVE, 8) => AccessResult::Done(self.kept),
                (outbox::BUFFER, 4 | 8) => AccessResult::Done(self.buffer.into()),
                _ => AccessResult::NoRegister,
            };
        };
        if size != 8 {
            return AccessResult::NoRegister;
        }
        const NUMBER: u64 = 0xff_ffff;
        const INDEX: u64 = 0x3ff_ffff;
        let (low, high) = ((value & NUMBER) as u32, (value >> 32 & NUMBER) as u32);
        let index = (value >> 32 & INDEX) as u32;
        let doorbell = match register {
            outbox::SW_RESERVE => {
                self.kept = value;
                return AccessResult::Done(0);
            }
            outbox::CQ_DB => Doorbell::ArmCq { cqn: low, consumer: high },
            outbox::SXD_DB => Doorbell::Send { number: high, index: value as u16 },
            outbox::RXT_DB => Doorbell::Trigger { cqn: low },
            outbox::EQ_DB_REARM | outbox::EQ_DB_NO_REARM => {
                let (consumer, arm) = (index, register == outbox::EQ_DB_REARM);
                Doorbell::UpdateEq { eqn: low, consumer, arm }
            }
            outbox::EMU_CAP | outbox::EMU_CAP_TRIGGER => {
                let (number, arm) = (index, register == outbox::EMU_CAP);
                Doorbell::Emulated { cqn: low, number, arm }
            }
            outbox::RXC_RD => Doorbell::ReadEmulated { number: (value >> 2 & INDEX) as u32 },
            outbox::CC_DB | outbox::CC_DB_MSB => Doorbell::Other(register),
            _ => return AccessResult::NoRegister,
        };
        if self.busy {
            self.error = true;
            return AccessResult::Errno(errno::BUSY);
        }
        (self.busy, self.error) = (true, false);
        AccessResult::Device(DeviceRequest::Ring {
            outbox: Some(id),
            queues: self.queues,
            doorbell,
        })
    }
}

#[cfg(test)]
mod tests;
