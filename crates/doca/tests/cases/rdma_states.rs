//! The states of an instance, and how it recovers.

use verbless_doca::rdma::{Rdma, RdmaState, TransportType};
use verbless_doca::{AccessFlags, ErrorKind, JobType, WorkQ};
use verbless_model::QueueKind;
use verbless_prm::Opcode;

use crate::support::rdma::{End, NETWORKS, all, connect, ends, kind, pair};

/// The receives of `end` come back flushed, each once, in order.
fn flushed(end: &mut End, count: u64) {
    for number in 0..count {
        let back = end.failed();
        assert_eq!((back.user_data.0, back.job_type), (number, JobType::RdmaReceive));
        assert_eq!(back.result.unwrap_err().kind(), ErrorKind::Shutdown);
        assert!(back.local.is_some());
    }
    assert_eq!(end.workq.in_flight(), 0);
}

#[test]
fn restarted_instance_flushes_and_reconnects() {
    for profile in NETWORKS {
        let mut ends = pair(profile);
        for round in 0..3 {
            for number in 0..4 {
                let [a, _] = &mut ends;
                let job = a.rdma().receive(a.room(number * 64, 64)).user_data(number);
                a.workq.submit(job).unwrap();
            }
            let old = ends[0].rdma().export().unwrap();
            ends.iter_mut().for_each(End::restart);
            let [a, b] = &mut ends;
            assert_eq!(a.rdma().state(), RdmaState::Init);
            assert_eq!(kind(a.workq.submit(a.rdma().receive(None))), ErrorKind::Again);
            flushed(a, 4);
            assert_ne!(a.rdma().export().unwrap(), old);
            assert_eq!(
                kind(b.rdma().connect(old)),
                ErrorKind::InvalidValue,
                "the descriptor was used before"
            );
            connect(&ends);
            let [a, b] = &mut ends;
            a.workq.submit(a.rdma().receive(a.room(0, 64))).unwrap();
            let bytes = b.fill(0, 64, round);
            b.workq.submit(b.rdma().send(b.data(0, 64))).unwrap();
            assert_eq!(a.done().local.unwrap().to_vec().unwrap(), bytes);
            b.done();
        }
    }
}

#[test]
fn remote_access_error_flushes_other_jobs() {
    for profile in NETWORKS {
        let mut ends = ends(profile, |builder| builder, all());
        // The peer's instance permits no writes.
        let stopped = ends[1].rdma.take().unwrap().stop().unwrap();
        ends[1].rdma = Some(stopped.permissions(AccessFlags::RDMA_READ).start().unwrap());
        connect(&ends);
        let [a, _] = &mut ends;
        for number in 0..3 {
            let job = a.rdma().receive(a.room(0, 64)).user_data(number);
            a.workq.submit(job).unwrap();
        }
        a.workq.submit(a.rdma().write(a.data(0, 8), a.remote(0, 8)).user_data(9)).unwrap();
        let failed = a.failed();
        assert_eq!(failed.user_data.0, 9);
        assert_eq!(failed.result.unwrap_err().kind(), ErrorKind::NotPermitted);
        assert!(failed.result.unwrap_err().device_failure().is_some());
        assert!(failed.local.is_some() && failed.remote.is_some());
        assert_eq!(a.rdma().state(), RdmaState::Error);
        assert_eq!(kind(a.workq.submit(a.rdma().receive(None))), ErrorKind::BadState);
        assert_eq!(kind(a.workq.submit(a.rdma().send(None))), ErrorKind::BadState);
        assert_eq!(kind(a.rdma().export()), ErrorKind::BadState);
        flushed(a, 3);
        ends.iter_mut().for_each(End::restart);
        connect(&ends);
        let [a, b] = &mut ends;
        a.workq.submit(a.rdma().receive(a.room(0, 64))).unwrap();
        b.workq.submit(b.rdma().send(b.data(0, 64))).unwrap();
        a.done();
        b.done();
    }
}

