//! The accessors of CQEs read the fields at the offsets of the DPA's headers.

use verbless_flexio_dev::{Cqe, CqeError};

/// A CQE whose byte at `n` is `n + 1`.
fn bytes() -> [u8; 64] {
    std::array::from_fn(|n| n as u8 + 1)
}

#[test]
fn cqe_fields_match_headers() {
    let bytes = bytes();
    let cqe = Cqe::from_prefix(&bytes).unwrap();
    assert_eq!(cqe.check_sum(), 0x1516);
    assert_eq!(cqe.srqn_uidx(), 0x22_2324);
    assert_eq!(cqe.byte_cnt(), 0x2d2e_2f30);
    assert_eq!(cqe.qpn(), 0x3a_3b3c);
    assert_eq!(cqe.wqe_counter(), 0x3d3e);
    assert_eq!(cqe.signature(), 0x3f);
    // The last byte is 0x40.
    assert_eq!((cqe.opcode().0, cqe.format().0, cqe.owner()), (4, 0, false));
    let mut bytes = bytes;
    bytes[63] = 0xed;
    let cqe = Cqe::from_prefix(&bytes).unwrap();
    assert_eq!((cqe.opcode().0, cqe.format().0, cqe.owner()), (0xe, 3, true));
}

#[test]
fn error_cqe_carries_three_syndromes() {
    let bytes = bytes();
    let cqe = CqeError::from_prefix(&bytes).unwrap();
    assert_eq!(cqe.hw_error_syndrome(), 0x35);
    assert_eq!(cqe.vendor_err_synd().0, 0x37);
    assert_eq!(cqe.syndrome().0, 0x38);
}
