//! What the objects of FlexIO's host library are made with, and what they tell of themselves.

use verbless_command::{Affinity, DpaThreadState};
use verbless_flexio::{EventHandler, EventHandlerConfig, Handler, Process, Window};

use super::rig::{Rig, activate, app};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "flexio_objects",
    "FlexIO's objects: what they are made with, and what they tell of themselves.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    an_app_has_its_name_its_file_and_its_symbols,
    an_event_handler_begins_with_the_outbox_and_the_windows_that_it_is_given,
    an_event_handler_runs_on_the_units_that_it_asks_for,
    an_event_handler_that_polls_is_destroyed_while_it_runs,
);

fn an_app_has_its_name_its_file_and_its_symbols(_: &Lab) -> Result<(), Stop> {
    let app = app()?;
    ensure_eq!(app.name(), "shown", "the name");
    let path = crate::dpa_program().ok_or_else(|| Stop::fail("there is no program"))?;
    ensure!(app.elf() == std::fs::read(path)?, "the file is another");
    ensure!(app.symbol("add").is_some_and(|at| at != 0), "no address of a function");
    ensure_eq!(app.symbol("subtract"), None, "a symbol that the program does not have");
    for entry in ["add(u64,u32)->u64", "drain"] {
        ensure!(app.entry_points().any(|it| it == entry), "{entry} is no entry point");
    }
    Ok(())
}

/// A handler that is made so, and runs.
fn running(process: &Process, config: EventHandlerConfig, at: u64) -> Result<EventHandler, Stop> {
    let handler = EventHandler::create(process, &config)?;
    handler.run(at)?;
    Ok(handler)
}

/// What a handler's only run has told.
fn told(rig: &Rig, config: EventHandlerConfig) -> Result<[u64; 6], Stop> {
    let at = rig.process.alloc_from(&[0xa5; 48])?;
    let handler = running(&rig.process, config, at.address())?;
    rig.activate(&handler)?;
    until("its run", || {
        handler.query().ok().filter(|it| it.runs == 1 && it.state == DpaThreadState::IDLE)
    })?;
    let mut words = [[0; 8]; 6];
    at.read_at(0, words.as_flattened_mut())?;
    Ok(words.map(u64::from_le_bytes))
}

fn an_event_handler_begins_with_the_outbox_and_the_windows_that_it_is_given(
    lab: &Lab,
) -> Result<(), Stop> {
    const NONE: u64 = verbless_flexio_dev::ThreadContext::NONE as u64;
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let plain = || EventHandlerConfig::new(Handler::named("begins_with"));
    ensure_eq!(told(&rig, plain())?, [0, 0, NONE, NONE, NONE, 0], "a handler of nothing");

    let (_first, outbox) = (rig.outbox()?, rig.outbox()?);
    let windows = [Window::create(process, process.pd())?, Window::create(process, process.pd())?];
    let storage = process.alloc(64)?;
    let config = EventHandlerConfig {
        outbox: Some(outbox.clone()),
        // The other way round than they were made.
        windows: [Some(windows[1].clone()), Some(windows[0].clone())],
        storage: Some(storage.clone()),
        name: "worker".into(),
        ..plain()
    };
    let [first, second] = windows.each_ref().map(|window| u64::from(window.id()));
    let expected = [1, storage.address(), outbox.id().into(), second, first, 1];
    ensure_eq!(told(&rig, config)?, expected, "a handler of everything");

    let config = EventHandlerConfig { windows: [None, Some(windows[1].clone())], ..plain() };
    ensure_eq!(told(&rig, config)?, [2, 0, NONE, NONE, second, 0], "a second window alone");
    Ok(())
}

fn an_event_handler_runs_on_the_units_that_it_asks_for(lab: &Lab) -> Result<(), Stop> {
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
        until("a run on any other unit", || ran(&runs))?;
        quiet("a run on a unit that is taken", || ran(&waits))?;
        polls.destroy()?;
        until("a run on a unit that is free", || ran(&waits))?;
    }
    for affinity in [Affinity::Strict(1023), Affinity::Group(group.id() + 1)] {
        let config =
            EventHandlerConfig { affinity, ..EventHandlerConfig::new(Handler::named("drain")) };
        ensure!(EventHandler::create(process, &config).is_err(), "a handler on {affinity:?}");
    }
    group.destroy()?;
    Ok(())
}

fn an_event_handler_that_polls_is_destroyed_while_it_runs(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let config =
        EventHandlerConfig { polling: true, ..EventHandlerConfig::new(Handler::named("polls")) };
    let polls = running(&rig.process, config, 0)?;
    let errno = rig.process.call(activate(), (polls.activation_id(),))?;
    ensure_eq!(errno, 0, "errno after the activation");
    let state = || polls.query().ok().filter(|it| it.state == DpaThreadState::RUNNING);
    until("the polling run", state)?;
    ensure_eq!(polls.object_id(), polls.thread().id(), "the number of the thread's object");
    polls.destroy()?;
    Ok(rig.process.destroy()?)
}