#[test]
fn instance_connected_before_workq_add_keeps_its_cq() {
    for event_driven in [false, true] {
        let devices = crate::support::rdma::devices("connectx6dx");
        let rdmas = devices.each_ref().map(|dev| Rdma::builder(dev).start().unwrap());
        let blobs = rdmas.each_ref().map(|rdma| rdma.export().unwrap());
        rdmas[0].connect(blobs[1]).unwrap();
        rdmas[1].connect(blobs[0]).unwrap();
        let mut workqs = rdmas.each_ref().map(|rdma| {
            let builder = WorkQ::builder(16);
            let builder = if event_driven { builder.event_driven() } else { builder };
            let mut workq = builder.build().unwrap();
            workq.add(rdma).unwrap();
            workq
        });
        let [a, b] = &mut workqs;
        for round in 0..20 {
            b.submit(rdmas[1].receive(None)).unwrap();
            a.submit(rdmas[0].send_imm(None, round)).unwrap();
            for workq in [&mut *a, &mut *b] {
                workq
                    .retrieve_within(crate::support::rdma::TIMEOUT)
                    .unwrap()
                    .expect("a minute is enough");
            }
        }
        let mut second = WorkQ::new(4).unwrap();
        assert_eq!(kind(second.add(&rdmas[0])), ErrorKind::InUse);
        a.remove(&rdmas[0]).unwrap();
        assert_eq!(rdmas[0].state(), RdmaState::Error, "its connection went with the work queue");
        assert_eq!(kind(second.add(&rdmas[0])), ErrorKind::BadState);
    }
}

#[test]
fn instance_connects_to_itself() {
    let [mut a, _] = ends("bluefield3", |builder| builder, all());
    a.rdma().connect(a.rdma().export().unwrap()).unwrap();
    a.workq.submit(a.rdma().receive(a.room(0, 64))).unwrap();
    a.workq.submit(a.rdma().send(a.data(64, 64))).unwrap();
    let mut types = [a.done().job_type, a.done().job_type];
    types.sort_by_key(|it| *it == JobType::RdmaSend);
    assert_eq!(types, [JobType::RdmaReceive, JobType::RdmaSend]);
}

#[test]
fn job_made_before_stop_is_rejected() {
    let [mut a, _b] = pair("bluefield3");
    let made = a.rdma().receive(a.room(0, 64));
    let stopped = a.rdma.take().unwrap().stop().unwrap();
    let refused = a.workq.submit(made).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::BadState);
    assert!(refused.to_string().contains("is stopped"), "{refused}");
    a.workq.remove(&stopped).unwrap();
}

#[test]
fn dropped_instance_leaves_workq_after_flush() {
    for before in ["nothing", "stopped", "aborted"] {
        let [mut a, _] = pair("bluefield3");
        for number in 0..4 {
            a.workq.submit(a.rdma().receive(a.room(0, 64)).user_data(number)).unwrap();
        }
        let rdma = a.rdma.take().unwrap();
        match before {
            "stopped" => drop(rdma.stop().unwrap()),
            "aborted" => {
                a.workq.abort(&rdma).unwrap();
                drop(rdma);
            }
            _ => drop(rdma),
        }
        flushed(&mut a, 4);
        let End { workq, inventory, .. } = a;
        workq.destroy().unwrap();
        assert_eq!(inventory.num_free_elements(), 256);
    }
}

#[test]
fn workq_releases_qps_of_dropped_instances() {
    let (model, backend) = crate::support::disturbable("bluefield3");
    let [dev, _] = crate::support::rdma::opened(&backend);
    let mut workq = WorkQ::new(8).unwrap();
    let held = |workq: &mut WorkQ| {
        let rdma = Rdma::builder(&dev).start().unwrap();
        workq.add(&rdma).unwrap();
        model.counts(0).qps
    };
    let most = (0..200).map(|_| held(&mut workq)).max().unwrap();
    assert!(most <= 40, "{most} queue pairs");
}

