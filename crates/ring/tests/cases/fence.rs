//! The fence of requests after a UMR, and WAIT.

use crate::support::{REMOTE, Receiver, Sender, Settings, bytes, sge, unwrapped};
use verbless_ring::access::KeyAccess;
use verbless_ring::wr::{
    Fence, LocalInvalidate, PostError, Umr, UmrRules, Wait, WaitCondition, Write,
};
use verbless_ring::{Lkey, QueuePair, Rkey};

/// The fence modes of the requests in the ring.
fn fences(sender: &Sender, wqebbs: &[usize]) -> Vec<u8> {
    wqebbs.iter().map(|at| unwrapped(&sender.ring, 64 * at, 16)[11] >> 5).collect()
}

#[test]
fn request_after_umr_has_small_fence() {
    const NONE: u8 = 0;
    const SMALL: u8 = 1;
    const STRONG: u8 = 3;
    const FULL: u8 = 4;
    let (write, key) = (Write::new(sge(8), REMOTE), Rkey(0x1234));
    for (rule, own) in [(Fence::None, NONE), (Fence::Small, SMALL), (Fence::Strong, STRONG)] {
        let mut sender = Sender::new(Settings::default());
        sender.queue.set_umr_rules(UmrRules { fence: rule, ..UmrRules::STRICT });
        let mut batch = sender.queue.batch();
        batch.post(&write, 0).unwrap();
        batch.post(&write.fence_with(Fence::Reads), 0).unwrap();
        batch.post(&Umr::access_flags(key, KeyAccess::LOCAL), 0).unwrap();
        batch.post(&write, 0).unwrap();
        batch.ring();
        sender.queue.post(&write.fence(), 0).unwrap();
        sender.queue.post(&write.fence_with(Fence::Strong), 0).unwrap();
        sender.queue.post(&LocalInvalidate::new(key), 0).unwrap();
        sender.queue.post(&write, 0).unwrap();
        let expected = [NONE, 2, own, SMALL, FULL, STRONG, SMALL, SMALL];
        assert_eq!(fences(&sender, &[0, 1, 2, 4, 5, 6, 7, 9]), expected, "{rule:?}");
        // Fence::Reads after a UMR must become STRONG or FULL.
        sender.queue.post(&write.fence_with(Fence::Reads), 0).unwrap();
        assert!([STRONG, FULL].contains(&fences(&sender, &[10])[0]));
    }
}

#[test]
fn dropped_batch_keeps_fence_after_umr() {
    let mut sender = Sender::new(Settings::default());
    let write = Write::new(sge(8), REMOTE);
    sender.queue.post(&write, 0).unwrap();
    sender.queue.post(&LocalInvalidate::new(Rkey(0x1234)), 0).unwrap();
    let mut batch = sender.queue.batch();
    batch.post(&write, 0).unwrap();
    drop(batch);
    sender.queue.post(&write, 0).unwrap();
    assert_eq!(fences(&sender, &[0, 3]), [0, 1]);
}

#[test]
fn reset_clears_fence_after_umr() {
    let Sender { queue, ring, .. } = Sender::new(Settings::default());
    let mut pair = QueuePair::new(queue, Receiver::new(0x123, 4, 32).queue);
    pair.post(&Umr::access_flags(Rkey(0x1234), KeyAccess::LOCAL), 0).unwrap();
    pair.reset();
    pair.post(&Write::new(sge(8), REMOTE), 0).unwrap();
    let control = unwrapped(&ring, 0, 16);
    assert_eq!((control[3], control[11] >> 5), (8, 0), "opcode WRITE, and no fence");
}

#[test]
fn wait_encodes_condition_and_rejects_odd_address() {
    let mut sender = Sender::new(Settings::default());
    let until = WaitCondition::past(0x0102_0304_0506_0708).masked(0xff00).not();
    sender.queue.post(&Wait::new(0x1_0000_2008, Lkey(0x1234), until).signaled(), 0).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[..4], [1, 0, 0, 0x0f], "op_mod, index and opcode");
    assert_eq!(ring[7], 3, "ds");
    let mut segment = [0; 32];
    // inv = 1, op = CYCLIC_SMALLER: the word is not ahead of the value in wrap-around order.
    segment[3] = 0x15;
    segment[4..8].copy_from_slice(&0x1234_u32.to_be_bytes());
    segment[8..16].copy_from_slice(&0x1_0000_2008_u64.to_be_bytes());
    // The mask applies to the value too.
    segment[16..24].copy_from_slice(&0x0700_u64.to_be_bytes());
    segment[24..].copy_from_slice(&0xff00_u64.to_be_bytes());
    assert_eq!(ring[16..48], segment);
    let odd = Wait::new(0x1004, Lkey(1), WaitCondition::equal(0));
    assert_eq!(sender.queue.post(&odd, 0), Err(PostError::UnalignedWait));
}
