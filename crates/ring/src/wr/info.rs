//! The description of an operation: its name, the services that carry it, and the capability that
//! it needs.

use core::fmt;

use super::capability::Capability;
use crate::completion::WcOpcode;
use crate::service::{Class, SERVICES, ServiceInfo};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationInfo {
    /// Name in the specifications, such as `RDMA READ`.
    pub name: &'static str,
    /// The operation that its completions report; the enum's value is the opcode in the control
    /// segment.
    pub operation: WcOpcode,
    /// The opcode's modifier in the control segment.
    pub op_mod: u8,
    /// The class: a service carries all operations of a class, or none.
    pub class: Class,
    /// The capability that the device must have; `None` if every device has the operation.
    pub needs: Option<Capability>,
    /// Length of the WQE in ds of 16 bytes, with one SGE if the operation carries data.
    pub ds: u32,
}

impl OperationInfo {
    /// Maximum length of the WQE in ds. A READ has at most 512 bytes (Linux
    /// `include/linux/mlx5/device.h`, `MLX5_MAX_SGE_RD`), any other operation the maximum of `ds`
    /// in the control segment.
    pub const fn max_ds(&self) -> u32 {
        match self.operation {
            WcOpcode::Read => 512 / 16,
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
        /// The missing capability.
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
                 create the queue pair with more send requests"
            ),
        }
    }
}

impl core::error::Error for Unsupported {}

impl OperationInfo {
    /// Length of the WQE in wqebbs of 64 bytes, with one SGE if the operation carries data.
    pub const fn wqebbs(&self) -> u32 {
        self.ds.div_ceil(4)
    }

    /// The services that carry it.
    pub fn services(&self) -> impl Iterator<Item = ServiceInfo> {
        let class = self.class;
        SERVICES.into_iter().filter(move |service| service.carries.contains(&class))
    }

    /// Checks that queues of `service` support the operation; `has` returns whether the device has
    /// a capability.
    ///
    /// # Errors
    /// The service does not carry it, or the device lacks its capability.
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
