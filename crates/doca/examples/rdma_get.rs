//! Reads files of an `rdma_serve` by RDMA READ.
//!
//! `rdma_get 127.0.0.1:18610 NAME --out OUT`, or several names and a directory. Received data stays
//! in `OUT.part` until the file is complete. If the connection dies, or this program dies and is
//! restarted, the transfer resumes: the program compares each part with the server's digest, and
//! reads only the parts that differ. `support/files.rs` documents the protocol.

#[path = "support/files.rs"]
mod files;
mod support;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use files::{Answer, Filled, Hello, Opened, Request, SLOT, SLOTS, sum};
use indicatif::{ProgressBar, ProgressStyle};
use support::{Channel, Common, Result};
use verbless_doca::rdma::Rdma;
use verbless_doca::{AccessFlags, Dev, Event, Inventory, Memory, Mmap, WorkQ};

/// Reads files of a server by RDMA.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// The output file; for several files, the output directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Reconnections without progress, a second apart, before it gives up.
    #[arg(long, default_value_t = 20)]
    retries: u32,
    /// The server.
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// The files.
    #[arg(required = true)]
    names: Vec<String>,
}

fn main() -> ExitCode {
    support::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result {
    let dev = options.common.open()?;
    for name in &options.names {
        let last = Path::new(name).file_name().ok_or_else(|| format!("{name:?} names no file"))?;
        let out = match (&options.out, options.names.len()) {
            (Some(out), 1) if !out.is_dir() => out.clone(),
            (Some(dir), _) => dir.join(last),
            (None, _) => PathBuf::from(last),
        };
        get(options, &dev, name, &out).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Why a file is incomplete.
enum Failure {
    /// The connection died: another one may succeed.
    Connection(String),
    /// An error of the server or of this machine's disk: a retry would fail again.
    Final(String),
}

impl<E: Into<Box<dyn std::error::Error>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Connection(error.into().to_string())
    }
}

type Attempt<T = ()> = std::result::Result<T, Failure>;

fn get(options: &Options, dev: &Dev, name: &str, out: &Path) -> Result {
    let part = {
        let mut name: OsString = out.into();
        name.push(".part");
        PathBuf::from(name)
    };
    let create = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).open(&part)
    };
    let file = create().map_err(|error| format!("{}: {error}", part.display()))?;
    let mut progress = Progress::new(name)?;
    let mut tries = 0;
    loop {
        let before = progress.arrived;
        match attempt(&options.server, dev, name, &file, &mut progress) {
            Ok(()) => break,
            Err(Failure::Final(why)) => {
                // A name that is not served leaves no file.
                if file.metadata().is_ok_and(|data| data.len() == 0) {
                    let _ = std::fs::remove_file(&part);
                }
                return Err(why.into());
            }
            Err(Failure::Connection(why)) => {
                tries = if progress.arrived > before { 0 } else { tries + 1 };
                if tries > options.retries {
                    let text = format!("{why}; {} is kept: run again to continue", part.display());
                    return Err(text.into());
                }
                options.common.say(40, &format!("{name}: {why}; connecting again"));
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
    file.sync_all()?;
    std::fs::rename(&part, out).map_err(|error| format!("{}: {error}", out.display()))?;
    progress.bar.finish_and_clear();
    let (all, arrived) = (progress.bar.length().unwrap_or(0), progress.arrived);
    options.common.say(50, &format!("{name}: {all} bytes, {arrived} of them read"));
    Ok(())
}

/// A connection to the server, and memory for the data.
struct Connection {
    channel: Channel,
    rdma: Rdma,
    workq: WorkQ,
    inventory: Inventory,
    here: Mmap,
    /// The server's window.
    there: Mmap,
}

fn answered<T>(answer: Answer<T>) -> Attempt<T> {
    match answer {
        Answer::Is(answer) => Ok(answer),
        Answer::Refused(why) => Err(Failure::Final(format!("the server: {why}"))),
    }
}

impl Connection {
    fn new(server: &str, dev: &Dev) -> Attempt<Self> {
        let stream = TcpStream::connect(server)
            .map_err(|error| format!("connecting to {server}: {error}"))?;
        let mut channel = Channel::new(stream)?;
        let here = Mmap::builder()
            .memrange(Memory::allocate(usize::from(SLOTS) * SLOT as usize)?)
            .permissions(AccessFlags::LOCAL_READ_WRITE)
            .add_dev(dev)
            .start()?;
        let rdma = Rdma::builder(dev).start()?;
        let mut workq = WorkQ::new(usize::from(SLOTS) as u32)?;
        workq.add(&rdma)?;
        let connection = rdma.export()?.as_bytes().try_into().map_err(|_| "a short descriptor")?;
        Hello { connection, window: Vec::new() }.send(&mut channel)?;
        let hello = answered(Hello::receive(&mut channel)?)?;
        rdma.connect(hello.connection)?;
        let there = Mmap::create_from_export(&hello.window, dev)?;
        if (there.len()) < u64::from(SLOTS) * SLOT {
            return Err(Failure::Final(format!("the server's window has {} bytes", there.len())));
        }
        let inventory = Inventory::builder(2 * usize::from(SLOTS)).start()?;
        Ok(Self { channel, rdma, workq, inventory, here, there })
    }

    /// Reads a slot's data, and checks it.
    fn read(&mut self, filled: &Filled, into: &mut Vec<u8>) -> Attempt {
        let (at, length) = (u64::from(filled.slot) * SLOT, u64::from(filled.bytes));
        let source = self.inventory.buf_by_addr(&self.there, self.there.address() + at, length)?;
        let room = self.inventory.buf_by_data(&self.here, self.here.address() + at, length)?;
        self.workq.submit(self.rdma.read(Some(source), Some(room)))?;
        let Some(Event::Rdma(done)) = self.workq.retrieve_within(None)? else {
            return Err("no job is done".into());
        };
        *into = done.local.ok_or("the buffer has not come back")?.to_vec()?;
        if sum(into) != filled.sum {
            return Err("the data read differs from the server's digest".into());
        }
        Ok(())
    }
}

/// Gets the missing parts over one connection.
fn attempt(server: &str, dev: &Dev, name: &str, file: &File, progress: &mut Progress) -> Attempt {
    let disk = |error: std::io::Error| Failure::Final(format!("the disk: {error}"));
    let mut connection = Connection::new(server, dev)?;
    Request::Open(name.to_owned()).send(&mut connection.channel)?;
    let Opened { length, .. } = answered(Opened::receive(&mut connection.channel)?)?;
    progress.bar.set_length(length);
    if file.metadata().map_err(disk)?.len() > length {
        file.set_len(length).map_err(disk)?;
    }
    let mut requested = VecDeque::new();
    let mut next = 0;
    let mut bytes = Vec::new();
    loop {
        // While the client reads one slot, the server fills the next.
        while requested.len() < usize::from(SLOTS) && next < length {
            let slot = (next / SLOT % u64::from(SLOTS)) as u8;
            Request::Fill { slot, offset: next }.send(&mut connection.channel)?;
            requested.push_back((slot, next));
            next += SLOT;
        }
        let Some((slot, offset)) = requested.pop_front() else { break };
        let filled = answered(Filled::receive(&mut connection.channel)?)?;
        let expected = (length - offset).min(SLOT);
        if (filled.slot, filled.offset) != (slot, offset) || u64::from(filled.bytes) != expected {
            return Err(Failure::Final("the server filled another slot".into()));
        }
        // An unchanged part from an earlier run is not read again.
        bytes.resize(expected as usize, 0);
        let there = file.read_exact_at(&mut bytes, offset).is_ok() && sum(&bytes) == filled.sum;
        if !there {
            connection.read(&filled, &mut bytes)?;
            file.write_all_at(&bytes, offset).map_err(disk)?;
            progress.arrived += expected;
        }
        progress.bar.set_position(offset + expected);
    }
    file.set_len(length).map_err(disk)
}

/// Progress, on a terminal.
struct Progress {
    bar: ProgressBar,
    /// Bytes read over all connections.
    arrived: u64,
}

impl Progress {
    fn new(name: &str) -> Result<Self> {
        let bar = ProgressBar::new(0).with_message(name.to_owned());
        let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(style)?);
        Ok(Self { bar, arrived: 0 })
    }
}
