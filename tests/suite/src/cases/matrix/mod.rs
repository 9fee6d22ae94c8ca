//! The matrix: every service with every operation that it carries, every form of payload, lengths
//! from nothing to several packets, and each way to post. All cells check the same ([`run`]). A new
//! service is a line here; a new operation says in [`cell`] which forms of payload and lengths it
//! has, and in [`carry`] how it is posted and what the peer must see.

mod carry;
mod cell;
mod frame;
mod memory;

use verbless_queue::service::{Eth, Service as _};
use verbless_queue::wr::{Class, OPERATIONS, OperationInfo};
use verbless_queue::{Domain, QpConfig, Rc, RemoteAddr, Rkey, Sge, Uc, Ud, UmrKey, WcStatus};

use crate::case::Entry;
use crate::need::ATOMICS;
use crate::{Case, Group, Lab, Pair, Stop, ensure, ensure_eq, failed, until};
use carry::{Job, MatrixService, PostTarget};
use cell::{Cell, CellOperation, Form, INLINE, MAX_MESSAGE_BYTES, Posting, REQUESTS, Row, UMR};
use memory::Memory;

pub(crate) static GROUP: Group = Group {
    name: "matrix",
    holds: "Service by operation by payload by length by way of posting: all bytes arrive, \
        completions are as requested, and no other memory changes.",
    needs: &[],
    entries: &[Entry {
        name: "uncarried_operations_are_rejected_by_name",
        needs: &[ATOMICS, UMR],
        run: reject_uncarried_operations,
    }],
    generated: cases,
};

/// The row of a service of queue pairs.
const fn row<S: MatrixService>(
    operations: &'static [CellOperation],
    lengths: &'static [usize],
) -> Row {
    let (run, info, supports) = (run::<S>, S::info, Domain::supports::<S>);
    Row { service: S::INFO, needs: S::NEEDS, operations, lengths, run, info, supports }
}

/// Every service with what it carries. No packet of UC has an opcode for a SEND with invalidate
/// (InfiniBand specification, volume 1, 9.2.1), though libmlx5 takes such requests.
static ROWS: [Row; 4] = {
    use CellOperation::{
        CompareSwap, EthSend, FetchAdd, LocalInvalidate, Nop, Read, Send, SendImm, SendInvalidate,
        Umr, Write, WriteImm,
    };
    const LENGTHS: &[usize] = &[0, 1, 64, INLINE, 4096, MAX_MESSAGE_BYTES];
    const ALL: &[CellOperation] = &[
        Send,
        SendImm,
        SendInvalidate,
        Write,
        WriteImm,
        Read,
        CompareSwap,
        FetchAdd,
        Umr,
        LocalInvalidate,
        Nop,
    ];
    [
        row::<Rc>(ALL, LENGTHS),
        row::<Uc>(&[Send, SendImm, Write, WriteImm, Umr, LocalInvalidate, Nop], LENGTHS),
        // One packet at any path MTU of RoCE: 1024 bytes on an Ethernet port of MTU 1500.
        row::<Ud>(&[Send, SendImm, Nop], &[0, 1, 64, INLINE, 1000]),
        // From the shortest frame to the longest of an MTU of 1500.
        Row {
            service: Eth::INFO,
            needs: super::frames::GROUP.needs,
            operations: &[EthSend, Nop],
            lengths: &[0, 60, 64, INLINE, 1000, 1514],
            run: frame::run,
            info: frame::info,
            supports: Domain::supports::<Eth>,
        },
    ]
};

fn cases() -> Vec<Case> {
    let mut cells = Vec::new();
    for row in &ROWS {
        for &operation in row.operations {
            for &form in operation.forms() {
                let lengths = row.lengths.iter().chain(operation.is_atomic().then_some(&8));
                for &length in lengths.filter(|&&length| operation.fits(form, length)) {
                    for posting in [Posting::Signaled, Posting::Unsignaled, Posting::Batch] {
                        cells.push(Cell { row, operation, form, length, posting });
                    }
                }
            }
        }
    }
    let case = |cell: Cell| Case {
        group: GROUP.name,
        name: cell.name().into(),
        needs: cell.needs(),
        run: Box::new(move |lab| (cell.row.run)(lab, &cell)),
    };
    cells.into_iter().map(case).collect()
}

