//! What there is to know of an operation, as a value that a program can look up.
//!
//! Each request type has its entry where it is declared ([`Request::INFO`](super::Request)): the
//! opcode and op_mod that go into the control segment, the class that says which services carry it,
//! and the capability that the device needs. [`OPERATIONS`] lists the entries.

use core::fmt;

use super::{
    CompareSwap, FetchAdd, LocalInvalidate, Nop, Read, Request, Send, SendImm, SendInvalidate, To,
    Umr, Write, WriteImm,
};
use crate::completion::Operation;
use crate::service::{SERVICES, ServiceInfo};
use crate::types::Sge;

/// Declares the classes: a value and a type each.
macro_rules! classes {
    ($($(#[$attr:meta])* $name:ident,)*) => {
        /// Requests that a service has all of or none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class {
            $($(#[$attr])* $name,)*
        }

        /// The classes as types, for [`Carries`](crate::service::Carries).
        pub mod class {
            $(
                $(#[$attr])*
                #[derive(Clone, Copy, Debug)]
                pub struct $name;
            )*
        }
    };
}

classes! {
    /// Requests that send nothing.
    Nop,
    /// Messages into the peer's next receive.
    Send,
    /// Messages that invalidate a key of the peer.
    Invalidate,
    /// Writes into memory of the peer.
    Write,
    /// Reads of memory of the peer.
    Read,
    /// Atomics on memory of the peer.
    Atomic,
    /// Changes of our own keys.
    KeyChange,
    /// Messages that carry their destination.
    Datagram,
}

/// What a device must have for an operation, beside queues of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Atomics of 8 bytes on queue pairs.
    Atomics,
}

impl Capability {
    /// What it is, and where the device says so.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Atomics => {
                "compare-and-swap and fetch-and-add of 8 bytes on queue pairs (capability `atomic` \
                 and its page)"
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
}

/// Every operation that there is a request type of.
pub const OPERATIONS: [OperationInfo; 13] = [
    Nop::INFO,
    Send::<Sge>::INFO,
    SendImm::<Sge>::INFO,
    SendInvalidate::<Sge>::INFO,
    Write::<Sge>::INFO,
    WriteImm::<Sge>::INFO,
    Read::<Sge>::INFO,
    CompareSwap::INFO,
    FetchAdd::INFO,
    Umr::INFO,
    LocalInvalidate::INFO,
    To::<Send<Sge>>::INFO,
    To::<SendImm<Sge>>::INFO,
];

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
        }
    }
}

impl core::error::Error for Unsupported {}

impl OperationInfo {
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

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;
    use crate::service::{Rc, Service, Uc, Ud};

    #[test]
    fn the_table_says_of_each_operation_which_services_carry_it() {
        for operation in OPERATIONS {
            let services: Vec<_> = operation.services().map(|service| service.name).collect();
            let expected: &[&str] = match operation.name {
                "NOP" => &["RC", "UC", "UD"],
                "SEND to a destination" | "SEND with immediate to a destination" => &["UD"],
                "SEND"
                | "SEND with immediate"
                | "RDMA WRITE"
                | "RDMA WRITE with immediate"
                | "UMR"
                | "local invalidate" => &["RC", "UC"],
                _ => &["RC"],
            };
            assert_eq!(services, expected, "{}", operation.name);
        }
    }

    #[test]
    fn what_is_missing_is_said_in_words() {
        let read = Read::<Sge>::INFO;
        assert_eq!(read.supported(&Rc::INFO, |_| false), Ok(()), "READ needs no capability");
        let why = read.supported(&Uc::INFO, |_| true).unwrap_err().to_string();
        assert_eq!(why, "the transport service UC does not carry RDMA READ");
        let add = FetchAdd::INFO;
        assert_eq!(add.supported(&Rc::INFO, |needs| needs == Capability::Atomics), Ok(()));
        let why = add.supported(&Rc::INFO, |_| false).unwrap_err().to_string();
        assert!(why.starts_with("fetch and add needs compare-and-swap"), "{why}");
        assert!(Send::<Sge>::INFO.supported(&Ud::INFO, |_| true).is_err(), "it has no destination");
    }
}
