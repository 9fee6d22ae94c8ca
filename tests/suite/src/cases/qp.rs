//! Queue pairs: states and transitions, limits, QUERY_QP.

use verbless_command::{
    Device, Error, GlobalRoute, InitAttr, Mtu, Path, RemoteAccess, RtrAttr, RtsAttr, RtsChange,
};
use verbless_devx::ErrorKind;
use verbless_prm::QpState;
use verbless_queue::wr::{Inline, Nop, PostError, Send, Write};
use verbless_queue::{ConnectOptions, CqConfig, Domain, Qp, QpConfig, WcStatus};

use crate::case::cases;
use crate::raw::create_qp_in;
use crate::{Endpoint, Lab, Need, Pair, SMALL_MTU, Stop, ensure, ensure_eq, failed, quiet, until};

cases!(
    "qp",
    "Queue pairs: states and transitions, limits, QUERY_QP.":
    state_follows_each_transition,
    transition_from_wrong_state_is_rejected,
    query_returns_attributes_of_transitions,
    query_returns_path,
    qps_of_bond_alternate_tx_ports [Need::Bond],
    qps_without_bond_have_no_port_affinity [Need::NoBond],
    every_state_allows_2err_and_2rst,
    reset_cleans_cq_by_qpn_of_its_object,
    qp_works_after_reset,
    reset_qp_accepts_new_attributes,
    access_rights_change_in_rts,
    rnr_timer_changes_in_rts,
    access_rights_change_in_init,
    zero_destination_reads_disable_remote_read,
    receive_posted_in_init_is_used_later,
    send_before_rts_is_rejected,
    attributes_wider_than_fields_are_rejected,
    invalid_paths_are_rejected,
    unknown_port_is_rejected,
    config_above_limit_is_rejected_with_limit,
    rings_at_limit_are_fully_usable,
    pd_of_another_context_is_rejected,
    hundred_qps_have_distinct_qpns,
    qp_is_destroyed_with_outstanding_wqes,
    one_cq_serves_both_directions,
);

fn endpoint(lab: &Lab) -> Result<Endpoint, Stop> {
    Endpoint::new(lab.device()?, &QpConfig::new(16, 16), 4096)
}

fn init() -> InitAttr {
    InitAttr { port: 1, pkey_index: 0, access: RemoteAccess::ALL }
}

/// A path to our own port.
fn path(end: &Endpoint) -> Result<Path, Stop> {
    let options = ConnectOptions::default();
    let address = end.domain.address(&end.qp, &options)?;
    Ok(end.domain.path(&address, &options)?)
}

fn rtr(end: &Endpoint) -> Result<RtrAttr, Stop> {
    Ok(RtrAttr {
        path: path(end)?,
        mtu: Mtu::B512,
        remote_qpn: end.qp.qpn(),
        receive_psn: 0x12_3456,
        max_destination_reads: 4,
        min_rnr_timer: 12,
    })
}

fn rts() -> RtsAttr {
    RtsAttr { send_psn: 0x12_3456, ack_timeout: 14, retry_count: 5, rnr_retry: 6, max_reads: 8 }
}

/// Takes a queue pair from RESET up to `state`.
fn advance(end: &mut Endpoint, state: QpState) -> Result<(), Stop> {
    if state == QpState::ERR {
        end.qp.to_error()?;
        return Ok(());
    }
    if state.0 >= QpState::INIT.0 {
        end.qp.to_init(&init())?;
    }
    if state.0 >= QpState::RTR.0 {
        let attr = rtr(end)?;
        end.qp.to_rtr(&attr)?;
    }
    if state.0 >= QpState::RTS.0 {
        end.qp.to_rts(&rts())?;
    }
    Ok(())
}

const STATES: [QpState; 5] =
    [QpState::RST, QpState::INIT, QpState::RTR, QpState::RTS, QpState::ERR];

