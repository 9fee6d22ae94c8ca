//! The log names why a responder refuses a request as invalid: the field, its value and its limit.

use tracing::Level;
use verbless_prm::hot::{DataSegment, cqe_syndrome, opcode};

use super::lookups::logged;
use super::rig::{Request, Rig};
use crate::hca::objects::Responder;

/// Checks that the peer refuses a request of 8 bytes after `change`, whole and in packets, and that
/// one line of the log has all these words.
fn refused(
    change: fn(&mut Responder),
    log_msg_max: u8,
    request: fn(u64, u32) -> Request,
    words: fn(u64) -> String,
) {
    for in_packets in [false, true] {
        let mut rig = Rig::new();
        rig.locked.in_packets = in_packets;
        let (mut a, mut b) = rig.pair();
        let (to, rkey) = rig.region(1, 64);
        let (into, lkey) = rig.region(0, 64);
        rig.receive(&mut b, &[DataSegment::new(64, rkey, to)]);
        let qp = rig.qp(&b);
        change(&mut qp.responder);
        qp.context.set_log_msg_max(log_msg_max);
        let lines = logged(Level::INFO, || {
            rig.post(&mut a, request(to, rkey).sge(into, 8, lkey));
            let entry = rig.one(a.hca, a.send_cq);
            assert_eq!(entry.syndrome(), cqe_syndrome::REMOTE_INVALID_REQUEST);
        });
        let words = words(to);
        let named = lines.iter().filter(|line| line.contains("an invalid request")).count();
        assert_eq!(named, 1, "{lines:?}");
        assert!(lines.iter().any(|line| line.contains(&words)), "not {words:?}: {lines:?}");
    }
}

#[test]
fn unaligned_atomic_is_named_with_its_address() {
    let request = |to, rkey| Request::atomic(opcode::FETCH_ADD, to + 4, rkey, 1, 0);
    refused(
        |_| {},
        30,
        request,
        |to| format!("atomic address {:#x} is not aligned to 8 bytes", to + 4),
    );
}

#[test]
fn disabled_operation_is_named_by_its_field() {
    let write = |to, rkey| Request::write(to, rkey);
    refused(|it| it.allow_write = false, 30, write, |_| "rwe of the QP is 0".into());
    let read = |to, rkey| Request::read(to, rkey);
    refused(|it| it.allow_read = false, 30, read, |_| "rre of the QP is 0".into());
    let atomic = |to, rkey| Request::atomic(opcode::FETCH_ADD, to, rkey, 1, 0);
    refused(|it| it.allow_atomic = false, 30, atomic, |_| "rae of the QP is 0".into());
}

#[test]
fn request_beyond_limit_is_named_with_the_limit() {
    let read = |to, rkey| Request::read(to, rkey);
    refused(
        |it| it.max_dest_rd_atomic = 0,
        30,
        read,
        |_| "exceeds the 0 of max_dest_rd_atomic".into(),
    );
    let write = |to, rkey| Request::write(to, rkey);
    refused(|_| {}, 2, write, |_| "message of 8 bytes exceeds the QP's longest of 4".into());
    refused(|_| {}, 2, read, |_| "message of 8 bytes exceeds the QP's longest of 4".into());
    let send = |_, _| Request::send();
    refused(|_| {}, 2, send, |_| "message of 8 bytes exceeds the QP's longest of 4".into());
}
