//! The jobs of DOCA RDMA, by the rules of the guide's chapter 4.

use verbless_doca::rdma::{Rdma, RdmaOpcode, RdmaState};
use verbless_doca::{AccessFlags, ErrorKind, JobType};

use super::pair::{End, access_flags, connect, connected, ends, works};
use super::rig::{map, refusal, refused_job};
use crate::case::cases;
use crate::need::ATOMICS;
use crate::{Lab, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_rdma",
    "Jobs of DOCA RDMA between two instances.":
    receive_reports_opcode_and_length_of_send,
    empty_messages_need_no_buffers,
    write_and_read_move_bytes,
    write_imm_consumes_receive_but_not_its_buf,
    atomics_return_old_value [ATOMICS],
    chains_are_gathered_and_scattered,
    receive_fills_from_data_start_to_buf_end,
    receive_may_exceed_max_message_size,
    remote_buf_data_length_is_ignored,
    invalid_jobs_are_rejected_without_effect,
    unconnected_instance_accepts_only_receives,
    bidirectional_messages_complete_in_order,
    workq_serves_several_instances,
);

fn receive_reports_opcode_and_length_of_send(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    let job = b.rdma()?.receive(b.room(0, 1000)?).user_data(5);
    b.submit(job)?;
    a.fill(0, &pattern(1, 700))?;
    let job = a.rdma()?.send(a.data(0, 700)?).user_data(6);
    let sent = a.perform(job)?;
    ensure_eq!((sent.user_data.0, sent.job_type), (6, JobType::RdmaSend), "the send");
    ensure_eq!((sent.opcode, sent.immediate), (None, None), "the send");
    ensure!(sent.remote.is_none(), "a send has a buffer of the peer");
    ensure!(sent.local.is_some_and(|buffer| buffer.data_len() == 700), "the send's buffer");
    let came = b.done()?;
    ensure_eq!((came.user_data.0, came.job_type), (5, JobType::RdmaReceive), "the receive");
    ensure_eq!((came.opcode, came.immediate), (Some(RdmaOpcode::RecvSend), None), "the receive");
    let buffer = came.local.ok_or_else(|| Stop::fail("the receive's buffer"))?;
    ensure_eq!(buffer.data_len(), 700, "length of the data");
    ensure!(buffer.to_vec()? == pattern(1, 700), "other bytes arrived");
    let job = b.rdma()?.receive(b.room(0, 64)?);
    b.submit(job)?;
    let job = a.rdma()?.send_imm(a.data(0, 10)?, 0xdead_beef);
    a.perform(job)?;
    let came = b.done()?;
    ensure_eq!(came.opcode, Some(RdmaOpcode::RecvSendWithImm), "opcode");
    ensure_eq!(came.immediate, Some(0xdead_beef), "immediate");
    Ok(())
}

fn empty_messages_need_no_buffers(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    for immediate in [None, Some(7)] {
        let job = b.rdma()?.receive(None);
        b.submit(job)?;
        let job = match immediate {
            None => a.rdma()?.send(None),
            Some(number) => a.rdma()?.send_imm(None, number),
        };
        a.perform(job)?;
        let came = b.done()?;
        ensure!(came.local.is_none() && came.immediate == immediate, "the receive: {came:?}");
    }
    let job = b.rdma()?.receive(None);
    b.submit(job)?;
    let job = a.rdma()?.write_imm(None, None, 9);
    a.perform(job)?;
    let came = b.done()?;
    ensure_eq!(came.opcode, Some(RdmaOpcode::RecvWriteWithImm), "opcode");
    ensure!(came.local.is_none() && came.immediate == Some(9), "the receive: {came:?}");
    let jobs = [a.rdma()?.write(None, None), a.rdma()?.read(None, None)];
    for job in jobs {
        let done = a.perform(job)?;
        ensure!(
            done.local.is_none() && done.remote.is_none(),
            "a job without buffers returned one: {done:?}"
        );
    }
    // Only the target end: the job has no data.
    b.fill(0, &[5; 64])?;
    let jobs = [
        a.rdma()?.write(None, Some(a.remote(0, 64)?)),
        a.rdma()?.read(Some(a.remote(0, 64)?), None),
        a.rdma()?.read(None, a.room(0, 64)?),
    ];
    for job in jobs {
        a.perform(job)?;
    }
    ensure!(b.bytes(0, 64)? == [5; 64], "something was written");
    Ok(())
}

