//! Thousands of objects: the cost of a command does not depend on their number.

use std::time::{Duration, Instant};

use super::rig::{Rig, User};
use crate::engine;
use crate::profile::Link;
use verbless_prm::{CreateCqIn, DestroyCqIn, DestroyQpIn};

const OBJECTS: usize = 3000;
/// Commands per sample; the fastest counts: other load on the machine makes none faster.
const SAMPLE: usize = 100;
/// How many times slower the last commands may be than the first. A search through every object
/// takes 30 times as long.
const MAX_SLOWDOWN: u32 = 6;

/// The shortest of several times.
fn shortest(times: &[Duration]) -> Duration {
    times.iter().copied().min().unwrap_or_default().max(Duration::from_nanos(500))
}

/// Compares the last times with those among few objects.
fn check(what: &str, few: &[Duration], many: &[Duration]) {
    let (few, many) = (shortest(few), shortest(many));
    assert!(
        many < few * MAX_SLOWDOWN,
        "{what}: {few:?} among few objects, {many:?} among {OBJECTS}"
    );
}

/// How long a command takes, including the engine's work after it and a doorbell.
fn timed<T>(rig: &mut Rig, user: User, command: impl FnOnce(&mut Rig) -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = command(rig);
    engine::step(&mut rig.locked);
    // The page of all these queues.
    engine::mmio_write(&mut rig.locked, 0, u64::from(user.uar) * 4096 + 0x800, &[1; 8]);
    (result, start.elapsed())
}

#[test]
fn queue_command_cost_is_independent_of_count() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let make: [fn(&mut Rig, User) -> u32; 2] = [
        |rig, user| rig.cq(user, |_: &mut CreateCqIn| {}).unwrap(),
        |rig, user| rig.qp(user, |_| {}).unwrap(),
    ];
    let destroy: [fn(&mut Rig, User, u32); 2] = [
        |rig, user, number| {
            rig.send::<DestroyCqIn>(user.uid, |input| _ = input.set_cqn(number)).unwrap();
        },
        |rig, user, number| {
            rig.send::<DestroyQpIn>(user.uid, |input| _ = input.set_qpn(number)).unwrap();
        },
    ];
    for (what, make, destroy) in [("CQ", make[0], destroy[0]), ("QP", make[1], destroy[1])] {
        let (numbers, times): (Vec<_>, Vec<_>) =
            (0..OBJECTS).map(|_| timed(&mut rig, user, |rig| make(rig, user))).unzip();
        check(&format!("making a {what}"), &times[..SAMPLE], &times[OBJECTS - SAMPLE..]);
        let destroyed: Vec<_> = numbers
            .into_iter()
            .map(|number| timed(&mut rig, user, |rig| destroy(rig, user, number)).1)
            .collect();
        check(
            &format!("destroying a {what}"),
            &destroyed[OBJECTS - SAMPLE..],
            &destroyed[..SAMPLE],
        );
    }
}
