//! Aliases of mkeys of another function. One function plays both sides here.

use verbless_command::{
    AccessKey, AliasAttr, Device, ErrorKind, KeyAccess, KeyMemory, MkeyAttr, MkeyObject,
};
use verbless_model::Link;
use verbless_prm::Opcode;

use crate::support::{connectx6dx, refusal_is_reported, register_pages, with_dpa};

const SECRET: AccessKey = AccessKey::new([0x5a; 32]);

fn key(device: &Device) -> MkeyObject {
    let umem = register_pages(device);
    let attr = MkeyAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        access: KeyAccess::ALL,
        start: umem.address(),
        length: umem.length(),
        memory: KeyMemory::Umem { umem, offset: 0 },
    };
    device.create_mkey(attr).expect("a key")
}

fn alias(device: &Device, key: &MkeyObject) -> AliasAttr {
    AliasAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        vhca_id: device.vhca_id(),
        key: key.rkey(),
        access_key: SECRET,
    }
}

#[test]
fn alias_requires_allow_and_matching_access_key() {
    let (model, device) = with_dpa();
    assert!(device.caps().shares_keys());
    assert_eq!(SECRET.as_bytes(), &[0x5a; 32]);
    let key = key(&device);
    device.create_alias_key(alias(&device, &key)).expect_err("the owner allowed no function");
    key.allow(&device, &SECRET).expect("the key is of this device");
    let wrong = AliasAttr { access_key: AccessKey::new([0x5b; 32]), ..alias(&device, &key) };
    device.create_alias_key(wrong).expect_err("the secret is wrong");
    let absent = AliasAttr { vhca_id: device.vhca_id() + 100, ..alias(&device, &key) };
    device.create_alias_key(absent).expect_err("there is no such function");
    let [one, other] =
        [(); 2].map(|()| device.create_alias_key(alias(&device, &key)).expect("an alias"));
    for alias in [&one, &other] {
        assert_eq!(alias.lkey().0, alias.rkey().0);
        assert_eq!(alias.rkey().0 & 0xff, 0, "only the index");
        assert_ne!(alias.rkey().0 >> 8, key.rkey().0 >> 8);
        assert_eq!((alias.attr().key, alias.attr().vhca_id), (key.rkey(), device.vhca_id()));
    }
    assert_ne!(one.rkey(), other.rkey());
    one.destroy().expect("no object uses the alias");
    refusal_is_reported(&model, Opcode::DESTROY_GENERAL_OBJECT, || other.destroy());
}

#[test]
fn allow_rejects_mkey_of_another_context() {
    let (_model, device) = with_dpa();
    let (_other_model, other) = with_dpa();
    let (mine, theirs) = (key(&device), key(&other));
    let error = theirs.allow(&device, &SECRET).expect_err("the mkey is of another context");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let (_model, without) = connectx6dx(Link::Ethernet);
    assert!(!without.caps().shares_keys());
    let refused = without.create_alias_key(alias(&without, &mine));
    let error = refused.expect_err("the device has no aliases");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("cross_vhca_object_to_object_supported"), "{error}");
}

#[test]
fn random_access_keys_differ_and_are_redacted() {
    let [one, other] = [(); 2].map(|()| AccessKey::random().expect("the system has random bytes"));
    assert_ne!(one.as_bytes(), other.as_bytes());
    assert_eq!(format!("{one:?}"), "AccessKey(32 bytes)");
    assert_ne!(one.as_bytes(), &[0; 32]);
}