fn write_and_read_move_bytes(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    a.fill(0, &pattern(1, 5000))?;
    let job = a.rdma()?.write(a.data(0, 5000)?, Some(a.remote(100, 5000)?));
    let done = a.perform(job)?;
    ensure!(done.local.is_some() && done.remote.is_some(), "the job returns both buffers");
    b.fill(20_000, &pattern(2, 3000))?;
    let job = a.rdma()?.read(Some(a.remote(20_000, 3000)?), a.data(10_000, 3000)?);
    a.perform(job)?;
    ensure!(b.bytes(100, 5000)? == pattern(1, 5000), "other bytes were written");
    ensure!(a.bytes(10_000, 3000)? == pattern(2, 3000), "other bytes were read");
    let noticed = b.workq.retrieve_within(Some(std::time::Duration::ZERO))?;
    ensure!(noticed.is_none(), "the peer noticed: {noticed:?}");
    works(&mut [a, b])
}

fn write_imm_consumes_receive_but_not_its_buf(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    b.fill(30_000, &[9; 64])?;
    let job = b.rdma()?.receive(b.room(30_000, 64)?);
    b.submit(job)?;
    a.fill(0, &pattern(3, 500))?;
    let job = a.rdma()?.write_imm(a.data(0, 500)?, Some(a.remote(0, 500)?), 0xcafe_f00d);
    a.perform(job)?;
    let came = b.done()?;
    ensure_eq!(came.opcode, Some(RdmaOpcode::RecvWriteWithImm), "opcode");
    ensure_eq!(came.immediate, Some(0xcafe_f00d), "immediate");
    let buffer = came.local.ok_or_else(|| Stop::fail("the receive's buffer"))?;
    ensure_eq!(buffer.data_len(), 0, "data of the receive's buffer");
    ensure!(b.bytes(30_000, 64)? == [9; 64], "the receive's buffer was written");
    ensure!(b.bytes(0, 500)? == pattern(3, 500), "other bytes were written");
    Ok(())
}

fn atomics_return_old_value(lab: &Lab) -> Result<(), Stop> {
    let [mut a, b] = connected(lab)?;
    b.fill(64, &40_u64.to_ne_bytes())?;
    let mut step = |job: &dyn Fn(&Rdma, &End) -> Result<_, Stop>| -> Result<u64, Stop> {
        let job = job(a.rdma()?, &a)?;
        let done = a.perform(job)?;
        let result = done.local.ok_or_else(|| Stop::fail("the result's buffer"))?.to_vec()?;
        Ok(u64::from_ne_bytes(result.try_into().map_err(|_| Stop::fail("8 bytes"))?))
    };
    let word = |end: &End| end.remote(64, 8);
    let result = |end: &End| end.data(128, 8)?.ok_or_else(|| Stop::fail("no buffer"));
    let found = step(&|rdma, end| Ok(rdma.fetch_and_add(word(end)?, result(end)?, 2)))?;
    ensure_eq!(found, 40, "old value of the addition");
    let found = step(&|rdma, end| Ok(rdma.compare_and_swap(word(end)?, result(end)?, 41, 1)))?;
    ensure_eq!(found, 42, "what a swap found that compares with another number");
    let found = step(&|rdma, end| Ok(rdma.compare_and_swap(word(end)?, result(end)?, 42, 7)))?;
    ensure_eq!(found, 42, "old value of the swap");
    ensure!(b.bytes(64, 8)? == 7_u64.to_ne_bytes(), "the word after both swaps");
    Ok(())
}

