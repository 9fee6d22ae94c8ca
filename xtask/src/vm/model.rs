//! The model as a process of its own that serves PCI functions to QEMU, each over a socket.
//!
//! It is started as `verbless-model pci --socket S [--socket S]… [--profile P]… --link L
//! [--functions N | --sides] [--trap]`: a device for every profile (by default one, of the model's
//! choice), `N` functions for every device, and one socket per function, in the order of the
//! devices. A function's socket takes one client; the process ends once all clients have
//! disconnected.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::child::{Guarded, Scratch};
use crate::workspace::Result;

/// The configuration of the model.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Shape {
    /// The model's device profile; give it once for every device in the guest.
    #[arg(long = "profile", value_name = "P")]
    pub(crate) profiles: Vec<String>,
    /// Link type of the ports. On Ethernet, Linux needs a network interface for every port, which
    /// is not modelled yet: without one, ports are DOWN and have no GIDs, but raw frames and flow
    /// rules work.
    #[arg(long, value_name = "LINK", default_value = "infiniband")]
    #[arg(value_parser = ["infiniband", "ethernet"])]
    pub(crate) link: String,
    /// PCI functions of every device.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) functions: u8,
    /// Both sides of every device, each as its own function: the host's and the Arm cores'. The
    /// profile must have both.
    #[arg(long, conflicts_with = "functions")]
    pub(crate) sides: bool,
    /// Trap every doorbell page rather than map those of user contexts.
    #[arg(long)]
    pub(crate) trap: bool,
    /// Write every command of the guest's drivers with its answer to this file, as text that `cargo
    /// xtask prm decode` reads.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

impl Shape {
    /// The number of devices, all with the same number of functions.
    pub(crate) fn devices(&self) -> usize {
        self.profiles.len().max(1)
    }

    /// The number of functions of each device.
    fn functions_each(&self) -> u8 {
        if self.sides { 2 } else { self.functions }
    }

    /// The number of functions of all devices.
    pub(crate) fn functions_in_all(&self) -> u32 {
        self.devices() as u32 * u32::from(self.functions_each())
    }
}

/// A running model.
pub(crate) struct Model {
    process: Guarded,
    /// The sockets of its functions, by device.
    pub(crate) sockets: Vec<Vec<PathBuf>>,
    log: PathBuf,
}

impl Model {
    /// Starts `program` and waits until it listens. Its messages go to `log`.
    pub(crate) fn start(
        program: &Path,
        shape: &Shape,
        scratch: &Scratch,
        log: &Path,
    ) -> Result<Self> {
        let sockets: Vec<Vec<PathBuf>> = (0..shape.devices())
            .map(|device| {
                (0..shape.functions_each())
                    .map(|function| scratch.join(&format!("pci-{device}.{function}")))
                    .collect()
            })
            .collect();
        let mut command = Command::new(program);
        command.arg("pci").args(arguments(shape, &sockets));
        let output = File::create(log)?;
        let process = Guarded::start(&command, output.try_clone()?.into(), output.into())?;
        let mut model = Self { process, sockets, log: log.to_path_buf() };
        model.wait_for_sockets()?;
        Ok(model)
    }

    fn wait_for_sockets(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        let listens = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
        };
        while !self.sockets.iter().flatten().all(listens) {
            self.check()?;
            if Instant::now() > end {
                return Err(format!("the model does not listen\n{}", self.last_words()).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The model makes one more system call between a socket's name and its readiness.
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    /// Fails if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.process.ended()? {
            None => Ok(()),
            Some(status) => {
                Err(format!("the model ended before the guest ({status})\n{}", self.last_words())
                    .into())
            }
        }
    }

    /// After the guest's end: the model must end by itself, successfully.
    pub(crate) fn finish(mut self) -> Result<()> {
        match self.process.wait(Duration::from_secs(5))? {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                Err(format!("the model failed ({status})\n{}", self.last_words()).into())
            }
            None => {
                Err(format!("the model did not end with its guest\n{}", self.last_words()).into())
            }
        }
    }

    /// The last lines of its log.
    fn last_words(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let start = lines.len().saturating_sub(20);
        lines[start..].iter().map(|line| format!("  {line}\n")).collect()
    }
}

/// The arguments after `pci`.
fn arguments(shape: &Shape, sockets: &[Vec<PathBuf>]) -> Vec<String> {
    let mut arguments = Vec::new();
    for socket in sockets.iter().flatten() {
        arguments.extend(["--socket".to_string(), socket.display().to_string()]);
    }
    for profile in &shape.profiles {
        arguments.extend(["--profile".to_string(), profile.clone()]);
    }
    arguments.extend(["--link".to_string(), shape.link.clone()]);
    if shape.functions != 1 {
        arguments.extend(["--functions".to_string(), shape.functions.to_string()]);
    }
    if shape.sides {
        arguments.push("--sides".to_string());
    }
    if shape.trap {
        arguments.push("--trap".to_string());
    }
    if let Some(file) = &shape.record {
        arguments.extend(["--record".to_string(), file.display().to_string()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::{Shape, arguments};

    #[test]
    fn lone_device_needs_socket_argument_only() {
        let shape = Shape {
            profiles: vec![],
            link: "ethernet".into(),
            functions: 1,
            sides: false,
            trap: false,
            record: None,
        };
        assert_eq!((shape.devices(), shape.functions_in_all()), (1, 1));
        assert_eq!(arguments(&shape, &[vec!["s".into()]]).join(" "), "--socket s --link ethernet");
    }

    #[test]
    fn every_function_has_a_socket() {
        let shape = Shape {
            profiles: vec!["a".into(), "b".into()],
            link: "infiniband".into(),
            functions: 2,
            sides: false,
            trap: true,
            record: Some("r".into()),
        };
        assert_eq!((shape.devices(), shape.functions_in_all()), (2, 4));
        let sockets = [vec!["a0".into(), "a1".into()], vec!["b0".into(), "b1".into()]];
        assert_eq!(
            arguments(&shape, &sockets).join(" "),
            "--socket a0 --socket a1 --socket b0 --socket b1 --profile a --profile b --link \
             infiniband --functions 2 --trap \
             --record r"
        );
    }

    #[test]
    fn sides_of_device_are_two_functions() {
        let shape = Shape {
            profiles: vec!["a".into()],
            link: "infiniband".into(),
            functions: 1,
            sides: true,
            trap: false,
            record: None,
        };
        assert_eq!((shape.devices(), shape.functions_in_all()), (1, 2));
        let words = arguments(&shape, &[vec!["host".into(), "dpu".into()]]).join(" ");
        assert_eq!(words, "--socket host --socket dpu --profile a --link infiniband --sides");
    }
}
