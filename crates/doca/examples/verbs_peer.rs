//! An end of a DOCA RDMA connection whose peer is a program on rdma-core's libibverbs:
//! `tests/clients/rdma_peer.c` of the repository. Each side executes all operations on the other.
//!
//! Such a program needs nothing of this library. It creates and parses connection descriptors and
//! export descriptors by their documented formats: `verbless_doca::rdma::blob` and
//! `verbless_doca::memory::export`.

mod support;

use std::process::ExitCode;

use clap::Parser;
use support::{Channel, Common, Meeting, Result};
use verbless_doca::rdma::{Rdma, RdmaDone, RdmaJob, RdmaOpcode};
use verbless_doca::{AccessFlags, Buf, Event, Inventory, Memory, Mmap, WorkQ};

#[derive(Parser)]
#[command(disable_version_flag = true, version)]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    meeting: Meeting,
}

/// The memory of each side: a word, the area that the other side writes and reads, and its own
/// area.
const BYTES: u64 = 8192;
const WORD_AT: u64 = 0;
const WRITE_AT: u64 = 1024;
const WRITE_IMM_AT: u64 = 2048;
const READ_AT: u64 = 3072;
const LOCAL_AT: u64 = 4096;
const RECEIVE_AT: u64 = 6144;

struct End {
    channel: Channel,
    rdma: Rdma,
    workq: WorkQ,
    inventory: Inventory,
    here: Mmap,
    there: Mmap,
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let byte = |at: u64| seed.wrapping_mul(31) + at * 7 + (at >> 8);
    (0..length as u64).map(|at| byte(at) as u8).collect()
}

fn check(so: bool, what: &str) -> Result {
    if so { Ok(()) } else { Err(format!("check failed: {what}").into()) }
}

impl End {
    fn new(options: &Options) -> Result<Self> {
        let dev = options.common.open()?;
        let access = AccessFlags::RDMA_READ | AccessFlags::RDMA_WRITE | AccessFlags::RDMA_ATOMIC;
        let here = Mmap::builder()
            .memrange(Memory::allocate(BYTES as usize)?)
            .permissions(AccessFlags::LOCAL_READ_WRITE | access)
            .add_dev(&dev)
            .start()?;
        let rdma = Rdma::builder(&dev).permissions(access).start()?;
        let mut workq = WorkQ::new(16)?;
        workq.add(&rdma)?;
        let mut channel = options.meeting.meet()?;
        channel.send(rdma.export()?.as_bytes())?;
        rdma.connect(channel.receive()?)?;
        channel.send(here.export_rdma(&dev)?.as_bytes())?;
        let there = Mmap::create_from_export(&channel.receive()?, &dev)?;
        let inventory = Inventory::builder(4).start()?;
        Ok(Self { channel, rdma, workq, inventory, here, there })
    }

    /// Waits until both sides have reached this point.
    fn meet(&mut self) -> Result {
        self.channel.send(b"x")?;
        check(self.channel.receive()? == b"x", "the other side is at the same step")
    }

    /// Memory of this side with data.
    fn data(&self, at: u64, length: u64) -> Result<Option<Buf>> {
        Ok(Some(self.inventory.buf_by_data(&self.here, self.here.address() + at, length)?))
    }

    /// Memory of the other side.
    fn remote(&self, at: u64, length: u64) -> Result<Buf> {
        Ok(self.inventory.buf_by_addr(&self.there, self.there.address() + at, length)?)
    }

    fn submit(&mut self, job: RdmaJob) -> Result {
        Ok(self.workq.submit(job).map_err(|refused| refused.error)?)
    }

    /// The next completed job.
    fn done(&mut self) -> Result<RdmaDone> {
        match self.workq.retrieve_within(None)? {
            Some(Event::Rdma(done)) => Ok(done),
            other => Err(format!("no job of RDMA is done, but {other:?}").into()),
        }
    }

    fn perform(&mut self, job: RdmaJob) -> Result {
        self.submit(job)?;
        self.done().map(drop)
    }

    fn receive(&mut self, length: u64) -> Result {
        let room = match length {
            0 => None,
            _ => {
                let at = self.here.address() + RECEIVE_AT;
                Some(self.inventory.buf_by_addr(&self.here, at, length)?)
            }
        };
        let job = self.rdma.receive(room);
        self.submit(job)?;
        self.meet()
    }

