//! perftest's programs with `-b`: both sides send, write, read or add at once.
//!
//! Each side's buffer has two halves: its own messages, and an area that the peer accesses. It
//! sends the peer that area's address. Messages of at least half a page all use that one address;
//! atomics use words 64 bytes apart, cycling through a page.

use verbless::command::Mtu;
use verbless::prelude::*;
use verbless::queue::{Rc, Rkey};

use crate::end::{End, peer};
use crate::job::{Job, Result, Server};
use crate::program::{Program, Verb};
use crate::random::first_mismatch;
use crate::stream::{Keys, PingpongPeer, Report, Stream};

/// Bytes of an atomic.
const WORD: usize = 8;
/// Bytes from one word of atomics to the next.
const STEP: usize = 64;
/// Number of words of atomics.
const WORDS: usize = 4096 / STEP;
/// The byte in memory that no request has written.
const UNTOUCHED: u8 = 0xa5;
/// Exchanges before the messages: addresses, connected, receives posted, start.
const SYNC_EXCHANGES: usize = 4;

/// Serves a program.
pub(crate) fn serve(job: &Job<'_>, verb: Verb) -> Result<Server> {
    let Job { domain, program, .. } = job;
    let memory = Memory::of(program, verb);
    let mut end = End::<Rc>::new(domain, program.iterations, program.iterations, memory.bytes())?;
    end.region.write_at(0, &vec![UNTOUCHED; memory.bytes()])?;
    if verb == Verb::Atomic {
        end.region.write_at(memory.peer_area(), &[0; WORDS * STEP])?;
    }
    let mut stream = Stream::accept(&job.listener)?;
    let code = stream.greet()?;
    let mtu = Mtu::of_code(code).ok_or_else(|| format!("unknown path MTU code {code}"))?;
    let options = ConnectOptions { mtu: Some(mtu), ..job.options };
    let ours = domain.address(&end.qp, &options)?;
    let open = end.region.remote(memory.peer_area(), 1)?;
    let our_keys = Keys {
        peer: PingpongPeer::from(&ours),
        reads: ours.reads,
        rkey: open.rkey.0,
        address: open.address,
    };
    if verb == Verb::Send {
        (0..program.iterations).try_for_each(|at| end.receive(memory.slot(at), program.size))?;
    }
    let theirs = stream.keys(&our_keys)?;
    let PingpongPeer { qpn, psn, gid } = theirs.peer;
    let address = PeerAddress { reads: theirs.reads, ..peer(&ours, qpn, psn, gid) };
    domain.connect(&mut end.qp, &address, &options)?;
    for _ in 1..SYNC_EXCHANGES {
        stream.keys(&our_keys)?;
    }
    run(&mut end, program, verb, &memory, &theirs)?;
    let expected = Report { size: program.size as u64, iterations: program.iterations as u64 };
    let report = stream.report(expected)?;
    if report != expected {
        return Err(format!("the client reports {report:?}, and not {expected:?}").into());
    }
    stream.close(&our_keys)?;
    // Both sides have finished.
    verify(&end, program, verb, &memory)?;
    Ok(Box::new(end))
}

/// Offsets in our memory: own messages; the area that the peer accesses; one slot per received
/// message, READ or atomic result.
struct Memory {
    size: usize,
    slots: usize,
}

impl Memory {
    fn of(program: &Program, verb: Verb) -> Self {
        let slots = if verb == Verb::Write { 0 } else { program.iterations };
        Self { size: program.size, slots }
    }

    /// Bytes of our messages, and of the peer's area.
    fn area_bytes(&self) -> usize {
        self.size.max(WORDS * STEP)
    }

    fn peer_area(&self) -> usize {
        self.area_bytes()
    }

    fn slot(&self, number: usize) -> usize {
        2 * self.area_bytes() + number * self.size
    }

    fn bytes(&self) -> usize {
        self.slot(self.slots)
    }
}

