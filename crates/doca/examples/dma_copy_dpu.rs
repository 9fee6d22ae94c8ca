//! The DPU's side of a copy by DMA: copies the exported memory of the host into a file.
//!
//! `dma_copy_dpu --listen 127.0.0.1:18600 --out GOT`, with `dma_copy_host` on the host. The device
//! copies from the host's memory into a ring of buffers here, several copies at a time, and the
//! program writes them to the file as they come.

#[path = "support/copying.rs"]
mod copying;
mod support;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use verbless_doca::dma::Dma;
use verbless_doca::{AccessFlags, BufPool, Dev, Event, Inventory, Memory, Mmap, Retrieve, WorkQ};

use copying::Copying;
use support::{Channel, Common, Meeting, Result};

/// Bytes of a job.
const PART: u64 = 1 << 20;
/// Jobs at a time.
const DEPTH: usize = 8;
/// Interval of progress messages to the host.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Copies a file out of the host's memory by DMA.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    meeting: Meeting,
    /// The host's device, by the PCI address or the name of its representor on the DPU. The host's
    /// export identifies its device, too.
    #[arg(short = 'r', long = "rep-pci-addr", value_name = "ADDRESS")]
    representor: Option<String>,
    /// Destination of the copy.
    #[arg(long)]
    out: PathBuf,
}

fn main() -> ExitCode {
    support::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result {
    let dev = options.common.open()?;
    let _rep = support::representor(&dev, options.representor.as_deref())?;
    let mut channel = options.meeting.meet()?;
    let done = copy(options, &dev, &mut channel);
    let outcome = match &done {
        Ok(()) => Copying::Done,
        Err(error) => Copying::Failed(error.to_string()),
    };
    outcome.send(&mut channel)?;
    done
}

fn copy(Options { common, out, .. }: &Options, dev: &Dev, channel: &mut Channel) -> Result {
    let descriptor = channel.receive()?;
    let length = channel.receive()?;
    let length = u64::from_be_bytes(length.try_into().map_err(|_| "the host sent no length")?);
    let remote = Mmap::create_from_export(&descriptor, dev)?;
    if length > remote.len() {
        return Err(
            format!("the host announced {length} bytes of a map of {}", remote.len()).into()
        );
    }
    let near = Mmap::builder()
        .memrange(Memory::allocate(PART as usize * DEPTH)?)
        .permissions(AccessFlags::LOCAL_READ_WRITE)
        .add_dev(dev)
        .start()?;
    let slots = BufPool::builder(&near, DEPTH, PART).start()?;
    let parts = Inventory::builder(DEPTH).start()?;
    let dma = Dma::builder(dev).start()?;
    let mut workq = WorkQ::builder(DEPTH as u32).event_driven().build()?;
    workq.add(&dma)?;

    let mut file = create(out)?;
    let progress = bar(length);
    let (mut next, mut written, mut reported) = (0, 0, Instant::now());
    while next < length || workq.in_flight() > 0 {
        while next < length && workq.in_flight() < workq.depth() {
            let bytes = PART.min(length - next);
            let source = parts.buf_by_data(&remote, remote.address() + next, bytes)?;
            workq.submit(dma.memcpy(source, slots.alloc()?).user_data(next))?;
            next += bytes;
        }
        let done = match workq.retrieve_within(None) {
            Ok(Some(Event::Dma(done))) => done,
            Ok(_) => continue,
            Err(Retrieve::IoFailed(event)) => {
                let at = event.user_data().0;
                let why = event.result().err().map_or("?".into(), |error| error.to_string());
                return Err(format!("copying from byte {at} on: {why}").into());
            }
            Err(other) => return Err(other.into()),
        };
        let bytes = done.destination.to_vec()?;
        file.seek(SeekFrom::Start(done.user_data.0))?;
        file.write_all(&bytes)?;
        written += bytes.len() as u64;
        progress.set_position(written);
        if reported.elapsed() >= REPORT_INTERVAL {
            // Keeps the final sync short, during which the program sends no progress.
            file.sync_data()?;
            Copying::Copied(written).send(channel)?;
            reported = Instant::now();
        }
    }
    file.sync_all()?;
    progress.finish_and_clear();
    common.say(50, &format!("{length} bytes are in {}", out.display()));
    workq.remove(&dma)?;
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| format!("writing {}: {error}", path.display()).into())
}

/// A progress bar, on a terminal.
fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}