fn chains_are_gathered_and_scattered(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    let mut both = ends(lab, all, all, |builder| builder.recv_buf_chain_len(3))?;
    connect(&both)?;
    let [a, b] = &mut both;
    /// Three buffers of its own memory, as a chain.
    fn chain(
        end: &End,
        at: u64,
        lengths: [u64; 3],
        full: bool,
    ) -> Result<verbless_doca::Buf, Stop> {
        let mut parts = lengths.iter().enumerate().map(|(number, &length)| {
            let at = at + 2000 * number as u64;
            let part = if full { end.data(at, length)? } else { end.room(at, length)? };
            part.ok_or_else(|| Stop::fail("no buffer"))
        });
        let first = parts.next().ok_or_else(|| Stop::fail("no part"))??;
        parts.try_fold(first, |mut chain, part| {
            chain.link(part?).map_err(|refused| refused.error)?;
            Ok(chain)
        })
    }
    for (number, lengths) in [[100, 200, 300], [1, 1500, 7]].into_iter().enumerate() {
        let message = pattern(number as u8, lengths.iter().sum::<u64>() as usize);
        let (mut at, mut rest) = (0, &message[..]);
        for length in lengths {
            let (here, after) = rest.split_at(length as usize);
            a.fill(at, here)?;
            (at, rest) = (at + 2000, after);
        }
        let job = b.rdma()?.receive(Some(chain(b, 0, [50, 1999, 1000], false)?));
        b.submit(job)?;
        let job = a.rdma()?.send(Some(chain(a, 0, lengths, true)?));
        a.perform(job)?;
        let came = b.done()?.local.ok_or_else(|| Stop::fail("the receive's buffers"))?;
        ensure!(came.chain_to_vec()? == message, "other bytes arrived");
        let job = a.rdma()?.write(
            Some(chain(a, 0, lengths, true)?),
            Some(a.remote(20_000, message.len() as u64)?),
        );
        a.perform(job)?;
        ensure!(b.bytes(20_000, message.len())? == message, "other bytes were written");
        let into = chain(a, 10_000, lengths, true)?;
        let job = a.rdma()?.read(Some(a.remote(20_000, 1)?), Some(into));
        let refused = refused_job(a.workq.submit(job))?;
        ensure_eq!(refused.0, ErrorKind::InvalidValue, "a read past the peer's buffer");
        let (into, _) = refused.1.into_bufs();
        let job = a.rdma()?.read(Some(a.remote(20_000, message.len() as u64)?), into);
        let read = a.perform(job)?.local.ok_or_else(|| Stop::fail("the read's buffers"))?;
        ensure!(read.chain_to_vec()? == message, "other bytes were read");
    }
    Ok(())
}

fn receive_fills_from_data_start_to_buf_end(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    let mut room = b.data(1000, 200)?.ok_or_else(|| Stop::fail("no buffer"))?;
    // 50 bytes of headroom, 20 of data: 150 count.
    room.set_data(b.map.address() + 1050, 20)?;
    let job = b.rdma()?.receive(Some(room));
    b.submit(job)?;
    a.fill(0, &pattern(4, 150))?;
    let job = a.rdma()?.send(a.data(0, 150)?);
    a.perform(job)?;
    let came = b.done()?.local.ok_or_else(|| Stop::fail("the receive's buffer"))?;
    ensure_eq!(
        (came.data(), came.data_len()),
        (b.map.address() + 1050, 150),
        "the data of the receive's buffer"
    );
    ensure!(came.to_vec()? == pattern(4, 150), "other bytes arrived");
    Ok(())
}

fn receive_may_exceed_max_message_size(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    let dev = super::rig::open(lab, lab.other_info())?;
    let longest = Rdma::max_message_size(&dev)?.min(2 << 30);
    let count = Rdma::max_recv_buf_chain_len(&dev)?;
    let mut both = ends(lab, all, all, |builder| builder.recv_buf_chain_len(count))?;
    connect(&both)?;
    let [a, b] = &mut both;
    // The same memory many times.
    let length = longest / u64::from(count) + 1;
    let memory = map(&b.dev, length as usize, AccessFlags::LOCAL_READ_WRITE)?;
    let piece = || b.inventory.buf_by_addr(&memory, memory.address(), length);
    let mut room = piece()?;
    for _ in 1..count {
        room.link(piece()?).map_err(|refused| refused.error)?;
    }
    let job = b.rdma()?.receive(Some(room));
    b.submit(job)?;
    a.fill(0, &pattern(4, 700))?;
    let job = a.rdma()?.send(a.data(0, 700)?);
    a.perform(job)?;
    let room = b.done()?.local.ok_or_else(|| Stop::fail("the receive's buffers"))?;
    ensure_eq!(room.chain_len(), count as usize, "buffers");
    ensure!(room.chain_to_vec()? == pattern(4, 700), "other bytes arrived");
    Ok(())
}

