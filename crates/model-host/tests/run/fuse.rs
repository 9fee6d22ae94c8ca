//! A file of FUSE whose server answers as a program that attacks would.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use super::skipped;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/fuse.py");

/// The server; it ends when this is dropped.
pub(super) struct Server {
    place: PathBuf,
    child: Child,
}

impl Server {
    /// Starts the server, in a directory of its own; `None`: FUSE cannot be mounted here.
    pub(super) fn start(test: &str) -> Option<Self> {
        let place = env::temp_dir().join(format!("fuse-{test}-{}", std::process::id()));
        fs::create_dir(&place).expect("a new directory");
        let mut command = Command::new("/usr/bin/python3");
        let child = command.arg(SERVER).arg(&place).stdout(Stdio::piped()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                fs::remove_dir(&place).expect("it is empty");
                skipped(&format!("python3: {error}"));
                return None;
            }
        };
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("text");
        let server = Self { place, child };
        if line != "up\n" {
            skipped("FUSE cannot be mounted here");
            return None;
        }
        Some(server)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.place.join("file")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.place).stderr(Stdio::null()).status();
        let _ = fs::remove_dir(&self.place);
    }
}
