//! A device with minimal capabilities refuses requests beyond them, and names the limit.

use verbless_command::{Device, ErrorKind, KeyAccess};
use verbless_conformance::{Choice, Lab, Outcome, Stop, cases, run_case};
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::service::Service;
use verbless_queue::wr::{Capability, LocalInvalidate, OPERATIONS, PostError, Request, Umr, Write};
use verbless_queue::{CqConfig, Domain, Qp, QpConfig, Rc, RqConfig, Sge, SrqConfig};

/// A profile with some capabilities changed.
fn changed(changes: &[(&str, &str)]) -> String {
    let mut text = include_str!("../../../crates/model/profiles/connectx6dx.toml").to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "the profile has no {from}");
        text = text.replace(from, to);
    }
    text
}

/// A modelled device with some capabilities changed.
fn device(changes: &[(&str, &str)]) -> (Model, Device) {
    let profile = Profile::from_toml(&changed(changes)).expect("a profile");
    let model = Model::builder().device(profile).stepped().build();
    let backend = InProcess::of(&model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    let device = Device::open(&backend, &info).expect("the model opens");
    (model, device)
}

/// A lab of devices of this profile.
fn lab(name: &str, profile: &str) -> Lab {
    let path = format!("{}/{name}.toml", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, profile).expect("a file");
    let lab = Lab::open(&Choice { profile: path, ..Choice::default() });
    lab.unwrap_or_else(|Stop(why)| panic!("{why}"))
}

/// Frames need queues, flow tables and sizes that a device may lack: their cases are skipped there.
#[test]
fn frame_cases_never_fail_on_smaller_device() {
    const REDUCED_CAPS: [(&str, &str); 16] = [
        ("log_max_rq = ", "0"),
        ("log_max_sq = ", "0"),
        ("log_max_tis = ", "0"),
        ("log_max_tir = ", "0"),
        ("cqe_version = ", "0"),
        ("log_max_wq_sz = ", "0"),
        ("log_max_stride_sz_rq = ", "0"),
        ("log_max_stride_sz_rq = ", "5"),
        ("vlan_cap = ", "false"),
        ("wqe_inline_mode = ", "0"),
        ("flow_modify_en = ", "false"),
        ("modify_root = ", "false"),
        ("log_max_ft_size = ", "8"),
        ("max_ft_level = ", "0"),
        ("log_max_ft_num = ", "0"),
        ("log_max_destination = ", "0"),
    ];
    let profile = changed(&[]);
    for (field, less) in REDUCED_CAPS {
        let old = profile
            .lines()
            .find(|line| line.starts_with(field))
            .expect("the profile has the field");
        let lab =
            lab("frames", &changed(&[(&format!("\n{old}\n"), &format!("\n{field}{less}\n"))]));
        for case in cases().filter(|case| case.group.starts_with("frame")) {
            if let Outcome::Failed(why) = run_case(&lab, case).outcome {
                panic!("{}, {field}{less}: {why}", case.id());
            }
        }
    }
}

#[test]
fn rq_stride_beyond_limit_is_rejected() {
    let changes = [("log_max_stride_sz_rq = 9\n", "log_max_stride_sz_rq = 5\n")];
    let (_model, device) = device(&changes);
    let domain = Domain::new(&device).expect("a domain");
    let cq = domain.completion_queue(&CqConfig::new(4)).expect("a queue");
    let config = RqConfig { sges: 3, ..RqConfig::new(4) };
    let error = domain.rq(&config, &cq).expect_err("the device lacks the capability");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("sges is 3; this device supports at most 2"), "{error}");
}

#[test]
fn srq_without_room_for_sge_is_rejected() {
    for bytes in ["0", "15", "16", "31"] {
        let to = format!("max_wqe_sz_rq = {bytes}\n");
        let (_model, device) = device(&[("max_wqe_sz_rq = 512\n", &to)]);
        let domain = Domain::new(&device).expect("a domain");
        for sges in [0, 1, u32::MAX] {
            let config = SrqConfig { sges, ..SrqConfig::new(4) };
            let error = domain.srq(&config).expect_err("the device lacks the capability");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("at most 0"), "{error}");
        }
    }
}

#[test]
fn ignore_overrun_without_cq_oi_is_rejected() {
    let (_model, device) = device(&[("cq_oi = true", "cq_oi = false")]);
    let domain = Domain::new(&device).expect("a domain");
    let config = CqConfig { ignore_overrun: true, ..CqConfig::new(4) };
    let error = domain.completion_queue(&config).expect_err("the device lacks the capability");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("cq_oi"), "{error}");
    domain.completion_queue(&CqConfig::new(4)).expect("a queue that breaks on overrun");
}

#[test]
fn rings_above_device_limit_are_rejected() {
    let (_model, device) = device(&[("log_max_qp_sz = 15", "log_max_qp_sz = 3")]);
    let domain = Domain::new(&device).expect("a domain");
    let cq = domain.completion_queue(&CqConfig::new(4)).expect("a queue");
    for config in [QpConfig::new(9, 1), QpConfig::new(1, 9)] {
        let error =
            domain.queue_pair(&config, &cq, &cq).expect_err("the device lacks the capability");
        assert!(error.to_string().contains("at most 8"), "{error}");
    }
}

