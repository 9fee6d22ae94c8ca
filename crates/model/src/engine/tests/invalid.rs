//! The log names why a responder refuses a request as invalid: the field, its value and its limit.

use tracing::Level;
use verbless_prm::hot::{DataSegment, cqe_syndrome, event_type, opcode};

use super::lookups::logged;
use super::rig::{Request, Rig};
use crate::hca::objects::{QpState, Responder};

#[test]
fn invalid_request_fails_and_is_logged_with_field_and_limit() {
    type Change = fn(&mut Responder);
    type Make = fn(u64, u32) -> Request;
    let keep: Change = |_| ();
    let send: Make = |_, _| Request::send();
    let (write, read): (Make, Make) = (Request::write, Request::read);
    let atomic: Make = |to, rkey| Request::atomic(opcode::FETCH_ADD, to, rkey, 1, 0);
    let askew: Make = |to, rkey| Request::atomic(opcode::FETCH_ADD, to + 4, rkey, 1, 0);
    let long = "message of 8 bytes exceeds the QP's longest of 4";
    let rows: [(Change, u8, Make, &str); 8] = [
        (keep, 30, askew, "is not aligned to 8 bytes"),
        (|it| it.allow_write = false, 30, write, "rwe of the QP is 0"),
        (|it| it.allow_read = false, 30, read, "rre of the QP is 0"),
        (|it| it.allow_atomic = false, 30, atomic, "rae of the QP is 0"),
        (|it| it.max_dest_rd_atomic = 0, 30, read, "exceeds the 0 of max_dest_rd_atomic"),
        (keep, 2, write, long),
        (keep, 2, read, long),
        (keep, 2, send, long),
    ];
    for (change, log_msg_max, make, words) in rows {
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
                rig.post(&mut a, make(to, rkey).sge(into, 8, lkey));
                let entry = rig.one(a.hca, a.send_cq);
                let invalid = cqe_syndrome::REMOTE_INVALID_REQUEST;
                assert_eq!(entry.syndrome(), invalid, "{words}, in packets: {in_packets}");
            });
            assert_eq!(rig.qp(&a).state, QpState::Error, "{words}");
            assert_eq!(rig.events(1), [event_type::WQ_INVALID_REQUEST_ERROR], "{words}");
            let named = lines.iter().filter(|line| line.contains("an invalid request")).count();
            assert_eq!(named, 1, "{lines:?}");
            assert!(lines.iter().any(|line| line.contains(words)), "not {words:?}: {lines:?}");
            let address = format!("atomic address {:#x} ", to + 4);
            let is_named = lines.iter().any(|line| line.contains(&address));
            assert_eq!(is_named, words.contains("aligned"), "{lines:?}");
        }
    }
}
