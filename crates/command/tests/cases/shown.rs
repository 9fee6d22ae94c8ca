//! Text of statuses, register accesses and devices; crossing mkeys, force loopback and first PSNs.

use verbless_command::{
    DpaStatus, ErrorKind, KeyAccess, KeyMemory, MkeyAttr, RegisterAccess, Rkey,
};
use verbless_model::Link;
use verbless_prm::ServiceType;

use crate::support::{based_on, connectx6dx, qp_attr, with_caps};

#[test]
fn dpa_status_display_gives_text_and_number() {
    let texts = [
        (0, "it runs (status 0)"),
        (1, "illegal instruction (status 1)"),
        (128, "it ended itself with error 128"),
        (255, "it ended itself with error 255"),
        (127, "status 127"),
    ];
    for (number, expected) in texts {
        assert_eq!(DpaStatus(number).to_string(), expected);
        assert_eq!(format!("{:?}", DpaStatus(number)), expected);
    }
    let faults = [
        (verbless_prm::DpaFault::FETCH, "instruction access fault"),
        (verbless_prm::DpaFault::LOAD_MISALIGNED, "load address misaligned"),
        (verbless_prm::DpaFault::LOAD, "load access fault"),
        (verbless_prm::DpaFault::STORE_MISALIGNED, "store address misaligned"),
        (verbless_prm::DpaFault::STORE, "store access fault"),
        (verbless_prm::DpaFault::BREAKPOINT, "breakpoint"),
        (verbless_prm::DpaFault::SYSTEM_CALL, "unknown system call"),
        (verbless_prm::DpaFault::WATCHDOG, "longer than the watchdog allows"),
        (verbless_prm::DpaFault::WINDOW, "a window that its key does not allow"),
        (verbless_prm::DpaFault::FINISHED, "it has finished"),
        (verbless_prm::DpaFault::ILLEGAL_ERROR, "not in 128-255"),
        (verbless_prm::DpaFault::PANIC, "its program panicked"),
    ];
    for (fault, expected) in faults {
        let text = DpaStatus(fault.0).to_string();
        let number = format!("(status {})", fault.0);
        assert!(text.contains(expected) && text.ends_with(&number), "{text}");
    }
    for (status, runs, error) in
        [(0, true, false), (verbless_prm::DpaFault::FINISHED.0, false, false), (1, false, true)]
    {
        let status = DpaStatus(status);
        assert_eq!((status.runs(), status.is_error()), (runs, error), "{status}");
    }
}

#[test]
fn register_access_and_device_have_text() {
    assert_eq!(RegisterAccess::User.to_string(), "ACCESS_REGISTER_USER through DevX");
    assert_eq!(RegisterAccess::Fwctl.to_string(), "ACCESS_REGISTER through /dev/fwctl");
    let (_model, device) = connectx6dx(Link::Ethernet);
    let shown = format!("{device:?}");
    assert!(shown.starts_with("Device(") && shown.len() > "Device()".len(), "{shown}");
    let caps = format!("{:?}", device.caps());
    assert!(caps.contains("log_max_qp"), "{caps}");
}

#[test]
fn qp_object_returns_its_number_service_and_device() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let qp = device.create_qp(qp_attr(&device, ServiceType::UC)).expect("a queue pair");
    assert_ne!(qp.qpn().0, 0);
    assert_eq!(qp.query().expect("the context").st(), ServiceType::UC);
    assert_eq!(qp.object().context().info().name, device.info().name);
}

#[test]
fn crossing_mkey_starts_at_address_0() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let attr = MkeyAttr {
        pd: qp_attr(&device, ServiceType::RC).pd,
        access: KeyAccess::default(),
        start: 8,
        length: 4096,
        memory: KeyMemory::Crossing { vhca_id: 1, key: Rkey(0x700) },
    };
    let refused = device.create_mkey(attr.clone()).expect_err("the range starts at 8");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("begins at address 0"), "{refused}");
    let refused = device
        .create_mkey(MkeyAttr { start: 0, ..attr })
        .expect_err("the device has no crossing mkeys");
    assert!(refused.to_string().contains("no crossing keys"), "{refused}");
}

#[test]
fn forces_loopback_follows_fl_rc_qp_caps() {
    let (from, to) = ("fl_rc_qp_when_roce_enabled = true", "fl_rc_qp_when_roce_enabled = false");
    for (changes, expected) in [(&[][..], true), (&[(from, to)], false)] {
        let (_model, device) = with_caps(changes);
        let roce = device.query_nic_vport_context().expect("an answer").roce_en();
        assert!(roce && device.caps().roce.is_some(), "a port of Ethernet with RoCE");
        assert_eq!(device.forces_loopback().expect("an answer"), expected, "{changes:?}");
    }
    let (_model, device) = connectx6dx(Link::Infiniband);
    assert!(!device.forces_loopback().expect("an answer"), "InfiniBand");
    for disabled in [false, true] {
        let lines = format!(
            "[ethernet.caps.general]\nroce = false\nfl_rc_qp_when_roce_disabled = {disabled}\n"
        );
        let (_model, device) = based_on("connectx6dx", &lines);
        assert!(device.caps().roce.is_none());
        assert_eq!(device.forces_loopback().expect("an answer"), disabled, "without RoCE");
    }
}

#[test]
fn first_psn_is_random_24_bits() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let first = [(); 8].map(|()| {
        let qp = device.create_qp(qp_attr(&device, ServiceType::RC)).expect("a queue pair");
        qp.first_psn()
    });
    assert!(first.iter().all(|psn| *psn <= 0xff_ffff), "{first:x?}");
    assert!(first.iter().any(|psn| *psn != first[0]), "{first:x?}");
}