fn state_follows_each_transition(lab: &Lab) -> Result<(), Stop> {
    let end = endpoint(lab)?;
    let attr = rtr(&end)?;
    let mut qp = end.qp;
    ensure_eq!(qp.object().state()?, QpState::RST, "when it is new");
    qp.to_init(&init())?;
    ensure_eq!(qp.object().state()?, QpState::INIT, "after RST2INIT");
    qp.to_rtr(&attr)?;
    ensure_eq!(qp.object().state()?, QpState::RTR, "after INIT2RTR");
    qp.to_rts(&rts())?;
    ensure_eq!(qp.object().state()?, QpState::RTS, "after RTR2RTS");
    qp.to_error()?;
    ensure_eq!(qp.object().state()?, QpState::ERR, "after 2ERR");
    qp.reset()?;
    ensure_eq!(qp.object().state()?, QpState::RST, "after 2RST");
    Ok(())
}

fn transition_from_wrong_state_is_rejected(lab: &Lab) -> Result<(), Stop> {
    type Transition = fn(&mut Qp, &RtrAttr) -> Result<(), Error>;
    const TRANSITIONS: [(&str, QpState, Transition); 4] = [
        ("RST2INIT_QP", QpState::RST, |qp, _| qp.to_init(&init())),
        ("INIT2RTR_QP", QpState::INIT, |qp, attr| qp.to_rtr(attr)),
        ("RTR2RTS_QP", QpState::RTR, |qp, _| qp.to_rts(&rts())),
        ("RTS2RTS_QP", QpState::RTS, |qp, _| qp.change(&RtsChange::default())),
    ];
    let mut end = endpoint(lab)?;
    let attr = rtr(&end)?;
    for state in STATES {
        end.qp.reset()?;
        advance(&mut end, state)?;
        for (name, from, transition) in TRANSITIONS {
            if from == state {
                continue;
            }
            let what = format!("{name} in {state:?}");
            let Err(error) = transition(&mut end.qp, &attr) else {
                return Err(Stop::fail(format!("{what} was accepted")));
            };
            ensure_eq!(error.kind(), ErrorKind::Command, what);
            let text = error.to_string();
            let named = state.name().unwrap_or("nameless");
            ensure!(text.contains(name) && text.contains(named), "{what}: {text:?}");
            ensure_eq!(end.qp.object().state()?, state, format!("the state after {what}"));
        }
    }
    Ok(())
}

fn query_returns_attributes_of_transitions(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig { user_index: 0x1234, ..QpConfig::new(16, 32) };
    let mut end = Endpoint::new(lab.device()?, &config, 4096)?;
    advance(&mut end, QpState::RTS)?;
    let context = end.qp.object().query()?;
    ensure_eq!(context.pd(), end.domain.pd().pdn(), "PD");
    ensure_eq!(context.cqn_snd(), end.send_cq.cqn().0, "CQ of sends");
    ensure_eq!(context.cqn_rcv(), end.receive_cq.cqn().0, "CQ of receives");
    ensure_eq!(context.uar_page(), end.qp.object().attr().uar.page_id(), "UAR page");
    ensure_eq!(context.user_index(), 0x1234, "user index");
    ensure_eq!(context.log_rq_size(), 5, "log2 of the receive WQEs");
    let atomics = end.device.caps().atomics;
    ensure!((context.rre(), context.rwe(), context.rae()) == (true, true, atomics), "rights");
    ensure_eq!(context.ts_format(), end.device.caps().qp_timestamps, "clock of timestamps");
    ensure_eq!(1u32 << (7 + context.mtu().0), 512, "MTU");
    ensure_eq!(context.remote_qpn(), end.qp.qpn().0, "remote QPN");
    ensure_eq!(context.log_rra_max(), 2, "log2 of the READs taken");
    ensure_eq!(context.min_rnr_nak(), 12, "RNR timer");
    ensure_eq!(context.retry_count(), 5, "retries");
    ensure_eq!(context.rnr_retry(), 6, "RNR retries");
    ensure_eq!(context.log_sra_max(), 3, "log2 of the READs made");
    ensure_eq!(context.next_send_psn(), 0x12_3456, "send PSN");
    ensure_eq!(context.next_rcv_psn(), 0x12_3456, "receive PSN");
    Ok(())
}