fn remote_buf_data_length_is_ignored(lab: &Lab) -> Result<(), Stop> {
    let [mut a, b] = connected(lab)?;
    a.fill(0, &pattern(1, 100))?;
    for length in [0, 1, 100, 200] {
        b.fill(500, &[0; 100])?;
        let mut to = a.remote(500, 200)?;
        to.set_data(a.there.address() + 500, length)?;
        let job = a.rdma()?.write(a.data(0, 100)?, Some(to));
        a.perform(job)?;
        ensure!(
            b.bytes(500, 100)? == pattern(1, 100),
            "bytes written to a buffer with {length} bytes of data"
        );
        let mut from = a.remote(500, 200)?;
        from.set_data(a.there.address() + 500, length)?;
        a.fill(1000, &[0; 100])?;
        let job = a.rdma()?.read(Some(from), a.data(1000, 100)?);
        let read = a.perform(job)?.local.ok_or_else(|| Stop::fail("the read's buffer"))?;
        ensure_eq!(read.data_len(), 100, "data of the read's buffer");
        ensure!(
            a.bytes(1000, 100)? == pattern(1, 100),
            "bytes read from a buffer with {length} bytes of data"
        );
    }
    Ok(())
}

fn invalid_jobs_are_rejected_without_effect(lab: &Lab) -> Result<(), Stop> {
    let [mut a, b] = connected(lab)?;
    let mut chained = a.remote(0, 10)?;
    chained.link(a.remote(100, 10)?).map_err(|refused| refused.error)?;
    let buffer = |buffer: Option<verbless_doca::Buf>| buffer.ok_or_else(|| Stop::fail("no buffer"));
    let referenced = a.data(0, 10)?;
    let _more = referenced.as_ref().map(|buffer| buffer.add_ref()).transpose()?;
    let chain_of = |first: Option<verbless_doca::Buf>, second: Option<verbless_doca::Buf>| {
        let (mut first, second) = (buffer(first)?, buffer(second)?);
        first.link(second).map_err(|refused| refused.error)?;
        Ok::<_, Stop>(first)
    };
    let result = chain_of(a.data(0, 4)?, a.data(4, 4)?)?;
    let words = chain_of(Some(a.remote(0, 8)?), Some(a.remote(8, 8)?))?;
    let source = chain_of(Some(a.remote(0, 8)?), Some(a.remote(8, 8)?))?;
    let rdma = a.rdma()?;
    let (invalid, denied) = (ErrorKind::InvalidValue, ErrorKind::NotPermitted);
    let jobs = [
        ("a read without a source", rdma.read(None, a.data(0, 10)?), invalid),
        ("a write without a destination", rdma.write(a.data(0, 10)?, None), invalid),
        ("a chain at the peer", rdma.write(a.data(0, 10)?, Some(chained)), invalid),
        ("a chain at the peer to read from", rdma.read(Some(source), a.data(0, 10)?), invalid),
        ("a chain as an atomic's result", rdma.fetch_and_add(a.remote(0, 8)?, result, 1), invalid),
        (
            "a chain as an atomic's destination",
            rdma.compare_and_swap(words, buffer(a.data(0, 8)?)?, 1, 2),
            invalid,
        ),
        ("a peer's buffer too short", rdma.write(a.data(0, 11)?, Some(a.remote(0, 10)?)), invalid),
        ("a buffer with references", rdma.send(referenced), invalid),
        ("a send of the peer's memory", rdma.send(Some(a.remote(0, 8)?)), denied),
        ("a write to the own memory", rdma.write(a.data(0, 8)?, a.data(100, 8)?), denied),
        (
            "an atomic's result of 4 bytes",
            rdma.fetch_and_add(a.remote(0, 8)?, buffer(a.data(0, 4)?)?, 1),
            invalid,
        ),
        (
            "an atomic at an odd address",
            rdma.fetch_and_add(a.remote(4, 8)?, buffer(a.data(0, 8)?)?, 1),
            invalid,
        ),
    ];
    for (what, job, expected) in jobs {
        let (kind, _job) = refused_job(a.workq.submit(job))?;
        ensure_eq!(kind, expected, what);
    }
    ensure_eq!(a.rdma()?.state(), RdmaState::Connected, "state");
    works(&mut [a, b])
}

