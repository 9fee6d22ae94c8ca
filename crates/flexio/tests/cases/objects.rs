//! Queues, keys and pages of a process: their getters, their refusals, and that none can be
//! destroyed while another object uses it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{Gid, KeyAccess};
use verbless_devx::UarKind;
use verbless_flexio::{
    App, CqElement, CqModeration, CqPeriodMode, DpaCq, DpaCqConfig, DpaQp, DpaQpConfig, DpaRq,
    DpaRqConfig, DpaSq, DpaSqConfig, Error, EventHandler, EventHandlerConfig, Handler, Mkey,
    MkeyConfig, Outbox, OutboxConfig, Process, ProcessConfig, QpAttr, QpAttrMask, QpReceive,
    QpState, QpTransport, QueueMemory, Rmp, RmpConfig, SqTis, TransportDomain, Uar, Window,
    WqEndPadMode, WqType,
};
use verbless_flexio_dev::Segment;
use verbless_queue::wr::Send;
use verbless_queue::{ConnectOptions, CqConfig, Memory, QpConfig};

use crate::documented::{Documented, process, process_on_ethernet, program};

/// Fails unless the result is a refusal with this text.
pub(crate) fn refused<T: Debug>(result: Result<T, Error>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "{error}");
}

/// A process, and its device opened a second time.
fn opened_twice() -> Documented<(Process, Device)> {
    let backend = InProcess::of(&Model::builder().device(Profile::load("bluefield3")?).build());
    let open = || Device::open(&backend, &backend.find("mlx5_0")?);
    let app = App::new("documented", &program())?;
    Ok((Process::create(&open()?, &app, &ProcessConfig::default())?, open()?))
}

/// The attributes that connect a queue pair with itself.
fn to_itself(qp: &DpaQp) -> Documented<QpAttr> {
    let own = qp.address(&ConnectOptions::default())?;
    Ok(QpAttr {
        remote_qp_num: qp.number(),
        rlid: own.lid,
        rgid: Gid(own.gid.0),
        grh: own.grh_required,
        q_key: 0x11,
        ..QpAttr::default()
    })
}

