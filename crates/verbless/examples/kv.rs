//! A key-value store: clients read and change the server's memory by RDMA, without the server's
//! CPU.
//!
//! ```sh
//! cargo run --example kv                       # server and clients in this process, on the model
//! cargo run --example kv -- serve 0.0.0.0:7471 # on a card
//! cargo run --example kv -- SERVER:7471 set apple red
//! cargo run --example kv -- SERVER:7471 get apple
//! ```
//!
//! Without a card, the last three run under `verbless-model run`, each in a process of its own; the
//! clients join the run of the server. In one terminal:
//!
//! ```sh
//! cargo build --release -p verbless-model-host && cargo build -p verbless --example kv
//! target/release/verbless-model run --name kv -- target/debug/examples/kv serve 127.0.0.1:7471
//! ```
//!
//! In another, once it prints `Serving on`:
//!
//! ```sh
//! model=target/release/verbless-model kv=target/debug/examples/kv
//! $model run --join kv -- $kv 127.0.0.1:7471 set apple red
//! $model run --join kv -- $kv 127.0.0.1:7471 get apple
//! ```
//!
//! The table is an array of slots of eight words: a version, a key, a value, a checksum. A reader
//! fetches a slot by one READ; a wrong checksum shows that a writer was changing it. A writer makes
//! the version odd by compare-and-swap, which locks the slot, writes the rest, and then makes the
//! version the next even one, again by compare-and-swap. Every change also increments a counter in
//! front of the slots.
//!
//! A lock is a lease: a writer that finds a slot in the same unreadable state for 2 s takes over
//! the lock, as its owner has died. A live owner finds its version changed at the end, and fails.
//! The change in progress is lost; `get` says so, and the next `set` repairs the slot.
//!
//! Clients are not isolated from each other. All queue pairs of the server are in one protection
//! domain, so every connected client may read and change the whole table, regardless of leases.
//! Clients that do not trust each other need one domain each (`Domain::new`), with its own memory.

mod support;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use verbless::prelude::*;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SLOTS: u64 = 1024;
/// Slots that a key may be in: the one of its hash, and the next ones.
const PROBES: u64 = 16;
/// Bytes of a slot. The first 64 bytes of the table hold the counter.
const SLOT: u64 = 64;
/// Bytes of a key, and of a value; shorter ones end with zeros.
const KEY: usize = 16;
const VALUE: usize = 32;
/// A slot that stays locked and unchanged for this time may be taken over by another writer.
const LEASE: Duration = Duration::from_secs(2);
/// How long a client retries while others change the slot.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the handshake of client and server.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent clients: each takes a thread, a descriptor and a connection.
const MAX_CLIENTS: usize = 256;
/// The pause after an accept that failed, for example without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => demonstrate(),
        ["serve", address] => {
            let found = find()?;
            println!("{} Serving on {address}.", found.description);
            serve(&Domain::new(&found.device(0)?)?, &TcpListener::bind(address)?, None)
        }
        [server, "get", key] => {
            match Client::connect(&Domain::new(&find()?.peer()?)?, server)?.get(key)? {
                Some(value) => println!("{value}"),
                None => return Err(format!("the table has no key {key}").into()),
            }
            Ok(())
        }
        [server, "set", key, value] => {
            let count =
                Client::connect(&Domain::new(&find()?.peer()?)?, server)?.set(key, value)?;
            println!("change number {count}");
            Ok(())
        }
        _ => {
            Err("usage: kv | kv serve ADDRESS | kv SERVER get KEY | kv SERVER set KEY VALUE".into())
        }
    }
}

fn find() -> Result<support::Found> {
    support::find("auto", "connectx6dx").map_err(|error| error.to_string().into())
}

