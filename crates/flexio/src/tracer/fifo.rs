//! The FIFO by which a shell starts and stops a tracer: `echo 10 > FIFO`.
//!
//! Every writer of the FIFO commands the tracer. So the FIFO is created with access only for its
//! owner, is never opened through a link, and an existing file is accepted only if it is a FIFO of
//! the same user that no other user may write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{Uid, mkfifo};

use crate::error::Error;

/// Maximum bytes of a command.
const MAX_COMMAND_BYTES: usize = 32;

/// A command to the tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// Run for this long.
    Run(Duration),
    Stop,
}

/// The FIFO; removed when this is dropped.
#[derive(Debug)]
pub(super) struct Fifo {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
    /// Whether the rest of a too long line is skipped.
    skips: bool,
}

impl Fifo {
    /// Creates the FIFO, or opens an existing one.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |why: String| Error::Failed(format!("the FIFO {}: {why}", path.display()));
        match mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(failed(format!("it cannot be created: {error}"))),
        }
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
        let file = file.map_err(|error| failed(format!("it cannot be opened: {error}")))?;
        let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
        if !metadata.file_type().is_fifo() {
            let why = "it exists and is not a FIFO: give another name, or remove it";
            return Err(failed(why.into()));
        }
        if metadata.uid() != Uid::effective().as_raw() || metadata.mode() & 0o022 != 0 {
            let why = "it exists, and other users may write to it: remove it";
            return Err(failed(why.into()));
        }
        if file.try_lock().is_err() {
            return Err(failed("another tracer reads it: give another name".into()));
        }
        Ok(Self { path: path.into(), file, line: Vec::new(), skips: false })
    }

    /// The next command, if there is one.
    pub(super) fn command(&mut self) -> Option<Command> {
        let mut byte = [0];
        loop {
            match self.file.read(&mut byte) {
                // No writer has it open: a partial line is abandoned.
                Ok(0) => {
                    (self.line, self.skips) = (Vec::new(), false);
                    return None;
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        crate::log::warning!("reading {}: {error}", self.path.display());
                    }
                    return None;
                }
            }
            if byte[0] != b'\n' {
                self.skips |= self.line.len() == MAX_COMMAND_BYTES;
                if !self.skips {
                    self.line.push(byte[0]);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let parsed = if std::mem::take(&mut self.skips) { None } else { parse(&line) };
            if parsed.is_some() {
                return parsed;
            }
            crate::log::warning!(
                "{:?} in {} is not a command: it takes a number of seconds, 0 stops",
                String::from_utf8_lossy(&line),
                self.path.display()
            );
        }
    }
}

fn parse(line: &[u8]) -> Option<Command> {
    match std::str::from_utf8(line).ok()?.trim().parse::<u32>().ok()? {
        0 => Some(Command::Stop),
        seconds => Some(Command::Run(Duration::from_secs(seconds.into()))),
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        // If another file replaced it, that stays.
        let same = || -> io::Result<bool> {
            let (ours, there) = (self.file.metadata()?, fs::symlink_metadata(&self.path)?);
            Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        };
        if same().unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("verbless-fifo-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn fifo_has_one_reader_at_once() {
        let directory = Directory::new("one");
        let path = directory.0.join("fifo");
        let first = Fifo::open(&path).unwrap();
        let second = Fifo::open(&path).unwrap_err().to_string();
        assert!(second.contains("another tracer reads it"), "{second}");
        assert!(path.exists(), "the refused tracer leaves the first one's FIFO");
        drop(first);
        Fifo::open(&path).unwrap();
    }

    #[test]
    fn commands_parse_by_line_and_skip_invalid_ones() {
        let directory = Directory::new("commands");
        let path = directory.0.join("fifo");
        let mut fifo = Fifo::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fifo.command(), None);
        let mut shell = OpenOptions::new().write(true).open(&path).unwrap();
        shell.write_all(b"10\nstart\n-1\n 0 \n99999999999999999999999999999999999999\n").unwrap();
        shell.write_all(b"\xff\n1").unwrap();
        let seconds = |seconds| Some(Command::Run(Duration::from_secs(seconds)));
        assert_eq!(fifo.command(), seconds(10));
        assert_eq!(fifo.command(), Some(Command::Stop));
        assert_eq!(fifo.command(), None, "half a line");
        shell.write_all(b"5\n").unwrap();
        drop(shell);
        assert_eq!(fifo.command(), seconds(15));
        assert_eq!(fifo.command(), None);
        drop(fifo);
        assert!(!path.exists(), "the FIFO still exists");
    }

    #[test]
    fn foreign_file_is_rejected_and_kept() {
        let directory = Directory::new("refused");
        let file = directory.0.join("file");
        fs::write(&file, "precious").unwrap();
        let error = Fifo::open(&file).unwrap_err().to_string();
        assert!(error.contains("is not a FIFO"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        let (fifo, link) = (directory.0.join("fifo"), directory.0.join("link"));
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        symlink(&fifo, &link).unwrap();
        assert!(Fifo::open(&link).is_err(), "a link");
        assert!(Fifo::open(&directory.0.join("nowhere/fifo")).is_err());
        fs::set_permissions(&fifo, fs::Permissions::from_mode(0o622)).unwrap();
        let error = Fifo::open(&fifo).unwrap_err().to_string();
        assert!(error.contains("other users may write"), "{error}");
        fs::set_permissions(&fifo, fs::Permissions::from_mode(0o600)).unwrap();
        drop(Fifo::open(&fifo).unwrap());
        assert!(!fifo.exists());
    }

    #[test]
    fn replaced_fifo_is_not_removed() {
        let directory = Directory::new("another");
        let path = directory.0.join("fifo");
        let ours = Fifo::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        drop(ours);
        assert!(path.exists());
    }

    #[test]
    fn unterminated_line_is_not_joined_to_next() {
        let directory = Directory::new("cut");
        let path = directory.0.join("fifo");
        let mut fifo = Fifo::open(&path).unwrap();
        let write = |text: &[u8]| {
            OpenOptions::new().write(true).open(&path).unwrap().write_all(text).unwrap();
        };
        write(b"1");
        assert!(fifo.command().is_none());
        write(b"0\n");
        assert!(matches!(fifo.command(), Some(Command::Stop)), "and not 10 seconds");
    }
}