fn unconnected_instance_accepts_only_receives(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    let mut both = ends(lab, all, all, |builder| builder)?;
    let [a, b] = &mut both;
    ensure_eq!(a.rdma()?.state(), RdmaState::Init, "state");
    let job = b.rdma()?.receive(b.room(0, 100)?).user_data(1);
    b.submit(job)?;
    let job = a.rdma()?.send(a.data(0, 100)?);
    let (kind, job) = refused_job(a.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::NotConnected, "a send");
    a.fill(0, &pattern(1, 100))?;
    connect(&both)?;
    let [a, b] = &mut both;
    ensure_eq!(a.rdma()?.state(), RdmaState::Connected, "state");
    a.perform(job)?;
    let came = b.done()?;
    ensure_eq!(came.user_data.0, 1, "the receive from before");
    ensure!(b.bytes(0, 100)? == pattern(1, 100), "other bytes arrived");
    Ok(())
}

fn bidirectional_messages_complete_in_order(lab: &Lab) -> Result<(), Stop> {
    const MESSAGES: u64 = 25;
    let mut both = connected(lab)?;
    for end in &mut both {
        for number in 0..MESSAGES {
            let job = end.rdma()?.receive(end.room(number * 256, 256)?).user_data(number);
            end.submit(job)?;
        }
    }
    for (side, end) in both.iter_mut().enumerate() {
        for number in 0..MESSAGES {
            let (at, bytes) =
                (30_000 + number * 256, pattern(number as u8 + 100 * side as u8, 256));
            end.fill(at as usize, &bytes)?;
            let job = end.rdma()?.send_imm(end.data(at, 256)?, number as u32);
            end.submit(job.user_data(1000 + number))?;
        }
    }
    for (side, end) in both.iter_mut().enumerate() {
        let (mut sent, mut came) = (1000, 0);
        for _ in 0..2 * MESSAGES {
            let done = end.done()?;
            match done.job_type {
                JobType::RdmaReceive => {
                    ensure_eq!(done.user_data.0, came, "receives end in their order");
                    ensure_eq!(done.immediate, Some(came as u32), "immediate");
                    let expected = pattern(came as u8 + 100 * (1 - side as u8), 256);
                    let room = done.local.ok_or_else(|| Stop::fail("no buffer"))?;
                    ensure!(room.to_vec()? == expected, "other bytes in message {came}");
                    came += 1;
                }
                _ => {
                    ensure_eq!(done.user_data.0, sent, "sends end in their order");
                    sent += 1;
                }
            }
        }
    }
    Ok(())
}

fn workq_serves_several_instances(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    let permissions = AccessFlags::RDMA_READ;
    let mut others = Vec::new();
    for number in 0..4_u64 {
        let start = |end: &End| {
            let builder = Rdma::builder(&end.dev).permissions(permissions);
            builder.start().map_err(|refused| refused.error)
        };
        let (here, there) = (start(&a)?, start(&b)?);
        a.workq.add(&here)?;
        ensure_eq!(refusal(b.workq.add(&here))?, ErrorKind::InUse, "a second work queue");
        here.connect(there.export()?)?;
        there.connect(here.export()?)?;
        let room = a.room(number * 512, 512)?;
        super::rig::submit(&mut a.workq, here.receive(room).user_data(number))?;
        let mut workq = verbless_doca::WorkQ::new(4)?;
        workq.add(&there)?;
        others.push((here, there, workq));
    }
    for (number, (_, there, workq)) in others.iter_mut().enumerate().rev() {
        b.fill(0, &[number as u8; 512])?;
        super::rig::submit(workq, there.send(b.data(0, 512)?))?;
        super::rig::event(workq)?;
        let came = a.done()?;
        ensure_eq!(came.user_data.0, number as u64, "whose receive it is");
        ensure!(a.bytes(number * 512, 512)? == [number as u8; 512], "other bytes arrived");
    }
    Ok(())
}
