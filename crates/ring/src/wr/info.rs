//! The entry of an operation: what it is called, which services carry it, what it needs.

use core::fmt;

use super::capability::Capability;
use crate::completion::Operation;
use crate::service::{Class, SERVICES, ServiceInfo};

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
