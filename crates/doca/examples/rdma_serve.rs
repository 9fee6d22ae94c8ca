//! A read-only directory over RDMA: `rdma_get` reads its files by RDMA READ.
//!
//! `rdma_serve DIR --listen 127.0.0.1:18610`. Each client gets a thread, a connection and a window
//! of registered memory, which the thread fills with parts of the file. The server does nothing
//! else: the device answers the client's READs, and the server submits no job. `support/files.rs`
//! documents the protocol.
//!
//! The windows of all clients are in one protection domain, that of the device: a client that
//! guesses the key of another client's window can read that client's data. All of it is in the
//! directory that the server serves to every client.

#[path = "support/files.rs"]
mod files;
mod support;

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Parser;
use files::{Answer, Filled, Hello, Opened, Request, SLOT, SLOTS, refuse, sum};
use support::{Channel, Common, Result};
use verbless_doca::rdma::Rdma;
use verbless_doca::{AccessFlags, Dev, Memory, Mmap};

/// Time limit for a client's greeting.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the next accept if descriptors or threads have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Lets clients read the files of a directory by RDMA.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// TCP address for clients.
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Limit of simultaneous clients; the server refuses one more.
    #[arg(long, default_value_t = 64)]
    clients: u32,
    /// The directory.
    dir: PathBuf,
}

fn main() -> ExitCode {
    support::exit(run(Options::parse()))
}

fn run(options: Options) -> Result {
    let Options { common, listen, clients, dir } = &options;
    let dir = dir.canonicalize().map_err(|error| format!("{}: {error}", dir.display()))?;
    if !dir.is_dir() {
        return Err(format!("{} is not a directory", dir.display()).into());
    }
    let dev = common.open()?;
    let listener =
        TcpListener::bind(listen).map_err(|error| format!("listening at {listen}: {error}"))?;
    common.say(50, &format!("{} at {}", dir.display(), listener.local_addr()?));
    let (dir, present) = (Arc::new(dir), Arc::new(AtomicU32::new(0)));
    for (number, stream) in (1..).zip(listener.incoming()) {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                common.say(40, &format!("client {number}: {error}"));
                // The client waits, and accept would report it again at once.
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let here = Present::new(&present);
        if here.0.load(Ordering::Relaxed) > *clients {
            if let Ok(mut channel) = Channel::with_timeout(stream, ACCEPT_PAUSE) {
                refuse(
                    &mut channel,
                    &format!("the limit of {clients} clients is reached: try again later"),
                );
            }
            continue;
        }
        let (dev, dir, level) = (dev.clone(), dir.clone(), common.level());
        let started = std::thread::Builder::new().spawn(move || {
            let _here = here;
            let done = serve(stream, &dev, &dir);
            if let Err(error) = done
                && level >= 50
            {
                eprintln!("client {number}: {error}");
            }
        });
        if let Err(error) = started {
            common.say(40, &format!("client {number}: no thread can be started: {error}"));
            std::thread::sleep(ACCEPT_PAUSE);
        }
    }
    Ok(())
}

/// Counts a client while it is connected.
struct Present(Arc<AtomicU32>);