/// Each service must support exactly the operations of its row, of all operations with a request.
/// The matrix never posts an operation without a row.
fn reject_uncarried_operations(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let mut all = Vec::new();
    for row in &ROWS {
        let posted: Vec<_> =
            row.operations.iter().map(|&operation| (row.info)(operation)).collect();
        for info in messages() {
            let refusal = (row.supports)(&domain, info).err().map(|error| error.to_string());
            let service = row.service.name;
            let expected = (!posted.contains(info))
                .then(|| format!("the transport service {service} does not carry {}", info.name));
            ensure_eq!(refusal, expected, format!("{} on {service}", info.name));
        }
        all.extend(posted.iter().map(|info| info.name));
    }
    for info in messages() {
        ensure!(all.contains(&info.name), "{} has no row in the matrix", info.name);
    }
    Ok(())
}

/// The operations with rows here; operations on only the device's own memory are in the groups
/// `copy` and `wait`.
fn messages() -> impl Iterator<Item = &'static OperationInfo> {
    const OTHER_GROUPS: [Class; 2] = [Class::DmaMmo, Class::Wait];
    OPERATIONS.iter().filter(|info| !OTHER_GROUPS.contains(&info.class))
}

/// Posts the requests of a cell, and checks every completion and every byte at both ends.
fn run<S: MatrixService>(lab: &Lab, cell: &Cell) -> Result<(), Stop> {
    let Cell { operation, form, length, posting, .. } = *cell;
    let config = QpConfig {
        send_sges: 3,
        receive_sges: 3,
        inline: INLINE as u32,
        ..QpConfig::new(REQUESTS as u32, REQUESTS as u32)
    };
    let mut pair = Pair::unconnected_of(lab, &config, 64)?;
    let mut destination = S::connect(&mut pair)?;
    let header = S::HEADER;
    // Memory for the sent bytes and for the arriving ones; and memory that the peer posts for
    // receives.
    let local = Memory::new(&pair.a.domain, form, length, false)?;
    let remote = Memory::new(&pair.b.domain, form, length, true)?;
    let receives = Memory::new(&pair.b.domain, form, header + length, false)?;
    let data: Vec<_> = (0..REQUESTS).map(|at| memory::data(at, length)).collect();
    let from_here = !operation.fetches() && operation != CellOperation::Umr;
    for (at, data) in data.iter().enumerate() {
        if from_here { &local } else { &remote }.fill(at, data)?;
    }
    let mut keys: Vec<UmrKey> = Vec::new();
    for at in 0..REQUESTS {
        match operation {
            CellOperation::Umr => keys.push(pair.a.domain.umr_key(REQUESTS as u32, false)?),
            CellOperation::SendInvalidate => {
                let mut key = pair.b.domain.umr_key(REQUESTS as u32, true)?;
                let job = Job { operation: CellOperation::Umr, ..Job::plain(key.renew()) };
                // The key is only invalidated, so it may map any memory.
                let klms = [pair.b.sge(0, 64)?];
                S::post(&mut PostTarget::Single(&mut pair.b.qp.send), &destination, &job, &klms)?;
                pair.b.sent()??;
                keys.push(key);
            }
            // Before the invalidation, a WRITE from the key succeeds.
            CellOperation::LocalInvalidate => {
                let mut key = pair.a.domain.umr_key(REQUESTS as u32, false)?;
                let map = Job { operation: CellOperation::Umr, ..Job::plain(key.renew()) };
                S::post(
                    &mut PostTarget::Single(&mut pair.a.qp.send),
                    &destination,
                    &map,
                    &local.sges(at)?,
                )?;
                pair.a.sent()??;
                let write = Job { remote: remote.remote(at)?, ..Job::plain(key.rkey()) };
                let from = [Sge::new(0, length as u32, key.lkey())];
                S::post(&mut PostTarget::Single(&mut pair.a.qp.send), &destination, &write, &from)?;
                pair.a.sent()??;
                keys.push(key);
            }
            _ => {}
        }
    }
    let rkeys: Vec<Rkey> = match operation {
        CellOperation::Umr => keys.iter_mut().map(UmrKey::renew).collect(),
        _ => keys.iter().map(UmrKey::rkey).collect(),
    };
    let rkey = |at: usize| rkeys.get(at).copied().unwrap_or(Rkey(0));
    if operation.takes_receive() {
        for at in 0..REQUESTS {
            pair.b.receive_into(&receives.sges(at)?[..], 100 + at as u64)?;
        }
    }
    let free = pair.a.qp.send.free();
    let mut poster = match posting {
        Posting::Batch => PostTarget::Batch(pair.a.qp.batch()),
        _ => PostTarget::Single(&mut pair.a.qp.send),
    };
    for (at, data) in data.iter().enumerate() {
        let sges = local.sges(at)?;
        let signaled = posting != Posting::Unsignaled || at == REQUESTS - 1;
        let remote = remote.remote(at)?;
        let job = Job { operation, remote, key: rkey(at), signaled, number: at as u64 };
        if form == Form::Inline {
            S::post_inline(&mut poster, &destination, &job, data)?;
        } else {
            S::post(&mut poster, &destination, &job, &sges)?;
        }
    }
    poster.ring();
    let (sent, received) = operation.completions();
    let first = if posting == Posting::Unsignaled { REQUESTS - 1 } else { 0 };
    for at in first..REQUESTS {
        let done = pair.a.sent()??;
        ensure_eq!((done.cookie, done.operation()), (at as u64, sent), "completion of the request");
        if operation.fetches() {
            ensure_eq!(done.byte_len() as usize, length, "bytes of the completion");
        }
    }
    ensure_eq!(pair.a.qp.send.free(), free, "free WQEBBs after the last completion");
    if operation.takes_receive() {
        for at in 0..REQUESTS {
            let done = pair.b.received()??;
            let expected = (100 + at as u64, received);
            ensure_eq!((done.cookie, done.operation()), expected, "completion of the receive");
            let header = if operation == CellOperation::WriteImm { 0 } else { header };
            ensure_eq!(done.byte_len() as usize, header + length, "bytes received");
            let immediate = operation.has_immediate().then(|| carry::immediate(at as u64));
            ensure_eq!(done.immediate(), immediate, "immediate");
            ensure_eq!(done.invalidated(), rkeys.get(at).copied(), "key that was invalidated");
        }
    }
    for (at, data) in data.iter().enumerate() {
        match operation {
            CellOperation::Send | CellOperation::SendImm | CellOperation::SendInvalidate => {
                receives.holds(at, header, data)?;
            }
            // No completion shows when an unacknowledged WRITE has arrived.
            CellOperation::Write | CellOperation::WriteImm => {
                until("a WRITE", || remote.holds(at, 0, data).ok())?;
                receives.holds(at, 0, &vec![0; header + length])?;
            }
            CellOperation::Read => local.holds(at, 0, data)?,
            CellOperation::CompareSwap | CellOperation::FetchAdd => {
                local.holds(at, 0, data)?;
                let there = carry::after(operation, memory::number(data));
                // Its completion does not promise that the peer's CPU sees the sum.
                until("an atomic", || remote.holds(at, 0, &there.to_ne_bytes()).ok())?;
            }
            // The peer writes through the new key.
            CellOperation::Umr => {
                let there = Job { remote: RemoteAddr::new(0, rkey(at)), ..Job::plain(Rkey(0)) };
                S::post(
                    &mut PostTarget::Single(&mut pair.b.qp.send),
                    &destination,
                    &there,
                    &remote.sges(at)?,
                )?;
                pair.b.sent()??;
                until("a WRITE", || local.holds(at, 0, data).ok())?;
            }
            CellOperation::LocalInvalidate => {
                until("a WRITE", || remote.holds(at, 0, data).ok())?;
                let write = Job { remote: remote.remote(at)?, ..Job::plain(rkey(at)) };
                let from = [Sge::new(0, length as u32, keys[at].lkey())];
                S::post(&mut PostTarget::Single(&mut pair.a.qp.send), &destination, &write, &from)?;
                failed(pair.a.sent()?, WcStatus::LocalProtection)?;
                destination = S::restart(&mut pair)?;
            }
            CellOperation::Nop | CellOperation::EthSend => remote.holds(at, 0, &[])?,
        }
    }
    let no_receive_completed = pair.b.qp.poll(&mut pair.b.receive_cq).is_none();
    ensure!(no_receive_completed, "a receive completed without a send");
    Ok(())
}

#[cfg(test)]
mod tests {
    use verbless_queue::service::SERVICES;

    use super::ROWS;

    #[test]
    fn rows_cover_every_service() {
        assert_eq!(ROWS.each_ref().map(|row| row.service), SERVICES);
    }
}
