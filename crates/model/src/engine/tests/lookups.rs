//! A destroyed object that another one names: the look-up is logged as an error.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};
use verbless_prm::hot::{DataSegment, event_type};
use verbless_prm::{
    FlowContext, FlowTableContext, FteMatchSetLyr24, RqContext, RqState, TirContext,
};

use super::rig::{PD, Rig};
use crate::engine::ethernet;
use crate::engine::scratch::Scratch;
use crate::fabric::{Buffers, Delivery, Vport};
use crate::hca::Effect;
use crate::hca::objects::flow::{Destination, FlowEntry, FlowTable, Key};
use crate::hca::objects::{QueueMemory, ReceiveQueue, Rq, Tir};
use crate::memory::HostMemory;
use crate::profile::Link;

const RQN: u32 = 0x700;
const TIRN: u32 = 0x701;
const POOL: u32 = 0x702;
const TABLE: u32 = 0x703;

/// The log lines of a level.
#[derive(Clone)]
struct Lines(Level, Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == self.0
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.1.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The lines of this level that are logged during a call.
pub(super) fn logged(level: Level, during: impl FnOnce()) -> Vec<String> {
    let lines = Lines(level, Arc::default());
    tracing::subscriber::with_default(lines.clone(), during);
    let logged = lines.1.lock().unwrap();
    logged.clone()
}

/// The errors that are logged during a call.
pub(super) fn errors(during: impl FnOnce()) -> Vec<String> {
    logged(Level::ERROR, during)
}

/// Checks that exactly one error is logged, with all of these words.
#[track_caller]
pub(super) fn one_error(logged: &[String], words: &[&str]) {
    let [error] = logged else { panic!("not one error: {logged:?}") };
    assert!(words.iter().all(|word| error.contains(word)), "{error:?} does not say {words:?}");
}

/// An RQ with one receive of its own; a table entry `to` steers all frames to it.
fn receiver(rig: &mut Rig, to: Vec<Destination>) -> u32 {
    let cqn = rig.cq(0, 4);
    let (ring, record) = (rig.alloc(16 << 2), rig.alloc(8));
    let (at, lkey) = rig.region(0, 256);
    rig.fill(ring, DataSegment::new(256, lkey, at).as_bytes());
    rig.memory().store32(record, 1_u32.to_be()).unwrap();
    let memory =
        QueueMemory { pages: [ring].into(), log_page_size: 40, offset: 0, length: 16 << 2 };
    let queue = ReceiveQueue { memory, log_size: 2, log_stride: 4, cqn, consumer: 0 };
    let (mut context, mut tir) = (RqContext::zeroed(), TirContext::zeroed());
    context.set_cqn(cqn).set_vsd(true);
    tir.set_inline_rqn(RQN);
    let (uid, umems) = (1, Vec::new());
    let (state, pd, queue, srq) = (RqState::RDY, Some(PD), Some(queue), None);
    let rq = Rq { uid, state, pd, record, queue, srq, umems, context };
    let all = Key::of(&FteMatchSetLyr24::zeroed());
    let context = Box::new(FlowContext::zeroed());
    let entry = FlowEntry { group: 0, mask: all, value: all, to, context };
    let mut table = FlowTable {
        uid,
        context: FlowTableContext::zeroed(),
        groups: Default::default(),
        entries: Default::default(),
    };
    table.entries.insert(0, entry);
    let objects = &mut rig.locked.functions[0].hca.objects;
    objects.rqs.insert(RQN, rq);
    objects.tirs.insert(TIRN, Tir { uid, context: tir });
    objects.flow_tables.insert(TABLE, table);
    objects.flow_root = Some(TABLE);
    cqn
}

/// Delivers a frame to function 0; returns the errors that are logged.
fn arrive(rig: &mut Rig) -> Vec<String> {
    let frame = Buffers::default().of_bytes(Link::Ethernet, &[0; 60]);
    let delivery = Delivery { to: Vport { function: 0, port: 1 }, own: false, frame };
    let (function, others) = rig.locked.functions.split(0);
    errors(|| ethernet::arrive(function, others, &delivery, 0, &mut Scratch::default()))
}

fn rq(rig: &mut Rig) -> &mut Rq {
    rig.locked.functions[0].hca.objects.rqs.get_mut(&RQN).unwrap()
}

#[test]
fn missing_destination_is_logged_and_others_receive() {
    let mut rig = Rig::new();
    let to = vec![Destination::Tir(TIRN + 0x10), Destination::Table(9), Destination::Tir(TIRN)];
    let cqn = receiver(&mut rig, to);
    let logged = arrive(&mut rig);
    assert!(rig.poll(0, cqn).is_some(), "the frame is lost");
    assert!(logged.iter().any(|it| it.contains("names a destroyed TIR") && it.contains("1809")));
    assert!(
        logged.iter().any(|it| it.contains("names a destroyed table") && it.contains("table=9"))
    );
    assert_eq!(logged.len(), 2, "{logged:?}");
}

#[test]
fn rq_without_pd_pool_or_ring_enters_error() {
    type Change = fn(&mut Rq);
    let rows: [(Change, &str, bool); 3] = [
        (|rq| rq.srq = Some(POOL), "there is no SRQ or RMP 0x702", true),
        (|_| (), "RQ 0x700 has neither receive WQEs of its own nor a pool", true),
        (|_| (), "an RQ cannot receive", false),
    ];
    for (change, words, without_ring) in rows {
        let mut rig = Rig::new();
        let cqn = receiver(&mut rig, vec![Destination::Tir(TIRN)]);
        let rq_of = rq(&mut rig);
        rq_of.pd = None;
        if without_ring {
            rq_of.queue = None;
        }
        change(rq_of);
        one_error(&arrive(&mut rig), &[words, "an RQ cannot receive"]);
        rig.none(0, cqn);
        assert_eq!(rq(&mut rig).state, RqState::ERR, "{words}");
        assert_eq!(rig.events(0), [event_type::WQ_CATASTROPHIC_ERROR], "{words}");
    }
}

#[test]
fn missing_emulated_doorbell_is_logged() {
    let mut rig = Rig::new();
    let logged = errors(|| rig.effect(0, Effect::EmulatedDoorbell(0x77)));
    one_error(&logged, &["number=119", "was destroyed"]);
}
