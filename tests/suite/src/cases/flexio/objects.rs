//! Creation attributes of FlexIO host library objects, and their getters.

use verbless_command::{Affinity, DpaThreadState};
use verbless_flexio::{
    EventHandler, EventHandlerConfig, Function, Handler, Process, Resources, Window,
};

use super::rig::{Rig, activate};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "flexio_objects",
    "FlexIO's objects: their creation attributes and their getters.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    event_handler_gets_given_outbox_and_windows,
    event_handler_honors_eu_affinity,
    polling_event_handler_is_destroyed_while_running,
    symbol_data_matches_program_file,
    event_handler_runs_on_eus_of_resources,
);

/// A running handler of this configuration.
fn running(process: &Process, config: EventHandlerConfig, at: u64) -> Result<EventHandler, Stop> {
    let handler = EventHandler::create(process, &config)?;
    handler.run(at)?;
    Ok(handler)
}

/// The values that a handler's only run has written.
fn run_values(rig: &Rig, config: EventHandlerConfig) -> Result<[u64; 6], Stop> {
    let at = rig.process.alloc_from(&[0xa5; 48])?;
    let handler = running(&rig.process, config, at.address())?;
    rig.activate(&handler)?;
    until("the handler's run", || {
        handler.query().ok().filter(|it| it.runs == 1 && it.state == DpaThreadState::IDLE)
    })?;
    let mut words = [[0; 8]; 6];
    at.read_at(0, words.as_flattened_mut())?;
    Ok(words.map(u64::from_le_bytes))
}

fn event_handler_gets_given_outbox_and_windows(lab: &Lab) -> Result<(), Stop> {
    const NONE: u64 = verbless_flexio_dev::ThreadContext::NONE as u64;
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let plain = || EventHandlerConfig::new(Handler::named("begins_with"));
    let own = u64::from(process.outbox_id().0);
    ensure_eq!(
        run_values(&rig, plain())?,
        [1, 0, own, NONE, NONE, 0],
        "a handler with default attributes"
    );

    let (_first, outbox) = (rig.outbox()?, rig.outbox()?);
    let windows = [Window::create(process, process.pd())?, Window::create(process, process.pd())?];
    let storage = process.alloc(64)?;
    let config = EventHandlerConfig {
        outbox: Some(outbox.clone()),
        // In the reverse order of their creation.
        windows: [Some(windows[1].clone()), Some(windows[0].clone())],
        storage: Some(storage.clone()),
        name: "worker".into(),
        ..plain()
    };
    let [first, second] = windows.each_ref().map(|window| u64::from(window.id().0));
    let expected = [2, storage.address(), outbox.id().0.into(), second, first, 1];
    ensure_eq!(run_values(&rig, config)?, expected, "a handler of everything");

    let config = EventHandlerConfig { windows: [None, Some(windows[1].clone())], ..plain() };
    ensure_eq!(run_values(&rig, config)?, [3, 0, own, NONE, second, 0], "only a second window");
    Ok(())
}

fn event_handler_honors_eu_affinity(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let group = process.device().create_dpa_group("one", &[9])?;
    let at = process.alloc_from(&[0; 16])?;
    for affinity in [Affinity::Strict(5), Affinity::Group(group.id())] {
        let polls = EventHandlerConfig {
            polling: true,
            affinity,
            ..EventHandlerConfig::new(Handler::named("polls"))
        };
        let polls = running(process, polls, 0)?;
        rig.activate(&polls)?;
        until("the polling run", || {
            polls.query().ok().filter(|it| it.state == DpaThreadState::RUNNING)
        })?;
        let waits = |affinity| {
            let handler = Handler::named("continues");
            let config = EventHandlerConfig {
                continuable: true,
                affinity,
                ..EventHandlerConfig::new(handler)
            };
            running(process, config, at.address())
        };
        let (waits, runs) = (waits(affinity)?, waits(Affinity::None)?);
        for handler in [&waits, &runs] {
            rig.activate(handler)?;
        }
        let ran = |handler: &EventHandler| handler.query().ok().filter(|it| it.runs > 0);
        until("a run on any other EU", || ran(&runs))?;
        quiet("a run on an EU that is taken", || ran(&waits))?;
        polls.destroy()?;
        until("a run on an EU that is free", || ran(&waits))?;
    }
    for affinity in [Affinity::Strict(1023), Affinity::Group(group.id() + 1)] {
        let config =
            EventHandlerConfig { affinity, ..EventHandlerConfig::new(Handler::named("drain")) };
        ensure!(EventHandler::create(process, &config).is_err(), "a handler on {affinity:?}");
    }
    group.destroy()?;
    Ok(())
}

fn polling_event_handler_is_destroyed_while_running(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let config =
        EventHandlerConfig { polling: true, ..EventHandlerConfig::new(Handler::named("polls")) };
    let polls = running(&rig.process, config, 0)?;
    let errno = rig.process.call(activate(), (polls.activation_id().0,))?;
    ensure_eq!(errno, 0, "errno after the activation");
    let state = || polls.query().ok().filter(|it| it.state == DpaThreadState::RUNNING);
    until("the polling run", state)?;
    ensure_eq!(polls.object_id().0, polls.thread().id(), "the number of the thread's object");
    polls.destroy()?;
    Ok(rig.process.destroy()?)
}

fn symbol_data_matches_program_file(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    // The file does not hold the process's later changes to its memory.
    let shown = Function::<(usize,), u64>::named("shown");
    process.call(shown, (0,))?;
    ensure_eq!(
        process.call(Function::<(usize,), u64>::named("shown"), (0,))?,
        97,
        "the value that the process wrote to its memory"
    );
    let bytes = process.symbol_data("SHOWN_BYTES");
    ensure_eq!(bytes.as_deref(), Some(&b"a file\0"[..]), "bytes");
    ensure_eq!(process.symbol_data("SHOWN_ZEROS"), Some(vec![0; 24]), "zeros");
    ensure_eq!(process.symbol_data("missing"), None, "a symbol that does not exist");
    Ok(())
}

fn event_handler_runs_on_eus_of_resources(lab: &Lab) -> Result<(), Stop> {
    const FILE: &[u8] = b"version: 1\n\
        resources:\n\
        \x20 one:\n\
        \x20   app_name: shown\n\
        \x20   eus: [40, 41]\n";
    let one = Resources::new("one", FILE)?;
    let rig = Rig::new(lab)?;
    let at = rig.process.alloc_from(&[0; 48])?;
    for &unit in one.eus() {
        let affinity = Affinity::Strict(unit);
        let config = EventHandlerConfig {
            affinity,
            ..EventHandlerConfig::new(Handler::named("begins_with"))
        };
        let handler = EventHandler::create(&rig.process, &config)?;
        handler.run(at.address())?;
        rig.activate(&handler)?;
        let info = until("the handler's run", || {
            handler.query().ok().filter(|it| it.runs == 1 && it.state == DpaThreadState::IDLE)
        })?;
        ensure_eq!(info.unit, u32::from(unit), "the EU that it ran on");
    }
    Ok(())
}