#[test]
fn stopped_instance_leaves_workq_for_another() {
    // With its own completion queue, and with the work queue's.
    for brought in [true, false] {
        let [dev, far] = crate::support::rdma::devices("bluefield3");
        let peer = Rdma::builder(&far).start().unwrap();
        let rdma = Rdma::builder(&dev).start().unwrap();
        let [mut first, mut second, mut peers] = [(); 3].map(|()| WorkQ::new(8).unwrap());
        peers.add(&peer).unwrap();
        if brought {
            rdma.export().unwrap();
        }
        first.add(&rdma).unwrap();
        rdma.connect(peer.export().unwrap()).unwrap();
        first.submit(rdma.receive(None)).unwrap();

        let stopped = rdma.stop().unwrap();
        assert_eq!(kind(first.remove(&stopped)), ErrorKind::InUse, "a job is not retrieved");
        while first.in_flight() > 0 {
            assert!(first.retrieve_within(crate::support::rdma::TIMEOUT).is_err());
        }
        assert_eq!(kind(second.remove(&stopped)), ErrorKind::NotFound);
        first.remove(&stopped).unwrap();
        assert_eq!(kind(first.remove(&stopped)), ErrorKind::NotFound);
        // The old completion queue does not limit it: larger queues have room.
        let rdma = stopped.recv_queue_size(256).start().unwrap();
        assert_eq!(kind(first.submit(rdma.receive(None))), ErrorKind::BadState);
        second.add(&rdma).unwrap();
        first.destroy().unwrap();
        let peer = peer.stop().unwrap().start().unwrap();
        rdma.connect(peer.export().unwrap()).unwrap();
        peer.connect(rdma.export().unwrap()).unwrap();
        second.submit(rdma.receive(None)).unwrap();
        peers.submit(peer.send(None)).unwrap();
        for workq in [&mut second, &mut peers] {
            workq
                .retrieve_within(crate::support::rdma::TIMEOUT)
                .unwrap()
                .expect("a minute is enough");
        }
    }
    let fresh = Rdma::builder(&crate::support::dev());
    assert_eq!(kind(WorkQ::new(1).unwrap().remove(&fresh)), ErrorKind::NotFound);
}

#[test]
fn rdma_restarts_accumulate_no_qps() {
    let (model, backend) = crate::support::disturbable("bluefield3");
    let devices = crate::support::rdma::opened(&backend);
    let mut ends = crate::support::rdma::ends_of(devices, |builder| builder, all(), 4096);
    let mut counts = Vec::new();
    for _ in 0..4 {
        ends.iter_mut().for_each(End::restart);
        connect(&ends);
        let [a, b] = &mut ends;
        b.workq.submit(b.rdma().receive(b.room(0, 64))).unwrap();
        a.workq.submit(a.rdma().send(a.data(0, 64))).unwrap();
        a.done();
        b.done();
        // The engine has the new queue pair; the next call of the handle destroys the old one.
        let with_old = model.counts(0);
        a.rdma().export().unwrap();
        counts.push((with_old, model.counts(0)));
        assert_ne!(with_old, model.counts(0));
    }
    assert!(counts.iter().all(|it| *it == counts[0]), "{counts:?}");
}

#[test]
fn failed_connect_flushes_receives() {
    let (model, backend) = crate::support::disturbable("bluefield3");
    let devices = crate::support::rdma::opened(&backend);
    let [mut a, b] = crate::support::rdma::ends_of(devices, |builder| builder, all(), 4096);
    for number in 0..2 {
        a.workq.submit(a.rdma().receive(a.room(0, 64)).user_data(number)).unwrap();
    }
    model.fail_command(0, Opcode::RTR2RTS_QP, 1, verbless_prm::CommandStatus(3), 0);
    assert!(a.rdma().connect(b.rdma().export().unwrap()).is_err());
    assert_eq!(a.rdma().state(), RdmaState::Error);
    flushed(&mut a, 2);
    a.restart();
    let ends = [a, b];
    connect(&ends);
}

