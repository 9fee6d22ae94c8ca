//! Doorbells that are pending when a command arrives.

use verbless_prm::hot::CtrlWord;
use verbless_prm::{CreateCqIn, DestroyCqIn, DestroyQpIn};

use super::rig::Rig;
use crate::engine;
use crate::profile::Link;

#[test]
fn doorbell_of_a_destroyed_queue_is_no_stray() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let bar = rig.locked.functions[0].hca.bar.clone();
    let (qp, other) = (rig.qp(user, |_| {}).unwrap(), rig.qp(user, |_| {}).unwrap());
    let cq = rig.cq(user, |_: &mut CreateCqIn| {}).unwrap();
    let word = |number| CtrlWord::new().with_qpn(number).into_bits();
    bar.store64(user.uar, 0x900, word(qp));
    bar.store64(user.uar, 0x800, word(other));
    bar.store64(user.uar, 0x20, cq.into());
    rig.send::<DestroyQpIn>(user.uid, |input| _ = input.set_qpn(qp)).unwrap();
    rig.send::<DestroyCqIn>(user.uid, |input| _ = input.set_cqn(cq)).unwrap();
    assert!(bar.rung(), "the other queue's doorbell waits");
    while engine::step(&mut rig.locked) {}
    assert!(!bar.rung());
    assert_eq!(rig.locked.functions[0].engine.strays, []);
    // A later doorbell finds no queue.
    bar.store64(user.uar, 0x800, word(qp));
    while engine::step(&mut rig.locked) {}
    assert_eq!(rig.locked.functions[0].engine.strays, [(user.uar, word(qp))]);
}
