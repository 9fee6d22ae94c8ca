//! Memory copies within the device.

use verbless_prm::MmoOpMod;
use verbless_prm::hot::{MmoSegment, cqe_opcode, cqe_syndrome, opcode};

use super::rig::{Endpoint, Request, Rig};
use crate::hca::objects::Access;

/// A rig with a device that copies, and a QP with copies enabled.
fn rig() -> (Rig, Endpoint) {
    let mut rig = Rig::new();
    rig.locked.functions[0].hca.caps.general_mut().set_dma_mmo_qp(true).set_log_dma_mmo_size(15);
    let (end, _) = rig.pair();
    rig.qp(&end).mmo = true;
    (rig, end)
}

/// A copy between two ranges under one key; the opaque buffer is at `own`.
fn copy(own: (u64, u32), from: (u64, u32, u32), to: (u64, u32, u32)) -> Request {
    let metadata = MmoSegment::new(0, own.1, own.0);
    Request::new(opcode::MMO)
        .op_mod(MmoOpMod::DMA.0)
        .bytes(metadata.as_bytes())
        .sge(from.0, from.1, from.2)
        .sge(to.0, to.1, to.2)
}

#[test]
fn long_copy_yields_between_parts() {
    let (mut rig, mut end) = rig();
    let (at, key) = rig.region(0, 64 << 10);
    let text: Vec<u8> = (0..20_000u32).map(|n| (n * 7) as u8).collect();
    rig.fill(at, &text);
    let (mut other, _) = rig.pair();
    let (write, write_key) = rig.region(1, 64);
    rig.post(&mut end, copy((at + 60_000, key), (at, 20_000, key), (at + 30_000, 20_000, key)));
    rig.post(&mut other, Request::write(write, write_key).inline(&[1; 8]));
    assert_eq!(rig.one(0, other.send_cq).opcode(), cqe_opcode::REQUESTER);
    assert_eq!(rig.one(0, end.send_cq).opcode(), cqe_opcode::REQUESTER);
    assert_eq!(rig.bytes(at + 30_000, 20_000), text);
}

#[test]
fn copy_length_is_limited_by_capability() {
    let (mut rig, mut end) = rig();
    let (at, key) = rig.region(0, 128 << 10);
    let max = 1 << 15;
    rig.post(&mut end, copy((at, key), (at, max, key), (at + (64 << 10), max, key)));
    assert_eq!(rig.one(0, end.send_cq).opcode(), cqe_opcode::REQUESTER);
    rig.post(&mut end, copy((at, key), (at, max + 1, key), (at + (64 << 10), max + 1, key)));
    assert_eq!(rig.one(0, end.send_cq).syndrome(), cqe_syndrome::LOCAL_LENGTH);
}

#[test]
fn copy_works_with_zero_log_dma_mmo_size() {
    let (mut rig, mut end) = rig();
    rig.locked.functions[0].hca.caps.general_mut().set_log_dma_mmo_size(0);
    let (at, key) = rig.region(0, 4096);
    rig.post(&mut end, copy((at, key), (at, 2000, key), (at + 2048, 2000, key)));
    assert_eq!(rig.one(0, end.send_cq).opcode(), cqe_opcode::REQUESTER);
}

#[test]
fn copy_reports_actual_length() {
    let (mut rig, mut end) = rig();
    let (at, key) = rig.region(0, 4096);
    rig.fill(at, &[0xa5; 4096]);
    rig.fill(at + 64, &[7; 100]);
    rig.post(&mut end, copy((at, key), (at + 64, 100, key), (at + 1024, 300, key)));
    let cqe = rig.one(0, end.send_cq);
    assert_eq!((cqe.opcode(), cqe.bytes()), (cqe_opcode::REQUESTER, 100));
    assert_eq!(rig.bytes(at + 1024, 100), [7; 100]);
    assert_eq!(rig.bytes(at + 1124, 200), [0xa5; 200]);
    // The opaque buffer: a syndrome, and the byte count.
    assert_eq!(rig.bytes(at, 4), [0; 4]);
    assert_eq!(rig.bytes(at + 8, 4), 100u32.to_be_bytes());
}

#[test]
fn invalid_copy_fails_with_its_syndrome() {
    let read_only = Access { local_write: false, ..super::rig::ALL };
    type Build = fn(&mut Rig, u64, u32, u32) -> Request;
    let cases: [(u8, Build); 7] = [
        // More bytes than the target has room for.
        (cqe_syndrome::LOCAL_LENGTH, |_, at, key, _| copy((at, key), (at, 9, key), (at, 8, key))),
        // One segment, three segments, inline data.
        (cqe_syndrome::LOCAL_QP_OPERATION, |_, at, key, _| {
            let metadata = MmoSegment::new(0, key, at);
            let head = Request::new(opcode::MMO).op_mod(1).bytes(metadata.as_bytes());
            head.sge(at, 8, key)
        }),
        (cqe_syndrome::LOCAL_QP_OPERATION, |_, at, key, _| {
            copy((at, key), (at, 8, key), (at, 8, key)).sge(at, 8, key)
        }),
        (cqe_syndrome::LOCAL_QP_OPERATION, |_, at, key, _| {
            let metadata = MmoSegment::new(0, key, at);
            let head = Request::new(opcode::MMO).op_mod(1).bytes(metadata.as_bytes());
            head.inline(&[0; 8]).sge(at, 8, key)
        }),
        // The target, or the opaque buffer, is not writable.
        (cqe_syndrome::LOCAL_PROTECTION, |_, at, key, read_only_key| {
            copy((at, key), (at, 8, key), (at, 8, read_only_key))
        }),
        (cqe_syndrome::LOCAL_PROTECTION, |_, at, key, read_only_key| {
            copy((at, read_only_key), (at, 8, key), (at, 8, key))
        }),
        // A QP without copies enabled.
        (cqe_syndrome::LOCAL_QP_OPERATION, |rig, at, key, _| {
            rig.locked.functions[0].hca.objects.qps.values_mut().for_each(|qp| qp.mmo = false);
            copy((at, key), (at, 8, key), (at, 8, key))
        }),
    ];
    for (number, (syndrome, build)) in cases.into_iter().enumerate() {
        let (mut rig, mut end) = rig();
        let (at, key) = rig.region(0, 4096);
        let read_only_key = rig.mkey(0, at, 4096, read_only);
        let request = build(&mut rig, at, key, read_only_key);
        rig.post(&mut end, request);
        assert_eq!(rig.one(0, end.send_cq).syndrome(), syndrome, "case {number}");
    }
}
