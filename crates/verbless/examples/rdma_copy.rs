//! Copies files through RDMA: reads them on one endpoint, writes them with RDMA WRITE into memory
//! of another, which verifies and stores them.
//!
//! `cargo run --release --example rdma_copy -- FILE… [--to DIR]`
//!
//! The two endpoints are two devices of the model, or one real device that talks to itself.
//! Whatever the size of a file, it passes through a fixed number of slots in two staging buffers:
//! the sender fills a slot and writes it with its number as immediate data, the receiver empties it
//! and sends a credit back.

mod support;

use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use verbless::command::KeyAccess;
use verbless::queue::wr::{Inline, Send, WriteImm};
use verbless::queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region, WcOpcode};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of a slot.
const SLOT: usize = 256 << 10;
/// Slots of a staging buffer, which limit the writes in flight.
const SLOTS: usize = 8;
/// The low bits of a write's immediate data are its number of bytes less one; the slot's number is
/// above them.
const LENGTH_BITS: u32 = 24;

/// Copies files through RDMA and checks them on arrival.
#[derive(Parser)]
struct Options {
    /// Files to copy.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Directory of the copies; created if missing.
    #[arg(long, default_value = "rdma-copies")]
    to: PathBuf,
    /// Replace existing copies.
    #[arg(long)]
    force: bool,
    /// `auto` (the first mlx5 device, else the model), `model`, or a device's name.
    #[arg(long, default_value = "auto")]
    device: String,
    /// The model's profile.
    #[arg(long, default_value = "connectx6dx")]
    profile: String,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result {
    let found = support::find(&options.device, &options.profile)?;
    println!("{}", found.description);
    let (sender, receiver) = (Domain::new(&found.device(0)?)?, Domain::new(&found.peer()?)?);
    let mut sender = Side::new(sender, KeyAccess::LOCAL_READ)?;
    let mut receiver = Side::new(receiver, KeyAccess::ALL)?;
    let connection = ConnectOptions::default();
    let here = sender.domain.address(&sender.qp, &connection)?;
    let there = receiver.domain.address(&receiver.qp, &connection)?;
    sender.domain.connect(&mut sender.qp, &there, &connection)?;
    receiver.domain.connect(&mut receiver.qp, &here, &connection)?;
    for _ in 0..SLOTS {
        receiver.expect_message()?;
        sender.expect_message()?;
    }
    std::fs::create_dir_all(&options.to)
        .map_err(|error| format!("cannot make {}: {error}", options.to.display()))?;
    for file in &options.files {
        copy(&mut sender, &mut receiver, file, &options.to, options.force)
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

/// Copies one file. The copy appears under its name only if its digest is right.
fn copy(sender: &mut Side, receiver: &mut Side, from: &Path, to: &Path, force: bool) -> Result {
    let name = from.file_name().ok_or("the path has no file name")?;
    let target = to.join(name);
    if !force && target.exists() {
        return Err(format!("{} is there already; --force replaces it", target.display()).into());
    }
    let mut source = File::open(from)?;
    if !source.metadata()?.is_file() {
        return Err("this is not a regular file".into());
    }
    let size = source.metadata()?.len();
    let part = to.join(format!("{}.part", name.to_string_lossy()));
    let mut unfinished = Unfinished { file: Some(File::create(&part)?), path: part };
    let bar = progress(size, &name.to_string_lossy());
    let start = Instant::now();

    let (mut sent, mut arrived) = (Sha256::new(), Sha256::new());
    let (mut read, mut stored) = (0u64, 0u64);
    let (mut next, mut credits, mut at_end) = (0usize, SLOTS, false);
    let mut slot = vec![0; SLOT];
    while !at_end || stored < read {
        while credits > 0 && !at_end {
            let length = fill(&mut source, &mut slot)?;
            if length == 0 {
                at_end = true;
                break;
            }
            sent.update(&slot[..length]);
            sender.write(receiver, next, &slot[..length])?;
            read += length as u64;
            next = (next + 1) % SLOTS;
            credits -= 1;
        }
        while let Some((slot_number, length)) = receiver.arrived()? {
            let bytes = slot.get_mut(..length).ok_or("a slot holds less than was announced")?;
            receiver.region.read_at(slot_number * SLOT, bytes)?;
            arrived.update(&*bytes);
            unfinished.write(bytes)?;
            stored += length as u64;
            bar.set_position(stored);
            receiver.give_credit()?;
        }
        credits += sender.credits()?;
        receiver.drain_sends()?;
    }
    while credits < SLOTS {
        credits += sender.credits()?;
        receiver.drain_sends()?;
    }
    let (sent, arrived) = (sent.finalize(), arrived.finalize());
    if sent != arrived {
        return Err(format!("SHA-256: received {arrived:x}, sent {sent:x}").into());
    }
    unfinished.keep(&target)?;
    bar.finish_and_clear();
    let rate = size as f64 / start.elapsed().max(Duration::from_micros(1)).as_secs_f64() / 1e6;
    println!("{arrived:x}  {} ({size} bytes, {rate:.0} MB/s)", target.display());
    Ok(())
}

/// Reads until the slot is full or the file is at its end.
fn fill(source: &mut File, slot: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < slot.len() {
        match source.read(&mut slot[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

fn progress(size: u64, name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} [{bar:40}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
    );
    let bar = ProgressBar::new(size).with_message(name.to_string());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// An unfinished copy; removed unless it is kept.
struct Unfinished {
    file: Option<File>,
    path: PathBuf,
}

impl Unfinished {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn keep(mut self, target: &Path) -> std::io::Result<()> {
        if let Some(file) = self.file.take() {
            file.sync_all()?;
        }
        std::fs::rename(&self.path, target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // A part that cannot be removed stays; the original error is shown.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// One end of the connection and its staging buffer.
struct Side {
    domain: Domain,
    region: Region,
    sends: Cq,
    receives: Cq,
    qp: Qp,
}

impl Side {
    fn new(domain: Domain, access: KeyAccess) -> Result<Self> {
        let region = domain.region(SLOTS * SLOT, access)?;
        let config = QpConfig::new(2 * SLOTS as u32, 2 * SLOTS as u32);
        let sends =
            domain.completion_queue(&CqConfig::new(config.send_cqes::<verbless::queue::Rc>()))?;
        let receives = domain.completion_queue(&CqConfig::new(config.receive_cqes()))?;
        let qp = domain.queue_pair(&config, &sends, &receives)?;
        Ok(Self { domain, region, sends, receives, qp })
    }

    /// Posts a receive without memory: for an immediate, or for an empty message.
    fn expect_message(&mut self) -> Result {
        self.qp.post_receive([], 0)?;
        Ok(())
    }

    /// Puts bytes into slot `slot` here and writes them to the same slot of the peer.
    fn write(&mut self, there: &Side, slot: usize, bytes: &[u8]) -> Result {
        self.drain_sends()?;
        self.region.write_at(slot * SLOT, bytes)?;
        let local = self.region.sge(slot * SLOT, bytes.len())?;
        let remote = there.region.remote(slot * SLOT, bytes.len())?;
        let note = (slot as u32) << LENGTH_BITS | (bytes.len() as u32 - 1);
        self.qp.post(&WriteImm::new(local, remote, note).signaled(), 0)?;
        Ok(())
    }

    /// The next slot that arrived, and its number of bytes.
    fn arrived(&mut self) -> Result<Option<(usize, usize)>> {
        let Some(completion) = self.qp.poll(&mut self.receives) else { return Ok(None) };
        let completion = completion?;
        let (WcOpcode::ReceiveWriteImm, Some(note)) =
            (completion.operation(), completion.immediate())
        else {
            return Err("unexpected message".into());
        };
        self.expect_message()?;
        let (slot, length) = (note >> LENGTH_BITS, (note & ((1 << LENGTH_BITS) - 1)) + 1);
        if slot as usize >= SLOTS {
            return Err(format!("slot {slot} was announced; there are {SLOTS}").into());
        }
        Ok(Some((slot as usize, length as usize)))
    }

    /// Sends a credit: a slot is free again.
    fn give_credit(&mut self) -> Result {
        self.qp.post(&Send::new(Inline(&[])).signaled(), 0)?;
        Ok(())
    }

    /// Credits that arrived since the last call. Also counts finished writes.
    fn credits(&mut self) -> Result<usize> {
        self.drain_sends()?;
        let mut credits = 0;
        while let Some(completion) = self.qp.poll(&mut self.receives) {
            completion?;
            self.expect_message()?;
            credits += 1;
        }
        Ok(credits)
    }

    fn drain_sends(&mut self) -> Result {
        while let Some(completion) = self.qp.poll(&mut self.sends) {
            completion?;
        }
        Ok(())
    }
}
