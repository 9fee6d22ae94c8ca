//! The matrix: every service with every operation that it carries, every form of payload, lengths
//! from nothing to several packets, and each way to post. What a cell proves is the same for all
//! of them ([`run`]). A new service is a line here; a new operation says here which forms of
//! payload and lengths it has, and in [`carry`] how it is posted and what the peer must see.

mod carry;
mod frame;
mod memory;

use verbless_queue::service::{Eth, Service as _, ServiceInfo};
use verbless_queue::wr::{Class, OPERATIONS, OperationInfo, Unsupported};
use verbless_queue::{Domain, QpConfig, Rc, RemoteAddr, Rkey, Sge, Status, Uc, Ud, UmrKey};

use crate::case::Entry;
use crate::need::{ATOMICS, cap};
use crate::{Case, Group, Lab, Need, Pair, Stop, ensure, ensure_eq, failed, until};
use carry::{Carry, Job, Poster};
use memory::Memory;

pub(crate) static GROUP: Group = Group {
    name: "matrix",
    holds: "Service by operation by payload by length by way of posting: what is sent arrives \
        whole, is reported as it was asked for, and nothing beside it changes.",
    needs: &[],
    entries: &[Entry {
        name: "what_a_service_does_not_carry_is_refused_by_its_name_and_the_rest_has_a_row",
        needs: &[ATOMICS, UMR],
        run: refused_by_name,
    }],
    generated: cases,
};

/// Need of UMR.
const UMR: Need = cap!(!umr_indirect_mkey_disabled);

/// A transport service in the matrix; [`Carry`] is what else one of queue pairs says of itself,
/// and [`frame`] how frames are sent.
struct Row {
    service: ServiceInfo,
    /// Needs of a cell.
    needs: &'static [Need],
    /// Operations of the service.
    operations: &'static [Operation],
    /// The lengths that it is tried with.
    lengths: &'static [usize],
    run: fn(&Lab, &Cell) -> Result<(), Stop>,
    /// The entry of the request that an operation is posted as.
    info: fn(Operation) -> OperationInfo,
    supports: fn(&Domain, &OperationInfo) -> Result<(), Unsupported>,
}

impl Row {
    const fn of<S: Carry>(operations: &'static [Operation], lengths: &'static [usize]) -> Self {
        let (run, info, supports) = (run::<S>, S::info, Domain::supports::<S>);
        Self { service: S::INFO, needs: S::NEEDS, operations, lengths, run, info, supports }
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
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
    Frame,
    Nop,
}

/// The placement of a message's bytes, at both ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// In the WQE, as the header of a frame always is; at the other end in one piece.
    Inline,
    /// In one piece of a region.
    OneSge,
    /// In three pieces of a region, in no order.
    ThreeSges,
    /// In two pieces of a region behind an indirect key.
    IndirectKey,
}

/// How three requests are posted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Posting {
    /// One after the other, each with a completion.
    Signaled,
    /// One after the other, only the last with a completion.
    Unsignaled,
    /// With one doorbell, each with a completion.
    Batch,
}

/// A cell of the matrix.
#[derive(Clone, Copy)]
struct Cell {
    row: &'static Row,
    operation: Operation,
    form: Form,
    length: usize,
    posting: Posting,
}

/// Requests of a cell.
const REQUESTS: usize = 3;
/// The longest message of the matrix: several packets of whatever path MTU.
const LONGEST: usize = 10_007;
/// The longest that every send queue of the matrix takes inline.
const INLINE: usize = 200;

