//! Inputs of commands, as the model receives them; objects whose destruction the device refuses;
//! VUID, LAG ports and `Debug` output.

use std::sync::{Arc, Mutex};

use verbless_command::{
    CapMode, CapPage, CqAttr, DatagramAttr, Error, FlowAttr, InitAttr, QKey, QpAttr, QueueMemory,
    RemoteAccess, SelfLoopback, ServiceType,
};
use verbless_model::{Link, Model};
use verbless_prm::{CommandStatus, Init2initQpIn, Opcode, PathMigrationState, Rst2initQpIn};

use crate::frames::{rq_attr, sq_attr};
use crate::support::{based_on, connectx6dx, cq_attr, memory, qp_attr, register_pages, with_dpa};

/// The inputs of the commands of this opcode that `act` sends, and the result of `act`.
pub(crate) fn sent<R>(model: &Model, opcode: Opcode, act: impl FnOnce() -> R) -> (Vec<Vec<u8>>, R) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let watch = model.watch_commands(move |executed| {
        if executed.input[..2] == opcode.0.to_be_bytes() {
            log.lock().unwrap().push(executed.input.to_vec());
        }
    });
    let result = act();
    drop(watch);
    let inputs = std::mem::take(&mut *seen.lock().unwrap());
    (inputs, result)
}

fn init() -> InitAttr {
    InitAttr { port: 1, pkey_index: 0, access: RemoteAccess::default() }
}

#[test]
fn to_init_enables_mmo_for_memory_copies_only() {
    let (model, device) = with_dpa();
    for dma_mmo in [true, false] {
        let attr = QpAttr { dma_mmo, ..qp_attr(&device, ServiceType::RC) };
        let mut qp = device.create_qp(attr).expect("a queue pair");
        let (inputs, done) = sent(&model, Opcode::INIT2INIT_QP, || qp.to_init(&init()));
        done.expect("INIT");
        assert_eq!(inputs.len(), usize::from(dma_mmo));
        for input in &inputs {
            let input = Init2initQpIn::from_prefix(input).expect("a whole command");
            assert!(input.qpc_ext() && input.qpc_data_ext().mmo());
            assert_eq!((input.qpn(), input.qpc().st()), (qp.qpn().0, ServiceType::RC));
            assert_eq!(input.qpc().pm_state(), PathMigrationState::MIGRATED);
        }
        // The header, the context, the upper masks, and an extension of 192 bytes.
        let lengths: Vec<_> = inputs.iter().map(Vec::len).collect();
        assert_eq!(lengths, [0x1d0][..usize::from(dma_mmo)]);
    }
    // A device with `dma_mmo_sq` only has no bit to set in the QP context.
    let lines = "[ethernet.caps.general]\ndma_mmo_sq = true\n";
    let (model, device) = based_on("connectx6dx", lines);
    let attr = QpAttr { dma_mmo: true, ..qp_attr(&device, ServiceType::RC) };
    let mut qp = device.create_qp(attr).expect("a queue pair");
    let (inputs, done) = sent(&model, Opcode::INIT2INIT_QP, || qp.to_init(&init()));
    assert!(inputs.is_empty() && done.is_ok());
    let (_model, device) = connectx6dx(Link::Ethernet);
    let attr = QpAttr { dma_mmo: true, ..qp_attr(&device, ServiceType::RC) };
    let error = device.create_qp(attr).expect_err("the device copies nothing");
    assert!(error.to_string().contains("dma_mmo_qp"), "{error}");
}

#[test]
fn transitions_repeat_service_and_pm_state() {
    let (model, device) = connectx6dx(Link::Ethernet);
    for service in [ServiceType::RC, ServiceType::UC] {
        let mut qp = device.create_qp(qp_attr(&device, service)).expect("a queue pair");
        let (inputs, done) = sent(&model, Opcode::RST2INIT_QP, || qp.to_init(&init()));
        done.expect("INIT");
        let input = Rst2initQpIn::from_prefix(&inputs[0]).expect("a whole command");
        let context = (input.qpc().st(), input.qpc().pm_state());
        assert_eq!(context, (service, PathMigrationState::MIGRATED));
        let (inputs, done) = sent(&model, Opcode::INIT2INIT_QP, || qp.change_init(&init()));
        done.expect("INIT");
        let input = Init2initQpIn::from_prefix(&inputs[0]).expect("a whole command");
        let context = (input.qpc().st(), input.qpc().pm_state());
        assert_eq!(context, (service, PathMigrationState::MIGRATED));
    }
}

/// The model has one P_Key, so it refuses the index.
#[test]
fn rst2init_has_pkey_index() {
    let (model, device) = connectx6dx(Link::Infiniband);
    let index = |act: &mut dyn FnMut() -> Result<(), Error>| {
        let (inputs, _) = sent(&model, Opcode::RST2INIT_QP, act);
        let input = Rst2initQpIn::from_prefix(&inputs[0]).expect("a whole command");
        input.qpc().primary_address_path().pkey_index()
    };
    for pkey_index in [0, 1, 127] {
        let mut rc = device.create_qp(qp_attr(&device, ServiceType::RC)).expect("a queue pair");
        let to = InitAttr { pkey_index, ..init() };
        assert_eq!(index(&mut || rc.to_init(&to)), pkey_index);
        let mut ud = device.create_qp(qp_attr(&device, ServiceType::UD)).expect("a queue pair");
        let to = DatagramAttr { port: 1, pkey_index, q_key: QKey(1) };
        assert_eq!(index(&mut || ud.to_init_datagram(&to)), pkey_index);
    }
}

