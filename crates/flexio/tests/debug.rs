//! Programs on the model's DPA under Debian's gdb-multiarch.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{
    DpaCall, DpaCallState, DpaEntry, DpaProcess, DpaStatus, DpaThread, DpaThreadKind,
    DpaThreadState,
};
use verbless_flexio::{App, Process, ProcessConfig};

use support::{CODE, file, function};

const GDB: &str = "gdb-multiarch";
const TIMEOUT: Duration = Duration::from_secs(60);

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The test of this thread.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_string()
}

struct Rig {
    process: Process,
    device: Device,
    port: u16,
}

impl Rig {
    /// A process, and a port for a debugger of runs at `entry`; `None` without a debugger.
    fn new(entry: Option<u64>) -> Result<Option<Self>> {
        if let Err(error) = Command::new(GDB).arg("--version").stdout(Stdio::null()).status() {
            let line = format!("skipped: {}: {GDB}: {error}\n", test_name());
            // The test harness hides `eprintln!` of a passing test.
            std::io::stderr().write_all(line.as_bytes())?;
            return Ok(None);
        }
        let model = Model::builder().device(Profile::load("bluefield3")?).build();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        model.debug_programs(listener, entry)?;
        let backend = InProcess::of(&model);
        let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
        let app = App::new("debugged", &file())?;
        let process = Process::create(&device, &app, &ProcessConfig::default())?;
        Ok(Some(Self { process, device, port }))
    }

    fn object(&self) -> &Arc<DpaProcess> {
        self.process.object()
    }

    fn begin(&self, function: u64, arguments: [u64; 2]) -> Result<DpaCall> {
        let [a, b] = arguments;
        let entry = DpaEntry::at(function);
        Ok(self.device.begin_dpa_call(self.object(), &entry, [a, b, 0, 0, 0, 0, 0, 0])?)
    }

    fn thread(&self) -> Result<DpaThread> {
        let entry = DpaEntry::at(function::HANDLER);
        Ok(self.device.create_dpa_thread(self.object(), &entry, 0, DpaThreadKind::default())?)
    }

    /// Runs these commands in gdb, on a thread of its own; returns its output.
    fn gdb(&self, commands: &[&str]) -> JoinHandle<String> {
        let mut gdb = Command::new(GDB);
        gdb.args(["-nx", "-batch", "-ex", "set architecture riscv:rv64"]);
        gdb.args(["-ex", &format!("target remote 127.0.0.1:{}", self.port)]);
        commands.iter().for_each(|command| _ = gdb.args(["-ex", command]));
        gdb.stdin(Stdio::null());
        std::thread::spawn(move || {
            let output = gdb.output().expect("gdb runs");
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        })
    }
}