/// A CQ of 16 CQEs that its owner polls.
fn polled(process: &Process) -> Documented<DpaCq> {
    Ok(DpaCq::create(process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?)
}

#[test]
fn cq_reports_depth_and_moderation() -> Documented<()> {
    let process = process()?;
    let cq = polled(&process)?;
    assert_eq!((cq.number().0, cq.log_depth()), (cq.object().cqn().0, 4));
    let moderation = CqModeration { max_count: 3, period: 0xfff, mode: CqPeriodMode::Cqe };
    cq.modify_moderation(moderation)?;
    assert_eq!(cq.query_moderation()?, moderation);
    let moderation = CqModeration { max_count: 5, period: 7, mode: CqPeriodMode::Event };
    cq.modify_moderation(moderation)?;
    assert_eq!(cq.query_moderation()?, moderation);
    let too_long = CqModeration { period: 0x1000, ..moderation };
    assert!(cq.modify_moderation(too_long).is_err());
    assert_eq!(cq.query_moderation()?, moderation);
    for mode in [CqPeriodMode::Event, CqPeriodMode::Cqe] {
        let moderation = CqModeration { mode, ..moderation };
        let element = CqElement::NonDpa { vector: 0 };
        let config = DpaCqConfig { moderation, ..DpaCqConfig::new(4, element) };
        assert_eq!(DpaCq::create(&process, &config)?.query_moderation()?, moderation);
    }
    let mut ring = [0; 16 * 64];
    process.read(cq.ring_address(), &mut ring)?;
    assert_eq!(ring, [0xf1; 16 * 64], "not written yet");
    let clone = cq.clone();
    refused(cq.destroy(), "is in use by a clone of its handle: drop that first");
    clone.destroy()?;
    Ok(())
}

#[test]
fn event_handler_cq_needs_record_in_dpa_heap() -> Documented<()> {
    let (process, _) = opened_twice()?;
    let (other, _) = opened_twice()?;
    let handler = |process| {
        EventHandler::create(process, &EventHandlerConfig::new(Handler::named("handler")))
    };
    let own = handler(&process)?;
    let config = || DpaCqConfig::new(4, CqElement::Thread(own.clone()));
    let memory = Memory::allocate(4096)?.register(process.device())?;
    let host = DpaCqConfig { record: Some(QueueMemory::host(memory.clone(), 0)), ..config() };
    refused(DpaCq::create(&process, &host), "must be in the heap");
    let element = CqElement::NonDpa { vector: 0 };
    DpaCq::create(&process, &DpaCqConfig { element, ..host })?.destroy()?;
    let foreign = DpaCqConfig::new(4, CqElement::Thread(handler(&other)?));
    refused(DpaCq::create(&process, &foreign), "of another process");
    let most = process.device().caps().log_max_cqes;
    let deep = DpaCqConfig { log_depth: most + 1, ..config() };
    refused(DpaCq::create(&process, &deep), "at most");
    // The host's memory is one byte too short.
    let ring = |offset| Some(QueueMemory::host(memory.clone(), offset));
    let element = || CqElement::NonDpa { vector: 0 };
    let of = |offset| DpaCqConfig { ring: ring(offset), ..DpaCqConfig::new(4, element()) };
    DpaCq::create(&process, &of(3072))?.destroy()?;
    refused(DpaCq::create(&process, &of(3136)), "takes 1024 bytes, and its memory has 960");
    let cq = DpaCq::create(&process, &config())?;
    refused(own.destroy(), "event handler 1 is in use by CQ");
    cq.destroy()?;
    Ok(())
}

#[test]
fn event_handlers_have_distinct_ids_and_names() -> Documented<()> {
    let process = process()?;
    let make = |name: &str| {
        let config = EventHandlerConfig::new(Handler::named("handler"));
        EventHandler::create(&process, &EventHandlerConfig { name: name.into(), ..config })
    };
    let (first, second) = (make("first")?, make("second")?);
    assert_eq!((first.id().0, first.name()), (1, "first"));
    assert_eq!((second.id().0, second.name()), (2, "second"));
    assert_ne!(first.activation_id(), second.activation_id());
    assert_eq!(first.object_id().0, first.thread().id());
    assert_eq!(Handler::named("handler").name(), "handler");
    let absent = EventHandlerConfig::new(Handler::named("absent"));
    refused(EventHandler::create(&process, &absent), "it has handler");
    let call = EventHandlerConfig::new(Handler::named("add"));
    refused(EventHandler::create(&process, &call), "no event handler add");
    Ok(())
}

#[test]
fn ethernet_queues_must_be_cyclic_without_padding() -> Documented<()> {
    let process = process_on_ethernet()?;
    let cq = polled(&process)?;
    let rq = DpaRq::create(&process, &cq, &DpaRqConfig::new(4))?;
    assert_eq!((rq.number().0, rq.rqn()), (rq.object().rqn().0, rq.object().rqn()));
    let list = DpaRqConfig { wq_type: WqType::LinkedList, ..DpaRqConfig::new(4) };
    refused(DpaRq::create(&process, &cq, &list), "type LinkedList with padding None");
    let padded = DpaRqConfig { end_pad_mode: WqEndPadMode::Align, ..DpaRqConfig::new(4) };
    refused(DpaRq::create(&process, &cq, &padded), "type Cyclic with padding Align");
    rq.set_err_state()?;
    assert_eq!(rq.object().query()?.state().0, 3, "the error state");
    let tir = rq.tir().clone();
    refused(rq.destroy(), "is in use by a flow rule, or a clone of its TIR");
    drop(tir);
    DpaRq::create(&process, &cq, &DpaRqConfig::new(4))?.destroy()?;
    let sq = DpaSq::create(&process, &cq, &DpaSqConfig::new(4))?;
    assert_eq!((sq.number().0, sq.sqn()), (sq.object().sqn().0, sq.object().sqn()));
    refused(
        cq.clone().destroy(),
        &format!("CQ {} is in use by SQ {}: destroy", cq.number(), sq.number()),
    );
    sq.destroy()?;
    cq.destroy()?;
    Ok(())
}

#[test]
fn transport_domain_and_tis_belong_to_one_context() -> Documented<()> {
    let process = process_on_ethernet()?;
    let other = process_on_ethernet()?;
    let cq = polled(&process)?;
    let (own, foreign) =
        (TransportDomain::create(process.device())?, TransportDomain::create(other.device())?);
    refused(SqTis::create(process.device(), &foreign), "the transport domain is of another");
    let rq = DpaRqConfig { td: Some(foreign.clone()), ..DpaRqConfig::new(4) };
    refused(DpaRq::create(&process, &cq, &rq), "the transport domain is of another");
    let tis = SqTis::create(other.device(), &foreign)?;
    let sq = DpaSqConfig { tis: Some(tis.clone()), ..DpaSqConfig::new(4) };
    refused(DpaSq::create(&process, &cq, &sq), "the TIS is of another");
    let _kept = tis.clone();
    refused(tis.destroy(), "the TIS is in use by a clone");
    let tis = SqTis::create(process.device(), &own)?;
    let config = DpaSqConfig { tis: Some(tis.clone()), ..DpaSqConfig::new(4) };
    DpaSq::create(&process, &cq, &config)?.destroy()?;
    drop(config);
    refused(own.clone().destroy(), "the transport domain is in use by a TIS: destroy");
    tis.destroy()?;
    own.destroy()?;
    Ok(())
}

#[test]
fn rmp_reports_addresses_and_is_in_use_by_qp() -> Documented<()> {
    let process = process()?;
    let pool = Rmp::create(&process, &RmpConfig::new(4))?;
    let another = Rmp::create(&process, &RmpConfig::new(4))?;
    assert_eq!((pool.number().0, pool.rmpn()), (pool.object().rmpn().0, pool.object().rmpn()));
    let addresses = [&pool, &another].map(|it| [it.ring_address(), it.record_address()]).concat();
    let base = process.heap_info().base;
    for (index, address) in addresses.iter().enumerate() {
        assert!(*address >= base && !addresses[..index].contains(address), "{addresses:x?}");
    }
    assert!(addresses[0].is_multiple_of(4096));
    let cq = polled(&process)?;
    let mut config = DpaQpConfig::rc(&cq, &cq, 2);
    config.receive = QpReceive::from(&pool);
    let qp = DpaQp::create(&process, &config)?;
    assert!(qp.object().attr().rmp.is_some());
    drop(config);
    assert_eq!((qp.qpn(), qp.number().0), (qp.object().qpn(), qp.qpn().0));
    let holder = format!("is in use by QP {}: destroy", qp.number());
    refused(pool.clone().destroy(), &holder);
    refused(cq.clone().destroy(), &holder);
    qp.destroy()?;
    pool.destroy()?;
    Ok(())
}

#[test]
fn qp_rejects_skipped_state_transitions() -> Documented<()> {
    let process = process()?;
    let cq = polled(&process)?;
    for transport in [QpTransport::Rc, QpTransport::Uc, QpTransport::Ud] {
        let mut config = DpaQpConfig::rc(&cq, &cq, 2);
        config.transport = transport;
        config.receive = QpReceive::Regular { log_depth: 3 };
        let mut qp = DpaQp::create(&process, &config)?;
        assert_eq!(qp.number().0, qp.object().qpn().0);
        assert_eq!(qp.sq_ring_address() - qp.rq_ring_address(), 128, "after 8 receives");
        assert_eq!(qp.state()?, QpState::Rst);
        let itself = to_itself(&qp)?;
        let to = |next_state| QpAttr { next_state, ..itself };
        let attrs = [QpState::Init, QpState::Rtr, QpState::Rts].map(to);
        let (rst, err) = (to(QpState::Rst), to(QpState::Err));
        let none = QpAttrMask::default();
        refused(qp.modify(&attrs[1], &none), "in Rst does not go to Rtr");
        for attr in attrs {
            let isolated = QpAttr { isolate_vl_tc: true, ..attr };
            refused(qp.modify(&isolated, &none), "isolate_vl_tc");
            qp.modify(&attr, &none)?;
            assert_eq!(qp.state()?, attr.next_state, "{transport:?}");
        }
        refused(qp.modify(&attrs[0], &none), "in Rts does not go to Init");
        qp.modify(&err, &none)?;
        assert_eq!(qp.state()?, QpState::Err);
        qp.modify(&rst, &none)?;
        assert_eq!(qp.state()?, QpState::Rst);
        qp.destroy()?;
    }
    Ok(())
}

#[test]
fn qp_modify_follows_mask() -> Documented<()> {
    let process = process()?;
    let cq = polled(&process)?;
    let mut qp = DpaQp::create(&process, &DpaQpConfig::rc(&cq, &cq, 2))?;
    let access = |write| RemoteAccess { read: false, write, atomic: false };
    let attr = QpAttr { access: access(false), log_rra_max: 3, log_sra_max: 2, ..to_itself(&qp)? };
    let to = |next_state| QpAttr { next_state, ..attr };
    let (none, mask) = (QpAttrMask::default(), |qp_access_mask, min_rnr_nak_timer| QpAttrMask {
        qp_access_mask,
        min_rnr_nak_timer,
    });
    let written = |qp: &DpaQp| qp.object().query().map(|it| it.rwe());
    qp.modify(&to(QpState::Init), &none)?;
    qp.modify(&QpAttr { access: access(true), ..to(QpState::Init) }, &none)?;
    assert!(written(&qp)?, "from Init to Init");
    for (log, is) in [(7, true), (8, false)] {
        let rtr = QpAttr { log_rra_max: log, ..to(QpState::Rtr) };
        let result = qp.modify(&rtr, &none);
        assert_eq!(!format!("{result:?}").contains("2^7 at most"), is, "2^{log}");
        qp.modify(&to(QpState::Rst), &none)?;
        qp.modify(&to(QpState::Init), &none)?;
    }
    qp.modify(&to(QpState::Rtr), &none)?;
    assert_eq!(qp.object().query()?.log_rra_max(), 3);
    qp.modify(&to(QpState::Rts), &none)?;
    let now = QpAttr { access: access(true), min_rnr_nak_timer: 5, ..to(QpState::Rts) };
    qp.modify(&now, &none)?;
    assert!(!written(&qp)?, "the mask says nothing");
    qp.modify(&now, &mask(true, false))?;
    let context = qp.object().query()?;
    assert_eq!((context.rwe(), context.min_rnr_nak()), (true, 12));
    qp.modify(&now, &mask(false, true))?;
    assert_eq!(qp.object().query()?.min_rnr_nak(), 5);
    Ok(())
}

#[test]
fn mkey_covers_heap_range() -> Documented<()> {
    let process = process()?;
    let buffer = process.alloc(128)?;
    let config = MkeyConfig::new(KeyAccess::LOCAL);
    let key = Mkey::create(&buffer, &config)?;
    assert_eq!((key.lkey(), key.rkey()), (key.object().lkey(), key.object().rkey()));
    assert_eq!((key.id().0, key.len()), (key.lkey().0, 128));
    assert_eq!(key.remote().address, buffer.address());
    let base = process.heap_info().base;
    for (address, length) in [(base - 1, 8), (base + (1 << 20) - 7, 8)] {
        refused(Mkey::to_range(&process, address, length, &config), "not in the heap");
    }
    refused(Mkey::to_range(&process, base, 0, &config), "zero bytes");
    key.destroy()?;
    Ok(())
}

#[test]
fn outbox_needs_own_or_extended_uar() -> Documented<()> {
    let (process, other) = opened_twice()?;
    let (stranger, _) = opened_twice()?;
    let uar = Uar::create(&process)?;
    assert_eq!((uar.id().0, uar.extended_id()), (uar.page().page_id(), None));
    refused(uar.extend(process.device()), "to another device context");
    let [first, second] = [uar.extend(&other)?, uar.extend(&other)?];
    assert!(first.extended_id().is_some() && first.extended_id() != second.extended_id());
    let of = |uar: &Uar| OutboxConfig { uar: Some(uar.clone()), ..OutboxConfig::default() };
    let [one, another] = [&uar, &first].map(|uar| Outbox::create(&process, &of(uar)));
    assert_ne!(one?.id(), another?.id());
    for uar in [&uar, &first] {
        let outbox = Outbox::create(&process, &of(uar))?;
        assert_eq!(outbox.uar().id(), uar.id());
        let clone = outbox.clone();
        refused(outbox.destroy(), "is in use by a clone of its handle");
        clone.destroy()?;
    }
    refused(Outbox::create(&stranger, &of(&first)), "extended to another process");
    let page = std::sync::Arc::new(other.uar_alloc(UarKind::NonCached)?);
    refused(Outbox::create(&process, &of(&Uar::of(&process, page))), "was not extended");
    let congestion = OutboxConfig { congestion_control: true, ..OutboxConfig::default() };
    refused(Outbox::create(&process, &congestion), "congestion control");
    let window = Window::create(&process, process.pd())?;
    assert_ne!(window.id(), Window::create(&process, process.pd())?.id());
    let clone = window.clone();
    refused(window.destroy(), "in use");
    clone.destroy()?;
    Ok(())
}

#[test]
fn message_starts_event_handler_of_armed_cq() -> Documented<()> {
    let process = process()?;
    let (domain, options) = (process.domain(), ConnectOptions::default());
    for no_arm in [false, true] {
        let handler =
            EventHandler::create(&process, &EventHandlerConfig::new(Handler::named("handler")))?;
        handler.run(0)?;
        let element = CqElement::Thread(handler.clone());
        let cq = DpaCq::create(&process, &DpaCqConfig { no_arm, ..DpaCqConfig::new(4, element) })?;
        let mut config = DpaQpConfig::rc(&cq, &cq, 2);
        config.receive = QpReceive::Regular { log_depth: 2 };
        let mut qp = DpaQp::create(&process, &config)?;
        let mut host_cq = domain.completion_queue(&CqConfig::new(16))?;
        let mut host = domain.queue_pair(&QpConfig::new(4, 1), &host_cq, &host_cq)?;
        let address = domain.address(&host, &options)?;
        domain.connect(&mut host, &qp.address(&options)?, &options)?;
        qp.connect(&address, &options)?;
        assert_eq!(qp.state()?, QpState::Rts);
        // A receive into a buffer of the heap.
        let buffer = process.alloc_from(&[0; 64])?;
        let key = Mkey::create(&buffer, &MkeyConfig::new(KeyAccess::LOCAL))?;
        let receive = Segment::data(8, key.id().0, buffer.address());
        process.write(qp.rq_ring_address(), receive.as_bytes())?;
        process.write(qp.record_address(), &1_u32.to_be_bytes())?;
        let message = domain.region(8, KeyAccess::LOCAL)?;
        message.write_at(0, b"message!")?;
        host.post(&Send::new(message.sge(0, 8)?).signaled(), 0)?;
        let cqe = host_cq.poll_within(Duration::from_secs(20))?.ok_or("no answer")?;
        host.complete(cqe)?;
        let mut received = [0; 8];
        buffer.read_at(0, &mut received)?;
        assert_eq!(received, *b"message!");
        let end = Instant::now() + Duration::from_secs(20);
        while !no_arm && handler.query()?.runs == 0 {
            assert!(Instant::now() < end, "the thread does not run");
        }
        assert_eq!(handler.query()?.runs, u64::from(!no_arm));
    }
    Ok(())
}

#[test]
fn queue_depth_and_memory_are_checked() -> Documented<()> {
    let process = process()?;
    let cq = polled(&process)?;
    let caps = process.device().caps();
    let most = caps.general.log_max_wq_sz();
    let pool = |depth, stride| {
        let mut config = RmpConfig::new(depth);
        config.wq.log_wq_stride = Some(stride);
        Rmp::create(&process, &config)
    };
    refused(pool(most + 1, 5), &format!("the device has 2^{most} at most"));
    refused(pool(4, 10), "WQEs of 2^10 bytes: 2^9 at most are possible");
    pool(4, 9)?.destroy()?;
    // The heap's usage shows the length of WQEs of 2^9 bytes.
    let before = process.heap_info().requested;
    let kept = pool(4, 9)?;
    assert_eq!(process.heap_info().requested - before, (16 << 9) + 8);
    kept.destroy()?;
    let ring = |bytes| process.alloc_aligned(bytes, 4096).map(|it| QueueMemory::dpa(&it));
    let within = |bytes| {
        let mut config = RmpConfig::new(4);
        config.wq.ring = Some(ring(bytes)?);
        Rmp::create(&process, &config)
    };
    within(512)?.destroy()?;
    refused(within(511), "takes 512 bytes, and its memory has 511");

    let most = caps.log_max_qp_wqebbs;
    let qp = |send: Option<u8>, receive, bytes: Option<u64>| {
        let mut config = DpaQpConfig::rc(&cq, &cq, 0);
        config.log_sq_depth = send;
        config.receive = QpReceive::Regular { log_depth: receive };
        config.ring = bytes.map(&ring).transpose()?;
        DpaQp::create(&process, &config)
    };
    refused(qp(Some(most + 1), 0, None), &format!("2^{most} at most"));
    refused(qp(None, most + 1, None), &format!("2^{most} at most"));
    // Eight receives of 16 bytes, and four WQEBBs of 64.
    qp(Some(2), 3, Some(384))?.destroy()?;
    refused(qp(Some(2), 3, Some(383)), "takes 384 bytes");
    let config = |transport| DpaQpConfig { transport, ..DpaQpConfig::rc(&cq, &cq, 0) };
    refused(DpaQp::create(&process, &config(QpTransport::Xrc)), "the transport Xrc");
    Ok(())
}

#[test]
fn failed_destroy_names_holder() -> Documented<()> {
    let process = process()?;
    let outbox = Outbox::create(&process, &OutboxConfig::default())?;
    let window = Window::create(&process, process.pd())?;
    let storage = process.alloc(64)?;
    let handler = EventHandler::create(
        &process,
        &EventHandlerConfig {
            name: "worker".into(),
            outbox: Some(outbox.clone()),
            windows: [Some(window.clone()), None],
            storage: Some(storage.clone()),
            ..EventHandlerConfig::new(Handler::named("handler"))
        },
    )?;
    let worker = "is in use by event handler 1 \"worker\": destroy that first";
    refused(outbox.clone().destroy(), worker);
    refused(window.clone().destroy(), worker);
    refused(storage.clone().free(), worker);
    let ring = process.alloc(16 * 64)?;
    ring.fill(0xf1)?;
    let element = CqElement::Thread(handler.clone());
    let config =
        DpaCqConfig { ring: Some(QueueMemory::dpa(&ring)), ..DpaCqConfig::new(4, element) };
    let cq = DpaCq::create(&process, &config)?;
    drop(config);
    let number = format!("is in use by CQ {}: destroy that first", cq.number());
    refused(handler.clone().destroy(), &number);
    refused(ring.clone().free(), &number);
    let mut config = DpaQpConfig::rc(&cq, &cq, 2);
    config.receive = QpReceive::None;
    let qp = DpaQp::create(&process, &config)?;
    drop(config);
    // A queue keeps its CQ alive, and the CQ its handler, without their own handles.
    drop(cq);
    refused(handler.clone().destroy(), &number);
    let key = Mkey::create(&storage, &MkeyConfig::new(KeyAccess::LOCAL))?;
    let name = format!("event handler 1 \"worker\", key {:#x}: destroy", key.id());
    refused(storage.clone().free(), &name);
    let error = process.clone().destroy().unwrap_err().to_string();
    assert!(error.starts_with("the process is in use by outbox "), "{error}");
    assert!(error.contains("event handler 1 \"worker\"") && error.contains(" more: "), "{error}");
    qp.destroy()?;
    key.destroy()?;
    handler.destroy()?;
    outbox.destroy()?;
    window.destroy()?;
    ring.free()?;
    storage.free()?;
    let clone = process.clone();
    refused(clone.destroy(), "the process is in use by a clone of its handle");
    process.destroy()?;
    Ok(())
}
