//! Receivers of events: a device's table of DevX subscriptions, and its async event files.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;
use verbless_prm::Eqe;

use super::aio::signal_eventfd;
use super::channel::Channel;
use super::client::{Client, DescriptorClaim};
use super::eventfds::Eventfd;
use super::refused::refused;

/// An event channel.
#[derive(Debug)]
pub(super) struct EventChannel {
    pub channel: Arc<Channel>,
    /// The claim of the newest subscriptions, and how many subscriptions it covers.
    claim: Mutex<(Arc<DescriptorClaim>, usize)>,
    /// Records are cookies alone; each waits at most once.
    pub omit_data: bool,
}

/// A requested subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    /// Event and object type.
    pub key: u32,
    /// Number of the object; None for the whole device.
    pub number: Option<u32>,
    /// The serial number of the DevX object whose end ends the subscription.
    pub object: Option<u64>,
    pub channel: Arc<EventChannel>,
    pub cookie: u64,
    /// Signalled instead of the channel.
    pub eventfd: Option<Arc<Eventfd>>,
    /// Counts it, together with others, as a descriptor that is kept for the client.
    pub claim: Arc<DescriptorClaim>,
}

/// An event type with the type and number of the object; `None` for the whole device.
type EventKey = (u32, Option<u32>);

/// Most subscriptions to one event of an object, and of one client to an event of the device: it is
/// delivered to all of them before the next event of any client. Linux is bounded by memory only.
pub(super) const MOST_OF_EVENT: usize = 256;

/// The subscriptions of one device.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    table: Mutex<SubscriptionTable>,
    /// Serial numbers given to objects of all files.
    serials: AtomicU64,
}

#[derive(Debug, Default)]
struct SubscriptionTable {
    by_event: BTreeMap<EventKey, Vec<(u64, Arc<Subscription>)>>,
    /// The event keys of a DevX object's subscriptions; may name some that ended with their
    /// channel.
    by_object: BTreeMap<u64, BTreeSet<EventKey>>,
    channels: Vec<Weak<Channel>>,
    async_files: Vec<Arc<Channel>>,
    next: u64,
}

impl Subscriptions {
    fn lock(&self) -> MutexGuard<'_, SubscriptionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A serial number for a new object, unique among all objects that the device's files ever had.
    pub(super) fn serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds all of these or, if there would be more than [`MOST_OF_EVENT`] to one event of an
    /// object, or of one client to an event of the device, none (ENOMEM).
    pub(super) fn add(&self, subscriptions: Vec<Subscription>) -> Result<(), Errno> {
        let mut table = self.lock();
        for (index, new) in subscriptions.iter().enumerate() {
            let (event, client) = ((new.key, new.number), &new.claim);
            // An object is one file's, whichever clients share that. Subscriptions to a destroyed
            // object of the same number may still be in the table.
            let counts = |it: &Subscription| match new.object {
                Some(_) => it.object == new.object,
                None => it.claim.is_of_same_client(client),
            };
            let before = table.by_event.get(&event).into_iter().flatten();
            let before = before.filter(|(_, it)| counts(it)).count();
            let with = subscriptions[..=index].iter();
            let with = with.filter(|it| (it.key, it.number) == event && counts(it)).count();
            if before + with > MOST_OF_EVENT {
                let words = format!(
                    "there are at most {MOST_OF_EVENT} subscriptions to one event of an object, or \
                     of one process to an event of the device"
                );
                return Err(refused(Errno::ENOMEM, words));
            }
        }
        for subscription in subscriptions {
            table.next += 1;
            let tag = table.next;
            let event = (subscription.key, subscription.number);
            if let Some(object) = subscription.object {
                table.by_object.entry(object).or_default().insert(event);
            }
            table.by_event.entry(event).or_default().push((tag, Arc::new(subscription)));
        }
        Ok(())
    }