impl Present {
    fn new(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The greeting of a client, within `limit`.
fn greeted(stream: TcpStream, limit: Duration) -> Result<(Channel, Hello)> {
    let mut channel = Channel::with_timeout(stream, limit)?;
    match Hello::receive(&mut channel)? {
        Answer::Is(hello) => Ok((channel, hello)),
        _ => Err("it greets with an error".into()),
    }
}

/// Serves a client until it disconnects.
fn serve(stream: TcpStream, dev: &Dev, dir: &Path) -> Result {
    let (mut channel, hello) = greeted(stream, HANDSHAKE_TIMEOUT)?;
    let window = match Window::new(dev, &hello, &mut channel) {
        Ok(window) => window,
        Err(error) => {
            refuse(&mut channel, &format!("connecting: {error}"));
            return Err(error);
        }
    };
    let mut channel = channel.with_default_timeout();
    let mut open: Option<(File, Opened)> = None;
    loop {
        // Without another request the client is done.
        let Ok(message) = channel.receive() else { return Ok(()) };
        let done = Request::parse(&message).map_err(Into::into).and_then(|request| match request {
            Request::Open(name) => {
                let file = beneath(dir, &name)?;
                let opened = describe(&file)?;
                open = Some((file, opened));
                opened.send(&mut channel)
            }
            Request::Fill { slot, offset } => {
                let (file, opened) = open.as_ref().ok_or("no file is open")?;
                window.fill(file, opened, slot, offset)?.send(&mut channel)
            }
        });
        if let Err(error) = done {
            refuse(&mut channel, &error.to_string());
            return Err(error);
        }
    }
}

/// The memory that a client reads.
struct Window {
    map: Mmap,
    /// It answers the client's READs while it exists.
    _rdma: Rdma,
}

impl Window {
    fn new(dev: &Dev, client: &Hello, channel: &mut Channel) -> Result<Self> {
        let map = Mmap::builder()
            .memrange(Memory::allocate(usize::from(SLOTS) * SLOT as usize)?)
            .permissions(AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ)
            .add_dev(dev)
            .start()?;
        let builder = Rdma::builder(dev).permissions(AccessFlags::RDMA_READ);
        let rdma = builder.send_queue_size(1).recv_queue_size(1).start()?;
        let connection = rdma.export()?.as_bytes().try_into()?;
        rdma.connect(client.connection)?;
        let window = map.export_rdma(dev)?.as_bytes().to_vec();
        Hello { connection, window }.send(channel)?;
        Ok(Self { map, _rdma: rdma })
    }

    fn fill(&self, file: &File, opened: &Opened, slot: u8, offset: u64) -> Result<Filled> {
        let Some(left) = opened.length.checked_sub(offset).filter(|left| *left > 0) else {
            return Err(format!("byte {offset} is not in a file of {} bytes", opened.length).into());
        };
        let mut bytes = vec![0; left.min(SLOT) as usize];
        file.read_exact_at(&mut bytes, offset).map_err(|error| format!("reading: {error}"))?;
        if describe(file)? != *opened {
            return Err("the file has changed: begin again".into());
        }
        self.map.write_at(usize::from(slot) * SLOT as usize, &bytes)?;
        Ok(Filled { slot, offset, bytes: bytes.len() as u32, sum: sum(&bytes) })
    }
}

fn describe(file: &File) -> Result<Opened> {
    let data = file.metadata()?;
    let mut identity = data.ino();
    for part in
        [data.dev(), data.mtime() as u64, data.mtime_nsec() as u64, data.ctime_nsec() as u64]
    {
        // FNV-1a over the parts: a collision of two files gains an attacker nothing.
        identity = (identity ^ part).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }
    Ok(Opened { length: data.len(), identity })
}

/// Opens a file of the directory, and refuses paths outside of it and other file types.
fn beneath(dir: &Path, name: &str) -> Result<File> {
    let refuse = |why: &str| Err(format!("{name:?} is not served: {why}").into());
    let path = Path::new(name);
    if name.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return refuse("a path must be below the directory, and without `.` and `..`");
    }
    let found = match dir.join(path).canonicalize() {
        Ok(found) => found,
        Err(error) => return refuse(&error.to_string()),
    };
    if !found.starts_with(dir) {
        return refuse("it leads out of the directory");
    }
    if !found.is_file() {
        return refuse("it is not a file");
    }
    // A path that has become a pipe does not block this; a later check catches one that has become
    // a link.
    let mut options = File::options();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW);
    let file = match options.open(&found) {
        Ok(file) => file,
        Err(error) => return refuse(&error.to_string()),
    };
    let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if !opened.starts_with(dir) || !file.metadata()?.is_file() {
        return refuse("it has changed");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn silent_client_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut silent =
            TcpStream::connect(listener.local_addr().expect("one")).expect("the server listens");
        let (start, limit) = (std::time::Instant::now(), Duration::from_millis(300));
        let (stream, _) = listener.accept().expect("a client");
        // A slow client: a byte of an endless message arrives now and then.
        let slow = std::thread::spawn(move || {
            let bytes = [0, 0, 100].into_iter().chain(std::iter::repeat(0));
            for byte in bytes {
                let sent = std::io::Write::write_all(&mut silent, &[byte]);
                if sent.is_err() || start.elapsed() > 20 * limit {
                    break;
                }
                std::thread::sleep(limit / 10);
            }
        });
        let error = greeted(stream, limit)
            .err()
            .expect("the greeting takes longer than the limit")
            .to_string();
        assert!(start.elapsed() < 10 * limit, "{error}");
        assert!(error.contains("took longer than"), "{error}");
        slow.join().expect("the thread ends");
    }

    #[test]
    fn only_files_beneath_the_directory_are_opened() {
        let root = std::env::temp_dir().join(format!("rdma_serve-{}", std::process::id()));
        let dir = root.join("dir");
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::write(root.join("secret"), "no").unwrap();
        std::fs::write(dir.join("sub/file"), "yes").unwrap();
        symlink("../secret", dir.join("out")).unwrap();
        symlink("sub/file", dir.join("in")).unwrap();
        symlink("/etc", dir.join("etc")).unwrap();
        let dir = dir.canonicalize().unwrap();
        for name in ["sub/file", "in"] {
            assert!(beneath(&dir, name).is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "../secret",
            "sub/../../secret",
            "/etc/passwd",
            "out",
            "etc/passwd",
            "sub",
            "none",
            "sub/file/x",
            "./sub/file",
            "a\0b",
        ] {
            let refused = beneath(&dir, name).unwrap_err().to_string();
            assert!(refused.contains("is not served"), "{name}: {refused}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