    /// Checks a receive: the opcode, its data, and the immediate.
    fn check_receive(
        &mut self,
        opcode: RdmaOpcode,
        data: Option<(u64, usize)>,
        immediate: Option<u32>,
    ) -> Result {
        let done = self.done()?;
        check(done.opcode == Some(opcode), "the opcode of a receive")?;
        check(done.immediate == immediate, "the immediate")?;
        if let Some((seed, length)) = data {
            let room = done.local.ok_or("the buffer of a receive has not come back")?;
            check(room.to_vec()? == pattern(seed, length), "the message")?;
        }
        Ok(())
    }

    fn fill(&self, at: u64, length: usize, seed: u64) -> Result {
        Ok(self.here.write_at(at as usize, &pattern(seed, length))?)
    }

    fn check_bytes(&self, at: u64, length: usize, seed: u64) -> Result {
        let mut bytes = vec![0; length];
        self.here.read_at(at as usize, &mut bytes)?;
        check(bytes == pattern(seed, length), "the memory's bytes")
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.here.read_at(at as usize, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Executes all operations on the other side.
    fn run_operations(&mut self) -> Result {
        self.fill(LOCAL_AT, 100, 1)?;
        self.meet()?;
        let job = self.rdma.send(self.data(LOCAL_AT, 100)?);
        self.perform(job)?;
        self.meet()?;
        self.fill(LOCAL_AT, 10, 2)?;
        let job = self.rdma.send_imm(self.data(LOCAL_AT, 10)?, 0xdead_beef);
        self.perform(job)?;
        self.meet()?;
        let job = self.rdma.send(None);
        self.perform(job)?;
        self.fill(LOCAL_AT, 200, 3)?;
        let job = self.rdma.write(self.data(LOCAL_AT, 200)?, Some(self.remote(WRITE_AT, 200)?));
        self.perform(job)?;
        self.meet()?;
        self.meet()?;
        self.fill(LOCAL_AT, 50, 4)?;
        let to = Some(self.remote(WRITE_IMM_AT, 50)?);
        let job = self.rdma.write_imm(self.data(LOCAL_AT, 50)?, to, 0xcafe_f00d);
        self.perform(job)?;
        self.meet()?;
        self.here.write_at(LOCAL_AT as usize, &[0; 300])?;
        let job = self.rdma.read(Some(self.remote(READ_AT, 300)?), self.data(LOCAL_AT, 300)?);
        self.perform(job)?;
        self.check_bytes(LOCAL_AT, 300, 5)?;
        let word = |this: &Self| -> Result<(Buf, Buf)> {
            let result = this.data(LOCAL_AT, 8)?.ok_or("no buffer")?;
            Ok((this.remote(WORD_AT, 8)?, result))
        };
        let (remote, result) = word(self)?;
        self.perform(self.rdma.fetch_and_add(remote, result, 2))?;
        check(self.word(LOCAL_AT)? == 40, "the result of an addition")?;
        self.meet()?;
        self.meet()?;
        let (remote, result) = word(self)?;
        self.perform(self.rdma.compare_and_swap(remote, result, 42, 7))?;
        check(self.word(LOCAL_AT)? == 42, "the result of a swap")?;
        self.meet()
    }

    /// Checks the other side's operations on this one.
    fn check_operations(&mut self) -> Result {
        self.here.write_at(0, &[0; BYTES as usize])?;
        self.receive(1024)?;
        self.check_receive(RdmaOpcode::RecvSend, Some((1, 100)), None)?;
        self.receive(1024)?;
        self.check_receive(RdmaOpcode::RecvSendWithImm, Some((2, 10)), Some(0xdead_beef))?;
        self.receive(0)?;
        self.check_receive(RdmaOpcode::RecvSend, None, None)?;
        self.meet()?;
        self.check_bytes(WRITE_AT, 200, 3)?;
        self.receive(0)?;
        self.check_receive(RdmaOpcode::RecvWriteWithImm, None, Some(0xcafe_f00d))?;
        self.check_bytes(WRITE_IMM_AT, 50, 4)?;
        self.fill(READ_AT, 300, 5)?;
        self.here.write_at(WORD_AT as usize, &40_u64.to_ne_bytes())?;
        self.meet()?;
        self.meet()?;
        check(self.word(WORD_AT)? == 42, "the word after an addition")?;
        self.meet()?;
        self.meet()?;
        check(self.word(WORD_AT)? == 7, "the word after a swap")
    }
}

fn run(options: &Options) -> Result {
    let mut end = End::new(options)?;
    end.meet()?;
    end.run_operations()?;
    end.check_operations()?;
    println!("all operations in both directions");
    Ok(())
}

fn main() -> ExitCode {
    support::exit(run(&Options::parse()))
}
