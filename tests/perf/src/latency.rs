//! One message after the other: ping-pong of writes and of sends, and single reads and atomics.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use verbless_queue::service::Service;
use verbless_queue::wr::{CompareSwap, FetchAdd, Inline, Read, Send, WorkRequest, Write};
use verbless_queue::{Destination, Rc, Region, RemoteAddr, Ud};

use crate::end::{Lane, Side, is_inline};
use crate::wait::Wait;
use crate::{Error, Latency, Operation, Plan, Result};

/// One message in this many is signaled, so that the ring has room.
const SIGNALED: u32 = 16;

/// Messages before the measured ones.
fn warm_up(plan: &Plan) -> u32 {
    (plan.iterations / 10).clamp(10, 1000)
}

fn messages(plan: &Plan) -> u32 {
    plan.iterations + warm_up(plan)
}

fn one<T>(lanes: &mut [T]) -> Result<&mut T> {
    lanes.first_mut().ok_or_else(|| Error::from("no queue pair"))
}

/// That of a reliable connection.
pub(crate) fn of_connection(side: &mut Side<Rc, RemoteAddr>, plan: &Plan) -> Result<Latency> {
    let there = *one(&mut side.ways)?;
    let lane = one(&mut side.lanes)?;
    let into = lane.into;
    match plan.operation {
        Operation::Write => {
            let mut end = Writes { lane, region: &side.region, there, plan };
            ping(plan, &mut end)
        }
        Operation::Send | Operation::UdSend => ping(plan, &mut Sends { lane, plan, way: None }),
        Operation::Read => single(lane, plan, &Read::new(into, there).signaled()),
        Operation::FetchAdd => single(lane, plan, &FetchAdd::new(into, there, 1).signaled()),
        Operation::CompareSwap => {
            single(lane, plan, &CompareSwap::new(into, there, 0, 1).signaled())
        }
    }
}

/// That of datagrams.
pub(crate) fn of_datagrams(side: &mut Side<Ud, Destination>, plan: &Plan) -> Result<Latency> {
    let way = *one(&mut side.ways)?;
    ping(plan, &mut Sends { lane: one(&mut side.lanes)?, plan, way: Some(way) })
}

/// Answers a reliable connection; returns how many messages came.
pub(crate) fn answer_connection(side: &mut Side<Rc, RemoteAddr>, plan: &Plan) -> Result<u64> {
    let there = *one(&mut side.ways)?;
    let lane = one(&mut side.lanes)?;
    match plan.operation {
        Operation::Write => pong(plan, &mut Writes { lane, region: &side.region, there, plan }),
        Operation::Send | Operation::UdSend => pong(plan, &mut Sends { lane, plan, way: None }),
        _ => Ok(0),
    }
}

/// Answers datagrams; returns how many came.
pub(crate) fn answer_datagrams(side: &mut Side<Ud, Destination>, plan: &Plan) -> Result<u64> {
    let way = *one(&mut side.ways)?;
    pong(plan, &mut Sends { lane: one(&mut side.lanes)?, plan, way: Some(way) })
}

/// An end of a ping-pong.
trait Player {
    /// Sends message `number`.
    fn serve(&mut self, number: u32) -> Result;
    /// Waits for message `number` of the other end.
    fn take(&mut self, number: u32, wait: &mut Wait) -> Result;
}

/// Sends and waits for the answer, as often as planned.
fn ping(plan: &Plan, player: &mut impl Player) -> Result<Latency> {
    let mut wait = Wait::new();
    let mut samples = Vec::with_capacity(messages(plan) as usize);
    for number in 0..messages(plan) {
        let begun = Instant::now();
        player.serve(number)?;
        player.take(number, &mut wait)?;
        let ended = Instant::now();
        samples.push(ended - begun);
        wait.in_time(ended)?;
    }
    Ok(Latency::of(samples.split_off(warm_up(plan) as usize), 2.0))
}

/// Waits for each message and answers it.
fn pong(plan: &Plan, player: &mut impl Player) -> Result<u64> {
    let mut wait = Wait::new();
    for number in 0..messages(plan) {
        player.take(number, &mut wait)?;
        player.serve(number)?;
    }
    Ok(messages(plan).into())
}

/// The time of each request from its post to its completion.
fn single<S: Service, W: WorkRequest<S>>(
    lane: &mut Lane<S>,
    plan: &Plan,
    request: &W,
) -> Result<Latency> {
    let mut wait = Wait::new();
    let mut samples: Vec<Duration> = Vec::with_capacity(messages(plan) as usize);
    for _ in 0..messages(plan) {
        let begun = Instant::now();
        lane.qp.post(request, 0)?;
        loop {
            if let Some(completion) = lane.qp.poll(&mut lane.send_cq) {
                completion?;
                break;
            }
            wait.vain()?;
        }
        wait.progress();
        let ended = Instant::now();
        samples.push(ended - begun);
        wait.in_time(ended)?;
    }
    Ok(Latency::of(samples.split_off(warm_up(plan) as usize), 1.0))
}

