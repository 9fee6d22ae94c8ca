//! What peers tell each other, and memory, as plain values.

use verbless_queue::{Error, ErrorKind, Memory, RangeError, RemoteAddr, RemoteRegion, Rkey};

#[test]
fn a_region_tells_its_parts_and_comes_back_from_its_bytes() {
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
fn a_range_that_cannot_be_used_is_an_error_of_the_input() {
    for (error, expected) in [
        (RangeError::TooLong(1 << 32), "4294967296 bytes are too many"),
        (RangeError::NoRemoteKey, "no remote key"),
    ] {
        let error = Error::from(error);
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(error.to_string().contains(expected), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
}

#[test]
fn memory_says_whether_it_has_bytes() {
    let memory = Memory::allocate(4096).unwrap();
    assert!(!memory.is_empty());
    assert_eq!(memory.len(), 4096);
}
