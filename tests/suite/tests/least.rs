//! A device whose capabilities leave no room at all: what is asked of it is refused, with the
//! limit.

use verbless_command::{Device, ErrorKind};
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::{LocalInvalidate, Request, Umr, Write};
use verbless_queue::{CqConfig, Domain, QpConfig, Rc, Sge, SrqConfig};

/// A device of the model's with some capabilities changed.
fn device(changes: &[(&str, &str)]) -> (Model, Device) {
    let mut text = include_str!("../../../crates/model/profiles/connectx6dx.toml").to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "the profile has no {from}");
        text = text.replace(from, to);
    }
    let profile = Profile::from_toml(&text).expect("a profile");
    let model = Model::builder().device(profile).stepped().build();
    let backend = InProcess::of(&model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    let device = Device::open(&backend, &info).expect("the model opens");
    (model, device)
}

#[test]
fn receives_without_room_for_an_entry_are_refused_with_the_limit() {
    for bytes in ["0", "15", "16", "31"] {
        let to = format!("max_wqe_sz_rq = {bytes}\n");
        let (_model, device) = device(&[("max_wqe_sz_rq = 512\n", &to)]);
        let domain = Domain::new(&device).expect("a domain");
        for sges in [0, 1, u32::MAX] {
            let config = SrqConfig { sges, ..SrqConfig::new(4) };
            let error = domain.srq(&config).expect_err("it was made");
            assert_eq!(error.kind(), ErrorKind::Input);
            assert!(error.to_string().contains("at most 0"), "{error}");
        }
    }
}

#[test]
fn a_device_without_overrun_ignored_says_which_capability_is_missing() {
    let (_model, device) = device(&[("cq_oi = true", "cq_oi = false")]);
    let domain = Domain::new(&device).expect("a domain");
    let config = CqConfig { ignore_overrun: true, ..CqConfig::new(4) };
    let error = domain.completion_queue(&config).expect_err("it was made");
    assert_eq!(error.kind(), ErrorKind::Input);
    assert!(error.to_string().contains("cq_oi"), "{error}");
    domain.completion_queue(&CqConfig::new(4)).expect("a queue that breaks on overrun");
}

#[test]
fn rings_longer_than_the_devices_are_refused_with_the_limit() {
    let (_model, device) = device(&[("log_max_qp_sz = 15", "log_max_qp_sz = 3")]);
    let domain = Domain::new(&device).expect("a domain");
    let cq = domain.completion_queue(&CqConfig::new(4)).expect("a queue");
    for config in [QpConfig::new(9, 1), QpConfig::new(1, 9)] {
        let error = domain.queue_pair(&config, &cq, &cq).expect_err("it was made");
        assert!(error.to_string().contains("at most 8"), "{error}");
    }
}

#[test]
fn rings_of_exactly_the_limit_are_made() {
    let changes =
        [("log_max_qp_sz = 15", "log_max_qp_sz = 3"), ("log_max_cq_sz = 22", "log_max_cq_sz = 4")];
    let (_model, device) = device(&changes);
    let domain = Domain::new(&device).expect("a domain");
    let cq = domain.completion_queue(&CqConfig::new(16)).expect("16 CQEs");
    let error = domain.completion_queue(&CqConfig::new(17)).expect_err("17 CQEs");
    assert!(error.to_string().contains("at most 16 "), "{error}");
    let config = QpConfig { inline: 0, ..QpConfig::new(8, 8) };
    domain.queue_pair(&config, &cq, &cq).expect("8 sends of one WQEBB each, and 8 receives");
}

#[test]
fn a_device_that_bars_umr_says_so_when_a_queue_is_asked_and_when_a_key_is_made() {
    const BESIDE: &str = "umr_extended_translation_offset = true\n";
    for barred in ["umr_indirect_mkey_disabled", "umr_modify_atomic_disabled"] {
        let to = format!("{BESIDE}{barred} = true\n");
        let (_model, device) = device(&[(BESIDE, &to)]);
        let domain = Domain::new(&device).expect("a domain");
        let key = domain.umr_key(4, false).expect_err("it was made");
        assert_eq!(key.kind(), ErrorKind::Input);
        let asked = [Umr::INFO, LocalInvalidate::INFO].map(|it| domain.supports::<Rc>(&it));
        let texts = asked.map(|answer| answer.expect_err("it is barred").to_string());
        for text in texts.into_iter().chain([key.to_string()]) {
            assert!(text.contains(barred), "{text} does not say {barred}");
            assert!(text.contains("this device does not have"), "{text}");
        }
        domain.supports::<Rc>(&Write::<Sge>::INFO).expect("a WRITE changes no key");
    }
    let (_model, device) = device(&[]);
    let domain = Domain::new(&device).expect("a domain");
    domain.supports::<Rc>(&Umr::INFO).expect("nothing bars it");
    domain.umr_key(4, false).expect("nothing bars it");
}
