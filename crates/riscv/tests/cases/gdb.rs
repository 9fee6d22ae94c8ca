//! A hart under Debian's unmodified gdb-multiarch.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use verbless_riscv::gdb::{AfterExit, SessionEnd, serve};
use verbless_riscv::{AddressSpace, Exit, Hart, Permissions, Ram, Region};

const CODE: u64 = 0x4000_0000;
const DATA: u64 = 0x8000_0000;
const GDB: &str = "gdb-multiarch";

/// Adds 1 to a0 repeatedly and stores it in memory; a system call ends the program at 100.
const COUNT: [u32; 6] = [
    0x0015_0513, // 00: addi a0, a0, 1
    0x00a5_b023, // 04: sd a0, 0(a1)
    0xfec5_1ce3, // 08: bne a0, a2, 00
    0x0000_0073, // 0c: ecall
    0x0000_0000, // 10: illegal
    0x0010_0073, // 14: ebreak
];

/// A hart at the start of the code, with a page of data.
fn hart(code: &[u32]) -> Hart {
    let (text, data) = (Ram::new(4096), Ram::new(4096));
    let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(text.write(0, &bytes));
    let regions =
        [Region::ram(CODE, &text, Permissions::RX), Region::ram(DATA, &data, Permissions::RW)];
    let mut hart = Hart::new(Arc::new(AddressSpace::new(regions).unwrap()));
    hart.set_pc(CODE);
    hart.set_x(11, DATA);
    hart.set_x(12, 100);
    hart
}

/// Serves a debugger on a thread; returns its port, and a handle to the outcome and the hart.
fn served(mut hart: Hart) -> (u16, JoinHandle<(std::io::Result<SessionEnd>, Hart)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let ended = serve(stream, &mut hart, |hart, exit| match exit {
            Exit::Ecall if hart.x(17) == 0 => AfterExit::Exited(hart.x(10) as u8),
            _ => AfterExit::Continues,
        });
        (ended, hart)
    });
    (port, thread)
}

