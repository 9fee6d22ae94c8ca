//! Commands on the model: the attributes that reach the device, and the errors of refused commands.

use verbless_command::{
    CapMode, CapPage, Device, ErrorKind, KeyAccess, KeyMemory, Klm, Lkey, MkeyAttr,
};
use verbless_model::{Link, Model, Profile};

use crate::support::{connectx6dx, open};

fn device() -> (Model, Device) {
    connectx6dx(Link::Ethernet)
}

fn klms(device: &Device, count: u32) -> MkeyAttr {
    let klm = |at: u32| Klm { key: Lkey(0x1200), address: u64::from(at) << 12, length: 4096 };
    MkeyAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        access: KeyAccess::ALL,
        start: 0x1_0000,
        length: u64::from(count) * 4096,
        memory: KeyMemory::Klms((0..count).map(klm).collect()),
    }
}

#[test]
fn model_psid_yields_model_token() {
    let (_model, device) = device();
    assert!(device.adapter().is_model());
    assert!(device.as_model().is_some());
}

#[test]
fn foreign_psid_yields_no_model_token() {
    let text = include_str!("../../../model/profiles/connectx6dx.toml");
    let other = text.replace("VBL0000000001", "MT_0000000359");
    let (_model, device) = open(Profile::from_toml(&other).expect("a profile"));
    assert!(!device.adapter().is_model());
    assert!(device.as_model().is_none());
}

#[test]
fn caps_match_hca_cap_page() {
    let (_model, device) = device();
    let page = device.query_hca_cap(CapPage::GENERAL, CapMode::Current).expect("the page");
    let general = verbless_prm::HcaCap::from_prefix(&page[..]).expect("a whole page");
    assert_eq!(device.caps().log_max_qps, general.log_max_qp());
    assert_eq!(device.caps().log_max_cqes, general.log_max_cq_sz());
    assert_eq!(device.caps().ports, general.num_ports());
}

#[test]
fn query_mkey_returns_attributes() {
    let (_model, device) = device();
    let attr = klms(&device, 3);
    let mkey = device.create_mkey(attr.clone()).expect("a key");
    let context = mkey.query().expect("the context");
    assert_eq!((context.start_addr(), context.len()), (attr.start, attr.length));
    assert_eq!(context.pd(), attr.pd.pdn());
    assert!(context.rr() && context.rw() && context.a() && context.lr() && context.lw());
    assert_eq!(u32::from(context.mkey_7_0()), mkey.rkey().0 & 0xff);
}

#[test]
fn recreated_mkey_has_another_rkey() {
    let (_model, device) = device();
    let attr = klms(&device, 3);
    let first = device.create_mkey(attr.clone()).expect("a key");
    let stale = first.rkey();
    first.destroy().expect("no object uses the key");
    let second = device.create_mkey(attr).expect("a second key");
    assert_ne!(second.rkey(), stale, "the old key must not open the new one's memory");
}

#[test]
fn invalid_mkeys_are_rejected_before_command() {
    let (_model, device) = device();
    let with = |change: fn(&mut MkeyAttr)| {
        let mut attr = klms(&device, 2);
        change(&mut attr);
        device.create_mkey(attr).expect_err("the mkey is invalid").to_string()
    };
    assert!(with(|attr| attr.length = 0).contains("zero bytes"));
    assert!(with(|attr| attr.start = u64::MAX).contains("address space"));
    assert!(with(|attr| attr.access.local_write = false).contains("set `local_write` too"));
    assert!(with(|attr| attr.memory = KeyMemory::Klms(Vec::new())).contains("KLM entry"));
}

#[test]
fn failed_command_reports_name_status_and_syndrome() {
    let (model, device) = device();
    let opcode = verbless_prm::Opcode::NOP.0;
    model.fail_command(
        0,
        verbless_prm::Opcode(opcode),
        1,
        verbless_prm::CommandStatus(0x0f),
        0xbeef,
    );
    let error = device.nop().expect_err("the model fails the first NOP");
    assert_eq!(error.kind(), ErrorKind::Command);
    assert_eq!((error.status(), error.syndrome()), (Some(0x0f), Some(0xbeef)));
    let text = error.to_string();
    assert!(text.contains("NOP") && text.contains("0xbeef"), "{text}");
    device.nop().expect("the model fails only the first NOP");
}