#[test]
fn rings_of_exactly_the_limit_are_made() {
    let changes =
        [("log_max_qp_sz = 15", "log_max_qp_sz = 3"), ("log_max_cq_sz = 22", "log_max_cq_sz = 4")];
    let (_model, device) = device(&changes);
    let domain = Domain::new(&device).expect("a domain");
    let cqs = [(); 2].map(|()| domain.completion_queue(&CqConfig::new(16)).expect("16 CQEs"));
    let error = domain.completion_queue(&CqConfig::new(17)).expect_err("17 CQEs");
    assert!(error.to_string().contains("at most 16 "), "{error}");
    let config = QpConfig { inline: 0, ..QpConfig::new(8, 8) };
    domain
        .queue_pair(&config, &cqs[0], &cqs[1])
        .expect("8 sends of one WQEBB each, and 8 receives");
}

/// The line of the profile after which a test adds others.
const UMR_OFFSET_LINE: &str = "umr_extended_translation_offset = true\n";

#[test]
fn disabled_umr_is_rejected_by_query_and_creation() {
    let to = format!("{UMR_OFFSET_LINE}umr_indirect_mkey_disabled = true\n");
    let (_model, device) = device(&[(UMR_OFFSET_LINE, &to)]);
    let domain = Domain::new(&device).expect("a domain");
    let key = domain.umr_key(4, false).expect_err("the device lacks the capability");
    assert_eq!(key.kind(), ErrorKind::InvalidInput);
    let asked = domain.supports::<Rc>(&Umr::INFO).expect_err("the capability is missing");
    let qp = queue_pair(&domain);
    assert_eq!(qp.send.supports(&Umr::INFO), Err(asked), "as the domain");
    for text in [asked.to_string(), key.to_string()] {
        assert!(text.contains("umr_indirect_mkey_disabled"), "{text}");
        assert!(text.contains("this device does not have"), "{text}");
    }
    for free in [LocalInvalidate::INFO, Write::<Sge>::INFO] {
        domain.supports::<Rc>(&free).expect("the request changes no KLMs");
        qp.send.supports(&free).expect("the request changes no KLMs");
    }
}

#[test]
fn qp_supports_operations_of_device_and_service() {
    let (_model, device) = device(&[]);
    let domain = Domain::new(&device).expect("a domain");
    let qp = queue_pair(&domain);
    for operation in OPERATIONS {
        assert_eq!(qp.send.supports(operation), domain.supports::<Rc>(operation));
        let carried = operation.services().any(|service| service == Rc::INFO)
            && !matches!(operation.needs, Some(Capability::Dma | Capability::WaitOnData));
        assert_eq!(qp.send.supports(operation).is_ok(), carried, "{}", operation.name);
    }
}

fn queue_pair(domain: &Domain) -> Qp {
    let cq = domain.completion_queue(&CqConfig::new(16)).expect("a queue");
    domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).expect("a queue pair")
}

/// The cases of UMR on such a device: keys are mapped, changed and invalidated; only the case of
/// the atomic access flag cannot run.
#[test]
fn umr_works_without_changing_atomic_right() {
    let rights = [
        ("barred", UMR_OFFSET_LINE, "umr_modify_atomic_disabled = true\n"),
        ("none", "atomic = true\n", ""),
    ];
    for (name, line, more) in rights {
        let to = if more.is_empty() { String::new() } else { format!("{line}{more}") };
        let text = changed(&[(line, &to)]);
        let lab = lab(&format!("atomic-right-{name}"), &text);
        let mut passed = 0;
        for case in cases().filter(|case| case.group == "umr") {
            match run_case(&lab, case).outcome {
                Outcome::Passed => passed += 1,
                Outcome::Failed(why) | Outcome::Blocked(why) => {
                    panic!("{}, {name}: {why}", case.id())
                }
                Outcome::Skipped(why) => {
                    assert!(case.id().contains("atomics_reach_memory"), "{}: {why}", case.id());
                }
            }
        }
        assert!(passed >= 18, "{passed} cases passed");
    }
}

#[test]
fn umr_granting_barred_atomic_right_is_rejected() {
    let to = format!("{UMR_OFFSET_LINE}umr_modify_atomic_disabled = true\n");
    let (_model, device) = device(&[(UMR_OFFSET_LINE, &to)]);
    let domain = Domain::new(&device).expect("a domain");
    let mut key = domain.umr_key(4, false).expect("the device allows it");
    let mut qp = queue_pair(&domain);
    qp.send.supports(&Umr::INFO).expect("the device allows it");
    let refused = qp.post(&Umr::access_flags(key.renew(), KeyAccess::ALL), 1);
    assert_eq!(refused, Err(PostError::UmrAtomicAccess));
    let text = PostError::UmrAtomicAccess.to_string();
    assert!(text.contains("umr_modify_atomic_disabled"), "{text}");
}