    /// Delivers an event to every subscriber. The table is unlocked meanwhile: many subscribers to
    /// one event delay nothing else.
    pub(super) fn dispatch(&self, key: u32, number: Option<u32>, eqe: &Eqe) {
        let found = self.lock().by_event.get(&(key, number)).cloned();
        for (tag, subscription) in found.unwrap_or_default() {
            subscription.deliver(tag, eqe);
        }
    }

    /// Ends the subscriptions to a DevX object that was destroyed.
    pub(super) fn object_gone(&self, object: u64) {
        let mut table = self.lock();
        for event in table.by_object.remove(&object).unwrap_or_default() {
            let Some(found) = table.by_event.get_mut(&event) else { continue };
            found.retain(|(_, subscription)| subscription.object != Some(object));
            if found.is_empty() {
                table.by_event.remove(&event);
            }
        }
    }

    /// Ends the subscriptions of a channel that was closed.
    pub(super) fn channel_gone(&self, channel: &Arc<Channel>) {
        self.lock().by_event.retain(|_, found| {
            found.retain(|(_, subscription)| !Arc::ptr_eq(&subscription.channel.channel, channel));
            !found.is_empty()
        });
    }

    /// Registers a channel, so that the device's death closes it.
    pub(super) fn add_channel(&self, channel: &Arc<Channel>) {
        let mut table = self.lock();
        table.channels.retain(|known| known.strong_count() != 0);
        table.channels.push(Arc::downgrade(channel));
    }

    /// Ends every channel: the device is gone.
    pub(super) fn close_channels(&self) {
        for channel in self.lock().channels.drain(..).filter_map(|channel| channel.upgrade()) {
            channel.close();
        }
    }

    /// How many subscriptions there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().by_event.values().map(Vec::len).sum()
    }

    pub(super) fn add_async_file(&self, channel: Arc<Channel>) {
        self.lock().async_files.push(channel);
    }

    pub(super) fn async_file_gone(&self, channel: &Arc<Channel>) {
        self.lock().async_files.retain(|file| !Arc::ptr_eq(file, channel));
    }

    /// Queues an `ib_uverbs_async_event_desc` on every async event file; `element` is the port.
    pub(super) fn tell_async_files(&self, element: u64, event: u32) {
        let mut record = element.to_ne_bytes().to_vec();
        record.extend(event.to_ne_bytes());
        record.extend([0; 4]);
        for file in &self.lock().async_files {
            file.send(record.clone());
        }
    }
}

/// Subscriptions that count as one descriptor kept for a client: they take about as much memory.
const SUBSCRIPTIONS_PER_CLAIM: usize = 64;

impl EventChannel {
    pub(super) fn new(channel: Arc<Channel>, omit_data: bool) -> Self {
        let claim = Mutex::new((Arc::default(), SUBSCRIPTIONS_PER_CLAIM));
        Self { channel, claim, omit_data }
    }

    /// Claims for `count` more subscriptions.
    pub(super) fn claims(
        &self,
        count: usize,
        client: &dyn Client,
    ) -> Result<Vec<Arc<DescriptorClaim>>, Errno> {
        let mut last = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        let mut claims = Vec::with_capacity(count);
        while claims.len() < count {
            if last.1 == SUBSCRIPTIONS_PER_CLAIM {
                *last = (Arc::new(client.claim()?), 0);
            }
            last.1 += 1;
            claims.push(last.0.clone());
        }
        Ok(claims)
    }
}

impl Subscription {
    fn deliver(&self, tag: u64, eqe: &Eqe) {
        if let Some(eventfd) = &self.eventfd {
            // A full counter already signals.
            if let Err(errno) = signal_eventfd(eventfd.as_fd()) {
                tracing::warn!(%errno, "an event was lost: its eventfd cannot be signalled");
            }
        } else if self.channel.omit_data {
            self.channel.channel.send_once(tag, self.cookie.to_ne_bytes());
        } else {
            let mut record = self.cookie.to_ne_bytes().to_vec();
            record.extend(eqe.as_bytes());
            self.channel.channel.send(record);
        }
    }
}
