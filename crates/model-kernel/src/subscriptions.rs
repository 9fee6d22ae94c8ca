//! A device's DevX event subscriptions, and its async event files.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use verbless_prm::Eqe;

use super::account::Charge;
use super::aio::signal_eventfd;
use super::channel::Channel;
use super::client::Client;
use super::eventfds::Eventfd;
use super::refused::refused;

/// An event channel.
#[derive(Debug)]
pub(super) struct EventChannel {
    pub channel: Arc<Channel>,
    /// The claim for the newest subscriptions, and how many it covers.
    claim: Mutex<(Option<Arc<Charge>>, usize)>,
    /// Records are cookies without event data; each is queued at most once.
    pub omit_data: bool,
}

/// A requested subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    /// Event type and object type.
    pub key: u32,
    /// The object's number; `None`: the device.
    pub number: Option<u32>,
    /// Serial number of the DevX object that ends the subscription.
    pub object: Option<u64>,
    pub channel: Arc<EventChannel>,
    pub cookie: u64,
    /// The eventfd to signal instead of the channel.
    pub eventfd: Option<Arc<Eventfd>>,
    /// A charge of one descriptor, which this subscription shares with others of the client.
    pub claim: Arc<Charge>,
}

/// Event and object type, with the object's number; `None`: the device.
type EventKey = (u32, Option<u32>);

/// A subscription, with the tag of its records.
type TaggedSubscription = (u64, Arc<Subscription>);

/// Maximum number of subscriptions to one event of an object, or per client to a device event: each
/// event is delivered to all before the next. Linux is bounded by memory only.
pub(super) const MAX_OF_EVENT: usize = 256;

/// Limit of the wait for clients whose channels end with the device.
const DISCARD_TIME: Duration = Duration::from_millis(200);

/// The subscriptions of one device.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    table: Mutex<SubscriptionTable>,
    /// The next serial number of an object.
    serials: AtomicU64,
}

#[derive(Debug, Default)]
struct SubscriptionTable {
    by_event: BTreeMap<EventKey, Vec<TaggedSubscription>>,
    /// Event keys of a DevX object's subscriptions; some may have ended with their channel.
    by_object: BTreeMap<u64, BTreeSet<EventKey>>,
    ending: Vec<EndingObject>,
    /// Each with the client that reads it.
    channels: Vec<(Weak<Channel>, Weak<dyn Client>)>,
    async_files: Vec<Arc<Channel>>,
    next: u64,
}

/// A DevX object whose destroy command is in progress.
#[derive(Debug)]
struct EndingObject {
    object: u64,
    subscriptions: BTreeMap<EventKey, Vec<TaggedSubscription>>,
    /// Events with these keys since the command began. They are delivered if the device refuses it.
    events: Vec<(EventKey, Eqe)>,
}

/// Maximum number of events per [`EndingObject`]; further ones are lost.
const MAX_HELD: usize = 256;