/// The output of gdb for these commands; `None` if it is not installed.
fn gdb(test: &str, port: u16, commands: &[&str]) -> Option<String> {
    let mut gdb = Command::new(GDB);
    gdb.args(["-nx", "-batch", "-ex", "set architecture riscv:rv64"]);
    gdb.args(["-ex", &format!("target remote 127.0.0.1:{port}")]);
    commands.iter().for_each(|command| _ = gdb.args(["-ex", command]));
    match gdb.stdin(Stdio::null()).output() {
        Ok(output) => {
            let output = [output.stdout, output.stderr].concat();
            Some(String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) => {
            let line = format!("skipped: {test}: {GDB}: {error}\n");
            // The harness hides the output of `eprintln!` in a test that passes.
            std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
            // The thread that waits for the connection ends.
            drop(TcpStream::connect(("127.0.0.1", port)));
            None
        }
    }
}

/// Checks that the text contains these parts in this order.
fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing in:\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn gdb_steps_and_edits_registers_and_memory() {
    let (port, thread) = served(hart(&COUNT));
    let commands = [
        "x/3i $pc",
        "stepi",
        "stepi",
        "print $a0",
        "print/x $pc",
        "x/1gx 0x80000000",
        "set $a0 = 41",
        "set {long}0x80000008 = 0x1234",
        "stepi",
        "stepi",
        "print $a0",
        "x/1gx 0x80000008",
        "x/1gx 0x90000000",
        "detach",
    ];
    let Some(output) = gdb("steps", port, &commands) else { return };
    let expected = [
        "add",
        "sd",
        "bne",
        "$1 = 1",
        "$2 = 0x40000008",
        "0x0000000000000001",
        "$3 = 42",
        "0x0000000000001234",
        "detached",
    ];
    in_order(&output, &expected);
    // gdb prints it to standard error.
    in_order(&output, &["Cannot access memory at address 0x90000000"]);
    let (ended, hart) = thread.join().unwrap();
    assert_eq!(ended.unwrap(), SessionEnd::Detached);
    assert_eq!((hart.x(10), hart.pc()), (42, CODE + 4));
}

#[test]
fn gdb_stops_at_breakpoints_and_sees_exit() {
    let (port, thread) = served(hart(&COUNT));
    let commands = [
        "break *0x40000004",
        "continue",
        "print $a0",
        "continue",
        "print $a0",
        "ignore 1 7",
        "continue",
        "print $a0",
        "delete",
        "continue",
    ];
    let Some(output) = gdb("breakpoints", port, &commands) else { return };
    in_order(&output, &["Breakpoint 1", "$1 = 1", "$2 = 2", "$3 = 10", "exited with code 0144"]);
    let (ended, hart) = thread.join().unwrap();
    assert_eq!(ended.unwrap(), SessionEnd::Exited(100));
    assert_eq!(hart.x(10), 100);
}

#[test]
fn gdb_receives_signal_of_fatal_trap() {
    for (at, expected) in [(0x10, "SIGILL"), (0x14, "SIGTRAP"), (0x1000, "SIGSEGV")] {
        let mut hart = hart(&COUNT);
        hart.set_pc(CODE + at);
        let (port, thread) = served(hart);
        let Some(output) = gdb("signals", port, &["continue", "print/x $pc", "kill"]) else {
            return;
        };
        in_order(&output, &[expected, &format!("{:#x}", CODE + at)]);
        assert_eq!(thread.join().unwrap().0.unwrap(), SessionEnd::Killed);
    }
}

#[test]
fn gdb_exit_removes_breakpoints() {
    let mut counting = hart(&COUNT);
    // Not 0: the call does not end the program.
    counting.set_x(17, 1);
    let (port, thread) = served(counting);
    let commands = ["break *0x40000004", "break *0x40000010", "continue", "delete 1", "continue"];
    let Some(output) = gdb("leaves", port, &commands) else { return };
    in_order(&output, &["Breakpoint 1", "Breakpoint 2"]);
    let (ended, mut hart) = thread.join().unwrap();
    // At its end gdb may kill the program that it did not start, or leave it.
    assert!(matches!(ended.unwrap(), SessionEnd::Killed | SessionEnd::Detached));
    assert_eq!((hart.x(10), hart.pc()), (100, CODE + 0x10), "after the call");
    hart.set_pc(CODE);
    hart.set_x(10, 98);
    assert_eq!(hart.run(100), Exit::Ecall, "no breakpoint is left");
}

#[test]
fn running_program_is_interrupted() {
    use std::io::{Read, Write};
    // j .
    let (port, thread) = served(hart(&[0x0000_006f]));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"$c#63").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    stream.write_all(&[3]).unwrap();
    let mut output = Vec::new();
    // SIGINT is 2; GDB acknowledges, and leaves.
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    while !String::from_utf8_lossy(&output).contains("$S02") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{output:?}");
        output.extend(byte);
    }
    stream.write_all(b"+$D#44").unwrap();
    let (ended, hart) = thread.join().unwrap();
    assert_eq!(ended.unwrap(), SessionEnd::Detached);
    assert_eq!(hart.pc(), CODE);
}

#[test]
fn malformed_or_closed_connection_spares_the_hart() {
    use std::io::Write;
    for bytes in [&b""[..], b"$g", b"+++$zzzz#00", b"\x03\x03", &[0xff; 4096]] {
        let (port, thread) = served(hart(&COUNT));
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // The server may have closed the connection meanwhile.
        let _sent = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let (ended, hart) = thread.join().unwrap();
        assert!(ended.is_err(), "{bytes:?}: {ended:?}");
        assert_eq!((hart.pc(), hart.x(10)), (CODE, 0));
    }
}

/// A small debugger, for packets that gdb has no command for.
struct Debugger(TcpStream);

impl Debugger {
    fn of(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(stream)
    }

    /// Sends a packet; returns the contents of the answer.
    fn ask(&mut self, packet: &str) -> String {
        let sum = packet.bytes().fold(0, u8::wrapping_add);
        self.0.write_all(format!("${packet}#{sum:02x}").as_bytes()).unwrap();
        let mut output = Vec::new();
        while output.iter().rev().nth(2) != Some(&b'#') {
            let mut byte = [0];
            assert_eq!(self.0.read(&mut byte).unwrap(), 1, "{packet}: {output:?}");
            output.extend(byte);
        }
        self.0.write_all(b"+").unwrap();
        let output = String::from_utf8(output).unwrap();
        let answer = output.trim_start_matches('+').trim_start_matches('$');
        answer[..answer.len() - 3].to_owned()
    }
}