/// A server and four clients that all change the same keys.
fn demonstrate() -> Result {
    const CLIENTS: usize = 4;
    const CHANGES: usize = 50;
    let found = find()?;
    println!("{}", found.description);
    let (near, far) = (Domain::new(&found.device(0)?)?, Domain::new(&found.peer()?)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&far, &listener, Some(CLIENTS)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (near, address) = (&near, &address);
                scope.spawn(move || -> Result<u64> {
                    let mut client = Client::connect(near, address)?;
                    let mut last = 0;
                    for change in 0..CHANGES {
                        let key = format!("key {}", change % 5);
                        last = last.max(client.set(&key, &format!("{change} by {number}"))?);
                        let value = client.get(&key)?.ok_or("a key that was set is missing")?;
                        if change % 10 == 0 {
                            println!("client {number} reads {key} = {value}");
                        }
                    }
                    Ok(last)
                })
            })
            .collect();
        let mut last = 0;
        for client in clients {
            last = last.max(client.join().map_err(|_| "a client panicked")??);
        }
        server.join().map_err(|_| "the server panicked")??;
        println!("{last} changes by {CLIENTS} clients");
        (last == (CLIENTS * CHANGES) as u64).then_some(()).ok_or("changes were lost".into())
    })
}

/// Offers the table to every client that connects, to [`MAX_CLIENTS`] at a time. Returns once
/// `clients` of them have disconnected; never, if `None`.
fn serve(domain: &Domain, listener: &TcpListener, clients: Option<usize>) -> Result {
    let table = domain.words(((SLOTS + 1) * SLOT) as usize / 8, KeyAccess::ALL)?;
    let offer = table.remote_region()?.to_bytes();
    let present = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let mut accepted = 0;
        while clients.is_none_or(|clients| accepted < clients) {
            let Some(stream) = accept(listener) else { continue };
            if present.load(Ordering::Relaxed) >= MAX_CLIENTS {
                eprintln!("a client was refused: the limit of {MAX_CLIENTS} is reached");
                continue;
            }
            accepted += 1;
            present.fetch_add(1, Ordering::Relaxed);
            let (table, offer, present) = (&table, &offer, &present);
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                // The device answers by itself; the thread only waits until the client disconnects.
                if let Err(error) = answer(domain, &stream, offer, HANDSHAKE_TIMEOUT) {
                    eprintln!("serving a client failed: {error}");
                }
                present.fetch_sub(1, Ordering::Relaxed);
                let changes = table[0].load(Ordering::Relaxed);
                println!("a client disconnected; {changes} changes so far");
            });
            if let Err(error) = started {
                present.fetch_sub(1, Ordering::Relaxed);
                eprintln!("a client was refused: no thread can be started: {error}");
            }
        }
        Ok(())
    })
}

/// The next client. `None` after a pause if there is no file descriptor for it: the client stays in
/// the listener's queue, so without the pause accepts would fail in a busy loop.
fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            eprintln!("a client could not be accepted: {error}");
            std::thread::sleep(ACCEPT_PAUSE);
            None
        }
    }
}

fn answer(domain: &Domain, stream: &TcpStream, offer: &[u8], limit: Duration) -> Result {
    let cq = domain.completion_queue(&CqConfig::new(8))?;
    let mut qp = domain.queue_pair(&QpConfig::new(1, 1), &cq, &cq)?;
    let within = Within { stream, end: Instant::now() + limit };
    domain.handshake(&mut qp, within, offer, &ConnectOptions::default())?;
    // A connected client may be silent for as long as it likes.
    stream.set_read_timeout(None)?;
    let mut stream = stream;
    std::io::copy(&mut stream, &mut std::io::sink())?;
    Ok(())
}

/// A stream with a deadline, which slowly arriving bytes do not extend.
struct Within<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl Within<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        let over = || io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
        if left.is_zero() { Err(over()) } else { Ok(Some(left)) }
    }
}

impl Read for Within<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Within<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Eight words of the table.
type Slot = [u64; 8];

/// A slot, as read by a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Consistent: the state of one moment.
    Whole(Slot),
    /// Locked or half written, and unchanged for a whole lease: its writer has died.
    Left(Slot),
}

impl Found {
    /// The contents, if they are consistent though the slot is locked: its writer died before it
    /// changed them.
    fn contents(self) -> Option<Slot> {
        let (Self::Whole(slot) | Self::Left(slot)) = self;
        let mut before = slot;
        before[0] -= slot[0] % 2;
        (before == seal(before) || before == [0; 8]).then_some(before)
    }
}

/// One end of a connection to a server.
struct Client {
    qp: Qp,
    cq: Cq,
    events: CqEvents,
    /// A buffer for a slot of the table, read or written.
    slot: Region,
    table: RemoteRegion,
    /// [`LEASE`], or a shorter one in tests.
    lease: Duration,
    /// The server serves this client until the stream closes.
    _stream: TcpStream,
}

