//! RDMA from the DPA: an event handler receives messages of a host peer and posts an RDMA write to
//! the peer's memory for each.
//!
//! `cargo xtask dpa examples` builds and runs it; by hand `rdma target/dpa/rdma.elf`.

mod support;

use std::process::ExitCode;
use std::time::Duration;

use support::{Result, expect};
use verbless::Device;
use verbless_command::KeyAccess;
use verbless_flexio::{
    App, CqElement, DpaCq, DpaCqConfig, DpaQp, DpaQpConfig, EventHandler, EventHandlerConfig,
    Handler, Mkey, MkeyConfig, Outbox, OutboxConfig, Process, ProcessConfig, QpReceive,
};
use verbless_flexio_dev::Segment;
use verbless_queue::wr::Send;
use verbless_queue::{ConnectOptions, CqConfig, QpConfig, WcOpcode};

/// log2 of the maximum number of messages in flight.
const LOG_DEPTH: u8 = 3;
const DEPTH: usize = 1 << LOG_DEPTH;
const MESSAGES: usize = 200;
const BYTES: usize = 256;

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    support::main(run)
}

/// Message `n`.
fn message(n: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (n * 31 + at * 7 + at / 100) as u8).collect()
}

fn run(device: &Device, app: &App) -> Result {
    let process = Process::create(device, app, &ProcessConfig::default())?;
    let config = EventHandlerConfig {
        outbox: Some(Outbox::create(&process, &OutboxConfig::default())?),
        ..EventHandlerConfig::new(Handler::named("answers"))
    };
    let handler = EventHandler::create(&process, &config)?;
    let cq =
        DpaCq::create(&process, &DpaCqConfig::new(LOG_DEPTH, CqElement::Thread(handler.clone())))?;
    // Only failed writes make CQEs, which no code polls.
    let mut errors = DpaCqConfig::new(LOG_DEPTH, CqElement::NonDpa { vector: 0 });
    errors.overrun_ignore = true;
    let errors = DpaCq::create(&process, &errors)?;
    let mut config = DpaQpConfig::rc(&errors, &cq, LOG_DEPTH);
    config.receive = QpReceive::Regular { log_depth: LOG_DEPTH };
    let mut qp = DpaQp::create(&process, &config)?;

    // The peer: a queue pair of the host, and memory that the program may write.
    let domain = process.domain();
    let queues = QpConfig::new(DEPTH as u32, DEPTH as u32);
    let mut host_cq =
        domain.completion_queue(&CqConfig::new(queues.cqes::<verbless_queue::Rc>()))?;
    let mut host = domain.queue_pair(&queues, &host_cq, &host_cq)?;
    let requests = domain.region(DEPTH * BYTES, KeyAccess::LOCAL)?;
    let replies = domain.region(DEPTH * BYTES, KeyAccess::ALL)?;
    let options = ConnectOptions::default();
    let address = domain.address(&host, &options)?;
    domain.connect(&mut host, &qp.address(&options)?, &options)?;
    qp.connect(&address, &options)?;

    // Messages arrive in the first half of the program's memory, and answers are built in the
    // second half.
    let memory = process.alloc(2 * (DEPTH * BYTES) as u64)?;
    let key = Mkey::create(&memory, &MkeyConfig::new(KeyAccess::LOCAL))?;
    for slot in 0..DEPTH as u64 {
        let into = memory.address() + slot * BYTES as u64;
        let segment = Segment::data(BYTES as u32, key.id().0, into);
        process.write(qp.rq_ring_address() + 16 * slot, segment.as_bytes())?;
    }
    process.write(qp.record_address(), &(DEPTH as u32).to_be_bytes())?;
    let to = replies.remote(0, DEPTH * BYTES)?;
    let addresses = [
        cq.ring_address(),
        cq.record_address(),
        qp.sq_ring_address(),
        qp.record_address(),
        memory.address(),
        memory.address() + (DEPTH * BYTES) as u64,
        to.address,
    ];
    let numbers = [
        cq.number().0,
        qp.number().0,
        key.id().0,
        to.rkey.0,
        LOG_DEPTH.into(),
        BYTES as u32,
        0, // CQEs consumed,
        0, // and WQEs posted.
    ];
    let setup: Vec<u8> = addresses
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .chain(numbers.iter().flat_map(|number| number.to_le_bytes()))
        .collect();
    let setup = process.alloc_from(&setup)?;
    handler.run(setup.address())?;

    // The immediate data of an answer is its slot. Each answer consumes a receive.
    for _ in 0..DEPTH {
        host.post_receive(replies.sge(0, BYTES)?, 0)?;
    }
    let (mut sent, mut answered) = (0, 0);
    while answered < MESSAGES {
        while sent < MESSAGES && sent < answered + DEPTH {
            let at = sent % DEPTH * BYTES;
            requests.write_at(at, &message(sent))?;
            host.post(&Send::new(requests.sge(at, BYTES)?).signaled(), 1)?;
            sent += 1;
        }
        let cqe = host_cq.poll_within(TIMEOUT)?.ok_or("no completion came")?;
        let done = host.complete(cqe)?;
        if done.operation() != WcOpcode::ReceiveWriteImm {
            continue;
        }
        let slot = answered % DEPTH;
        expect("the slot of an answer", done.immediate(), Some(slot as u32))?;
        let mut reply = vec![0; BYTES];
        replies.read_at(slot * BYTES, &mut reply)?;
        let expected: Vec<u8> = message(answered).iter().map(|byte| !byte).collect();
        expect("an answer", reply, expected)?;
        host.post_receive(replies.sge(0, BYTES)?, 0)?;
        answered += 1;
    }
    expect("whether the process runs", process.status()?.status.runs(), true)?;
    println!(
        "the program answered {MESSAGES} messages of {BYTES} bytes by RDMA writes, in {} runs",
        handler.query()?.runs
    );
    Ok(())
}