#[test]
fn each_debugger_request_is_answered() {
    let (port, thread) = served(hart(&COUNT));
    let mut debugger = Debugger::of(port);
    let asked = [
        ("qSupported:swbreak+", "swbreak+"),
        ("vCont?", "vCont;c;C;s;S"),
        ("vCont;s", "S05"),
        ("vCont;s", "S05"),
        ("m80000000,1", "01"),
        // No bytes, part of the requested bytes, none there.
        ("m80000000,0", ""),
        ("m80000ffe,4", "0* "),
        ("m90000000,4", "E79"),
        ("M80000010,2:beef", "OK"),
        ("m80000010,2", "beef"),
        ("M80000ffe,4:00000000", "E79"),
        ("Z0,40000004,4", "OK"),
        ("Z0,50000000,4", "E16"),
        ("vCont;c", "swbreak"),
        ("z0,40000004,4", "OK"),
        ("z0,40000004,4", "E16"),
        ("vCont;c", "W64"),
    ];
    for (packet, expected) in asked {
        let answer = debugger.ask(packet);
        let fits = if expected.is_empty() { answer.is_empty() } else { answer.contains(expected) };
        assert!(fits, "{packet}: {answer:?}, not {expected:?}");
    }
    assert_eq!(thread.join().unwrap().0.unwrap(), SessionEnd::Exited(100));
}

#[test]
fn detach_removes_all_breakpoints() {
    let (port, thread) = served(hart(&COUNT));
    let mut debugger = Debugger::of(port);
    for packet in ["Z0,40000004,4", "Z0,40000008,4", "z0,40000004,4", "D"] {
        assert_eq!(debugger.ask(packet), "OK", "{packet}");
    }
    let (ended, mut hart) = thread.join().unwrap();
    assert_eq!((ended.unwrap(), hart.run(1000)), (SessionEnd::Detached, Exit::Ecall));
}

#[test]
fn debugger_can_rewrite_executed_code() {
    let (port, thread) = served(hart(&COUNT));
    let mut debugger = Debugger::of(port);
    assert_eq!(debugger.ask("vCont;s"), "S05");
    // addi a0, a0, 32, and back to it.
    assert_eq!(debugger.ask("M40000000,4:13050502"), "OK");
    let mut registers = [0_u64; 33];
    (registers[10], registers[32]) = (1, CODE);
    let registers = registers.map(|it| format!("{:016x}", it.swap_bytes())).concat();
    assert_eq!(debugger.ask(&format!("G{registers}")), "OK");
    assert_eq!(debugger.ask("vCont;s"), "S05");
    assert_eq!(debugger.ask("D"), "OK");
    let (ended, hart) = thread.join().unwrap();
    assert_eq!((ended.unwrap(), hart.x(10)), (SessionEnd::Detached, 33));
}

#[test]
fn faults_are_reported_as_linux_signals() {
    // In gdb's numbers, where SIGBUS is 10: ld and sd of a0 at a1, first at a misaligned address,
    // then at an unmapped one.
    let faults = [
        (0x0005_b503_u32, DATA + 1, "0a"),
        (0x00a5_b023, DATA + 1, "0a"),
        (0x0005_b503, 0x1000, "0b"),
        (0x00a5_b023, 0x1000, "0b"),
        (0, DATA, "04"),
        (0x0010_0073, DATA, "05"),
    ];
    for (code, address, signal) in faults {
        let mut hart = hart(&[code]);
        hart.set_x(11, address);
        let (port, thread) = served(hart);
        let mut debugger = Debugger::of(port);
        let answer = debugger.ask("vCont;c");
        assert_eq!(answer.get(1..3), Some(signal), "{code:#x} at {address:#x}: {answer}");
        drop(debugger);
        assert!(thread.join().unwrap().0.is_err(), "the client closed without a detach");
    }
}

#[test]
fn embedder_decides_where_execution_resumes() {
    // wfi; pause; ecall, after which the embedder continues by itself; a skipped instruction;
    // ebreak
    let code = [0x1050_0073, 0x0100_000f, 0x0000_0073, 0x0015_0513, 0x0010_0073];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let mut hart = hart(&code);
        let mut exits = Vec::new();
        let (stream, _) = listener.accept().unwrap();
        let ended = serve(stream, &mut hart, |hart, exit| {
            exits.push((exit, hart.pc() - CODE));
            if exit == Exit::Ecall {
                hart.set_pc(hart.pc() + 8);
            }
            AfterExit::Continues
        });
        (ended.unwrap(), exits, hart.x(10))
    });
    let mut debugger = Debugger::of(port);
    assert!(debugger.ask("vCont;c").contains("05"));
    assert_eq!(debugger.ask("D"), "OK");
    let exits = vec![(Exit::Wait, 4), (Exit::Pause, 8), (Exit::Ecall, 8)];
    assert_eq!(thread.join().unwrap(), (SessionEnd::Detached, exits, 0));
}
