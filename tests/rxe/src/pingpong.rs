//! The pingpongs. The client sends back the last message that it received, so that each of our
//! texts, all different, must come back; the first message is its own.

use verbless::command::Mtu;
use verbless::prelude::*;
use verbless::queue::address::GRH_BYTES;
use verbless::queue::service::{Connected, Service};
use verbless::queue::{DatagramOptions, QKey, Ud};

use crate::end::{End, peer};
use crate::job::{Job, Result, Server};
use crate::program::{Kind, Program};
use crate::stream::{PingpongPeer, Stream};

/// Posted receives; the client has one message in flight.
const RECEIVES: usize = 8;
/// The byte that fills the client's memory, except for the first byte of each page, which `-c`
/// sets.
const FILL: u8 = 0x7b;
const PAGE: usize = 4096;
/// The path MTU of a pingpong without `-m`.
const MTU: Mtu = Mtu::B1024;
/// The Q_Key of ibv_ud_pingpong.
const KEY: QKey = QKey(0x1111_1111);

/// ibv_rc_pingpong and ibv_uc_pingpong.
pub(crate) fn connected<S: Connected>(job: &Job<'_>) -> Result<Server> {
    let Job { domain, program, .. } = job;
    let mut end = End::<S>::new(domain, 2, RECEIVES, 2 * program.size)?;
    let options = ConnectOptions { mtu: Some(MTU), ..job.options };
    let ours = domain.address(&end.qp, &options)?;
    post_and_send_address(job, &mut end, 0, &ours, |end, theirs| {
        Ok(domain.connect(&mut end.qp, theirs, &options)?)
    })?;
    play(job, &mut end, 0, |end| {
        end.post(&wr::Send::new(end.region.sge(0, program.size)?).signaled())
    })?;
    Ok(Box::new(end))
}

/// ibv_ud_pingpong.
pub(crate) fn datagrams(job: &Job<'_>) -> Result<Server> {
    let Job { domain, program, options, .. } = job;
    let mut end = End::<Ud>::new(domain, 2, RECEIVES, GRH_BYTES + 2 * program.size)?;
    let ours = domain.address(&end.qp, options)?;
    let start = DatagramOptions { psn: ours.psn, ..DatagramOptions::new(KEY) };
    let to = post_and_send_address(job, &mut end, GRH_BYTES, &ours, |end, theirs| {
        end.qp.start(&start)?;
        Ok(domain.destination(theirs, KEY, options)?)
    })?;
    play(job, &mut end, GRH_BYTES, |end| {
        end.post(&wr::Send::new(end.region.sge(0, program.size)?).signaled().to(&to))
    })?;
    Ok(Box::new(end))
}

/// Posts receives, which have room for a header, and sends our address to the client once we are
/// ready.
fn post_and_send_address<S: Service, T>(
    job: &Job<'_>,
    end: &mut End<S>,
    header: usize,
    ours: &PeerAddress,
    ready: impl FnOnce(&mut End<S>, &PeerAddress) -> Result<T>,
) -> Result<T> {
    let size = job.program.size;
    for _ in 0..RECEIVES {
        end.receive(size, header + size)?;
    }
    let mut stream = Stream::accept(&job.listener)?;
    let theirs = stream.receive_address()?;
    let theirs = peer(ours, theirs.qpn, theirs.psn, theirs.gid);
    let is_ready = ready(end, &theirs)?;
    stream.send_address(&PingpongPeer::from(ours))?;
    Ok(is_ready)
}

/// Answers all messages of the client. `post` sends the bytes at the beginning of our memory;
/// messages arrive after them.
fn play<S: Service>(
    job: &Job<'_>,
    end: &mut End<S>,
    header: usize,
    mut post: impl FnMut(&mut End<S>) -> Result,
) -> Result {
    let Program { size, iterations, kind, .. } = *job.program;
    let mut expected: Vec<u8> = vec![FILL; size];
    expected.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
    let (mut sent, mut received) = (0, 0);
    for number in 0..iterations {
        while received == number || sent < number {
            let done = end.next()??;
            match done.operation() {
                WcOpcode::Receive if done.byte_len() as usize == header + size => received += 1,
                WcOpcode::Receive => {
                    let length = done.byte_len();
                    return Err(format!("message {number} has {length} bytes").into());
                }
                _ => sent += 1,
            }
        }
        let arrived = end.bytes(size + header, size)?;
        if let Some(at) = (0..size).find(|&at| arrived[at] != expected[at]) {
            let (is, should) = (arrived[at], expected[at]);
            return Err(format!(
                "byte {at} of message {number} is {is:#x} and should be {should:#x}"
            )
            .into());
        }
        expected = text(number, size);
        end.region.write_at(0, &expected)?;
        end.receive(size, header + size)?;
        post(end)?;
    }
    match end.next()? {
        // A client that has all messages ends, and does not acknowledge a repetition of the last
        // one.
        Err(error) if kind == Kind::RcPingpong && job.lossy && is_unanswered(&error) => Ok(()),
        last => Ok(last.map(drop)?),
    }
}

fn is_unanswered(error: &CompletionError) -> bool {
    let CompletionError::Failed(failure) = error else { return false };
    failure.status == WcStatus::TransportRetryExceeded
}

/// A text for each message.
fn text(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + at / 251 + number * 7 + 1) as u8).collect()
}
