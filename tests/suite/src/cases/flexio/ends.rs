//! The state after a fatal error: status, pollable file, error handler's messages, crash data, core
//! dump.

use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use verbless_command::DpaStatus;
use verbless_flexio::stream::{MsgStream, MsgSyncMode};
use verbless_flexio::{Error, Function, Handler, MsgStreamConfig, Process, ProcessConfig, Window};
use verbless_prm::DpaFault;

use super::super::dpa::rig::Core;
use super::rig::{Rig, add, ends_with};
use super::streams::Seen;
use super::{failed, fatal};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "flexio_ends",
    "The state after a fatal error: status, a pollable file, crash data, a core dump.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    error_status_is_reset_only_by_display,
    error_fd_is_readable_after_process_end,
    error_handler_runs_before_process_end,
    failing_error_handler_keeps_first_error,
    call_during_error_handler_ends_with_fatal_error,
    error_handler_precedes_first_event_handler,
    crash_data_and_core_dump_follow_fatal_error,
    crash_files_are_private_and_follow_no_links,
    udbg_token_is_zero_without_debugger,
);

fn error_status_is_reset_only_by_display(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let mut text = Vec::new();
    ensure_eq!(process.error_status()?, 0, "the status of a process that runs");
    process.display_error(&mut text)?;
    ensure!(text.is_empty(), "a process that runs has an error to display");
    fatal("the call that ends it", process.call(ends_with(), (200,)))?;
    for _ in 0..2 {
        ensure_eq!(process.error_status()?, 200, "the status, however often it is asked");
        ensure_eq!(process.status()?.status, DpaStatus(200), "the status that stays");
    }
    process.display_error(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines = ["of shown: it ended itself with error 200", "in call ", "x0 0000000000000000"];
    for line in lines {
        ensure!(text.contains(line), "{line:?} is not in the displayed text:\n{text}");
    }
    ensure_eq!(process.error_status()?, 0, "the status once it was displayed");
    ensure_eq!(process.status()?.status, DpaStatus(200), "the status that stays");
    fatal("a call", process.call(add(), (1, 2)))?;
    Ok(process.destroy()?)
}

/// The first of the files to become readable within this time, if any.
fn readable(epoll: &Epoll, milliseconds: u16) -> Result<Option<u64>, Stop> {
    let mut events = [EpollEvent::empty(); 2];
    let count = epoll.wait(&mut events, milliseconds).map_err(std::io::Error::from)?;
    ensure!(count < 2, "two files have something to read");
    Ok((count == 1).then(|| events[0].data()))
}

fn watch(epoll: &Epoll, file: BorrowedFd<'_>, number: u64) -> Result<(), Stop> {
    let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
    Ok(epoll.add(file, event).map_err(std::io::Error::from)?)
}

fn error_fd_is_readable_after_process_end(lab: &Lab) -> Result<(), Stop> {
    const TIMEOUT_MS: u16 = 10_000;
    let rigs = [Rig::new(lab)?, Rig::new(lab)?];
    let epoll = Epoll::new(EpollCreateFlags::empty()).map_err(std::io::Error::from)?;
    for (number, rig) in (0..).zip(&rigs) {
        watch(&epoll, rig.process.error_fd()?, number)?;
    }
    quiet("a file of a process that runs", || readable(&epoll, 0).transpose())?;
    fatal("the call", rigs[1].process.call(ends_with(), (200,)))?;
    ensure_eq!(readable(&epoll, TIMEOUT_MS)?, Some(1), "the file of the process that has ended");
    ensure_eq!(rigs[1].process.error_status()?, 200, "the status of the ended process");
    rigs[1].process.display_error(&mut std::io::sink())?;
    quiet("the file after its display", || readable(&epoll, 0).transpose())?;
    ensure_eq!(rigs[0].process.call(add(), (40, 2))?, 42, "the other process continues");
    // A file requested after the error is readable at once.
    let [rig, _] = rigs;
    epoll.delete(rig.process.error_fd()?).map_err(std::io::Error::from)?;
    let late = Rig::new(lab)?.process;
    fatal("the call", late.call(ends_with(), (200,)))?;
    watch(&epoll, late.error_fd()?, 7)?;
    ensure_eq!(readable(&epoll, 0)?, Some(7), "a file of a process that had ended");
    Ok(())
}

/// The messages of a process, in order, and its status after an error ends it; the process has an
/// error handler.
fn messages(
    process: &Process,
    handler: &Handler,
    end: impl FnOnce() -> Result<(), Stop>,
) -> Result<Vec<String>, Stop> {
    process.set_error_handler(handler)?;
    let seen = Seen::default();
    let config =
        MsgStreamConfig { sync_mode: MsgSyncMode::Async, ..MsgStreamConfig::default_stream() };
    let stream = MsgStream::create(process, &config, seen.output())?;
    end()?;
    stream.flush()?;
    stream.destroy()?;
    Ok(seen.texts())
}

/// Reads through a window by a missing key; returns the process's status.
fn fault(process: &Process) -> Result<DpaStatus, Stop> {
    let peek = Function::<(u16, u32, u64), u64>::named("peek");
    let window = Window::create(process, process.pd())?;
    match process.call(peek, (window.id().0, 0xabcd, 0)) {
        Err(Error::Fatal(status)) if (1..64).contains(&status.0) => Ok(status),
        other => Err(Stop::fail(format!("an access to unmapped memory: {other:?}"))),
    }
}

fn error_handler_runs_before_process_end(lab: &Lab) -> Result<(), Stop> {
    let handler = Handler::named("on_error");
    let process = Rig::new(lab)?.process;
    let said =
        messages(&process, &handler, || fatal("the call", process.call(ends_with(), (200,))))?;
    ensure_eq!(said, ["it ends with 200"], "the error handler's message");
    ensure_eq!(process.status()?.status, DpaStatus(200), "the status");
    process.destroy()?;

    let process = Rig::new(lab)?.process;
    let mut status = DpaStatus(0);
    let said = messages(&process, &handler, || {
        status = fault(&process)?;
        Ok(())
    })?;
    ensure_eq!(said, [format!("it ends with {}", status.0)], "the handler's message about a fault");
    let crash = process.status()?.crash.ok_or_else(|| Stop::fail("no crash"))?;
    let at = process.app().function_at(crash.pc).map(|(name, _)| name.to_owned());
    ensure!(at.as_deref() != Some("on_error"), "the crash is the handler's, not the fault's");
    process.destroy()?;

    let process = Rig::new(lab)?.process;
    let said = messages(&process, &handler, || {
        match process.call(Function::<(), ()>::named("finishes"), ()) {
            Err(Error::Fatal(DpaStatus(status))) if status == DpaFault::FINISHED.0 => Ok(()),
            other => Err(Stop::fail(format!("a call that finishes its process: {other:?}"))),
        }
    })?;
    ensure!(said.is_empty(), "the error handler ran without an error: {said:?}");
    ensure_eq!(process.error_status()?, 0, "the error of a process that has finished");
    Ok(process.destroy()?)
}

fn failing_error_handler_keeps_first_error(lab: &Lab) -> Result<(), Stop> {
    for handler in ["on_error_fails", "on_error_spins"] {
        let config = ProcessConfig { watchdog: 1_000_000, ..<_>::default() };
        let process = Rig::with(lab, &config)?.process;
        let said = messages(&process, &Handler::named(handler), || {
            fatal("the call", process.call(ends_with(), (200,)))
        })?;
        ensure_eq!(said, ["it ends with 200"], "what {handler} says");
        ensure_eq!(process.status()?.status, DpaStatus(200), "the status with {handler}");
        process.destroy()?;
    }
    Ok(())
}

fn call_during_error_handler_ends_with_fatal_error(lab: &Lab) -> Result<(), Stop> {
    // An unoptimized model takes longer than the usual timeout for this many instructions.
    let timeout = std::time::Duration::from_secs(60);
    let config = ProcessConfig { watchdog: 20_000_000, timeout, ..<_>::default() };
    let process = Rig::with(lab, &config)?.process;
    process.set_error_handler(&Handler::named("on_error_spins"))?;
    let seen = Seen::default();
    let asynchronous =
        MsgStreamConfig { sync_mode: MsgSyncMode::Async, ..MsgStreamConfig::default_stream() };
    let stream = MsgStream::create(&process, &asynchronous, seen.output())?;
    let other = MsgStream::create(&process, &MsgStreamConfig::new("other"), seen.output())?;
    std::thread::scope(|scope| {
        let call = scope.spawn(|| process.call(ends_with(), (200,)));
        let ending = || process.status().ok()?.ending.then_some(());
        until("the error handler", ending)?;
        ensure_eq!(
            process.status()?.status,
            DpaStatus(0),
            "the status while the error handler runs"
        );
        // It is dropped meanwhile, and keeps no part of the process.
        drop(other);
        let met = process.status()?;
        ensure!(
            met.ending || met.status == DpaStatus(200),
            "neither ending nor at its end: {met:?}"
        );
        fatal("a call that meets the handler", process.call(add(), (1, 2)))?;
        fatal(
            "the call that ends it",
            call.join().map_err(|_| Stop::fail("the calling thread panicked"))?,
        )
    })?;
    stream.flush()?;
    stream.destroy()?;
    ensure_eq!(seen.texts(), ["it ends with 200"], "the handler's message");
    Ok(process.destroy()?)
}

fn error_handler_precedes_first_event_handler(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    failed("no such handler", process.set_error_handler(&Handler::named("missing")), "missing")?;
    failed("an RPC", process.set_error_handler(&Handler::named("add")), "event handler add")?;
    // A later handler replaces the first; calls do not count.
    process.set_error_handler(&Handler::named("on_error_fails"))?;
    ensure_eq!(process.call(add(), (40, 2))?, 42, "a call");
    process.set_error_handler(&Handler::named("on_error"))?;
    let handler = rig.handler("drain")?;
    let late = || process.set_error_handler(&Handler::named("on_error"));
    failed("one after the first event handler", late(), "before the first event handler")?;
    handler.destroy()?;
    failed("one after that handler's destroy", late(), "before the first event handler")?;
    fatal("the call", process.call(ends_with(), (200,)))?;
    fatal("one after the end", late())
}

/// A temporary directory, removed on drop with its contents.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Result<Self, Stop> {
        let name = format!("verbless-ends-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn crash_data_and_core_dump_follow_fatal_error(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let directory = Directory::new("data")?;
    let path = directory.0.join("ended");
    failed("crash data of a process that runs", process.crash_data(Some(&path)), "not ended")?;
    let buffer = process.alloc_from(&0x1122_3344_5566_7788_u64.to_le_bytes())?;
    let status = fault(&process)?;
    let number = process.object().id();
    let text = process.crash_data(Some(&path))?;
    ensure_eq!(text, path.with_extension(format!("{number}.crash")), "where crash data is");
    let text = std::fs::read_to_string(text)?;
    ensure!(text.contains(&status.to_string()) && text.contains("x31 "), "crash data:\n{text}");
    let dump = process.core_dump(Some(&path))?;
    ensure_eq!(dump, path.with_extension(format!("{number}.core")), "where the core dump is");
    let file = std::fs::read(dump)?;
    let core = Core::parse(&file)?;
    let crash = process.status()?.crash.ok_or_else(|| Stop::fail("no crash"))?;
    ensure_eq!(core.registers[0], crash.pc, "pc");
    ensure_eq!(core.registers[1..], crash.registers[1..], "registers");
    ensure_eq!(core.word(buffer.address())?, 0x1122_3344_5566_7788, "a word of its heap");
    // The stack of the call exists, though the call is gone.
    core.word(crash.registers[2] & !7)?;
    let nowhere = process.core_dump(Some(Path::new("/dev/null/here")));
    failed("a core dump to an invalid path", nowhere, "/dev/null/here")?;
    drop(buffer);
    Ok(process.destroy()?)
}

fn crash_files_are_private_and_follow_no_links(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let directory = Directory::new("links")?;
    fatal("the call", process.call(ends_with(), (200,)))?;
    let (path, number) = (directory.0.join("ended"), process.object().id());
    let precious = directory.0.join("precious");
    type Save = fn(&Process, &Path) -> Result<PathBuf, Error>;
    let kinds: [(&str, Save); 2] = [
        ("crash", |process, path| process.crash_data(Some(path))),
        ("core", |process, path| process.core_dump(Some(path))),
    ];
    for (kind, save) in kinds {
        std::fs::write(&precious, "precious")?;
        let name = path.with_extension(format!("{number}.{kind}"));
        std::os::unix::fs::symlink(&precious, &name)?;
        failed("to write where a link is", save(&process, &path), kind)?;
        ensure_eq!(std::fs::read_to_string(&precious)?, "precious", "the link's target");
        std::fs::remove_file(&name)?;
        let mode = std::fs::metadata(save(&process, &path)?)?.permissions().mode();
        ensure_eq!(mode & 0o777, 0o600, "the mode of the file with {kind}");
    }
    Ok(())
}

fn udbg_token_is_zero_without_debugger(lab: &Lab) -> Result<(), Stop> {
    ensure_eq!(Rig::new(lab)?.process.udbg_token()?, 0, "the token");
    Ok(())
}
