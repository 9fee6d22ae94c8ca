//! The end of an object of any kind: its number is free, what it used is let go, and the engine and
//! the doorbell pages hear of it.

use crate::dpa::RunnerId;
use crate::hca::effect::Effect;
use crate::hca::flow;
use crate::hca::kinds::kinds;
use crate::hca::objects::{self, Uid};
use crate::hca::registry::{ObjectKind, Objects, kind};
use crate::hca::state::Hca;

/// A kind of which something else is left when an object is gone.
pub(super) trait Removal: ObjectKind {
    /// Does what else its end asks for.
    fn gone(hca: &mut Hca, number: u32, object: Self::Object);
}

macro_rules! removal {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) => $object:ty {
        numbers: [$($numbers:tt)*],
        object: {
            context: $context:literal,
            number: $from:expr,
            owner: $owner:expr,
            made: [$($made:expr)?],
            refers: $refers:expr,
            moving: [$($target:ident: $moving:expr)?],
            doorbell: [$($list:ident: $page:expr)?],
            absent: $absent:ident,
            in_use: [$($in_use:ident)?],
            gone: [$($gone:path)?],
        },
        commands: { $($commands:tt)* }
    })*) => {
        $(impl Removal for kind::$kind {
            #[allow(unused_variables, reason = "of most kinds nothing else is left")]
            fn gone(hca: &mut Hca, number: u32, object: $object) {
                $($gone(hca, number, object);)?
            }
        })*

        impl Hca {
            /// Destroys what belongs to the owners that `of` picks, users before what they use.
            pub(super) fn remove_held(&mut self, of: impl Fn(Uid) -> bool) {
                $({
                    let held = self.objects.$map.iter();
                    let held = held.filter(|(_, object)| of(kind::$kind::owner(object)));
                    for number in held.map(|(&number, _)| number).collect::<Vec<$number>>() {
                        self.remove(kind::$kind, number);
                    }
                })*
            }
        }
    };
}

kinds!(removal);

impl Hca {
    /// Removes an object, gives back its number and lets go of all that it uses.
    pub(super) fn remove<K: Removal>(&mut self, kind: K, number: K::Number) {
        let Some(object) = self.objects.remove(kind, number) else {
            tracing::error!(number = number.into(), "an object is gone before it is destroyed");
            return;
        };
        if K::is_made(&object) {
            K::numbers(&mut self.numbers, &object).give(number.into());
        }
        K::gone(self, number.into(), object);
    }
}

/// A QP leaves its groups, and the engine forgets it.
fn qp_gone(hca: &mut Hca, number: u32, qp: objects::QpObject) {
    for group in &qp.groups {
        leave_group(&mut hca.objects, number, group);
    }
    let send = qp.sq.map(|sq| sq.runtime);
    hca.effects.push(Effect::QpForgotten(number, qp.runtime, send));
}

/// Takes a QP out of a group, and the group away with its last member.
pub(super) fn leave_group(objects: &mut Objects, qpn: u32, group: &[u8; 16]) {
    let Some(members) = objects.groups.get_mut(group) else {
        tracing::error!(qpn, ?group, "a QP leaves a group that nobody is in");
        return;
    };
    objects.members -= usize::from(members.remove(&qpn));
    if members.is_empty() {
        objects.groups.remove(group);
    }
}

/// A crossing key leads to its function no more.
fn mkey_gone(hca: &mut Hca, _: u32, mkey: objects::Mkey) {
    if let objects::Translation::Crossing { function, .. } = mkey.translation {
        hca.lead_away(function);
    }
}

/// The same of an alias.
fn alias_gone(hca: &mut Hca, _: u32, alias: objects::Alias) {
    hca.lead_away(alias.function);
}

/// The engine forgets an SQ.
fn sq_gone(hca: &mut Hca, number: u32, sq: objects::Sq) {
    hca.effects.push(Effect::SqForgotten(number, sq.queue.runtime));
}

/// The engine forgets an RQ.
fn rq_gone(hca: &mut Hca, number: u32, _: objects::Rq) {
    hca.effects.push(Effect::RqForgotten(number));
}

/// A table that is no more is no root.
fn flow_table_gone(hca: &mut Hca, number: u32, _: flow::FlowTable) {
    hca.objects.flow_root.take_if(|root| *root == number);
}

/// The engine forgets a CQ.
fn cq_gone(hca: &mut Hca, number: u32, cq: objects::Cq) {
    hca.effects.push(Effect::CqForgotten(number, cq.runtime));
}

/// A call is over.
fn dpa_call_gone(hca: &mut Hca, number: u32, _: objects::DpaCall) {
    if let Some(dpa) = &hca.dpa {
        dpa.take_away(RunnerId::Call(number));
    }
}

/// A thread runs no more.
fn dpa_thread_gone(hca: &mut Hca, number: u32, _: objects::DpaThread) {
    if let Some(dpa) = &hca.dpa {
        dpa.take_away(RunnerId::Thread(number));
    }
}

fn dpa_outbox_gone(hca: &mut Hca, _: u32, outbox: objects::DpaOutbox) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove_outbox(outbox.context.process_id(), outbox.context.config_id());
    }
}

fn dpa_window_gone(hca: &mut Hca, _: u32, window: objects::DpaWindow) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove_window(window.context.process_id(), window.context.config_id());
    }
}

/// A process ends, and its heap goes; the UMEM of that goes by itself.
fn dpa_process_gone(hca: &mut Hca, number: u32, _: objects::DpaProcess) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove(number);
    }
    hca.heaps.remove(number as u16);
}

/// A UAR page is free: nobody looks at its words any more.
fn uar_gone(hca: &mut Hca, page: u32, _: Uid) {
    hca.bar.set_allocated(page, false);
}