impl Client {
    fn connect(domain: &Domain, server: &str) -> Result<Self> {
        let mut cq = domain.completion_queue(&CqConfig::new(64))?;
        let mut qp = domain.queue_pair(&QpConfig::new(16, 1), &cq, &cq)?;
        let events = CqEvents::new(domain.device())?;
        events.add(&mut cq, 0)?;
        let slot = domain.region(SLOT as usize, KeyAccess::LOCAL)?;
        let stream = TcpStream::connect(server)?;
        let within = Within { stream: &stream, end: Instant::now() + HANDSHAKE_TIMEOUT };
        let peer = domain.handshake(&mut qp, within, &[], &ConnectOptions::default())?;
        let table = RemoteRegion::from_bytes(&peer.data)?;
        Ok(Self { qp, cq, events, slot, table, lease: LEASE, _stream: stream })
    }

    /// The value of a key.
    fn get(&mut self, key: &str) -> Result<Option<String>> {
        let wanted = words::<2>(key, KEY)?;
        let mut is_lost = false;
        for at in slots(&wanted) {
            let Some(slot) = self.read(at)?.contents() else {
                is_lost = true;
                continue;
            };
            if slot[1..3] == wanted {
                let bytes: Vec<u8> =
                    slot[3..7].iter().flat_map(|word| word.to_le_bytes()).collect();
                let length = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                return Ok(Some(String::from_utf8(bytes[..length].to_vec())?));
            }
            if slot[0] == 0 {
                break;
            }
        }
        match is_lost {
            true => Err(format!("{key} may have been lost with its writer: set it again").into()),
            false => Ok(None),
        }
    }

    /// Sets the value of a key; returns the number of the change.
    fn set(&mut self, key: &str, value: &str) -> Result<u64> {
        let (key, value) = (words::<2>(key, KEY)?, words::<4>(value, VALUE)?);
        for at in slots(&key) {
            let start = Instant::now();
            while start.elapsed() < RETRY_TIMEOUT {
                let found = self.read(at)?;
                let (Found::Whole(slot) | Found::Left(slot)) = found;
                let others = found.contents().filter(|it| it[0] != 0 && it[1..3] != key);
                if others.is_some() && matches!(found, Found::Whole(_)) {
                    // The slot of another key: try the next.
                    break;
                }
                // An odd version that the slot has not had before.
                let locked = slot[0] + if slot[0] % 2 == 0 { 1 } else { 2 };
                if self.swap(at, slot[0], locked)? != slot[0] {
                    continue;
                }
                if let Some([_, body @ .., _]) = others {
                    // A dead writer has left the slot of another key locked: unlock it with its old
                    // contents.
                    self.write(at, locked, body)?;
                    break;
                }
                let ([a, b], [c, d, e, f]) = (key, value);
                self.write(at, locked, [a, b, c, d, e, f])?;
                return Ok(self.add(0, 1)? + 1);
            }
        }
        Err(format!("all {PROBES} slots for this key hold other keys, or stayed locked").into())
    }