fn query_returns_path(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    advance(&mut end, QpState::RTS)?;
    let context = end.qp.object().query()?;
    let shown = context.primary_address_path();
    ensure_eq!(shown.vhca_port_num(), 1, "port");
    ensure_eq!(shown.ack_timeout(), 14, "ACK timeout");
    match path(&end)? {
        Path::InfiniBand { dlid, sl, .. } => {
            ensure!(shown.rlid() == dlid, "the destination LID differs");
            ensure_eq!(shown.sl(), sl, "service level");
        }
        Path::Roce { route, destination_mac: mac, udp_source_port, .. } => {
            ensure_eq!(shown.rgid_rip(), &route.dgid.0, "destination GID");
            ensure_eq!(shown.src_addr_index(), route.sgid_index, "source GID");
            ensure_eq!(shown.hop_limit(), route.hop_limit, "hop limit");
            ensure_eq!(shown.udp_sport(), udp_source_port, "UDP source port");
            let [.., a, b, c, d] = mac;
            let low = u32::from_be_bytes([a, b, c, d]);
            ensure!(shown.rmac_31_0() == low, "the destination MAC differs");
        }
        Path::Loopback => return Err(Stop::fail("no other queue pair is reached by loopback")),
    }
    Ok(())
}

fn every_state_allows_2err_and_2rst(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    for state in STATES {
        end.qp.reset()?;
        advance(&mut end, state)?;
        end.qp.to_error()?;
        ensure_eq!(end.qp.object().state()?, QpState::ERR, format!("2ERR in {state:?}"));
        end.qp.post(&Nop::new().signaled(), 6)?;
        let flushed = failed(end.sent()?, WcStatus::Flushed)?;
        ensure_eq!(flushed, 6, format!("a send in ERR after {state:?}"));
        end.qp.reset()?;
        advance(&mut end, state)?;
        end.qp.reset()?;
        ensure_eq!(end.qp.object().state()?, QpState::RST, format!("2RST in {state:?}"));
    }
    Ok(())
}

fn reset_cleans_cq_by_qpn_of_its_object(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    pair.a.qp.post(&Nop::new().signaled(), 1)?;
    until("a completion", || (!pair.a.send_cq.is_empty()).then_some(()))?;
    std::mem::swap(&mut *pair.a.qp, &mut *pair.b.qp);
    pair.a.qp.reset()?;
    quiet("a completion of before the reset", || pair.a.send_cq.poll())
}

fn qp_works_after_reset(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for round in 0..5u8 {
        let to = pair.b.remote(0)?;
        // Odd numbers of requests, so that the ring index differs in each round.
        for _ in 0..=2 * round {
            pair.a.perform(&Write::new(Inline(&[round; 16]), to).signaled())?;
        }
        pair.b.placed(0, &[round; 16], "the arrived bytes")?;
        pair.b.receive(0, 8, 1)?;
        pair.a.perform(&Send::new(Inline(&[round; 8])).signaled())?;
        ensure_eq!(pair.b.received()??.cookie, 1, "cookie");
        pair.restart()?;
    }
    Ok(())
}

fn reset_qp_accepts_new_attributes(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    advance(&mut end, QpState::RTS)?;
    end.qp.reset()?;
    let attr = RtrAttr { mtu: Mtu::B256, receive_psn: 7, ..rtr(&end)? };
    end.qp.to_init(&InitAttr { access: RemoteAccess::default(), ..init() })?;
    end.qp.to_rtr(&attr)?;
    let context = end.qp.object().query()?;
    ensure!(
        !context.rre() && !context.rwe() && !context.rae(),
        "the rights from before the reset remain"
    );
    ensure_eq!(1u32 << (7 + context.mtu().0), 256, "MTU");
    ensure_eq!(context.next_rcv_psn(), 7, "receive PSN");
    Ok(())
}

