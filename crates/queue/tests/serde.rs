//! The feature `serde` writes addresses and regions as their wire bytes, and checks them when it
//! reads them.
#![cfg(feature = "serde")]

use verbless_queue::{PeerAddress, RemoteAddr, RemoteRegion, Rkey};

#[test]
fn remote_types_serialize_as_bytes() {
    let address = RemoteAddr::new(0x1122_3344_5566_7788, Rkey(0x99aa_bbcc));
    let region = RemoteRegion::new(address, 4096);
    let text = serde_json::to_string(&(address, region)).unwrap();
    assert_eq!(
        serde_json::from_str::<(RemoteAddr, RemoteRegion)>(&text).unwrap(),
        (address, region)
    );
    let bytes: Vec<u8> = serde_json::from_value(serde_json::to_value(region).unwrap()).unwrap();
    assert_eq!(bytes, region.to_bytes());
}

#[test]
fn invalid_bytes_fail_to_deserialize() {
    let bytes = serde_json::to_string(&[9; 16]).unwrap();
    assert!(serde_json::from_str::<PeerAddress>(&bytes).is_err(), "too short");
    let mut region = RemoteRegion::new(RemoteAddr::new(0, Rkey(1)), 1).to_bytes().to_vec();
    // An undefined version.
    region[0] = 9;
    let text = serde_json::to_string(&region).unwrap();
    let error = serde_json::from_str::<RemoteRegion>(&text).unwrap_err().to_string();
    assert!(error.contains("version"), "{error}");
}
