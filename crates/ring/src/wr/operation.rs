//! Descriptions of operations as values.
//!
//! Each request type has an entry ([`Request::INFO`](super::Request)): the opcode and op_mod of the
//! control segment, the class by which services carry it, and the capability that the device needs.
//! [`OPERATIONS`] lists the entries.

pub use super::capability::Capability;
pub use super::info::{OperationInfo, Unsupported};
pub use super::request::OPERATIONS;
pub use crate::service::{Class, class};

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;
    use crate::completion::WcOpcode;
    use crate::service::{Rc, Service, Uc, Ud};
    use crate::types::Sge;
    use crate::wr::{FetchAdd, LocalInvalidate, Read, Request, Send, Umr};

    #[test]
    fn operations_list_their_services() {
        for operation in OPERATIONS {
            let services: Vec<_> = operation.services().map(|service| service.name).collect();
            let expected: &[&str] = match operation.name {
                "NOP" => &["RC", "UC", "UD", "RAW_ETHERTYPE"],
                "Ethernet frame" => &["RAW_ETHERTYPE"],
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
    fn every_request_opcode_is_posted_by_operation() {
        let posted = |operation| OPERATIONS.iter().any(|entry| entry.operation == operation);
        for &operation in WcOpcode::ALL {
            let is_request = operation as u8 & 0x80 == 0;
            assert_eq!(posted(operation), is_request, "{operation:?}");
            assert_eq!(WcOpcode::from_number(operation as u8), operation);
        }
    }

    #[test]
    fn unsupported_reason_has_text() {
        let read = Read::<Sge>::INFO;
        assert_eq!(read.supported(&Rc::INFO, |_| false), Ok(()), "READ needs no capability");
        let why = read.supported(&Uc::INFO, |_| true).unwrap_err().to_string();
        assert_eq!(why, "the transport service UC does not carry RDMA READ");
        let add = FetchAdd::INFO;
        assert_eq!(add.supported(&Rc::INFO, |needs| needs == Capability::Atomics), Ok(()));
        let why = add.supported(&Rc::INFO, |_| false).unwrap_err().to_string();
        assert!(why.starts_with("fetch and add needs compare-and-swap"), "{why}");
        assert_eq!(Umr::INFO.supported(&Rc::INFO, |needs| needs == Capability::Umr), Ok(()));
        let why = Umr::INFO.supported(&Rc::INFO, |_| false).unwrap_err().to_string();
        assert!(why.contains("needs UMR that changes indirect keys"), "{why}");
        let free = LocalInvalidate::INFO;
        assert_eq!(
            free.supported(&Rc::INFO, |_| false),
            Ok(()),
            "the operation needs no capability"
        );
        assert!(
            Send::<Sge>::INFO.supported(&Ud::INFO, |_| true).is_err(),
            "the request has no destination"
        );
    }
}
