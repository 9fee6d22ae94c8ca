//! A FUSE file whose server behaves like an attacker.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use super::skipped;

pub(super) const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/fuse.py");

/// A mount point; drop unmounts it.
pub(super) struct MountPoint(PathBuf);

impl MountPoint {
    pub(super) fn new(test: &str) -> Option<Self> {
        let mount_point = env::temp_dir().join(format!("fuse-{test}-{}", std::process::id()));
        fs::create_dir(&mount_point).expect("a new directory");
        let mount_point = Self(mount_point);
        if !std::path::Path::new("/usr/bin/python3").exists() {
            skipped("there is no python3");
            return None;
        }
        Some(mount_point)
    }

    pub(super) fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// The server; drop kills it.
pub(super) struct Server {
    child: Child,
    mount_point: MountPoint,
}

impl Server {
    /// Starts the server at its own mount point. `None`: FUSE cannot be mounted here.
    pub(super) fn start(test: &str) -> Option<Self> {
        let mount_point = MountPoint::new(test)?;
        let mut command = Command::new("/usr/bin/python3");
        let child = command.arg(SERVER).arg(mount_point.path()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("the child exists");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut line).expect("text");
        let server = Self { child, mount_point };
        if line != "up\n" {
            skipped("FUSE cannot be mounted here");
            return None;
        }
        Some(server)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.mount_point.path().join("file")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
