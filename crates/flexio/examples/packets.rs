//! A packet processor: another function sends frames to a receive queue of the DPA, whose event
//! handler swaps their addresses and sends them back.
//!
//! `cargo xtask dpa examples` builds and runs it; by hand `packets target/dpa/packets.elf`, or with
//! the names of two devices on one Ethernet.

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::{Result, expect};
use verbless::Device;
use verbless_command::{FlowAttr, KeyAccess};
use verbless_flexio::{
    App, CqElement, DpaCq, DpaCqConfig, DpaRq, DpaRqConfig, DpaSq, DpaSqConfig, EventHandler,
    EventHandlerConfig, Handler, Mkey, MkeyConfig, Outbox, OutboxConfig, Process, ProcessConfig,
};
use verbless_flexio_dev::Segment;
use verbless_queue::wr::EthSend;
use verbless_queue::{CqConfig, Domain, RqConfig, SqConfig};

/// An EtherType for experiments.
const ETHERTYPE: u16 = 0x88b5;
const LOG_DEPTH: u8 = 4;
const DEPTH: usize = 1 << LOG_DEPTH;
const FRAMES: usize = 200;
/// Bytes of a frame buffer.
const BYTES: usize = 2048;

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    support::main_of_two(run)
}

fn mac(device: &Device) -> Result<[u8; 6]> {
    let context = device.query_nic_vport_context()?;
    let address = context.permanent_address();
    let [_, _, high @ ..] = u32::from(address.mac_addr_47_32()).to_be_bytes();
    let [a, b, c, d] = address.mac_addr_31_0().to_be_bytes();
    Ok([high[0], high[1], a, b, c, d])
}

/// Frame `n` from one MAC address to another, of 60 to 1514 bytes.
fn frame(n: usize, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let length = 60 + n * 97 % 1455;
    let payload = (0..length - 14).map(|at| (n * 13 + at * 5 + at / 256) as u8);
    to.into_iter().chain(from).chain(ETHERTYPE.to_be_bytes()).chain(payload).collect()
}

fn run(device: &Device, other: &Device, app: &App) -> Result {
    let process = Process::create(device, app, &ProcessConfig::default())?;
    let config = EventHandlerConfig {
        outbox: Some(Outbox::create(&process, &OutboxConfig::default())?),
        ..EventHandlerConfig::new(Handler::named("reflects"))
    };
    let handler = EventHandler::create(&process, &config)?;
    let cq =
        DpaCq::create(&process, &DpaCqConfig::new(LOG_DEPTH, CqElement::Thread(handler.clone())))?;
    // The program polls this CQ.
    let sent_cq = DpaCqConfig::new(LOG_DEPTH, CqElement::NonDpa { vector: 0 });
    let sent_cq = DpaCq::create(&process, &sent_cq)?;
    let rq = DpaRq::create(&process, &cq, &DpaRqConfig::new(LOG_DEPTH))?;
    let sq = DpaSq::create(&process, &sent_cq, &DpaSqConfig::new(LOG_DEPTH))?;
    expect("bytes that the device wants inline", sq.inline_bytes(), 0)?;

    // Frames arrive in the first half of the program's memory and are sent from the second half.
    let memory = process.alloc((2 * DEPTH * BYTES) as u64)?;
    let key = Mkey::create(&memory, &MkeyConfig::new(KeyAccess::LOCAL))?;
    for slot in 0..DEPTH as u64 {
        let segment =
            Segment::data(BYTES as u32, key.id().0, memory.address() + slot * BYTES as u64);
        process.write(rq.ring_address() + 16 * slot, segment.as_bytes())?;
    }
    process.write(rq.record_address(), &(DEPTH as u32).to_be_bytes())?;
    let addresses = [
        cq.ring_address(),
        cq.record_address(),
        rq.record_address(),
        sq.record_address(),
        sq.ring_address(),
        memory.address(),
        memory.address() + (DEPTH * BYTES) as u64,
        sent_cq.ring_address(),
        sent_cq.record_address(),
    ];
    let numbers =
        [cq.number().0, sq.number().0, key.id().0, LOG_DEPTH.into(), BYTES as u32, 0, 0, 0];
    let setup: Vec<u8> = addresses
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .chain(numbers.iter().flat_map(|number| number.to_le_bytes()))
        .collect();
    let setup = process.alloc_from(&setup)?;
    handler.run(setup.address())?;
    let (here, there) = (mac(device)?, mac(other)?);
    let frames = FlowAttr::to(here).ethertype(ETHERTYPE);
    let rule = process.domain().steer(&frames, rq.tir())?;

    // The other function: it sends frames and receives the returned ones.
    let domain = Domain::new(other)?;
    let mut send_cq = domain.completion_queue(&CqConfig::new(64))?;
    let mut receive_cq = domain.completion_queue(&CqConfig::new(64))?;
    let mut sender = domain.sq(&SqConfig::new(64), &send_cq)?;
    let mut receiver = domain.rq(&RqConfig::new(DEPTH as u32), &receive_cq)?;
    let _back = receiver.steer(&FlowAttr::to(there).ethertype(ETHERTYPE))?;
    let region = domain.region(DEPTH * BYTES, KeyAccess::LOCAL)?;
    for slot in 0..DEPTH {
        receiver.post(region.sge(slot * BYTES, BYTES)?, slot as u64)?;
    }
    let source = domain.region(DEPTH * BYTES, KeyAccess::LOCAL)?;
    let (mut sent, mut returned) = (0, 0);
    while returned < FRAMES {
        while sent < FRAMES && sent < returned + DEPTH {
            let bytes = frame(sent, here, there);
            let at = sent % DEPTH * BYTES;
            source.write_at(at, &bytes)?;
            // As much inline as any device requires, and the rest by an SGE.
            let rest = source.sge(at + 18, bytes.len() - 18)?;
            sender.post(&EthSend::new(&bytes[..18], rest).signaled(), 0)?;
            sent += 1;
        }
        while let Some(done) = sender.poll(&mut send_cq) {
            done?;
        }
        let began = Instant::now();
        let arrived = loop {
            match receiver.poll(&mut receive_cq) {
                Some(arrived) => break arrived?,
                None if began.elapsed() > TIMEOUT => {
                    return Err(format!("frame {returned} did not come back").into());
                }
                None => std::thread::yield_now(),
            }
        };
        let expected = frame(returned, there, here);
        expect("the length of a frame", arrived.byte_len() as usize, expected.len())?;
        let slot = arrived.cookie as usize;
        let mut bytes = vec![0; expected.len()];
        region.read_at(slot * BYTES, &mut bytes)?;
        expect("a frame with its addresses swapped", bytes, expected)?;
        receiver.post(region.sge(slot * BYTES, BYTES)?, slot as u64)?;
        returned += 1;
    }
    rule.destroy()?;
    expect("whether the process runs", process.status()?.status.runs(), true)?;
    println!(
        "the program sent {FRAMES} frames back with their addresses swapped, in {} runs",
        handler.query()?.runs
    );
    Ok(())
}