#[test]
fn abort_ends_jobs_after_cq_failure() {
    let (model, backend) = crate::support::disturbable("bluefield3");
    let devices = crate::support::rdma::opened(&backend);
    let ends = crate::support::rdma::ends_of(devices, |builder| builder, all(), 4096);
    connect(&ends);
    let [mut a, _] = ends;
    for number in 0..4 {
        a.workq.submit(a.rdma().receive(a.room(0, 64)).user_data(number)).unwrap();
    }
    model.fail_queue_later(0, QueueKind::Cq, None, 1);
    a.workq.submit(a.rdma().write(a.data(0, 64), a.remote(0, 64)).user_data(4)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    a.workq.abort(a.rdma.as_ref().unwrap()).unwrap();
    let mut back: Vec<u64> = (0..5).map(|_| a.failed().user_data.0).collect();
    back.sort_unstable();
    assert_eq!((back, a.workq.in_flight()), (vec![0, 1, 2, 3, 4], 0));
}

#[test]
fn abort_ends_jobs_of_dead_device() {
    for removed in [false, true] {
        let (model, backend) = crate::support::disturbable("bluefield3");
        let devices = crate::support::rdma::opened(&backend);
        let ends = crate::support::rdma::ends_of(devices, |builder| builder, all(), 4096);
        connect(&ends);
        let [mut a, _] = ends;
        for number in 0..3 {
            a.workq.submit(a.rdma().receive(a.room(0, 64)).user_data(number)).unwrap();
        }
        match removed {
            true => model.remove(0),
            false => model.kill(0),
        }
        for number in 3..5 {
            a.workq
                .submit(a.rdma().write(a.data(0, 64), a.remote(0, 64)).user_data(number))
                .unwrap();
        }
        // Its jobs would never come back.
        let refused = a.rdma.take().unwrap().stop().unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::Shutdown);
        let rdma = refused.given;
        a.workq.abort(&rdma).unwrap();
        assert_eq!(rdma.state(), RdmaState::Error);
        let mut ended = Vec::new();
        while a.workq.in_flight() > 0 {
            let back = a.failed();
            assert_eq!(back.result.unwrap_err().kind(), ErrorKind::Shutdown);
            assert!(back.local.is_some());
            ended.push(back.user_data.0);
        }
        ended.sort_unstable();
        assert_eq!(ended, [0, 1, 2, 3, 4]);
        // It can be stopped now; the dead device creates no new one.
        let stopped = rdma.stop().unwrap();
        assert!(stopped.start().is_err());
    }
}

#[test]
fn abort_without_jobs_enters_error_state() {
    for profile in NETWORKS {
        let [mut a, mut b] = pair(profile);
        a.workq.abort(a.rdma.as_ref().unwrap()).unwrap();
        assert_eq!(a.rdma().state(), RdmaState::Error);
        assert_eq!(kind(a.workq.submit(a.rdma().receive(None))), ErrorKind::BadState);
        b.workq.submit(b.rdma().write(b.data(0, 64), b.remote(0, 64))).unwrap();
        assert!(b.failed().local.is_some(), "the peer finds no connection");
        // It comes back like any other failed one.
        let mut ends = [a, b];
        ends.iter_mut().for_each(End::restart);
        connect(&ends);
        let [_, b] = &mut ends;
        b.workq.submit(b.rdma().write(b.data(0, 64), b.remote(0, 64))).unwrap();
        b.done();
    }
}

#[test]
fn invalid_properties_are_rejected_at_start() {
    let dev = crate::support::dev();
    let refused = Rdma::builder(&dev).transport_type(TransportType::Dc).start().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::NotSupported);
    let fixed = refused.given.transport_type(TransportType::Rc);
    assert_eq!(fixed.start().unwrap().properties().transport_type, TransportType::Rc);
}

#[test]
fn job_made_between_restart_and_stop_is_rejected() {
    let [mut a, _] = pair("bluefield3");
    a.restart();
    let job = a.rdma().receive(None);
    let stopped = a.rdma.take().unwrap().stop().unwrap();
    let refused = a.workq.submit(job).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::BadState);
    assert!(refused.error.to_string().contains("is stopped"), "{}", refused.error);
    a.rdma = Some(stopped.start().unwrap());
    a.workq.submit(a.rdma().receive(None)).unwrap();
}

#[test]
fn restart_is_limited_by_cq_entries() {
    let dev = crate::support::dev();
    let rdma = Rdma::builder(&dev).start().unwrap();
    rdma.export().unwrap();
    let mut workq = WorkQ::new(64).unwrap();
    workq.add(&rdma).unwrap();
    let start = |stopped: verbless_doca::rdma::RdmaBuilder, sends, receives| {
        stopped.send_queue_size(sends).recv_queue_size(receives).start()
    };
    let refused = start(rdma.stop().unwrap(), 4096, 4096).unwrap_err();
    let text = refused.error.to_string();
    let room = text.split(" has ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let room: u32 = room.parse().unwrap();
    let rdma = start(refused.given, room / 2, room - room / 2).unwrap();
    assert_eq!(rdma.properties().send_queue_size, room / 2);
    let refused = start(rdma.stop().unwrap(), room / 2 + 1, room - room / 2).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidValue);
}