/// Frees the places of requests that have completed; fails if one has failed.
#[inline(always)]
fn reclaim<S: Service>(lane: &mut Lane<S>) -> Result {
    while let Some(completion) = lane.qp.poll(&mut lane.send_cq) {
        completion?;
    }
    Ok(())
}

/// Ping-pong of writes: the last byte of a message is its number, and the other end looks at it in
/// its memory.
struct Writes<'a> {
    lane: &'a mut Lane<Rc>,
    region: &'a Region,
    there: RemoteAddr,
    plan: &'a Plan,
}

/// The last byte of a message. Memory is 0 before the first one.
fn mark(number: u32) -> u8 {
    number.wrapping_add(1) as u8
}

/// Bytes of a request that carries its message itself.
const INLINE: usize = 256;

impl Player for Writes<'_> {
    #[inline(always)]
    fn serve(&mut self, number: u32) -> Result {
        let Self { lane, region, there, plan } = self;
        let (bytes, is_signaled) = (plan.bytes as usize, number.is_multiple_of(SIGNALED));
        if is_inline(plan) {
            let mut text = [0; INLINE];
            text[bytes - 1] = mark(number);
            let request = Write::new(Inline(&text[..bytes]), *there);
            let request = if is_signaled { request.signaled() } else { request };
            lane.qp.post(&request, 0)?;
        } else {
            region.bytes()[lane.at[0] + bytes - 1].store(mark(number), Ordering::Release);
            let request = Write::new(lane.from, *there);
            let request = if is_signaled { request.signaled() } else { request };
            lane.qp.post(&request, 0)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn take(&mut self, number: u32, wait: &mut Wait) -> Result {
        let last = &self.region.bytes()[self.lane.at[1] + self.plan.bytes as usize - 1];
        while last.load(Ordering::Acquire) != mark(number) {
            reclaim(self.lane)?;
            wait.vain()?;
        }
        wait.progress();
        reclaim(self.lane)
    }
}

/// Ping-pong of sends.
struct Sends<'a, S: Service> {
    lane: &'a mut Lane<S>,
    plan: &'a Plan,
    /// The destination of datagrams.
    way: Option<Destination>,
}

/// Posts a send of any service.
trait Post: Service {
    fn post(
        lane: &mut Lane<Self>,
        way: Option<&Destination>,
        text: Option<&[u8]>,
        is_signaled: bool,
    ) -> Result;
}

impl Post for Rc {
    #[inline(always)]
    fn post(
        lane: &mut Lane<Self>,
        _: Option<&Destination>,
        text: Option<&[u8]>,
        is_signaled: bool,
    ) -> Result {
        match text {
            Some(text) if is_signaled => lane.qp.post(&Send::new(Inline(text)).signaled(), 0)?,
            Some(text) => lane.qp.post(&Send::new(Inline(text)), 0)?,
            None if is_signaled => lane.qp.post(&Send::new(lane.from).signaled(), 0)?,
            None => lane.qp.post(&Send::new(lane.from), 0)?,
        };
        Ok(())
    }
}

impl Post for Ud {
    #[inline(always)]
    fn post(
        lane: &mut Lane<Self>,
        way: Option<&Destination>,
        text: Option<&[u8]>,
        is_signaled: bool,
    ) -> Result {
        let way = way.ok_or("a datagram without a destination")?;
        match text {
            Some(text) if is_signaled => {
                lane.qp.post(&Send::new(Inline(text)).signaled().to(way), 0)?
            }
            Some(text) => lane.qp.post(&Send::new(Inline(text)).to(way), 0)?,
            None if is_signaled => lane.qp.post(&Send::new(lane.from).signaled().to(way), 0)?,
            None => lane.qp.post(&Send::new(lane.from).to(way), 0)?,
        };
        Ok(())
    }
}

impl<S: Post> Player for Sends<'_, S> {
    #[inline(always)]
    fn serve(&mut self, number: u32) -> Result {
        let text = [0; INLINE];
        let text = is_inline(self.plan).then(|| &text[..self.plan.bytes as usize]);
        S::post(self.lane, self.way.as_ref(), text, number.is_multiple_of(SIGNALED))
    }

    #[inline(always)]
    fn take(&mut self, _: u32, wait: &mut Wait) -> Result {
        loop {
            if let Some(completion) = self.lane.qp.poll(&mut self.lane.receive_cq) {
                completion?;
                break;
            }
            reclaim(self.lane)?;
            wait.vain()?;
        }
        wait.progress();
        self.lane.qp.post_receive(self.lane.into, 0)?;
        reclaim(self.lane)
    }
}