impl Subscriptions {
    fn lock(&self) -> MutexGuard<'_, SubscriptionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A serial number, unique among all objects of the device's files.
    pub(super) fn serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds all subscriptions, or none. ENOMEM: an object's event, or a client's share of a device
    /// event, would exceed [`MAX_OF_EVENT`].
    pub(super) fn add(&self, subscriptions: Vec<Subscription>) -> Result<(), Errno> {
        let mut table = self.lock();
        for (index, new) in subscriptions.iter().enumerate() {
            let (event, client) = ((new.key, new.number), new.claim.account());
            // An object belongs to one file, which clients may share. Subscriptions to a destroyed
            // object of the same number may still be in the table.
            let counts = |it: &Subscription| match new.object {
                Some(_) => it.object == new.object,
                None => Arc::ptr_eq(it.claim.account(), client),
            };
            let before = table.by_event.get(&event).into_iter().flatten();
            let before = before.filter(|(_, it)| counts(it)).count();
            let with = subscriptions[..=index].iter();
            let with = with.filter(|it| (it.key, it.number) == event && counts(it)).count();
            if before + with > MAX_OF_EVENT {
                let words = format!(
                    "an event of an object has at most {MAX_OF_EVENT} subscriptions, and an event \
                     of the device as many per process"
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

    /// Delivers an event to every subscriber, with the table unlocked: many subscribers delay no
    /// other call.
    pub(super) fn dispatch(&self, key: u32, number: Option<u32>, eqe: &Eqe) {
        let event = (key, number);
        let mut table = self.lock();
        let is_ending = |ending: &&mut EndingObject| ending.subscriptions.contains_key(&event);
        for ending in table.ending.iter_mut().filter(is_ending) {
            if ending.events.len() < MAX_HELD {
                ending.events.push((event, *eqe));
            }
        }
        let found = table.by_event.get(&event).cloned();
        drop(table);
        for (tag, subscription) in found.unwrap_or_default() {
            subscription.deliver(tag, eqe);
        }
    }

    /// Destroys a DevX object by `destroy`. Its subscriptions end first: as soon as the device has
    /// destroyed it, another client's object may get its number, and so its events. If `destroy`
    /// fails, the subscriptions are restored, and get the events that came meanwhile. (Linux takes
    /// only CQs off its table first, and loses their events in that case.)
    pub(super) fn destroy_object(
        &self,
        object: u64,
        destroy: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.take_object(object);
        let destroyed = destroy();
        match destroyed {
            Ok(()) => {
                let mut table = self.lock();
                let is_its = |ending: &mut EndingObject| ending.object == object;
                let ended: Vec<_> = table.ending.extract_if(.., is_its).collect();
                drop(table);
                drop(ended);
            }
            Err(_) => self.restore_object(object),
        }
        destroyed
    }

    /// Removes the subscriptions to a DevX object; holds their events from here on.
    fn take_object(&self, object: u64) {
        let mut table = self.lock();
        let mut subscriptions = BTreeMap::new();
        for event in table.by_object.remove(&object).unwrap_or_default() {
            let Some(found) = table.by_event.get_mut(&event) else { continue };
            let is_its = |(_, it): &mut TaggedSubscription| it.object == Some(object);
            subscriptions.insert(event, found.extract_if(.., is_its).collect());
            if found.is_empty() {
                table.by_event.remove(&event);
            }
        }
        if !subscriptions.is_empty() {
            table.ending.push(EndingObject { object, subscriptions, events: Vec::new() });
        }
    }

    /// Restores the subscriptions to a DevX object, once they got the held events.
    fn restore_object(&self, object: u64) {
        loop {
            let mut table = self.lock();
            let is_its = |ending: &EndingObject| ending.object == object;
            let Some(at) = table.ending.iter().position(is_its) else { return };
            let events = std::mem::take(&mut table.ending[at].events);
            if events.is_empty() {
                let ending = table.ending.swap_remove(at);
                for (event, subscriptions) in ending.subscriptions {
                    table.by_object.entry(object).or_default().insert(event);
                    table.by_event.entry(event).or_default().extend(subscriptions);
                }
                return;
            }
            let subscriptions = table.ending[at].subscriptions.clone();
            drop(table);
            for (event, eqe) in events {
                let subscribed = subscriptions.get(&event).into_iter().flatten();
                subscribed.for_each(|(tag, subscription)| subscription.deliver(*tag, &eqe));
            }
        }
    }

    /// Ends the subscriptions of a closed channel.
    pub(super) fn channel_gone(&self, channel: &Arc<Channel>) {
        self.lock().by_event.retain(|_, found| {
            found.retain(|(_, subscription)| !Arc::ptr_eq(&subscription.channel.channel, channel));
            !found.is_empty()
        });
    }

    /// Registers a channel: the device's death closes it.
    pub(super) fn add_channel(&self, channel: &Arc<Channel>, client: &Arc<dyn Client>) {
        let mut table = self.lock();
        table.channels.retain(|(known, _)| known.strong_count() != 0);
        table.channels.push((Arc::downgrade(channel), Arc::downgrade(client)));
    }

    /// Closes every channel, and discards its unread records: the device is gone. A client can make
    /// its part take as long as it wants. So each client has its own thread, and the wait takes at
    /// most [`DISCARD_TIME`].
    pub(super) fn close_channels(&self) {
        let channels = std::mem::take(&mut self.lock().channels);
        let mut unread = BTreeMap::<_, Vec<_>>::new();
        for (channel, client) in channels {
            if let Some(channel) = channel.upgrade()
                && channel.close()
                && let Some(client) = client.upgrade()
            {
                unread.entry(Arc::as_ptr(&client).addr()).or_default().push((channel, client));
            }
        }
        let (running, ended) = mpsc::channel::<()>();
        for channels in unread.into_values() {
            let running = running.clone();
            let discard = move || {
                channels.iter().for_each(|(channel, client)| channel.discard(&**client));
                drop(running);
            };
            if let Err(error) = thread::Builder::new().spawn(discard) {
                tracing::warn!(%error, "events of a removed device stay readable");
            }
        }
        drop(running);
        let _ = ended.recv_timeout(DISCARD_TIME);
    }

    /// Number of subscriptions.
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

/// Number of subscriptions that are charged as one descriptor; they take about as much memory.
const SUBSCRIPTIONS_PER_CLAIM: usize = 64;

impl EventChannel {
    pub(super) fn new(channel: Arc<Channel>, omit_data: bool) -> Self {
        let claim = Mutex::new((None, SUBSCRIPTIONS_PER_CLAIM));
        Self { channel, claim, omit_data }
    }

    /// Claims for `count` more subscriptions.
    pub(super) fn claims(
        &self,
        count: usize,
        client: &dyn Client,
    ) -> Result<Vec<Arc<Charge>>, Errno> {
        let mut last = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        let mut claims = Vec::with_capacity(count);
        while claims.len() < count {
            let claim = match &*last {
                (Some(claim), covered) if *covered < SUBSCRIPTIONS_PER_CLAIM => claim.clone(),
                _ => {
                    let claim = Arc::new(client.claim()?);
                    *last = (Some(claim.clone()), 0);
                    claim
                }
            };
            last.1 += 1;
            claims.push(claim);
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
