//! A key-value store: clients read and change the server's memory by RDMA, and the server's CPU
//! takes no part in it.
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
//! the version odd by compare-and-swap, which locks the slot, writes the rest, and then writes the
//! next even version. Every change also increments a counter in front of the slots.

mod support;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use verbless::prelude::*;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SLOTS: u64 = 1024;
/// Slots that a key may be in: the one of its hash, and those behind it.
const PROBES: u64 = 16;
/// Bytes of a slot; the first one of the table holds the counter.
const SLOT: u64 = 64;
/// Bytes of a key, and of a value; shorter ones end with zeros.
const KEY: usize = 16;
const VALUE: usize = 32;
/// How often a client retries while another one is changing the slot.
const TRIES: u32 = 10_000;

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => demonstrate(),
        ["serve", address] => {
            let found = find()?;
            println!("{} Serving on {address}.", found.say);
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
    println!("{}", found.say);
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
                        let value = client.get(&key)?.ok_or("a key that was set is not there")?;
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

/// Offers the table to every client that connects. Returns when `clients` of them have
/// disconnected; never, if `None`.
fn serve(domain: &Domain, listener: &TcpListener, clients: Option<usize>) -> Result {
    let table = domain.region(((SLOTS + 1) * SLOT) as usize, KeyAccess::ALL)?;
    let offer = table.remote_region()?.to_bytes();
    std::thread::scope(|scope| {
        for stream in listener.incoming().take(clients.unwrap_or(usize::MAX)) {
            let (stream, table) = (stream?, &table);
            scope.spawn(move || {
                // The device answers by itself; the thread only waits until the client disconnects.
                if let Err(error) = answer(domain, &stream, &offer) {
                    eprintln!("serving a client failed: {error}");
                }
                let changes = table.words()[0].load(Ordering::Relaxed);
                println!("a client disconnected; {changes} changes so far");
            });
        }
        Ok(())
    })
}

fn answer(domain: &Domain, mut stream: &TcpStream, offer: &[u8]) -> Result {
    let cq = domain.completion_queue(&CqConfig::new(8))?;
    let mut qp = domain.queue_pair(&QpConfig::new(1, 1), &cq, &cq)?;
    domain.handshake(&mut qp, stream, offer, &ConnectOptions::default())?;
    std::io::copy(&mut stream, &mut std::io::sink())?;
    Ok(())
}

/// Eight words of the table.
type Slot = [u64; 8];

/// One end of a connection to a server.
struct Client {
    qp: Qp,
    cq: Cq,
    events: CqEvents,
    /// A slot that came from the table, or is on its way there.
    slot: Region,
    table: RemoteRegion,
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
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let peer = domain.handshake(&mut qp, &stream, &[], &ConnectOptions::default())?;
        let table = RemoteRegion::from_bytes(&peer.data)?;
        Ok(Self { qp, cq, events, slot, table, _stream: stream })
    }

    /// The value of a key.
    fn get(&mut self, key: &str) -> Result<Option<String>> {
        let wanted = words::<2>(key, KEY)?;
        for at in places(&wanted) {
            let slot = self.read(at)?;
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
        Ok(None)
    }

    /// Gives a key a value; the number of the change.
    fn set(&mut self, key: &str, value: &str) -> Result<u64> {
        let (key, value) = (words::<2>(key, KEY)?, words::<4>(value, VALUE)?);
        for at in places(&key) {
            for _ in 0..TRIES {
                let slot = self.read(at)?;
                if slot[0] != 0 && slot[1..3] != key {
                    // The slot of another key: try the next.
                    break;
                }
                if self.swap(at, slot[0], slot[0] + 1)? != slot[0] {
                    continue;
                }
                let [a, b] = key;
                let [c, d, e, f] = value;
                let version = slot[0] + 2;
                self.write(at, seal([version, a, b, c, d, e, f, 0]))?;
                return Ok(self.add(0, 1)? + 1);
            }
        }
        Err(format!("all {PROBES} slots for this key hold other keys, or stayed locked by others")
            .into())
    }

    /// A slot as it was at one moment.
    fn read(&mut self, at: u64) -> Result<Slot> {
        for _ in 0..TRIES {
            let from = self.table.at(at, SLOT)?;
            let into = self.slot.sge(0, SLOT as usize)?;
            self.perform(&wr::Read::new(into, from).signaled())?;
            let mut slot = [0; 8];
            self.slot.read_slice(0, &mut slot)?;
            // Even, and all of one version; or never written.
            if slot[0] % 2 == 0 && (slot == seal(slot) || slot == [0; 8]) {
                return Ok(slot);
            }
        }
        Err(format!("a slot stayed locked for {TRIES} reads: its writer may have died").into())
    }

    /// Writes a slot that we have locked: all but the version, and then the version, which unlocks
    /// it.
    fn write(&mut self, at: u64, slot: Slot) -> Result {
        self.slot.write_slice(0, &slot)?;
        let (body, version) = (self.slot.sge(8, SLOT as usize - 8)?, self.slot.sge(0, 8)?);
        // WRITEs of one queue pair take effect in their order.
        self.qp.post(&wr::Write::new(body, self.table.at(at + 8, SLOT - 8)?), 0)?;
        self.perform(&wr::Write::new(version, self.table.at(at, 8)?).signaled())
    }

    /// What was in a word before it was swapped, or not.
    fn swap(&mut self, at: u64, expected: u64, new: u64) -> Result<u64> {
        let (into, word) = (self.slot.sge(0, 8)?, self.table.at(at, 8)?);
        self.perform(&wr::CompareSwap::new(into, word, expected, new).signaled())?;
        Ok(self.slot.words()[0].load(Ordering::Acquire))
    }

    /// What was in a word before it was added to.
    fn add(&mut self, at: u64, more: u64) -> Result<u64> {
        let (into, word) = (self.slot.sge(0, 8)?, self.table.at(at, 8)?);
        self.perform(&wr::FetchAdd::new(into, word, more).signaled())?;
        Ok(self.slot.words()[0].load(Ordering::Acquire))
    }

    /// Posts a request and sleeps until it is done.
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

/// Text as words, with zeros behind it.
fn words<const N: usize>(text: &str, most: usize) -> Result<[u64; N]> {
    if text.is_empty() || text.len() > most || text.contains('\0') {
        return Err(format!("{text:?} is not text of 1 to {most} bytes without zeros").into());
    }
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(N * 8, 0);
    let (words, _) = bytes.as_chunks::<8>();
    Ok(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}

/// Where a key may be: offsets in the table, the likeliest first.
fn places(key: &[u64; 2]) -> impl Iterator<Item = u64> + use<> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let first = hasher.finish() % SLOTS;
    (0..PROBES).map(move |probe| (1 + (first + probe) % SLOTS) * SLOT)
}

/// A slot with the checksum that belongs to it.
fn seal(mut slot: Slot) -> Slot {
    let mut hasher = DefaultHasher::new();
    slot[..7].hash(&mut hasher);
    slot[7] = hasher.finish();
    slot
}
