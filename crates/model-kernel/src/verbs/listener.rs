//! Receivers of an object's completions and events: the completion channel and the async event file
//! of a CQ, QP or SRQ.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use verbless_prm::hot::event_type as event;
use verbless_prm::{Eqe, EqeCqError, EqeQpSrq, EqeQueueType};

use super::super::channel::{Channel, Retraction};
use super::super::client::Client;
use super::super::event_rules::data;
use super::super::uapi::ReportedEvents;

/// Bytes of an `ib_uverbs_comp_event_desc`.
pub(crate) const COMPLETION_RECORD: usize = 8;

/// Kinds of object with events; each kind has its own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ListenerKind {
    Cq,
    Qp,
    Srq,
}

/// The destination of an object's records.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The client's user handle of the object.
    element: u64,
    /// Marks the object's records, so that its [`EndingListener`] finds the unread ones.
    tag: u64,
    completions: Option<Arc<Channel>>,
    asynchronous: Option<Arc<Channel>>,
    completed: AtomicU32,
    reported: AtomicU32,
    /// Whether the object is destroyed. Locked while a record is sent: once this is set, no record
    /// is in flight.
    destroyed: Mutex<bool>,
}

impl Listener {
    fn destroyed(&self) -> MutexGuard<'_, bool> {
        self.destroyed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self) {
        let destroyed = self.destroyed();
        if let (Some(channel), false) = (&self.completions, *destroyed) {
            // The destroying thread waits until this many events are acknowledged.
            self.completed.fetch_add(1, Ordering::Relaxed);
            if !channel.send_tagged(self.tag, self.element.to_ne_bytes().to_vec()) {
                self.completed.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn report(&self, event: u32) {
        let destroyed = self.destroyed();
        if let (Some(channel), false) = (&self.asynchronous, *destroyed) {
            self.reported.fetch_add(1, Ordering::Relaxed);
            let mut record = self.element.to_ne_bytes().to_vec();
            record.extend(event.to_ne_bytes());
            record.extend([0; 4]);
            if !channel.send_tagged(self.tag, record) {
                self.reported.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Prepares the retraction of unread records, before the device destroys the object. EAGAIN:
    /// they cannot be retracted now.
    fn prepare_end(self: Arc<Self>, client: &dyn Client) -> Result<EndingListener, Errno> {
        let prepare = |channel: &Option<Arc<Channel>>| match channel {
            Some(channel) => channel.prepare_retraction(self.tag, client).map(Some),
            None => Ok(None),
        };
        let completions = prepare(&self.completions)?;
        let asynchronous = prepare(&self.asynchronous)?;
        Ok(EndingListener { completions, asynchronous, listener: self })
    }
}

/// The listener of an object that is being destroyed, and its unread records.
#[derive(Debug)]
pub(crate) struct EndingListener {
    listener: Arc<Listener>,
    completions: Option<Retraction>,
    asynchronous: Option<Retraction>,
}

impl EndingListener {
    /// Removes the unread records of the destroyed object; returns how many were read.
    pub(crate) fn finish(self, client: &dyn Client) -> ReportedEvents {
        *self.listener.destroyed() = true;
        let read = |retraction: Option<Retraction>, sent: &AtomicU32| {
            let unread = retraction.map_or(0, |retraction| retraction.finish(client));
            sent.load(Ordering::Relaxed).saturating_sub(unread)
        };
        ReportedEvents {
            completions: read(self.completions, &self.listener.completed),
            events: read(self.asynchronous, &self.listener.reported),
        }
    }
}

/// The listeners of one device, by object.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    table: Mutex<BTreeMap<(ListenerKind, u32), Arc<Listener>>>,
    tags: AtomicU64,
}

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(ListenerKind, u32), Arc<Listener>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the listener of an object.
    pub(crate) fn add(
        &self,
        kind: ListenerKind,
        number: u32,
        element: u64,
        completions: Option<Arc<Channel>>,
        asynchronous: Option<Arc<Channel>>,
    ) {
        let listener = Listener {
            element,
            tag: self.tags.fetch_add(1, Ordering::Relaxed) + 1,
            completions,
            asynchronous,
            completed: AtomicU32::new(0),
            reported: AtomicU32::new(0),
            destroyed: Mutex::new(false),
        };
        self.lock().insert((kind, number), Arc::new(listener));
    }

    pub(crate) fn remove(&self, kind: ListenerKind, number: u32) -> Option<Arc<Listener>> {
        self.lock().remove(&(kind, number))
    }

    /// Destroys an object by `destroy`. Its listener is removed first, because another file may get
    /// the object's number as soon as the device has destroyed it. If `destroy` fails, the listener
    /// is restored (as `mlx5_cmd_destroy_srq` does it). `client`: prepares the retraction of
    /// the object's unread records; EAGAIN if that is impossible now.
    pub(crate) fn destroy(
        &self,
        kind: ListenerKind,
        number: u32,
        client: Option<&dyn Client>,
        destroy: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Option<EndingListener>, Errno> {
        let Some(listener) = self.get(kind, number) else { return destroy().map(|()| None) };
        // The listener still receives events meanwhile: this may take long, and fail.
        let ending = client.map(|client| listener.clone().prepare_end(client)).transpose()?;
        self.remove(kind, number);
        let ended = destroy().map(|()| ending);
        if ended.is_err() {
            self.lock().insert((kind, number), listener);
        }
        ended
    }

    pub(crate) fn get(&self, kind: ListenerKind, number: u32) -> Option<Arc<Listener>> {
        self.lock().get(&(kind, number)).cloned()
    }

    /// Reports a completion of an armed CQ.
    pub(crate) fn completed(&self, cqn: u32) {
        if let Some(listener) = self.get(ListenerKind::Cq, cqn) {
            listener.complete();
        }
    }

    /// Reports an asynchronous event of an object.
    pub(crate) fn report_event(&self, eqe: &Eqe) {
        let of_queue: &EqeQpSrq = data(eqe);
        let (queue, number) = (of_queue.r#type(), of_queue.qpn_rqn_sqn());
        let of_cq: &EqeCqError = data(eqe);
        // RQ and SQ belong to objects that no verb creates here.
        let (is_qp, is_rq) = (queue == EqeQueueType::QP, queue == EqeQueueType::RQ);
        // The numbers of `enum ib_event_type`.
        let found = match eqe.event_type().0 {
            event::CQ_ERROR => Some((ListenerKind::Cq, of_cq.cqn(), 0)),
            event::WQ_CATASTROPHIC_ERROR if is_qp => Some((ListenerKind::Qp, number, 1)),
            event::WQ_INVALID_REQUEST_ERROR if is_qp => Some((ListenerKind::Qp, number, 2)),
            event::WQ_ACCESS_ERROR if is_qp => Some((ListenerKind::Qp, number, 3)),
            event::COMMUNICATION_ESTABLISHED => Some((ListenerKind::Qp, number, 4)),
            event::SQ_DRAINED => Some((ListenerKind::Qp, number, 5)),
            event::PATH_MIGRATED => Some((ListenerKind::Qp, number, 6)),
            event::PATH_MIGRATION_FAILED => Some((ListenerKind::Qp, number, 7)),
            event::SRQ_LAST_WQE => Some((ListenerKind::Qp, number, 16)),
            event::SRQ_CATASTROPHIC_ERROR => Some((ListenerKind::Srq, number, 14)),
            event::SRQ_LIMIT if is_qp || is_rq => Some((ListenerKind::Srq, number, 15)),
            _ => None,
        };
        if let Some((kind, number, event)) = found
            && let Some(listener) = self.get(kind, number)
        {
            listener.report(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::tests::Slow;
    use crate::client::OwnProcess;
    use crate::descriptor;
    use crate::events::ASYNC_RECORD;

    const NUMBER: u32 = 0x12_3456;

    fn eqe(kind: u8, queue: u32) -> Eqe {
        let mut eqe = Eqe::zeroed();
        let bytes = eqe.as_bytes_mut();
        bytes[1] = kind;
        bytes[0x20..0x24].copy_from_slice(&NUMBER.to_be_bytes());
        bytes[0x34..0x38].copy_from_slice(&(queue << 24).to_be_bytes());
        bytes[0x38..0x3c].copy_from_slice(&NUMBER.to_be_bytes());
        eqe
    }

    #[test]
    fn event_in_flight_does_not_outlive_object() {
        let listeners = Listeners::default();
        let (channel, fd) = Channel::new(COMPLETION_RECORD).expect("a socketpair");
        listeners.add(ListenerKind::Cq, NUMBER, 10, Some(channel), None);
        let in_flight = listeners.get(ListenerKind::Cq, NUMBER).expect("a listener");
        let client = OwnProcess::default();
        let ending = listeners.destroy(ListenerKind::Cq, NUMBER, Some(&client), || Ok(()));
        let reported =
            ending.expect("the object is destroyed").expect("a listener").finish(&client);
        in_flight.complete();
        assert_eq!(reported.completions, 0);
        assert!(descriptor::receive(&fd, &mut [0; 64]).is_err(), "a stale completion");
    }

    #[test]
    fn event_during_refused_destroy_is_kept() {
        let listeners = Listeners::default();
        let (channel, fd) = Channel::new(COMPLETION_RECORD).expect("a socketpair");
        listeners.add(ListenerKind::Cq, NUMBER, 10, Some(channel), None);
        listeners.completed(NUMBER);
        let refuse = || {
            listeners.completed(NUMBER);
            Err(Errno::EAGAIN)
        };
        let client = Slow(OwnProcess::default(), &refuse, &|| ());
        let refused = listeners.destroy(ListenerKind::Cq, NUMBER, Some(&client), || Ok(()));
        assert_eq!(refused.map(drop), Err(Errno::EAGAIN));
        let received = || descriptor::receive(&fd, &mut [0; 64]).is_ok();
        assert_eq!([received(), received(), received()], [true, true, false]);
    }

    /// Numbers of `enum ib_event_type`; an event of a stand-alone SQ or RQ has none.
    #[test]
    fn event_reaches_listener_with_verbs_number() {
        const QP: u32 = 0;
        const RQ: u32 = 1;
        const SQ: u32 = 2;
        for (kind, queue, expected) in [
            (event::CQ_ERROR, QP, Some((ListenerKind::Cq, 0))),
            (event::WQ_CATASTROPHIC_ERROR, QP, Some((ListenerKind::Qp, 1))),
            (event::WQ_CATASTROPHIC_ERROR, SQ, None),
            (event::WQ_INVALID_REQUEST_ERROR, QP, Some((ListenerKind::Qp, 2))),
            (event::WQ_INVALID_REQUEST_ERROR, SQ, None),
            (event::WQ_ACCESS_ERROR, QP, Some((ListenerKind::Qp, 3))),
            (event::WQ_ACCESS_ERROR, RQ, None),
            (event::COMMUNICATION_ESTABLISHED, QP, Some((ListenerKind::Qp, 4))),
            (event::SQ_DRAINED, QP, Some((ListenerKind::Qp, 5))),
            (event::PATH_MIGRATED, QP, Some((ListenerKind::Qp, 6))),
            (event::PATH_MIGRATION_FAILED, QP, Some((ListenerKind::Qp, 7))),
            (event::SRQ_LAST_WQE, QP, Some((ListenerKind::Qp, 16))),
            (event::SRQ_CATASTROPHIC_ERROR, QP, Some((ListenerKind::Srq, 14))),
            (event::SRQ_LIMIT, QP, Some((ListenerKind::Srq, 15))),
            (event::SRQ_LIMIT, RQ, Some((ListenerKind::Srq, 15))),
            (event::SRQ_LIMIT, SQ, None),
        ] {
            let listeners = Listeners::default();
            let (channel, fd) = Channel::new(ASYNC_RECORD).expect("a socketpair");
            for (element, of) in
                [(10, ListenerKind::Cq), (11, ListenerKind::Qp), (12, ListenerKind::Srq)]
            {
                listeners.add(of, NUMBER, element, None, Some(channel.clone()));
            }
            listeners.report_event(&eqe(kind, queue));
            let mut record = [0; 64];
            let parsed = descriptor::receive(&fd, &mut record).ok().map(|length| {
                assert_eq!(length, ASYNC_RECORD);
                let element = u64::from_ne_bytes(record[..8].try_into().expect("8 bytes"));
                (element, u32::from_ne_bytes(record[8..12].try_into().expect("4 bytes")))
            });
            let expected = expected.map(|(of, number)| {
                (
                    match of {
                        ListenerKind::Cq => 10,
                        ListenerKind::Qp => 11,
                        ListenerKind::Srq => 12,
                    },
                    number,
                )
            });
            assert_eq!(parsed, expected, "event {kind:#x} of a queue of type {queue}");
        }
    }
}