/// Posts all requests, and waits for their completions and for as many messages.
fn run(end: &mut End<Rc>, program: &Program, verb: Verb, memory: &Memory, theirs: &Keys) -> Result {
    let Program { size, iterations, .. } = *program;
    let key = Rkey(theirs.rkey);
    for number in 0..iterations {
        let ours = end.region.sge(0, size)?;
        let remote = RemoteAddr::new(theirs.address, key);
        match verb {
            Verb::Write => end.post(&wr::Write::new(ours, remote).signaled())?,
            Verb::Send => end.post(&wr::Send::new(ours).signaled())?,
            Verb::Read => {
                let into = end.region.sge(memory.slot(number), size)?;
                end.post(&wr::Read::new(into, remote).signaled())?;
            }
            Verb::Atomic => {
                let into = end.region.sge(memory.slot(number), WORD)?;
                let word = theirs.address + (number % WORDS * STEP) as u64;
                end.post(&wr::FetchAdd::new(into, RemoteAddr::new(word, key), 1).signaled())?;
            }
        }
    }
    let mut left = if verb == Verb::Send { 2 * iterations } else { iterations };
    while left > 0 {
        let done = end.next()?.map_err(|error| format!("with {left} requests left: {error}"))?;
        let arrives = done.operation() == WcOpcode::Receive || verb == Verb::Read;
        if arrives && done.byte_len() as usize != size {
            return Err(format!("{} bytes arrived: {done:?}", done.byte_len()).into());
        }
        left -= 1;
    }
    Ok(())
}

/// Fails unless our memory has the bytes that the peer's requests and ours must have written.
fn verify(end: &End<Rc>, program: &Program, verb: Verb, memory: &Memory) -> Result {
    let Program { size, iterations, .. } = *program;
    match verb {
        Verb::Write => ensure_pattern(end, "the peer's bytes", memory.peer_area(), size)?,
        Verb::Read | Verb::Send => {
            let first = end.bytes(memory.slot(0), size)?;
            for number in 0..iterations {
                let what = format!("message {number}");
                ensure_pattern(end, &what, memory.slot(number), size)?;
                // Each READ reads the same bytes of the peer.
                if end.bytes(memory.slot(number), size)? != first {
                    return Err(format!("{what} differs from the first one").into());
                }
            }
        }
        Verb::Atomic => {
            for word in 0..WORDS {
                let actual = number(end, memory.peer_area() + word * STEP)?;
                let expected = additions(program, word);
                if actual != expected {
                    return Err(
                        format!("word {word} is {actual}; the peer added {expected}").into()
                    );
                }
            }
            for later in WORDS..iterations {
                let [before, after] = [later - WORDS, later].map(|it| memory.slot(it));
                let (before, after) = (number(end, before)?, number(end, after)?);
                if after != before.wrapping_add(1) {
                    return Err(format!(
                        "atomic {later} returned {after:#x}; the previous atomic on that word \
                         returned {before:#x}"
                    )
                    .into());
                }
            }
        }
    }
    Ok(())
}

/// How often perftest adds to a word: each list of requests begins at the first word.
fn additions(program: &Program, word: usize) -> u64 {
    let at = |number: usize| number % program.list % WORDS;
    (0..program.iterations).filter(|&number| at(number) == word).count() as u64
}

/// Fails if the bytes are not perftest's pseudo-random fill.
fn ensure_pattern(end: &End<Rc>, what: &str, offset: usize, size: usize) -> Result {
    match first_mismatch(&end.bytes(offset, size)?) {
        None => Ok(()),
        Some(at) => Err(format!("{what} differs from the expected bytes at byte {at}").into()),
    }
}

fn number(end: &End<Rc>, offset: usize) -> Result<u64> {
    let mut bytes = [0; WORD];
    end.region.read_at(offset, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_additions_cycle_through_page_words() {
        let sums = |line: &str| {
            let program: Program = line.parse().unwrap();
            [0, 35, 36, 63].map(|word| additions(&program, word))
        };
        assert_eq!(sums("ib_atomic_bw -b -n 100"), [2, 2, 1, 1]);
        assert_eq!(sums("ib_atomic_bw -b -n 500 -l 100"), [10, 10, 5, 5]);
    }
}
