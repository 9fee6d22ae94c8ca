//! Values that peers exchange.

use verbless_ring::{RemoteAddr, Rkey};

#[test]
fn remote_addr_round_trips_and_rejects_mkey_index_0() {
    let address = RemoteAddr::new(0x1122_3344_5566_7788, Rkey(0x99aa_bbcc));
    let bytes: [u8; RemoteAddr::BYTES] = address.into();
    assert_eq!(bytes, address.to_bytes());
    assert_eq!(RemoteAddr::try_from(bytes).unwrap(), address);
    let mut none = bytes;
    none[8..11].fill(0);
    assert!(RemoteAddr::try_from(none).is_err());
}