fn access_rights_change_in_rts(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let to = pair.b.remote(0)?;
    let write = Write::new(Inline(b"may I?"), to).signaled();
    pair.a.perform(&write)?;
    let none = RtsChange { access: Some(RemoteAccess::default()), ..Default::default() };
    let all = RtsChange { access: Some(RemoteAccess::ALL), ..Default::default() };
    pair.b.qp.change(&none)?;
    ensure!(!pair.b.qp.object().query()?.rwe(), "the right to write remains");
    pair.b.qp.change(&all)?;
    pair.a.perform(&write)?;
    pair.b.qp.change(&none)?;
    pair.a.qp.post(&write, 0)?;
    ensure!(pair.a.sent()?.is_err(), "a WRITE without the right to");
    Ok(())
}

fn rnr_timer_changes_in_rts(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    advance(&mut end, QpState::RTS)?;
    let change = RtsChange { min_rnr_timer: Some(20), ..Default::default() };
    end.qp.change(&change)?;
    ensure_eq!(end.qp.object().query()?.min_rnr_nak(), 20, "RNR timer");
    Ok(())
}

fn access_rights_change_in_init(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    let early = end.qp.change_init(&init());
    ensure!(early.is_err(), "a queue pair in RESET took a change of INIT");
    advance(&mut end, QpState::INIT)?;
    end.qp.change_init(&InitAttr { access: RemoteAccess::default(), ..init() })?;
    let context = end.qp.object().query()?;
    ensure!(!context.rre() && !context.rwe() && !context.rae(), "the rights remain");
    end.qp.change_init(&init())?;
    ensure!(end.qp.object().query()?.rwe(), "the right to write is not back");
    Ok(())
}

fn zero_destination_reads_disable_remote_read(lab: &Lab) -> Result<(), Stop> {
    let end = endpoint(lab)?;
    let attr = RtrAttr { max_destination_reads: 0, ..rtr(&end)? };
    let mut qp = end.qp;
    qp.to_init(&init())?;
    qp.to_rtr(&attr)?;
    let context = qp.object().query()?;
    ensure!(context.rwe(), "rwe was cleared, too");
    ensure!(!context.rre() && !context.rae(), "a responder depth of 0 kept rre or rae");
    qp.to_rts(&rts())?;
    qp.change(&RtsChange { access: Some(RemoteAccess::ALL), ..Default::default() })?;
    ensure!(!qp.object().query()?.rre(), "a change of the rights does not change the number");
    Ok(())
}

fn receive_posted_in_init_is_used_later(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    let options = ConnectOptions { mtu: Some(SMALL_MTU), ..Default::default() };
    let here = pair.a.domain.address(&pair.a.qp, &options)?;
    let there = pair.b.domain.address(&pair.b.qp, &options)?;
    pair.b.qp.to_init(&init())?;
    pair.b.receive(0, 64, 5)?;
    pair.b.qp.to_rtr(&RtrAttr {
        path: pair.b.domain.path(&here, &options)?,
        remote_qpn: here.qpn,
        receive_psn: here.psn,
        mtu: SMALL_MTU,
        max_destination_reads: 4,
        min_rnr_timer: 12,
    })?;
    pair.a.domain.connect(&mut pair.a.qp, &there, &options)?;
    // The peer is only in RTR, which is enough.
    pair.a.perform(&Send::new(Inline(b"early")).signaled())?;
    ensure_eq!(pair.b.received()??.cookie, 5, "cookie");
    Ok(())
}