    /// A slot, once it is consistent, or unchanged for a lease.
    fn read(&mut self, at: u64) -> Result<Found> {
        let start = Instant::now();
        let mut last: Option<(Slot, Instant)> = None;
        while start.elapsed() < RETRY_TIMEOUT {
            let from = self.table.at(at, SLOT)?;
            let into = self.slot.sge(0, SLOT as usize)?;
            self.perform(&wr::Read::new(into, from).signaled())?;
            let mut slot = [0; 8];
            self.slot.read_slice(0, &mut slot)?;
            // Unlocked with a valid checksum, or never written.
            if slot[0] % 2 == 0 && (slot == seal(slot) || slot == [0; 8]) {
                return Ok(Found::Whole(slot));
            }
            match last {
                Some((before, since)) if before == slot => {
                    if since.elapsed() > self.lease {
                        return Ok(Found::Left(slot));
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
                _ => last = Some((slot, Instant::now())),
            }
        }
        Err(format!("other clients changed a slot for {} s", RETRY_TIMEOUT.as_secs()).into())
    }

    /// Writes a slot that we have locked with this version: all but the version, and then the
    /// version, which unlocks it, if the lock is still ours.
    fn write(&mut self, at: u64, locked: u64, [a, b, c, d, e, f]: [u64; 6]) -> Result {
        let version = locked + 1;
        self.slot.write_slice(0, &seal([version, a, b, c, d, e, f, 0]))?;
        let body = self.slot.sge(8, SLOT as usize - 8)?;
        // Requests of one queue pair take effect in their order.
        self.qp.post(&wr::Write::new(body, self.table.at(at + 8, SLOT - 8)?), 0)?;
        if self.swap(at, locked, version)? == locked {
            return Ok(());
        }
        let lease = self.lease;
        Err(format!("the change took longer than the lease of {lease:?}: set it again").into())
    }

    /// The value of a word before the compare-and-swap, whether it swapped or not.
    fn swap(&mut self, at: u64, expected: u64, new: u64) -> Result<u64> {
        let (into, word) = (self.slot.sge(0, 8)?, self.table.at(at, 8)?);
        self.perform(&wr::CompareSwap::new(into, word, expected, new).signaled())?;
        self.answer()
    }

    /// The value of a word before the addition.
    fn add(&mut self, at: u64, more: u64) -> Result<u64> {
        let (into, word) = (self.slot.sge(0, 8)?, self.table.at(at, 8)?);
        self.perform(&wr::FetchAdd::new(into, word, more).signaled())?;
        self.answer()
    }

    /// The word that the last atomic returned.
    fn answer(&self) -> Result<u64> {
        let mut word = [0];
        self.slot.read_slice(0, &mut word)?;
        Ok(word[0])
    }

    /// Posts a request and sleeps until it completes.
    fn perform<W: wr::WorkRequest<verbless::queue::Rc>>(&mut self, request: &W) -> Result {
        self.qp.post(request, 0)?;
        while self.events.wait_for(&mut self.cq, Some(Duration::from_secs(10)))? {
            if let Some(done) = self.qp.poll(&mut self.cq) {
                done?;
                return Ok(());
            }
        }
        Err("the server did not answer within 10 s".into())
    }
}

/// Text as words, with zeros after it.
fn words<const N: usize>(text: &str, most: usize) -> Result<[u64; N]> {
    if text.is_empty() || text.len() > most || text.contains('\0') {
        return Err(format!("{text:?} is not text of 1 to {most} bytes without zeros").into());
    }
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(N * 8, 0);
    let (words, _) = bytes.as_chunks::<8>();
    Ok(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}

/// Slots that a key may be in: offsets in the table, the likeliest first.
fn slots(key: &[u64; 2]) -> impl Iterator<Item = u64> + use<> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let first = hasher.finish() % SLOTS;
    (0..PROBES).map(move |probe| (1 + (first + probe) % SLOTS) * SLOT)
}

/// A slot with its checksum.
fn seal(mut slot: Slot) -> Slot {
    let mut hasher = DefaultHasher::new();
    slot[..7].hash(&mut hasher);
    slot[7] = hasher.finish();
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves this many clients on the model; `use_it` runs them.
    fn served(clients: usize, use_it: impl FnOnce(&Domain, &str)) {
        let found = support::find("model", "connectx6dx").expect("the model");
        let near = Domain::new(&found.device(0).expect("a device")).expect("a domain");
        let far = Domain::new(&found.device(1).expect("another")).expect("a domain");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("the socket has an address").to_string();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve(&far, &listener, Some(clients)));
            use_it(&near, &address);
            server.join().expect("the thread ends").expect("the server succeeds");
        });
    }

    fn client(domain: &Domain, address: &str) -> Client {
        let client = Client::connect(domain, address).expect("the server accepts the client");
        Client { lease: Duration::from_millis(200), ..client }
    }

    /// The slot of a key in an empty table.
    fn slot(key: &str) -> u64 {
        slots(&words(key, KEY).expect("a key")).next().expect("a slot")
    }

    #[test]
    fn lock_of_dead_writer_ends() {
        served(2, |domain, address| {
            let mut dead = client(domain, address);
            dead.set("apple", "red").expect("a change");
            let at = slot("apple");
            assert_eq!(dead.swap(at, 2, 3).expect("a lock"), 2);
            drop(dead);
            let mut live = client(domain, address);
            assert_eq!(live.get("apple").expect("whole"), Some("red".into()));
            assert_eq!(live.set("apple", "green").expect("the lock is taken over"), 2);
            assert_eq!(live.get("apple").expect("whole"), Some("green".into()));
        });
    }

    #[test]
    fn half_written_slot_is_reported_and_repaired() {
        served(2, |domain, address| {
            let mut dead = client(domain, address);
            dead.set("apple", "red").expect("a change");
            let at = slot("apple");
            assert_eq!(dead.swap(at, 2, 3).expect("a lock"), 2);
            // A word of the value.
            dead.add(at + 24, 1).expect("half of a change");
            drop(dead);
            let mut live = client(domain, address);
            let error = live.get("apple").expect_err("the change is lost").to_string();
            assert!(error.contains("set it again"), "{error}");
            live.set("apple", "green").expect("the slot is repaired");
            assert_eq!(live.get("apple").expect("whole"), Some("green".into()));
        });
    }

    #[test]
    fn writer_with_lost_lease_fails() {
        served(2, |domain, address| {
            let (mut slow, mut quick) = (client(domain, address), client(domain, address));
            let at = slot("apple");
            assert_eq!(slow.swap(at, 0, 1).expect("a lock"), 0);
            quick.set("apple", "green").expect("the lock is taken over");
            let error = slow.write(at, 1, [1; 6]).expect_err("the lease has expired").to_string();
            assert!(error.contains("longer than the lease"), "{error}");
            quick.set("apple", "blue").expect("the slot is repaired");
            assert_eq!(quick.get("apple").expect("whole"), Some("blue".into()));
        });
    }

    #[test]
    fn lock_left_on_another_key_keeps_its_value() {
        served(1, |domain, address| {
            let mut client = client(domain, address);
            let at = slot("apple");
            // Another key has the first slot of this key, and left it locked.
            let [a, b] = words::<2>("pear", KEY).expect("a key");
            let [c, d, e, f] = words::<4>("sweet", VALUE).expect("a value");
            client.swap(at, 0, 1).expect("a lock");
            client.write(at, 1, [a, b, c, d, e, f]).expect("the slot is locked by us");
            client.swap(at, 2, 3).expect("a lock");
            client.set("apple", "red").expect("the next slot is free");
            assert_eq!(client.get("apple").expect("whole"), Some("red".into()));
            let found = client.read(at).expect("a slot");
            assert!(matches!(found, Found::Whole([6, x, y, ..]) if [x, y] == [a, b]), "{found:?}");
        });
    }

    #[test]
    fn failed_accept_delays_retry() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("an error for each accept");
        let start = Instant::now();
        assert!((0..2).all(|_| accept(&listener).is_none()));
        assert!(start.elapsed() >= 2 * ACCEPT_PAUSE);
        let client =
            TcpStream::connect(listener.local_addr().expect("one")).expect("the server listens");
        assert!(std::iter::repeat_with(|| accept(&listener)).take(100).any(|it| it.is_some()));
        drop(client);
    }

    #[test]
    fn silent_client_times_out() {
        let found = support::find("model", "connectx6dx").expect("the model");
        let domain = Domain::new(&found.device(0).expect("a device")).expect("a domain");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut silent =
            TcpStream::connect(listener.local_addr().expect("one")).expect("the server listens");
        let (stream, _) = listener.accept().expect("a client");
        let (start, limit) = (Instant::now(), Duration::from_millis(300));
        let refused = answer(&domain, &stream, &[0; 4], limit);
        assert!(refused.is_err() && start.elapsed() >= limit, "{refused:?}");
        // A byte from time to time does not extend it.
        std::thread::scope(|scope| {
            let start = Instant::now();
            scope.spawn(move || {
                while silent.write_all(b"v").is_ok() && start.elapsed() < 10 * limit {
                    std::thread::sleep(limit / 10);
                }
            });
            let mut within = Within { stream: &stream, end: start + limit };
            let mut bytes = std::iter::repeat_with(|| within.read(&mut [0]));
            let error = bytes.find_map(|read| read.err());
            assert!(start.elapsed() < 9 * limit, "{error:?} after {:?}", start.elapsed());
            drop(stream);
        });
    }
}