/// Every service with what it carries. No packet of UC has an opcode for a SEND with invalidate
/// (InfiniBand specification, volume 1, 9.2.1), though libmlx5 takes such requests.
static ROWS: [Row; 4] = {
    use Operation::{
        CompareSwap, FetchAdd, Frame, LocalInvalidate, Nop, Read, Send, SendImm, SendInvalidate,
        Umr, Write, WriteImm,
    };
    const LENGTHS: &[usize] = &[0, 1, 64, INLINE, 4096, LONGEST];
    const ALL: &[Operation] = &[
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
        Row::of::<Rc>(ALL, LENGTHS),
        Row::of::<Uc>(&[Send, SendImm, Write, WriteImm, Umr, LocalInvalidate, Nop], LENGTHS),
        // One packet of any path MTU of RoCE, 1024 bytes on an Ethernet port of 1500.
        Row::of::<Ud>(&[Send, SendImm, Nop], &[0, 1, 64, INLINE, 1000]),
        // From the shortest frame to the longest of an MTU of 1500.
        Row {
            service: Eth::INFO,
            needs: super::frames::GROUP.needs,
            operations: &[Frame, Nop],
            lengths: &[0, 60, 64, INLINE, 1000, 1514],
            run: frame::run,
            info: frame::info,
            supports: Domain::supports::<Eth>,
        },
    ]
};