fn send_before_rts_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    for round in 0..2 {
        for state in [QpState::RST, QpState::INIT, QpState::RTR] {
            end.qp.reset()?;
            advance(&mut end, state)?;
            let refused = end.qp.post(&Nop::new().signaled(), 1).err();
            ensure_eq!(refused, Some(PostError::NotConnected), format!("a request in {state:?}"));
            let refused = end.qp.batch().post(&Nop::new().signaled(), 1).err();
            ensure_eq!(refused, Some(PostError::NotConnected), format!("a batch in {state:?}"));
        }
        end.qp.to_rts(&rts())?;
        end.qp.post(&Nop::new().signaled(), round)?;
        ensure_eq!(end.sent()??.cookie, round, "cookie");
        let Endpoint { qp, send_cq, .. } = &mut end;
        quiet("a request ran that was refused", || qp.poll(send_cq))?;
    }
    Ok(())
}

fn attributes_wider_than_fields_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    advance(&mut end, QpState::INIT)?;
    let good = rtr(&end)?;
    for bad in [
        RtrAttr { receive_psn: 1 << 24, ..good },
        RtrAttr { remote_qpn: verbless_command::Qpn(1 << 24), ..good },
        RtrAttr { min_rnr_timer: 32, ..good },
    ] {
        let kind = end.qp.to_rtr(&bad).err().map(|error| error.kind());
        ensure_eq!(kind, Some(ErrorKind::InvalidInput), format!("{bad:?}"));
    }
    end.qp.to_rtr(&good)?;
    for bad in [
        RtsAttr { send_psn: 1 << 24, ..rts() },
        RtsAttr { ack_timeout: 32, ..rts() },
        RtsAttr { retry_count: 8, ..rts() },
        RtsAttr { rnr_retry: 8, ..rts() },
    ] {
        let kind = end.qp.to_rts(&bad).err().map(|error| error.kind());
        ensure_eq!(kind, Some(ErrorKind::InvalidInput), format!("{bad:?}"));
    }
    Ok(end.qp.to_rts(&rts())?)
}

fn invalid_paths_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    advance(&mut end, QpState::INIT)?;
    let good = rtr(&end)?;
    let bad = match good.path {
        Path::InfiniBand { dlid, source_path_bits, .. } => {
            vec![Path::to_lid(0), Path::InfiniBand { dlid, sl: 16, source_path_bits, grh: None }]
        }
        Path::Roce { version, route, destination_mac, udp_source_port, .. } => vec![
            // A source GID index outside the table; a UDP port below RoCE's range; an invalid
            // service level.
            Path::to_gid(GlobalRoute { sgid_index: 254, ..route }, destination_mac),
            Path::Roce { version, route, destination_mac, udp_source_port: 80, priority: 0 },
            Path::Roce { version, route, destination_mac, udp_source_port, priority: 8 },
        ],
        Path::Loopback => vec![],
    };
    for path in bad {
        let refused = end.qp.to_rtr(&RtrAttr { path, ..good }).is_err();
        ensure!(refused, "{path:?} was taken");
    }
    Ok(end.qp.to_rtr(&good)?)
}

fn unknown_port_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    let port = end.device.caps().ports + 1;
    let refused = end.qp.to_init(&InitAttr { port, ..init() }).err();
    let refused =
        refused.ok_or_else(|| Stop::fail("INIT with a port that does not exist succeeded"))?;
    ensure_eq!(refused.kind(), ErrorKind::InvalidInput, format!("the kind of {refused}"));
    ensure!(refused.to_string().contains(&format!("the port is {port}")), "{refused}");
    Ok(())
}

