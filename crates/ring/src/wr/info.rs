//! The entry of an operation: what it is called, which services carry it, what it needs.

use core::fmt;

use crate::completion::Operation;
use crate::service::{Class, SERVICES, ServiceInfo};

/// Capability that an operation needs, besides queues of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Atomics of 8 bytes on queue pairs.
    Atomics,
    /// UMR that changes the KLMs of a key.
    Umr,
    /// UMR that gives or takes the atomic right of a key.
    UmrAtomic,
    /// Queue pairs that copy memory.
    Dma,
    /// Waits for data in memory.
    WaitOnData,
    /// Checksums of frames that are sent.
    FrameChecksums,
    /// VLAN tags that a WQE carries and the device inserts.
    VlanInsertion,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Atomics,
        Self::Umr,
        Self::UmrAtomic,
        Self::Dma,
        Self::WaitOnData,
        Self::FrameChecksums,
        Self::VlanInsertion,
    ];

    /// What it is, and where the device says so.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Atomics => {
                "compare-and-swap and fetch-and-add of 8 bytes on queue pairs (capability `atomic` \
                 and its page)"
            }
            Self::Umr => {
                "UMR that changes indirect keys (capability `umr_indirect_mkey_disabled`, 0)"
            }
            Self::UmrAtomic => {
                "UMR that changes the atomic right of a key (capability `atomic`, and \
                 `umr_modify_atomic_disabled` 0)"
            }
            Self::WaitOnData => "waits for data in memory (capability `wait_on_data`)",
            Self::FrameChecksums => {
                "checksums of frames that are sent (capability `csum_cap` of the Ethernet page)"
            }
            Self::VlanInsertion => {
                "VLAN tags inserted by the device (capability `wqe_vlan_insert` of the Ethernet \
                 page)"
            }
            Self::Dma => {
                "queue pairs that copy memory (capability `dma_mmo_qp` or `dma_mmo_sq`, and a \
                 queue pair that was made for it)"
            }
        }
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationInfo {
    /// As the specifications call it.
    pub name: &'static str,
    /// What its completions say; the number is the opcode of the control segment.
    pub operation: Operation,
    /// The opcode's modifier in the control segment.
    pub op_mod: u8,
    /// Which services carry it.
    pub class: Class,
    /// What the device must have, if anything.
    pub needs: Option<Capability>,
    /// Its WQE in ds of 16 bytes, with one SGE if it carries data.
    pub ds: u32,
}

impl OperationInfo {
    /// Ds of its WQE at most. A READ's is of 512 bytes (Linux `include/linux/mlx5/device.h`,
    /// `MLX5_MAX_SGE_RD`); any other fills what the control segment can state.
    pub const fn most_ds(&self) -> u32 {
        match self.operation {
            Operation::Read => 512 / 16,
            _ => 63,
        }
    }
}

/// Why a queue cannot take an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The service has no such operation.
    Service {
        /// The operation.
        operation: &'static str,
        /// The service.
        service: &'static str,
    },
    /// The device lacks a capability.
    Capability {
        /// The operation.
        operation: &'static str,
        /// What it needs.
        needs: Capability,
    },
    /// The send ring is shorter than the WQE.
    Ring {
        /// The operation.
        operation: &'static str,
        /// The WQE in wqebbs of 64 bytes, with one SGE if it carries data.
        wqebbs: u32,
        /// The ring in wqebbs.
        capacity: u32,
    },
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { operation, service } => {
                write!(f, "the transport service {service} does not carry {operation}")
            }
            Self::Capability { operation, needs } => {
                let needs = needs.words();
                write!(f, "{operation} needs {needs}, which this device does not have")
            }
            Self::Ring { operation, wqebbs, capacity } => write!(
                f,
                "{operation} takes {wqebbs} wqebbs of 64 bytes, and this send ring has {capacity}: \
                 make the queue pair for more sends"
            ),
        }
    }
}

impl core::error::Error for Unsupported {}

impl OperationInfo {
    /// Wqebbs of 64 bytes of its WQE, with one SGE if it carries data.
    pub const fn wqebbs(&self) -> u32 {
        self.ds.div_ceil(4)
    }

    /// The services that carry it.
    pub fn services(&self) -> impl Iterator<Item = ServiceInfo> {
        let class = self.class;
        SERVICES.into_iter().filter(move |service| service.carries.contains(&class))
    }

    /// Whether queues of `service` take it on a device; `has` says what that has.
    ///
    /// # Errors
    /// The service does not carry it, or the device lacks what it needs.
    pub fn supported(
        &self,
        service: &ServiceInfo,
        has: impl FnOnce(Capability) -> bool,
    ) -> Result<(), Unsupported> {
        let operation = self.name;
        if !service.carries.contains(&self.class) {
            return Err(Unsupported::Service { operation, service: service.name });
        }
        match self.needs {
            Some(needs) if !has(needs) => Err(Unsupported::Capability { operation, needs }),
            _ => Ok(()),
        }
    }
}
