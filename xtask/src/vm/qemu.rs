//! The virtual machine as QEMU's command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::arch::Arch;

/// A machine to boot.
pub(crate) struct Machine<'a> {
    pub(crate) arch: &'a Arch,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    /// Destination of the program's output: a listening socket.
    pub(crate) output: &'a Path,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// The sockets of the model's functions, by device.
    pub(crate) devices: &'a [Vec<PathBuf>],
    /// The connection of the first network device; a second network device reaches the host.
    /// `None`: no network device.
    pub(crate) cable: Option<&'a Cable>,
    /// The host's tap device for a third network device.
    pub(crate) tap: Option<&'a str>,
    /// Its network with the host, if there is no cable.
    pub(crate) network: HostNetwork,
    /// Whether a reboot of the guest's starts it again, and does not end QEMU.
    pub(crate) reboots: bool,
}

/// A guest's network with the host, on which the host is 10.0.2.2 and the guest 10.0.2.15.
#[derive(Clone, Copy)]
pub(crate) enum HostNetwork {
    None,
    /// The guest reaches the host's TCP ports.
    Reaches,
    /// In addition, this TCP port of the host leads to the guest's [`GUEST_PORT`].
    ReachedAt(u16),
}

/// Two datagram sockets that carry Ethernet frames, one in each datagram.
pub(crate) struct Cable {
    /// The guest's end.
    pub(crate) guest: SocketAddr,
    /// The other end.
    pub(crate) outside: SocketAddr,
}

/// The guest's TCP port that a port of the host may lead to.
pub(crate) const GUEST_PORT: u16 = 7471;

/// The kernel's command line on every architecture. The whole log goes to the console, an oops ends
/// the run like a panic, and options that are expensive for an emulated processor are off.
const KERNEL: &str = "loglevel=7 printk.devkmsg=on panic=-1 oops=panic mitigations=off nokaslr \
                      random.trust_cpu=on";

impl Machine<'_> {
    /// Completes `qemu` with the machine. The kernel's log is QEMU's standard output.
    ///
    /// One processor: two on two host cores make every command of the device take milliseconds.
    /// Memory is a memfd that QEMU shares, because the model reads and writes it.
    pub(crate) fn describe(&self, qemu: &mut Command) {
        let Self { memory, .. } = self;
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(self.arch.board)
            .args(["-smp", "1", "-m", &format!("{memory}M")])
            .args(["-object", &format!("memory-backend-memfd,id=ram,size={memory}M,share=on")])
            .args(["-chardev", "stdio,id=log,signal=off", "-serial", "chardev:log"])
            .args(["-chardev", &format!("socket,id=output,path={}", escaped(self.output))])
            .args(["-serial", "chardev:output"])
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.initramfs)
            .arg("-append")
            .arg(format!("{} {KERNEL}", self.arch.console));
        if !self.reboots {
            qemu.arg("-no-reboot");
        }
        for (device, functions) in self.devices.iter().enumerate() {
            let slot = device + 1;
            qemu.args([
                "-device",
                &format!("pcie-root-port,id=port{device},bus=pcie.0,chassis={slot},slot={slot}"),
            ]);
            for (function, socket) in functions.iter().enumerate() {
                let description = serde_json::json!({
                    "driver": "vfio-user-pci",
                    "bus": format!("port{device}"),
                    "addr": format!("0.{function}"),
                    "multifunction": functions.len() > 1,
                    "rombar": 0,
                    "socket": { "type": "unix", "path": socket },
                });
                qemu.args(["-device", &description.to_string()]);
            }
        }
        if let Some(Cable { guest, outside }) = self.cable {
            let end = |name: &str, of: &SocketAddr| {
                format!("{name}.type=inet,{name}.host={},{name}.port={}", of.ip(), of.port())
            };
            let network =
                format!("dgram,id=cable,{},{}", end("local", guest), end("remote", outside));
            // Without a ROM, which serves network boot.
            qemu.args(["-netdev", &network])
                .args(["-device", "virtio-net-pci,netdev=cable,romfile=,speed=10000,duplex=full"])
                .args(["-netdev", "user,id=host"])
                .args(["-device", "virtio-net-pci,netdev=host,romfile="]);
        }
        let network = match self.network {
            HostNetwork::None => None,
            HostNetwork::Reaches => Some("user,id=host".to_string()),
            HostNetwork::ReachedAt(port) => {
                Some(format!("user,id=host,hostfwd=tcp:127.0.0.1:{port}-:{GUEST_PORT}"))
            }
        };
        if let Some(network) = network {
            qemu.args(["-netdev", &network])
                .args(["-device", "virtio-net-pci,netdev=host,romfile="]);
        }
        if let Some(tap) = self.tap {
            let network = format!("tap,id=tap,ifname={tap},script=no,downscript=no");
            qemu.args(["-netdev", &network])
                .args(["-device", "virtio-net-pci,netdev=tap,romfile="]);
        }
    }
}

/// A path in a list of options, where a comma is written twice.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{HostNetwork, Machine};
    use crate::vm::arch::{AARCH64, Arch, X86_64};

    fn command_line(devices: &[Vec<std::path::PathBuf>]) -> String {
        command_line_on(&X86_64, devices)
    }

    fn command_line_on(arch: &Arch, devices: &[Vec<std::path::PathBuf>]) -> String {
        let mut qemu = Command::new("qemu");
        let machine = Machine {
            arch,
            kernel: Path::new("vmlinuz"),
            initramfs: Path::new("root"),
            output: Path::new("/tmp/a,b"),
            memory: 512,
            devices,
            cable: None,
            tap: None,
            network: HostNetwork::None,
            reboots: false,
        };
        machine.describe(&mut qemu);
        qemu.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn guest_memory_is_shared_with_model() {
        let line = command_line(&[]);
        assert!(line.contains("memory-backend-memfd,id=ram,size=512M,share=on"));
        assert!(line.contains("path=/tmp/a,,b"));
        assert!(!line.contains("vfio-user"));
    }

    #[test]
    fn guest_logs_on_its_own_console() {
        assert!(command_line(&[]).contains("-append console=ttyS0 "));
        let line = command_line_on(&AARCH64, &[vec!["s".into()]]);
        assert!(
            line.contains("-machine virt,") && line.contains("-append console=ttyAMA0 loglevel")
        );
        assert!(line.contains("vfio-user-pci"), "{line}");
    }

    #[test]
    fn device_gets_port_and_function_socket() {
        let line = command_line(&[vec!["s0".into(), "s1".into()], vec!["t0".into(), "t1".into()]]);
        assert_eq!(line.matches("pcie-root-port").count(), 2);
        assert_eq!(line.matches("vfio-user-pci").count(), 4);
        assert_eq!(line.matches("\"multifunction\":true").count(), 4);
        assert!(line.contains("\"addr\":\"0.1\",\"bus\":\"port1\""));
        let alone = command_line(&[vec!["s".into()]]);
        assert!(alone.contains("\"multifunction\":false"));
    }
}