/// Polls until a value is available.
fn until<T>(mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + TIMEOUT;
    loop {
        match look()? {
            Some(found) => return Ok(found),
            None if Instant::now() > end => return Err("it does not come".into()),
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn end_of(call: &DpaCall) -> Result<DpaCallState> {
    until(|| Ok(Some(call.state()?).filter(|state| *state != DpaCallState::Running)))
}

/// Checks that the parts occur in the text, in this order.
fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing in:\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn gdb_steps_call_and_changes_its_result() -> Result {
    let Some(rig) = Rig::new(None)? else { return Ok(()) };
    let call = rig.begin(function::COUNT, [3, 10])?;
    let commands = [
        "print/x $pc",
        "print $a0",
        "stepi",
        "stepi",
        "print/x $t0",
        "break *0x40000014",
        "set $a1 = 7",
        "continue",
        "x/1gd 0x80000000",
        "continue",
    ];
    let said = rig.gdb(&commands).join().expect("gdb");
    let expected =
        ["$1 = 0x40000000", "$2 = 3", "$3 = 0x80000000", "Breakpoint 1,", "21", "exited normally"];
    in_order(&said, &expected);
    assert_eq!(end_of(&call)?, DpaCallState::Returned(21));
    // The next call is in no debugger.
    let call = rig.begin(function::COUNT, [1, 1])?;
    assert_eq!(end_of(&call)?, DpaCallState::Returned(22));
    Ok(())
}

#[test]
fn gdb_debugs_all_runs_of_thread_until_detach() -> Result {
    let Some(rig) = Rig::new(Some(function::HANDLER))? else { return Ok(()) };
    let thread = rig.thread()?;
    let activate = || -> Result {
        let call = rig.begin(function::ACTIVATE, [thread.id().into(), 0])?;
        assert!(matches!(end_of(&call)?, DpaCallState::Returned(_)));
        Ok(())
    };
    activate()?;
    let commands =
        ["break *0x40000028", "continue", "print/x $t0", "continue", "x/1gd 0x80000000", "detach"];
    let gdb = rig.gdb(&commands);
    // Its first run continues under the debugger, and only then a second one starts.
    until(|| Ok((thread.query()?.state == DpaThreadState::IDLE).then_some(())))?;
    activate()?;
    let said = gdb.join().expect("gdb");
    in_order(&said, &["Breakpoint 1,", "$1 = 0x80000000", "Breakpoint 1,", "\t1", "detached"]);
    until(|| Ok((thread.query()?.state == DpaThreadState::IDLE).then_some(())))?;
    for runs in 3..10 {
        activate()?;
        until(|| {
            let info = thread.query()?;
            Ok((info.state == DpaThreadState::IDLE && info.runs == runs).then_some(()))
        })?;
    }
    let counted = rig.begin(function::COUNT, [1, 0])?;
    assert_eq!(end_of(&counted)?, DpaCallState::Returned(9));
    // Four instructions of its own and one before the system call that ends it.
    let instructions = thread.query()?.instructions;
    assert_eq!(instructions % 9, 0, "{instructions} instructions of nine like runs");
    Ok(())
}

#[test]
fn gdb_sees_fault_before_process_ends() -> Result {
    let Some(rig) = Rig::new(None)? else { return Ok(()) };
    let call = rig.begin(function::FAULT, [0, 0])?;
    let commands = ["continue", "print/x $pc", "continue"];
    let said = rig.gdb(&commands).join().expect("gdb");
    in_order(&said, &["SIGSEGV", "$1 = 0x40000060", "exited with code 04"]);
    assert_eq!(end_of(&call)?, DpaCallState::ProcessEnded(DpaStatus(4)));
    let crash = rig.object().query()?.crash.ok_or("no crash report")?;
    assert_eq!((crash.pc, crash.address), (function::FAULT, 8));
    Ok(())
}

#[test]
fn processes_have_distinct_debug_tokens() -> Result {
    let Some(rig) = Rig::new(None)? else { return Ok(()) };
    let other =
        Process::create(&rig.device, &App::new("other", &file())?, &ProcessConfig::default())?;
    let tokens = [rig.process.udbg_token()?, other.udbg_token()?];
    assert!(!tokens.contains(&0) && tokens[0] != tokens[1], "{tokens:x?}");
    Ok(())
}

#[test]
fn gdb_sees_second_fault_after_moving_pc() -> Result {
    let Some(rig) = Rig::new(None)? else { return Ok(()) };
    let call = rig.begin(function::FAULT, [0, 0])?;
    let elsewhere = format!("set $pc = {:#x}", function::FAULT_ELSEWHERE);
    let commands = ["continue", &elsewhere, "continue", "print/x $pc", "continue"];
    let said = rig.gdb(&commands).join().expect("gdb");
    in_order(&said, &["SIGSEGV", "SIGSEGV", "$1 = 0x40000068", "exited with code 04"]);
    assert_eq!(end_of(&call)?, DpaCallState::ProcessEnded(DpaStatus(4)));
    let crash = rig.object().query()?.crash.ok_or("no crash report")?;
    assert_eq!((crash.pc, crash.address), (function::FAULT_ELSEWHERE, 16));
    Ok(())
}

/// Kills a process with or without an error handler, in the first run of a thread or after it;
/// returns how it ended.
fn killed(handler: bool, stopped: bool) -> Result<Option<(DpaStatus, u64)>> {
    let Some(rig) = Rig::new(Some(function::HANDLER))? else { return Ok(None) };
    if handler {
        rig.object().set_error_handler(function::COUNT)?;
    }
    let thread = rig.thread()?;
    let call = rig.begin(function::ACTIVATE, [thread.id().into(), 0])?;
    assert!(matches!(end_of(&call)?, DpaCallState::Returned(_)));
    // Its connection stays until the process has ended.
    let mut gdb = None;
    if stopped {
        rig.gdb(&["stepi", "kill"]).join().expect("gdb");
    } else {
        // Like gdb: continue, and after the run interrupt and kill.
        let gdb = gdb.insert(std::net::TcpStream::connect(("127.0.0.1", rig.port))?);
        gdb.write_all(b"$vCont;c#a8")?;
        until(|| {
            let info = thread.query()?;
            Ok((info.state == DpaThreadState::IDLE && info.runs == 1).then_some(()))
        })?;
        gdb.write_all(b"\x03$k#6b")?;
    }
    until(|| Ok(Some(rig.object().query()?.status).filter(|status| !status.runs())))?;
    assert_eq!(thread.query()?.runs, 1);
    let info = rig.object().query()?;
    assert!(info.crash.is_some(), "no crash report");
    Ok(Some((info.status, info.instructions)))
}

#[test]
fn gdb_kill_bypasses_error_handler() -> Result {
    // Three instructions of the call that starts the thread; one is stepped, or five run and one
    // precedes the system call that ends the run.
    for (stopped, instructions) in [(true, 3 + 1), (false, 3 + 5)] {
        for handler in [false, true] {
            let Some((status, took)) = killed(handler, stopped)? else { return Ok(()) };
            let expected = (DpaStatus(7), instructions);
            assert_eq!((status, took), expected, "stopped: {stopped}, handler: {handler}");
        }
    }
    Ok(())
}

#[test]
fn gdb_kill_ends_process() -> Result {
    let Some(rig) = Rig::new(None)? else { return Ok(()) };
    let call = rig.begin(function::COUNT, [1 << 40, 1])?;
    let said = rig.gdb(&["stepi", "print/x $pc", "kill"]).join().expect("gdb");
    in_order(&said, &["$1 = 0x40000004"]);
    assert_eq!(end_of(&call)?, DpaCallState::ProcessEnded(DpaStatus(7)));
    Ok(())
}

#[test]
fn host_destroys_debugged_call_without_waiting() -> Result {
    let Some(rig) = Rig::new(None)? else { return Ok(()) };
    let call = rig.begin(function::COUNT, [1 << 40, 1])?;
    let stepped = std::env::temp_dir().join(format!("verbless-stepped-{}", rig.port));
    let sleep = format!("shell touch {}; sleep 3", stepped.display());
    let gdb = rig.gdb(&["stepi", &sleep, "continue"]);
    until(|| Ok(stepped.exists().then_some(())))?;
    std::fs::remove_file(&stepped)?;
    // The debugger has made a step, and gdb sleeps.
    let began = Instant::now();
    call.destroy()?;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    in_order(&gdb.join().expect("gdb"), &["exited normally"]);
    let call = rig.begin(function::COUNT, [2, 5])?;
    assert_eq!(end_of(&call)?, DpaCallState::Returned(10));
    assert_eq!(CODE, function::COUNT);
    Ok(())
}

#[test]
fn disconnected_debugger_resumes_run() -> Result {
    let Some(rig) = Rig::new(None)? else { return Ok(()) };
    let call = rig.begin(function::COUNT, [1000, 2])?;
    let mut debugger = std::net::TcpStream::connect(("127.0.0.1", rig.port))?;
    debugger.write_all(b"$?#3f")?;
    debugger.read_exact(&mut [0])?;
    drop(debugger);
    assert_eq!(end_of(&call)?, DpaCallState::Returned(2000));
    Ok(())
}