impl Operation {
    /// The forms that its payload may have.
    fn forms(self) -> &'static [Form] {
        match self {
            Self::Nop => &[Form::Inline],
            Self::LocalInvalidate => &[Form::OneSge],
            Self::CompareSwap | Self::FetchAdd => &[Form::OneSge, Form::IndirectKey],
            // The SGEs of an UMR are its KLMs.
            Self::Read | Self::Umr => &[Form::OneSge, Form::ThreeSges, Form::IndirectKey],
            _ => &[Form::Inline, Form::OneSge, Form::ThreeSges, Form::IndirectKey],
        }
    }

    /// Whether a message of this length is possible in a form.
    fn fits(self, form: Form, length: usize) -> bool {
        match self {
            Self::Nop => length == 0,
            Self::CompareSwap | Self::FetchAdd => length == 8,
            // A KLM of no bytes is one of 2 GiB.
            Self::Umr => length >= REQUESTS,
            // The bytes behind the key.
            Self::LocalInvalidate => length == 64,
            Self::Frame => length > 0 && (form != Form::Inline || length <= INLINE),
            _ => form != Form::Inline || length <= INLINE,
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether the operation consumes a receive of the peer.
    fn takes_receive(self) -> bool {
        use Operation::{Frame, Send, SendImm, SendInvalidate, WriteImm};
        matches!(self, Send | SendImm | SendInvalidate | WriteImm | Frame)
    }

    /// Whether the operation brings bytes of the peer here.
    fn fetches(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    /// Whether the operation has immediate data.
    fn has_immediate(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// The operations that completions report at the sender and at the receiver.
    fn completions(self) -> (verbless_queue::Operation, verbless_queue::Operation) {
        use verbless_queue::Operation as Done;
        match self {
            Self::Send | Self::Frame => (Done::Send, Done::Receive),
            Self::SendImm => (Done::SendImm, Done::ReceiveImm),
            Self::SendInvalidate => (Done::SendInvalidate, Done::ReceiveInvalidate),
            Self::Write => (Done::Write, Done::Receive),
            Self::WriteImm => (Done::WriteImm, Done::ReceiveWriteImm),
            Self::Read => (Done::Read, Done::Receive),
            Self::CompareSwap => (Done::CompareSwap, Done::Receive),
            Self::FetchAdd => (Done::FetchAdd, Done::Receive),
            Self::Umr | Self::LocalInvalidate => (Done::Umr, Done::Receive),
            Self::Nop => (Done::Nop, Done::Receive),
        }
    }
}

impl Cell {
    fn name(&self) -> String {
        let service = self.row.service.name.to_lowercase();
        let operation = match self.operation {
            Operation::Send => "send",
            Operation::SendImm => "send_with_immediate",
            Operation::SendInvalidate => "send_with_invalidate",
            Operation::Write => "write",
            Operation::WriteImm => "write_with_immediate",
            Operation::Read => "read",
            Operation::CompareSwap => "compare_and_swap",
            Operation::FetchAdd => "fetch_and_add",
            Operation::Umr => "umr",
            Operation::LocalInvalidate => "local_invalidate",
            Operation::Frame => "frame",
            Operation::Nop => "nop",
        };
        let form = match self.form {
            _ if self.operation == Operation::Nop => "",
            Form::Inline => "_inline",
            Form::OneSge => "_by_one_sge",
            Form::ThreeSges => "_by_three_sges",
            Form::IndirectKey => "_by_an_indirect_key",
        };
        let posting = match self.posting {
            Posting::Signaled => "signaled_each",
            Posting::Unsignaled => "signaled_at_the_end",
            Posting::Batch => "in_a_batch",
        };
        let length = match self.operation {
            Operation::Nop => String::new(),
            _ => format!("_of_{}_bytes", self.length),
        };
        format!("{service}_{operation}{length}{form}_{posting}")
    }

    fn needs(&self) -> Vec<Need> {
        let more: &[Need] = match self.operation {
            Operation::CompareSwap | Operation::FetchAdd => &[ATOMICS],
            Operation::SendInvalidate | Operation::Umr | Operation::LocalInvalidate => &[UMR],
            _ => &[],
        };
        [self.row.needs, more].concat()
    }
}

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

/// Asks of each service whether it takes each operation that there is a request of: what has a
/// row, and no more. An operation without a row is one that the matrix never posts.
fn refused_by_name(lab: &Lab) -> Result<(), Stop> {
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

/// The operations that have rows here: those on memory of the device alone are the groups
/// `copy` and `wait`.
fn messages() -> impl Iterator<Item = &'static OperationInfo> {
    const ELSEWHERE: [Class; 2] = [Class::MemoryCopy, Class::Wait];
    OPERATIONS.iter().filter(|info| !ELSEWHERE.contains(&info.class))
}

/// Posts the requests of a cell, and looks at every completion and every byte at both ends.
fn run<S: Carry>(lab: &Lab, cell: &Cell) -> Result<(), Stop> {
    let Cell { operation, form, length, posting, .. } = *cell;
    let config = QpConfig {
        send_sges: 3,
        receive_sges: 3,
        inline: INLINE as u32,
        ..QpConfig::new(REQUESTS as u32, REQUESTS as u32)
    };
    let mut pair = Pair::unconnected_of(lab, &config, 64)?;
    let mut way = S::connect(&mut pair)?;
    let header = S::HEADER;
    // What is sent from here and arrives there; and memory that the peer posts for receives.
    let local = Memory::new(&pair.a.domain, form, length, false)?;
    let remote = Memory::new(&pair.b.domain, form, length, true)?;
    let receives = Memory::new(&pair.b.domain, form, header + length, false)?;
    let data: Vec<_> = (0..REQUESTS).map(|at| memory::data(at, length)).collect();
    let from_here = !operation.fetches() && operation != Operation::Umr;
    for (at, data) in data.iter().enumerate() {
        if from_here { &local } else { &remote }.fill(at, data)?;
    }
    let mut keys: Vec<UmrKey> = Vec::new();
    for at in 0..REQUESTS {
        match operation {
            Operation::Umr => keys.push(pair.a.domain.umr_key(REQUESTS as u32, false)?),
            Operation::SendInvalidate => {
                let mut key = pair.b.domain.umr_key(REQUESTS as u32, true)?;
                let job = Job { operation: Operation::Umr, ..Job::plain(key.renew()) };
                S::post(&mut Poster::Single(&mut pair.b.qp.send), &way, &job, &remote.sges(at)?)?;
                pair.b.sent()??;
                keys.push(key);
            }
            // What stays open until it is invalidated: a WRITE out of the key.
            Operation::LocalInvalidate => {
                let mut key = pair.a.domain.umr_key(REQUESTS as u32, false)?;
                let map = Job { operation: Operation::Umr, ..Job::plain(key.renew()) };
                S::post(&mut Poster::Single(&mut pair.a.qp.send), &way, &map, &local.sges(at)?)?;
                pair.a.sent()??;
                let write = Job { remote: remote.remote(at)?, ..Job::plain(key.rkey()) };
                let from = [Sge::new(0, length as u32, key.lkey())];
                S::post(&mut Poster::Single(&mut pair.a.qp.send), &way, &write, &from)?;
                pair.a.sent()??;
                keys.push(key);
            }
            _ => {}
        }
    }
    let names: Vec<Rkey> = match operation {
        Operation::Umr => keys.iter_mut().map(UmrKey::renew).collect(),
        _ => keys.iter().map(UmrKey::rkey).collect(),
    };
    let name = |at: usize| names.get(at).copied().unwrap_or(Rkey(0));
    if operation.takes_receive() {
        for at in 0..REQUESTS {
            pair.b.receive_into(&receives.sges(at)?[..], 100 + at as u64)?;
        }
    }
    let free = pair.a.qp.send.free();
    let mut poster = match posting {
        Posting::Batch => Poster::Batch(pair.a.qp.batch()),
        _ => Poster::Single(&mut pair.a.qp.send),
    };
    for (at, data) in data.iter().enumerate() {
        let sges = local.sges(at)?;
        let signaled = posting != Posting::Unsignaled || at == REQUESTS - 1;
        let remote = remote.remote(at)?;
        let job = Job { operation, remote, key: name(at), signaled, number: at as u64 };
        if form == Form::Inline {
            S::post_inline(&mut poster, &way, &job, data)?;
        } else {
            S::post(&mut poster, &way, &job, &sges)?;
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
            let header = if operation == Operation::WriteImm { 0 } else { header };
            ensure_eq!(done.byte_len() as usize, header + length, "bytes received");
            let immediate = operation.has_immediate().then(|| carry::immediate(at as u64));
            ensure_eq!(done.immediate(), immediate, "immediate");
            ensure_eq!(done.invalidated(), names.get(at).copied(), "key that was invalidated");
        }
    }
    for (at, data) in data.iter().enumerate() {
        match operation {
            Operation::Send | Operation::SendImm | Operation::SendInvalidate => {
                receives.holds(at, header, data)?;
            }
            // Nobody says when a WRITE has arrived that is not acknowledged.
            Operation::Write | Operation::WriteImm => {
                until("a WRITE", || remote.holds(at, 0, data).ok())?;
                receives.holds(at, 0, &vec![0; header + length])?;
            }
            Operation::Read => local.holds(at, 0, data)?,
            Operation::CompareSwap | Operation::FetchAdd => {
                local.holds(at, 0, data)?;
                let there = carry::after(operation, memory::number(data));
                remote.holds(at, 0, &there.to_ne_bytes())?;
            }
            // The key is one range over its KLMs: the peer writes through it.
            Operation::Umr => {
                let there = Job { remote: RemoteAddr::new(0, name(at)), ..Job::plain(Rkey(0)) };
                S::post(&mut Poster::Single(&mut pair.b.qp.send), &way, &there, &remote.sges(at)?)?;
                pair.b.sent()??;
                until("a WRITE", || local.holds(at, 0, data).ok())?;
            }
            Operation::LocalInvalidate => {
                until("a WRITE", || remote.holds(at, 0, data).ok())?;
                let write = Job { remote: remote.remote(at)?, ..Job::plain(name(at)) };
                let from = [Sge::new(0, length as u32, keys[at].lkey())];
                S::post(&mut Poster::Single(&mut pair.a.qp.send), &way, &write, &from)?;
                failed(pair.a.sent()?, Status::LocalProtection)?;
                way = S::restart(&mut pair)?;
            }
            Operation::Nop | Operation::Frame => remote.holds(at, 0, &[])?,
        }
    }
    let no_receive_completed = pair.b.qp.poll(&mut pair.b.receive_cq).is_none();
    ensure!(no_receive_completed, "a receive completed that nobody sent to");
    Ok(())
}

#[cfg(test)]
mod tests {
    use verbless_queue::service::SERVICES;

    use super::ROWS;

    #[test]
    fn every_service_that_there_are_queues_of_has_a_row() {
        assert_eq!(ROWS.each_ref().map(|row| row.service), SERVICES);
    }
}