fn config_above_limit_is_rejected_with_limit(lab: &Lab) -> Result<(), Stop> {
    let end = endpoint(lab)?;
    let caps = end.device.caps();
    let base = QpConfig::new(1, 1);
    let (sends, receives) = (caps.max_send_sges() as u32, caps.max_receive_sges() as u32);
    let inline = caps.max_inline() as u32;
    let max = 1u32 << caps.log_max_qp_wqebbs;
    let pinned = || lab.model().ok().map(|model| model.counts(0).umems);
    let before = pinned();
    for (config, limit) in [
        (QpConfig { send_sges: sends + 1, ..base }, sends),
        (QpConfig { receive_sges: receives + 1, ..base }, receives),
        (QpConfig { inline: inline + 1, ..base }, inline),
        (QpConfig { sends: max + 1, ..base }, max),
        (QpConfig { receives: max + 1, ..base }, max),
        (QpConfig { sends: u32::MAX, ..base }, max),
        (QpConfig { receives: 1 << 24, ..base }, max),
        (QpConfig { receives: u32::MAX, ..base }, max),
        (QpConfig { send_sges: u32::MAX, ..base }, sends),
        (QpConfig { receive_sges: u32::MAX, ..base }, receives),
        (QpConfig { inline: u32::MAX, ..base }, inline),
    ] {
        let made = end.domain.queue_pair(&config, &end.send_cq, &end.receive_cq);
        says_limit(made.map(drop), limit, &format!("{config:?}"))?;
    }
    let max = 1 << caps.log_max_cqes;
    for entries in [max + 1, u32::MAX] {
        let made = end.domain.completion_queue(&CqConfig::new(entries));
        says_limit(made.map(drop), max, &format!("a completion queue of {entries}"))?;
    }
    ensure_eq!(pinned(), before, "memory that a rejected queue pair pinned");
    Ok(())
}

/// Fails unless the refusal is an input error that names the limit.
fn says_limit(made: Result<(), Error>, limit: u32, what: &str) -> Result<(), Stop> {
    let error = match made {
        Ok(()) => return Err(Stop::fail(format!("{what} was made"))),
        Err(error) => error,
    };
    ensure_eq!(error.kind(), ErrorKind::InvalidInput, format!("{what}: {error}"));
    let text = error.to_string();
    let stated = text.split_once("at most ").map(|(_, rest)| {
        rest.split(|next: char| !next.is_ascii_digit()).next().unwrap_or_default().to_string()
    });
    ensure_eq!(stated, Some(limit.to_string()), format!("{what}: the limit in {text:?}"));
    Ok(())
}

fn rings_at_limit_are_fully_usable(lab: &Lab) -> Result<(), Stop> {
    let mut end = endpoint(lab)?;
    let max = 1u32 << end.device.caps().log_max_qp_wqebbs;
    // Requests of one WQEBB each.
    let config = QpConfig { inline: 0, ..QpConfig::new(max, max) };
    let [sends, receives] = [config.send_cqes::<verbless_queue::Rc>(), config.receive_cqes()];
    let [sends, receives] =
        [sends, receives].map(|cqes| end.domain.completion_queue(&CqConfig::new(cqes)));
    (end.send_cq, end.receive_cq) = (sends?, receives?);
    let mut qp: Qp = end.domain.queue_pair(&config, &end.send_cq, &end.receive_cq)?;
    let (into, options) = (end.sge(0, 64)?, ConnectOptions::default());
    for cookie in 0..u64::from(max) {
        qp.post_receive(into, cookie)?;
    }
    ensure_eq!(qp.post_receive(into, 0).err(), Some(PostError::Full), "one receive more");
    let itself = end.domain.address(&qp, &options)?;
    end.domain.connect(&mut qp, &itself, &options)?;
    let last = u64::from(max) - 1;
    let mut batch = qp.batch();
    for cookie in 0..last {
        batch.post(&Nop::new(), cookie)?;
    }
    batch.post(&Nop::new().signaled(), last)?;
    ensure_eq!(batch.post(&Nop::new(), 0).err(), Some(PostError::Full), "one request more");
    batch.ring();
    let done = until("the last request", || qp.poll(&mut end.send_cq))??;
    ensure_eq!(done.cookie, last, "cookie of the last");
    Ok(())
}

