//! Many requests in flight, each queue pair with its own window.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use verbless_queue::service::Service;
use verbless_queue::wr::{CompareSwap, FetchAdd, Read, Send, WorkRequest, Write};
use verbless_queue::{Destination, Rc, RemoteAddr, Ud};

use crate::end::{Lane, Side};
use crate::measured::Group;
use crate::wait::Wait;
use crate::{Bandwidth, Operation, Plan, Result};

/// Groups that are kept; more are merged.
const KEPT: u64 = 4000;
/// After so long without a datagram, the others are lost.
const LOST: Duration = Duration::from_millis(500);

/// A request without and with a completion.
type Request<W> = [W; 2];

/// That of reliable connections.
pub(crate) fn of_connections(side: &mut Side<Rc, RemoteAddr>, plan: &Plan) -> Result<Bandwidth> {
    let Side { lanes, ways, .. } = side;
    let ends: Vec<_> = lanes.iter().map(|lane| (lane.from, lane.into)).zip(&*ways).collect();
    macro_rules! requests {
        (|$from:ident, $into:ident, $there:ident| $request:expr) => {
            ends.iter()
                .map(|&(($from, $into), &$there)| {
                    let _ = ($from, $into);
                    let request = $request;
                    [request, request.signaled()]
                })
                .collect::<Vec<_>>()
        };
    }
    match plan.operation {
        Operation::Write => {
            post(lanes, plan, &requests!(|from, _into, there| Write::new(from, there)))
        }
        Operation::Read => {
            post(lanes, plan, &requests!(|_from, into, there| Read::new(into, there)))
        }
        Operation::FetchAdd => {
            post(lanes, plan, &requests!(|_from, into, there| FetchAdd::new(into, there, 1)))
        }
        Operation::CompareSwap => {
            post(lanes, plan, &requests!(|_from, into, there| CompareSwap::new(into, there, 0, 1)))
        }
        Operation::Send | Operation::UdSend => {
            post(lanes, plan, &requests!(|from, _into, _there| Send::new(from)))
        }
    }
}

/// That of datagrams.
pub(crate) fn of_datagrams(side: &mut Side<Ud, Destination>, plan: &Plan) -> Result<Bandwidth> {
    let Side { lanes, ways, .. } = side;
    let request = |(lane, way): (&Lane<Ud>, _)| {
        let request = Send::new(lane.from);
        [request.to(way), request.signaled().to(way)]
    };
    let requests: Vec<_> = lanes.iter().zip(&*ways).map(request).collect();
    post(lanes, plan, &requests)
}

/// The window of a queue pair.
struct Window {
    posted: u32,
    done: u32,
    /// Messages of the group that is being posted.
    open: u32,
    /// When the groups in flight began.
    begun: VecDeque<Duration>,
}

/// Posts all messages of all queue pairs; polls what completes.
fn post<S: Service, W: WorkRequest<S>>(
    lanes: &mut [Lane<S>],
    plan: &Plan,
    requests: &[Request<W>],
) -> Result<Bandwidth> {
    let Plan { iterations, depth, batch, bytes, .. } = *plan;
    let group = plan.completes_each();
    let total = u64::from(iterations) * lanes.len() as u64;
    let window = || Window {
        posted: 0,
        done: 0,
        open: 0,
        begun: VecDeque::with_capacity(depth as usize + 1),
    };
    let mut windows: Vec<_> = lanes.iter().map(|_| window()).collect();
    let mut groups = Groups::new(total / u64::from(group));
    let mut wait = Wait::new();
    let (mut done, mut looks) = (0, 0_u32);
    let start = Instant::now();
    while done < total {
        let mut idle = true;
        for ((lane, window), [plain, signaled]) in lanes.iter_mut().zip(&mut windows).zip(requests)
        {
            while window.posted < iterations && window.posted - window.done + batch <= depth {
                if batch == 1 {
                    let (is_last, cookie) = window.next(group, iterations, false, start);
                    let request = if is_last { signaled } else { plain };
                    lane.qp.post(request, cookie)?;
                    continue;
                }
                let mut requests = lane.qp.batch();
                for left in (0..batch.min(iterations - window.posted)).rev() {
                    // Messages of an open group complete with its last one: if the next batch has
                    // no room beside them, the group ends with this batch.
                    let ends = left == 0 && window.open + 1 + batch > depth;
                    let (is_last, cookie) = window.next(group, iterations, ends, start);
                    let request = if is_last { signaled } else { plain };
                    requests.post(request, cookie)?;
                }
                requests.ring();
            }
            while let Some(completion) = lane.qp.poll(&mut lane.send_cq) {
                let messages = completion?.cookie as u32;
                let posted = window.begun.pop_front().unwrap_or_default();
                groups.add(Group { posted, completed: start.elapsed(), messages });
                window.done += messages;
                done += u64::from(messages);
                idle = false;
            }
        }
        if idle {
            wait.vain()?;
        } else {
            wait.progress();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 10) {
                wait.in_time(Instant::now())?;
            }
        }
    }
    Ok(Bandwidth::of(&groups.finish(), bytes))
}

impl Window {
    /// The next message: whether it is the last of its group, and the messages of the group so far.
    /// `ends`: it is the last, however many there are.
    #[inline(always)]
    fn next(&mut self, group: u32, iterations: u32, ends: bool, start: Instant) -> (bool, u64) {
        if self.open == 0 {
            self.begun.push_back(start.elapsed());
        }
        self.posted += 1;
        self.open += 1;
        let is_last = ends || self.open == group || self.posted == iterations;
        let messages = self.open;
        if is_last {
            self.open = 0;
        }
        (is_last, messages.into())
    }
}

/// The groups that have completed, some of them merged.
struct Groups {
    kept: Vec<Group>,
    merged: Option<(Group, u64)>,
    /// Groups that are merged into one.
    each: u64,
}

impl Groups {
    fn new(count: u64) -> Self {
        let kept = Vec::with_capacity(count.min(2 * KEPT) as usize + 1);
        Self { kept, merged: None, each: count / KEPT + 1 }
    }

    fn add(&mut self, group: Group) {
        let (merged, count) = match self.merged.take() {
            None => (group, 1),
            Some((before, count)) => {
                let messages = before.messages + group.messages;
                (Group { completed: group.completed, messages, ..before }, count + 1)
            }
        };
        match count >= self.each {
            true => self.kept.push(merged),
            false => self.merged = Some((merged, count)),
        }
    }

    fn finish(mut self) -> Vec<Group> {
        self.kept.extend(self.merged.map(|(group, _)| group));
        self.kept
    }
}

/// Receives the messages of all queue pairs, or those that come if some may be lost; returns their
/// number.
pub(crate) fn receive<S: Service>(
    lanes: &mut [Lane<S>],
    plan: &Plan,
    may_be_lost: bool,
) -> Result<u64> {
    let total = u64::from(plan.iterations) * lanes.len() as u64;
    let mut wait = Wait::new();
    let mut done = 0;
    let mut completions: [_; 32] = std::array::from_fn(|_| None);
    while done < total {
        let mut idle = true;
        for lane in &mut *lanes {
            let count = lane.qp.poll_into(&mut lane.receive_cq, &mut completions);
            for completion in completions[..count].iter_mut().filter_map(Option::take) {
                completion?;
                lane.qp.post_receive(lane.into, 0)?;
            }
            done += count as u64;
            idle &= count == 0;
        }
        match idle {
            true if may_be_lost && done > 0 && wait.is_quiet(LOST) => break,
            true => wait.vain()?,
            false => wait.progress(),
        }
    }
    Ok(done)
}
