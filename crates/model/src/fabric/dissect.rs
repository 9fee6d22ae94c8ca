//! Captures as two other implementations read them: tshark (Wireshark) and scapy.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use super::pcapng::Pcapng;
use crate::profile::Link;
use crate::watch::SeenFrame;
use verbless_wire::samples::{emitted, of_every_opcode, of_every_route};
use verbless_wire::{Headers, Message, Packet, Route, Service};

/// Reports a skipped test to standard error, past the harness, which hides a passing test's output:
/// `cargo xtask test` counts these lines.
fn skipped(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().and_then(|name| name.rsplit("::").next()).unwrap_or("a test");
    let line = format!("skipped: {name}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
}

/// A file that is removed after the test.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl File {
    fn path(&self) -> &Path {
        &self.0
    }

    /// A capture of these packets, one each microsecond, alternately out and in.
    fn of(name: &str, packets: &[Packet<'_>]) -> Self {
        let path = std::env::temp_dir().join(format!("verbless-{}-{name}", std::process::id()));
        let file = Self(path);
        let mut capture = Pcapng::new(std::fs::File::create(&file.0).unwrap()).unwrap();
        for (number, packet) in packets.iter().enumerate() {
            let link = link(packet);
            let (port, name) = match link {
                Link::Ethernet => (0, "device 0 port 1"),
                Link::Infiniband => (1, "device 1 port 1"),
            };
            let (at, leaving) = (Duration::from_micros(number as u64), number % 2 == 0);
            let bytes = emitted(packet).into();
            let seen = SeenFrame { port, name: name.into(), link, at, leaving, bytes };
            capture.frame(&seen).unwrap();
        }
        file
    }
}

fn link(packet: &Packet<'_>) -> Link {
    match packet.headers.route {
        Route::Local(_) | Route::Global(..) => Link::Infiniband,
        _ => Link::Ethernet,
    }
}

/// A packet of every opcode on every route, with a payload where the opcode takes one.
fn all() -> Vec<Packet<'static>> {
    let routes = of_every_route().map(|packet| packet.headers.route);
    let packets = routes.into_iter().flat_map(|route| {
        of_every_opcode().map(move |transport| {
            let message = transport.opcode().expect("the transport has an opcode");
            let payload: &[u8] = match message.message {
                // These carry 16 reserved bytes.
                Message::Congestion | Message::RoceCongestion => &[0; 16],
                _ if message.has_payload() => b"hello",
                _ => b"",
            };
            Packet { headers: Headers { route, transport }, payload }
        })
    });
    packets.collect()
}

fn output(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

#[test]
fn tshark_reads_a_capture_of_every_opcode() {
    let packets = all();
    let file = File::of("opcodes.pcapng", &packets);
    let mut tshark = Command::new("tshark");
    // rpcordma would parse the payload of a SEND as NFS.
    tshark.args(["-n", "--disable-protocol", "rpcordma", "-T", "fields", "-E", "separator=;"]);
    tshark.arg("-r").arg(file.path());
    for field in [
        "_ws.malformed",
        "frame.time_epoch",
        "frame.interface_name",
        "frame.packet_flags_direction",
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
    ] {
        tshark.args(["-e", field]);
    }
    let Some(output) = output(&mut tshark) else {
        return skipped("there is no tshark here: apt-get install tshark");
    };
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert_eq!(text.lines().count(), packets.len(), "{errors}");
    for ((number, packet), line) in packets.iter().enumerate().zip(text.lines()) {
        let (malformed, line) = line.split_once(';').expect("the first field");
        // tshark parses XRC opcodes as those of another service with other headers, and misses the
        // last headers of some RD opcodes, which mlx5 does not have.
        let opcode = packet.headers.transport.opcode().expect("the transport has an opcode");
        let known = !matches!(opcode.service, Service::Xrc | Service::Rd);
        assert!(malformed.is_empty() || !known, "{malformed}: {packet:?}");
        let bth = packet.headers.transport.bth;
        let interface = match link(packet) {
            Link::Ethernet => "device 0 port 1",
            Link::Infiniband => "device 1 port 1",
        };
        let direction = if number % 2 == 0 { "0x00000002" } else { "0x00000001" };
        let expected = format!(
            "0.{:09};{interface};{direction};{};{:#08x};{};",
            1_000 * number,
            bth.opcode().0,
            bth.destination_qp(),
            bth.psn(),
        );
        let crc = line.strip_prefix(&expected).unwrap_or_else(|| panic!("{line}, not {expected}"));
        let bytes = emitted(packet);
        let icrc = bytes.last_chunk().map_or(0, |crc| u32::from_be_bytes(*crc));
        // tshark does not parse a congestion notification after its BTH.
        let read =
            known && !matches!(opcode.message, Message::Congestion | Message::RoceCongestion);
        assert!(!read || crc == format!("{icrc:#010x}"), "{crc}: {packet:?}");
    }
}

/// A python3 of the user may precede the system's, for which the scapy package is installed.
const PYTHONS: [&str; 2] = ["python3", "/usr/bin/python3"];

/// Prints, for each RoCE v2 frame of a capture, its number, its ICRC and the ICRC that scapy
/// computes.
const ICRCS: &str = "
import sys
from scapy.all import rdpcap, Ether, raw
from scapy.contrib.roce import BTH
for number, frame in enumerate(rdpcap(sys.argv[1])):
    if BTH in frame and frame.type != 0x8915:
        said = raw(frame)[-4:]
        print(number, said.hex(), frame[BTH].compute_icrc(None).hex())
";

#[test]
fn scapy_computes_the_same_icrc_for_every_opcode() {
    let packets: Vec<_> = all().into_iter().filter(|it| link(it) == Link::Ethernet).collect();
    let file = File::of("icrcs.pcapng", &packets);
    let Some(python) = PYTHONS.into_iter().find(|python| {
        output(Command::new(python).args(["-c", "import scapy"]))
            .is_some_and(|it| it.status.success())
    }) else {
        return skipped("no python3 here has scapy: apt-get install python3 python3-scapy");
    };
    let output = output(Command::new(python).args(["-c", ICRCS]).arg(file.path())).unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    let roce_v2 = |packet: &&Packet<'_>| !matches!(packet.headers.route, Route::RoceV1(..));
    assert_eq!(text.lines().count(), packets.iter().filter(roce_v2).count(), "{errors}");
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [number, says, is] = words[..] else { panic!("{line}") };
        let packet = packets[number.parse::<usize>().unwrap()];
        let crc = emitted(&packet)[packet.frame_length() - 4..].to_vec();
        let crc: String = crc.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(says, crc, "{packet:?}");
        // scapy before 2.6 has no ICRC over IPv6 and gives 0; `wire::tests` has frames made by 2.8.
        let unable = matches!(packet.headers.route, Route::Ipv6(..)) && is == "00000000";
        assert!(unable || is == crc, "{is}: {packet:?}");
    }
}