#[test]
fn query_vuid_returns_function_name() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let vuid = device.query_vuid().expect("the vuid");
    assert!(vuid.starts_with("VBL") && vuid.len() == 19, "{vuid:?}");
}

#[test]
fn lag_ports_count_only_with_active_queue_affinity() {
    let ports = |affinity: bool, state: u8, mode: &str| {
        let lines = format!(
            "[ethernet.caps.general]\nnum_lag_ports = 2\nlag_tx_port_affinity = {affinity}\n\
             [ethernet.lag]\nlag_state = {state}\nport_select_mode = \"{mode}\"\n"
        );
        based_on("connectx6dx", &lines).1.lag_ports()
    };
    assert_eq!(ports(true, 1, "QUEUE_AFFINITY"), 2);
    assert_eq!(ports(true, 0, "QUEUE_AFFINITY"), 1, "LAG is not active");
    assert_eq!(ports(true, 1, "PORT_SELECT_FT"), 1, "the device chooses the port");
    assert_eq!(ports(false, 1, "QUEUE_AFFINITY"), 1, "queues choose no port");
}

#[test]
fn object_kept_by_device_keeps_its_uar() {
    let (model, device) = connectx6dx(Link::Ethernet);
    for refused in [false, true] {
        for drops in [false, true] {
            let attr: CqAttr = cq_attr(&device);
            let uar = attr.uar.clone();
            let cq = device.create_cq(attr).expect("a CQ");
            assert_eq!(Arc::strong_count(&uar), 2);
            if refused {
                model.fail_command(0, Opcode::DESTROY_CQ, 1, CommandStatus::BAD_RES_STATE, 7);
            }
            if drops {
                drop(cq);
            } else {
                assert_eq!(cq.destroy().is_err(), refused);
            }
            assert_eq!(Arc::strong_count(&uar), if refused { 2 } else { 1 });
        }
    }
}

#[test]
fn objects_show_numbers_in_debug() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let umem = register_pages(&device);
    let shifted = QueueMemory::new(umem.clone(), 0x40);
    assert_eq!((shifted.offset(), shifted.umem().id()), (0x40, umem.id()));
    assert_eq!(format!("{shifted:?}"), format!("umem {:#x} + 0x40", umem.id()));
    let domain = device.alloc_transport_domain().expect("a transport domain");
    assert_eq!(format!("{domain:?}"), format!("TransportDomain({:#x})", domain.number()));
    let cq = device.create_cq(cq_attr(&device)).expect("a CQ");
    assert!(format!("{cq:?}").starts_with(&format!("CqObject {{ cqn: {:?}", cq.cqn())));
    let (ring, _) = memory(&device);
    assert_eq!(ring.offset(), 0);
    let [one, other] = [(); 2].map(|()| device.create_sq(sq_attr(&device)).expect("an SQ"));
    assert_ne!(one.sqn(), other.sqn());
}

#[test]
fn failed_flow_rule_destroy_is_reported() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let domain = Arc::new(device.alloc_transport_domain().expect("a transport domain"));
    let rq = Arc::new(device.create_rq(rq_attr(&device)).expect("an RQ"));
    let tir = device.create_tir(domain, rq, SelfLoopback::default()).expect("a TIR");
    let other = device.create_tir(tir.domain().clone(), tir.rq().clone(), SelfLoopback::default());
    assert_ne!(tir.tirn(), other.expect("a second TIR").tirn());
    let attr = FlowAttr::to([2, 0, 0, 0, 0, 9]);
    let rule = device.create_flow_rule(&attr, &Arc::new(tir)).expect("a rule");
    let opcode = Opcode::DELETE_FLOW_TABLE_ENTRY;
    model.fail_command(0, opcode, 1, CommandStatus::BAD_RES_STATE, 7);
    rule.destroy().expect_err("the device refused it");
}

#[test]
fn query_hca_cap_encodes_page_and_mode() {
    let (model, device) = connectx6dx(Link::Ethernet);
    for (page, mode, expected) in [
        (CapPage::GENERAL, CapMode::Maximum, 0),
        (CapPage::GENERAL, CapMode::Current, 1),
        (CapPage::ROCE, CapMode::Maximum, CapPage::ROCE.0 << 1),
        (CapPage::ROCE, CapMode::Current, CapPage::ROCE.0 * 2 + 1),
    ] {
        let (inputs, page) =
            sent(&model, Opcode::QUERY_HCA_CAP, || device.query_hca_cap(page, mode));
        page.expect("the page");
        assert_eq!(inputs.len(), 1);
        assert_eq!(inputs[0][6..8], expected.to_be_bytes(), "op_mod, {mode:?}");
    }
}
