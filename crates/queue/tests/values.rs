//! Remote regions, range errors and memory, without a device.

use verbless_queue::{Error, ErrorKind, Memory, RangeError, RemoteAddr, RemoteRegion, Rkey};

#[test]
fn remote_region_has_parts_and_round_trips() {
    let base = RemoteAddr::new(0x1000, Rkey(0x1234_5678));
    let region = RemoteRegion::new(base, 4096);
    assert_eq!((region.base(), region.rkey()), (base, Rkey(0x1234_5678)));
    assert_eq!((region.len(), region.is_empty()), (4096, false));
    assert!(RemoteRegion::new(base, 0).is_empty());
    let bytes: [u8; RemoteRegion::BYTES] = region.into();
    assert_eq!(bytes, region.to_bytes());
    assert_eq!(RemoteRegion::try_from(bytes).unwrap(), region);
    let mut other = bytes;
    other[0] = 9;
    assert_eq!(RemoteRegion::try_from(other).unwrap_err().kind(), ErrorKind::Peer);
}

#[test]
fn range_error_becomes_input_error() {
    for (error, expected) in [
        (RangeError::TooLong(1 << 32), "4294967296 bytes are too many"),
        (RangeError::NoRemoteKey, "no remote key"),
    ] {
        let error = Error::from(error);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn memory_is_empty_follows_length() {
    let memory = Memory::allocate(4096).unwrap();
    assert!(!memory.is_empty());
    assert_eq!(memory.len(), 4096);
}