fn pd_of_another_context_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let end = endpoint(lab)?;
    let foreign = lab.device()?.alloc_pd()?;
    let own = end.qp.object().attr();
    let attr = verbless_command::QpAttr { pd: foreign.clone(), ..own.clone() };
    let kind = end.device.create_qp(attr).map_err(|error| error.kind()).err();
    ensure_eq!(kind, Some(ErrorKind::InvalidInput), "the driver's error");
    // The device knows the owner of the number, too.
    let create = |pdn| {
        let input = create_qp_in(&end.device, own, pdn);
        end.device.obj_create(input.as_bytes(), &mut [0; 16])
    };
    create(own.pd.pdn())?.destroy()?;
    let refused = create(foreign.pdn()).err();
    let error = refused.ok_or_else(|| Stop::fail("a QP is in a PD of another context"))?;
    ensure_eq!(error.kind(), ErrorKind::Command, format!("the kind of {error}"));
    Ok(())
}

fn hundred_qps_have_distinct_qpns(lab: &Lab) -> Result<(), Stop> {
    let end = endpoint(lab)?;
    let config = QpConfig::new(4, 4);
    let entries = CqConfig::new(100 * config.cqes::<verbless_queue::Rc>());
    let cq = end.domain.completion_queue(&entries)?;
    let many: Vec<_> =
        (0..100).map(|_| end.domain.queue_pair(&config, &cq, &cq)).collect::<Result<_, _>>()?;
    let mut numbers: Vec<u32> = many.iter().map(|qp| qp.qpn().0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    ensure_eq!(numbers.len(), 100, "QP numbers");
    Ok(())
}

fn qp_is_destroyed_with_outstanding_wqes(lab: &Lab) -> Result<(), Stop> {
    // No receive is posted; the sender waits for one forever.
    let mut pair = Pair::new(lab)?;
    for cookie in 0..8 {
        pair.a.qp.post(&Send::new(Inline(b"no peer")).signaled(), cookie)?;
    }
    pair.b.receive(0, 64, 0)?;
    let Pair { a, b } = pair;
    drop(a);
    drop(b);
    let mut again = Pair::new(lab)?;
    let to = again.b.remote(0)?;
    again.a.perform(&Write::new(Inline(b"next"), to).signaled())?;
    Ok(())
}

fn one_cq_serves_both_directions(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let mut cq = domain.completion_queue(&CqConfig::new(64))?;
    let mut qp = domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
    let options = ConnectOptions::default();
    let address = domain.address(&qp, &options)?;
    domain.connect(&mut qp, &address, &options)?;
    let region = domain.region(4096, verbless_command::KeyAccess::ALL)?;
    let mut seen = Vec::new();
    for cookie in 0..8 {
        qp.post_receive(region.sge(0, 64)?, 100 + cookie)?;
        qp.post(&Send::new(Inline(b"to myself")).signaled(), cookie)?;
        for _ in 0..2 {
            seen.push(crate::until("a completion", || qp.poll(&mut cq))??.cookie);
        }
    }
    seen.sort_unstable();
    let expected: Vec<u64> = (0..8).chain(100..108).collect();
    ensure_eq!(seen, expected, "cookies");
    Ok(())
}

/// The bond ports that `count` consecutive queue pairs send from.
fn affinities(device: &Device, count: u8) -> Result<Vec<u8>, Stop> {
    (0..count)
        .map(|_| {
            let mut end = Endpoint::new(device.clone(), &QpConfig::new(4, 4), 4096)?;
            advance(&mut end, QpState::RTS)?;
            Ok(end.qp.object().query()?.lag_tx_port_affinity())
        })
        .collect()
}

fn qps_without_bond_have_no_port_affinity(lab: &Lab) -> Result<(), Stop> {
    ensure_eq!(affinities(&lab.device()?, 2)?, [0, 0], "ports without a bond");
    Ok(())
}

fn qps_of_bond_alternate_tx_ports(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let ports = device.lag_ports();
    let mut seen = affinities(&device, ports)?;
    seen.sort_unstable();
    ensure!(seen.iter().copied().eq(1..=ports), "of {ports} ports they took {seen:?}");
    Ok(())
}
