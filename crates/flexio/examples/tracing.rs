//! Output of a DPA program: messages and trace records in files that a tool of the host reads back.
//! After a fatal error: crash data, and a core dump in which a debugger finds the faulting line.
//!
//! `cargo xtask dpa examples` builds and runs it; by hand `tracing target/dpa/tracing.elf`. The
//! reading tool is the same program: `tracing --read MESSAGES TRACE`.

mod support;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use support::{Result, expect};
use verbless::Device;
use verbless_flexio::stream::report::MsgBinReport;
use verbless_flexio::stream::{MsgStream, Output};
use verbless_flexio::tracer::{OutputMode, TraceFile};
use verbless_flexio::{
    App, Error, Function, Handler, MsgStreamConfig, Process, ProcessConfig, Tracer,
};

const START: u64 = 27;
/// The steps of the computation.
const STEPS: u64 = 111;
/// The program's source; the debugger finds a line in it.
const SOURCE: &str = include_str!("../programs/tracing/src/main.rs");
const FAULTING: &str = "// The faulting line.";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [read, messages, trace] if read == "--read" => match show(messages, trace) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
        _ => support::main(run),
    }
}

/// The tool: prints messages and records, one per line.
fn show(messages: impl AsRef<Path>, trace: impl AsRef<Path>) -> Result {
    let mut from = BufReader::new(File::open(messages)?);
    while let Some(MsgBinReport(message)) = MsgBinReport::read(&mut from)? {
        let level = message.level.map_or("?".into(), |level| format!("{level:?}"));
        println!("message {} {level} {}", message.number, message.text);
    }
    for record in TraceFile::new(BufReader::new(File::open(trace)?))? {
        let record = record?;
        let [first, second, ..] = record.arguments;
        println!("record {} {first} {second}", record.id);
    }
    Ok(())
}

/// The Collatz sequence from [`START`], without its final 1: each number with the steps to it.
fn collatz() -> impl Iterator<Item = (u64, u64)> {
    let next = |number: &u64| match *number {
        1 => None,
        number if number.is_multiple_of(2) => Some(number / 2),
        number => Some(3 * number + 1),
    };
    (0..).zip(std::iter::successors(Some(START), next)).take_while(|(_, number)| *number != 1)
}

/// A directory that is removed with its contents.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(device: &Device, app: &App) -> Result {
    let directory = std::env::temp_dir().join(format!("verbless-tracing-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let directory = Directory(directory);
    let messages = directory.0.join("messages");
    let config = ProcessConfig { heap: 2 << 20, ..ProcessConfig::default() };
    let process = Process::create(device, app, &config)?;
    process.set_error_handler(&Handler::named("on_error"))?;

    let output = Output::binary(File::create(&messages)?);
    let stream = MsgStream::create(&process, &MsgStreamConfig::default_stream(), output)?;
    let mut setup = Tracer::init(&process)?;
    setup.set_output_mode(OutputMode::Bin).set_out_filename(directory.0.join("trace"));
    let tracer = setup.create()?;
    tracer.start()?;
    let steps = process.call(Function::<(u64,), u64>::named("steps"), (START,))?;
    expect("the steps", steps, STEPS)?;
    tracer.stop()?;
    stream.flush()?;

    // Another process reads the files.
    let trace = tracer.file().ok_or("the tracer writes no file")?;
    let mut tool = Command::new(std::env::current_exe()?);
    let read = tool.arg("--read").arg(&messages).arg(trace).output()?;
    expect("whether the tool can read", read.status.success(), true)?;
    let said = String::from_utf8(read.stdout)?;
    let mut expected = vec![
        format!("message 0 Info from {START} on"),
        format!("message 1 Warn it took {STEPS} steps"),
    ];
    expected.extend(collatz().map(|(count, number)| format!("record 1 {count} {number}")));
    expected.push(format!("record 2 {START} {STEPS}"));
    expect("what the tool reads", said.lines().map(String::from).collect::<Vec<_>>(), expected)?;
    println!("a tool read back 2 messages and {} trace records", STEPS + 1);
    tracer.destroy()?;

    // The program writes to an address outside of the process's memory.
    match process.call(Function::<(u64, u64), ()>::named("count"), (8, 3)) {
        Err(Error::Fatal(status)) => println!("the process has ended: {status}"),
        other => return Err(format!("a count at address 8: {other:?}").into()),
    }
    stream.flush()?;
    let mut from = BufReader::new(File::open(&messages)?);
    let mut last = None;
    while let Some(MsgBinReport(message)) = MsgBinReport::read(&mut from)? {
        last = Some(message.text);
    }
    let status = process.error_status()?;
    expect("the last message", last, Some(format!("the process ends with status {status}")))?;
    process.crash_data(Some(&directory.0.join("tracing")))?;
    let dump = process.core_dump(Some(&directory.0.join("tracing")))?;
    let program = directory.0.join("program.elf");
    std::fs::write(&program, app.elf())?;
    debug(&program, &dump)
}

/// Checks that a debugger finds the faulting line in a core dump.
fn debug(program: &Path, dump: &Path) -> Result {
    const GDB: &str = "gdb-multiarch";
    let mut gdb = Command::new(GDB);
    gdb.args(["-nx", "-batch"]).arg(program).arg(dump);
    let said = match gdb.args(["-ex", "info line *$pc", "-ex", "backtrace"]).output() {
        Ok(output) => String::from_utf8(output.stdout)?,
        Err(error) => {
            println!("skipped: the faulting line: {GDB}: {error}");
            return Ok(());
        }
    };
    let line = SOURCE.lines().position(|line| line.ends_with(FAULTING)).ok_or("no such line")? + 1;
    for part in [format!("Line {line} of"), format!("main.rs:{line}"), "count_at".into()] {
        if !said.contains(&part) {
            return Err(format!("{GDB} finds no {part:?}:\n{said}").into());
        }
    }
    println!("{GDB} finds the faulting line, {line} of count_at");
    Ok(())
}
