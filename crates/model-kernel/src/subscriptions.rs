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
const DISCARD_TIMEOUT: Duration = Duration::from_millis(200);

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
    /// How many subscriptions with each event key a channel has in `by_event`, by the address of
    /// the channel.
    by_channel: BTreeMap<usize, BTreeMap<EventKey, u32>>,
    ending: Vec<EndingObject>,
    /// Each with the client that reads it.
    channels: Vec<(Weak<Channel>, Weak<dyn Client>)>,
    /// Length of `channels` from which ended ones are purged.
    purge_at: usize,
    /// By the address of the channel.
    async_files: BTreeMap<usize, Arc<Channel>>,
    next: u64,
}

impl SubscriptionTable {
    fn insert(&mut self, event: EventKey, subscriptions: Vec<TaggedSubscription>) {
        for (_, subscription) in &subscriptions {
            if let Some(object) = subscription.object {
                self.by_object.entry(object).or_default().insert(event);
            }
            let of_channel = self.by_channel.entry(subscription.channel_address()).or_default();
            *of_channel.entry(event).or_default() += 1;
        }
        self.by_event.entry(event).or_default().extend(subscriptions);
    }

    /// Removes the subscriptions with this key that `is_wanted` selects; returns them.
    fn remove(
        &mut self,
        event: EventKey,
        is_wanted: impl Fn(&Subscription) -> bool,
    ) -> Vec<TaggedSubscription> {
        let Some(found) = self.by_event.get_mut(&event) else { return Vec::new() };
        let removed: Vec<_> = found.extract_if(.., |(_, it)| is_wanted(it)).collect();
        if found.is_empty() {
            self.by_event.remove(&event);
        }
        for (_, subscription) in &removed {
            let address = subscription.channel_address();
            let Some(of_channel) = self.by_channel.get_mut(&address) else { continue };
            if let Some(count) = of_channel.get_mut(&event) {
                *count -= 1;
                if *count == 0 {
                    of_channel.remove(&event);
                }
            }
            if of_channel.is_empty() {
                self.by_channel.remove(&address);
            }
        }
        removed
    }
}

/// Event keys of a closed channel whose subscriptions end with the table locked once.
const KEYS_AT_A_TIME: usize = 256;
/// Length of a table of channels from which ended ones are purged.
const MIN_PURGE: usize = 64;

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
            table.insert(event, vec![(tag, Arc::new(subscription))]);
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
            let removed = table.remove(event, |it| it.object == Some(object));
            if !removed.is_empty() {
                subscriptions.insert(event, removed);
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
                    table.insert(event, subscriptions);
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

    /// Ends the subscriptions of a closed channel. The table is locked for a few of them at a time.
    pub(super) fn channel_gone(&self, channel: &Arc<Channel>) {
        let address = Arc::as_ptr(channel).addr();
        let is_its = |it: &Subscription| it.channel_address() == address;
        loop {
            let mut table = self.lock();
            let ending = table.ending.iter_mut().flat_map(|it| it.subscriptions.values_mut());
            let mut ended: Vec<_> =
                ending.flat_map(|found| found.extract_if(.., |(_, it)| is_its(it))).collect();
            let of_channel = table.by_channel.get(&address).into_iter().flatten();
            let events: Vec<_> = of_channel.map(|(&event, _)| event).take(KEYS_AT_A_TIME).collect();
            ended.extend(events.iter().flat_map(|&event| table.remove(event, is_its)));
            drop(table);
            if events.is_empty() {
                return;
            }
        }
    }

    /// Registers a channel: the device's death closes it.
    pub(super) fn add_channel(&self, channel: &Arc<Channel>, client: &Arc<dyn Client>) {
        let mut table = self.lock();
        table.channels.push((Arc::downgrade(channel), Arc::downgrade(client)));
        if table.channels.len() >= table.purge_at {
            table.channels.retain(|(known, _)| known.strong_count() != 0);
            table.purge_at = MIN_PURGE.max(2 * table.channels.len());
        }
    }

    /// Closes every channel, and discards its unread records: the device is gone. A client can make
    /// its part take as long as it wants. So each client has its own thread, and the wait takes at
    /// most [`DISCARD_TIMEOUT`].
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
        let _ = ended.recv_timeout(DISCARD_TIMEOUT);
    }

    /// Number of subscriptions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().by_event.values().map(Vec::len).sum()
    }

    pub(super) fn add_async_file(&self, channel: Arc<Channel>) {
        self.lock().async_files.insert(Arc::as_ptr(&channel).addr(), channel);
    }

    pub(super) fn async_file_gone(&self, channel: &Arc<Channel>) {
        self.lock().async_files.remove(&Arc::as_ptr(channel).addr());
    }

    /// Queues an `ib_uverbs_async_event_desc` on every async event file; `element` is the port.
    pub(super) fn send_to_async_files(&self, element: u64, event: u32) {
        let mut record = element.to_ne_bytes().to_vec();
        record.extend(event.to_ne_bytes());
        record.extend([0; 4]);
        let files: Vec<_> = self.lock().async_files.values().cloned().collect();
        for file in files {
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
    fn channel_address(&self) -> usize {
        Arc::as_ptr(&self.channel.channel).addr()
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{Account, Resource};

    #[test]
    fn end_of_channel_finds_its_own_subscriptions() {
        let subscriptions = Subscriptions::default();
        let claim = Account::unbounded().charge(Resource::Descriptors, 1).expect("no bound");
        let claim = Arc::new(claim);
        let channels = [(); 2].map(|()| {
            let (channel, fd) = Channel::new(8).expect("a socketpair");
            (Arc::new(EventChannel::new(channel, true)), fd)
        });
        let subscription = |channel: usize, key, number, object| Subscription {
            key,
            number,
            object,
            channel: channels[channel].0.clone(),
            cookie: 0,
            eventfd: None,
            claim: claim.clone(),
        };
        let most = 2 * KEYS_AT_A_TIME as u32 + 1;
        let of_object =
            (0..most).map(|number| subscription(0, 0, Some(number), Some(number.into())));
        let of_device = [subscription(0, 9, None, None), subscription(1, 9, None, None)];
        subscriptions.add(of_object.chain(of_device).collect()).expect("room");
        subscriptions.add(vec![subscription(0, 9, None, None)]).expect("room");
        subscriptions.destroy_object(5, || Ok(())).expect("the object is destroyed");
        assert_eq!(subscriptions.destroy_object(6, || Err(Errno::EBUSY)), Err(Errno::EBUSY));
        let by_channel = || {
            let table = subscriptions.lock();
            let sum = |of: &BTreeMap<EventKey, u32>| of.values().sum::<u32>();
            let mut counts: Vec<u32> = table.by_channel.values().map(sum).collect();
            counts.sort_unstable();
            counts
        };
        assert_eq!((by_channel(), subscriptions.len()), (vec![1, most + 1], most as usize + 2));
        // A channel also ends while an object of its subscriptions is being destroyed.
        let refuse = || {
            subscriptions.channel_gone(&channels[0].0.channel);
            Err(Errno::EBUSY)
        };
        assert_eq!(subscriptions.destroy_object(7, refuse), Err(Errno::EBUSY));
        assert_eq!((by_channel(), subscriptions.len()), (vec![1], 1));
        subscriptions.channel_gone(&channels[1].0.channel);
        assert_eq!((by_channel(), subscriptions.len()), (vec![], 0));
    }
}
