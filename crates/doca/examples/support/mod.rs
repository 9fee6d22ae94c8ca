//! Shared code of the samples: their flags, and the channel between two of them.
#![allow(dead_code, reason = "each sample uses its part")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use verbless_doca::{Dev, DevInfo, DevInfoRep, DevRep};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The flags of DOCA's samples.
#[derive(clap::Args, Debug)]
pub(crate) struct Common {
    /// The device: its PCI address (03:00.0) or its name (mlx5_0); the first one by default.
    #[arg(short = 'd', long = "dev-pci-addr", value_name = "ADDRESS")]
    device: Option<String>,
    /// Log level: CRITICAL=20, ERROR=30, WARNING=40, INFO=50, DEBUG=60.
    #[arg(short, long, default_value = "50", value_parser = clap::value_parser!(u8).range(20..=60))]
    log_level: u8,
    /// Print the version.
    #[arg(short, long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// Where the two sides meet: one listens, the other connects. Either may start first.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Meeting {
    /// Wait for the other side at this TCP address (127.0.0.1:18600), for as long as it takes.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Connect to the other side at this TCP address; tries for 30 s.
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<String>,
}

impl Common {
    /// Opens the device.
    pub(crate) fn open(&self) -> Result<Dev> {
        let info = match &self.device {
            Some(name) => DevInfo::find(name)?,
            None => DevInfo::list()?.remove(0),
        };
        let dev = info.open()?;
        self.say(50, &format!("on {}", info.ib_device_name()));
        Ok(dev)
    }

    /// The log level.
    pub(crate) const fn level(&self) -> u8 {
        self.log_level
    }

    /// Prints a message of this level.
    pub(crate) fn say(&self, level: u8, text: &str) {
        if level <= self.log_level {
            eprintln!("{text}");
        }
    }
}

/// Opens the representor of this PCI address or name, if given.
pub(crate) fn representor(dev: &Dev, name: Option<&str>) -> Result<Option<DevRep>> {
    Ok(name.map(|name| DevInfoRep::find(dev, name)?.open()).transpose()?)
}

/// A TCP connection to the other side. A message is a length of four bytes in network order, then
/// as many bytes. It replaces DOCA's Comm Channel.
pub(crate) struct Channel {
    stream: TcpStream,
    timeout: Duration,
}

/// Maximum bytes of a message.
const MAX_MESSAGE_BYTES: u32 = 64 << 10;
/// Time limit for a message of the other side.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

impl Meeting {
    /// Waits for the other side, or connects to it.
    pub(crate) fn meet(&self) -> Result<Channel> {
        let stream = match (&self.listen, &self.connect) {
            (Some(address), _) => listen(address)?,
            (None, Some(address)) => connect(address)?,
            (None, None) => return Err("either --listen or --connect is needed".into()),
        };
        Channel::new(stream)
    }
}

fn listen(address: &str) -> Result<TcpStream> {
    let listener =
        TcpListener::bind(address).map_err(|error| format!("listening at {address}: {error}"))?;
    Ok(listener.accept()?.0)
}

fn connect(address: &str) -> Result<TcpStream> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > end => {
                return Err(format!("connecting to {address} failed: {error}").into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

impl Channel {
    /// A channel over a connection, with a limit of [`DEFAULT_TIMEOUT`] per message.
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        Self::with_timeout(stream, DEFAULT_TIMEOUT)
    }

    /// A channel over a connection, with a limit of `timeout` per message.
    pub(crate) fn with_timeout(stream: TcpStream, timeout: Duration) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, timeout })
    }

    /// The same connection, with the limit of [`DEFAULT_TIMEOUT`] again.
    pub(crate) fn with_default_timeout(self) -> Self {
        Self { timeout: DEFAULT_TIMEOUT, ..self }
    }

    /// The time until `end`, for the next call; an error when it has passed.
    fn left(&self, end: Instant) -> Result<Option<Duration>> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = self.timeout.as_secs_f32();
            return Err(format!("the other side: it took longer than {seconds} s").into());
        }
        Ok(Some(left))
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result {
        let end = Instant::now() + self.timeout;
        let all = [&(message.len() as u32).to_be_bytes(), message].concat();
        let mut rest = &all[..];
        while !rest.is_empty() {
            self.stream.set_write_timeout(self.left(end)?)?;
            let sent = self.stream.write(rest)?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Waits for a message.
    pub(crate) fn receive(&mut self) -> Result<Vec<u8>> {
        let end = Instant::now() + self.timeout;
        let mut length = [0; 4];
        self.fill(&mut length, end)?;
        let length = u32::from_be_bytes(length);
        if length > MAX_MESSAGE_BYTES {
            return Err(format!(
                "the other side announced {length} bytes; the limit is {MAX_MESSAGE_BYTES}"
            )
            .into());
        }
        let mut message = vec![0; length as usize];
        self.fill(&mut message, end)?;
        Ok(message)
    }

    fn fill(&mut self, mut into: &mut [u8], end: Instant) -> Result {
        while !into.is_empty() {
            self.stream.set_read_timeout(self.left(end)?)?;
            let read = self.stream.read(into);
            // The kernel's timer may end before ours.
            if read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
                continue;
            }
            match read.map_err(|error| format!("the other side: {error}"))? {
                0 => return Err("the other side has closed the connection".into()),
                read => into = &mut into[read..],
            }
        }
        Ok(())
    }
}

/// The exit code of a sample.
pub(crate) fn exit(done: Result) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
