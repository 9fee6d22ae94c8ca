//! Programs and their processes: names, functions, memory, and the end of a process.

use std::error::Error as _;

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{DpaEntry, DpaStatus};
use verbless_flexio::{
    App, AppSelect, Apps, Destination, Error, EventHandler, EventHandlerConfig, Function, Handler,
    HwModel, Outbox, OutboxConfig, Process, ProcessConfig, QueueMemory, RpcAttr, Source, Uar,
};

use crate::documented::{Documented, device, process, program};
use crate::objects::refused;
use crate::support::{file, function};

/// Names in the symbols of a program follow their section's own.
const ADD: u64 = 0x4000_0000;

#[test]
fn app_finds_functions_by_name_and_address() -> Documented<()> {
    let app = App::new("documented", &program())?;
    let add = app.function_info("add").ok_or("no add")?;
    assert_eq!((add.name, add.signature), ("add", "add(u64,u32)->u64"));
    assert_eq!((add.event_handler, add.address), (false, ADD));
    let handler = app.function_info("handler").ok_or("no handler")?;
    assert_eq!((handler.signature, handler.event_handler), ("handler", true));
    assert_eq!(app.function_info("absent"), None);
    assert_eq!(app.symbol("handler"), Some(ADD + 8));
    assert_eq!(app.function_at(ADD), Some(("add", 0)));
    assert_eq!(app.function_at(ADD + 4), Some(("add", 4)));
    assert_eq!(app.function_at(ADD + 8), Some(("handler", 0)));
    assert_eq!(app.function_at(ADD - 1), None);
    app.function::<(u64, u32), u64>("add")?;
    refused(app.function::<(u64,), u64>("add"), "its add is add(u64,u32)->u64");
    refused(app.function::<(u64,), u64>("absent"), "it has add(u64,u32)->u64, handler");
    assert_eq!((app.name(), app.elf()), ("documented", &*program()));
    assert_eq!(App::new("x".repeat(256).as_str(), &program())?.name().len(), 256);
    refused(App::new("x".repeat(257).as_str(), &program()), "has 257 bytes; the limit is 256");
    Ok(())
}

#[test]
fn apps_select_program_by_name_and_model() -> Documented<()> {
    let app = |name: &str| App::new(name, &program());
    let mut apps = Apps::default();
    refused(apps.register(app("a")?, HwModel::NotAvailable), "a is for no model");
    apps.register(app("a")?, HwModel::Bf3)?;
    apps.register(app("a")?, HwModel::Cx7)?;
    apps.register(app("b")?, HwModel::Default)?;
    refused(apps.register(app("a")?, HwModel::Bf3), "a program a for BlueField-3 already");
    let list: Vec<_> = apps.list().map(|(app, model)| (app.name().to_owned(), model)).collect();
    let names = [("a", HwModel::Bf3), ("a", HwModel::Cx7), ("b", HwModel::Default)];
    assert_eq!(list, names.map(|(name, model)| (name.to_owned(), model)));
    let device = device(false)?;
    let get = |name, hw_model, device| {
        apps.get(&AppSelect { hw_model, device, ..AppSelect::new(name) }).map(App::name)
    };
    assert_eq!(get("a", HwModel::Cx7, None)?, "a");
    assert_eq!(get("a", HwModel::Default, Some(&device))?, "a");
    assert_eq!(get("b", HwModel::Cx9, None)?, "b", "for any");
    refused(get("a", HwModel::Default, None), "no device is given");
    refused(
        get("a", HwModel::Cx8, None),
        "a is for BlueField-3, ConnectX-7, and not for ConnectX-8",
    );
    refused(get("c", HwModel::Bf3, None), "there is no program c");
    refused(get("a", HwModel::NotAvailable, None), "the device's model is not known");
    let texts = [HwModel::Default, HwModel::Cx9, HwModel::NotAvailable].map(|it| it.to_string());
    assert_eq!(texts, ["any model", "ConnectX-9", "no model"]);
    Ok(())
}

#[test]
fn apps_get_on_vf_uses_program_for_any_model() -> Documented<()> {
    let model = Model::builder().device_with_topology(Profile::load("bluefield3")?).build();
    let backend = InProcess::of(&model);
    let vf = backend.enumerate()?.into_iter().find(|it| it.device_id == 0x101e).ok_or("no VF")?;
    let vf = Device::open(&backend, &vf)?;
    assert_eq!(HwModel::of(&vf), HwModel::NotAvailable, "VFs of all models have this id");
    let mut apps = Apps::default();
    apps.register(App::new("a", &program())?, HwModel::Bf3)?;
    let on_vf = AppSelect { device: Some(&vf), ..AppSelect::new("a") };
    let error = apps.get(&on_vf).map(App::name).map_err(|error| error.to_string());
    assert!(error.as_ref().is_err_and(|it| it.contains("a is for BlueField-3 only")), "{error:?}");
    apps.register(App::new("a", &[program(), vec![7]].concat())?, HwModel::Default)?;
    assert_eq!(apps.get(&on_vf)?.elf().last(), Some(&7), "the one for any model");
    let as_bf3 = AppSelect { hw_model: HwModel::Bf3, ..on_vf };
    assert_ne!(apps.get(&as_bf3)?.elf().last(), Some(&7), "the one for the model that is named");
    Ok(())
}

#[test]
fn process_reports_name_memory_and_results() -> Documented<()> {
    let app = App::new("documented", &program())?;
    let config = ProcessConfig { name: "worker".into(), ..ProcessConfig::default() };
    let process = Process::create(&device(false)?, &app, &config)?;
    assert_eq!((process.name(), process.app().name()), ("worker", "documented"));
    assert_eq!(process.dumem_id(), process.heap_memory().id());
    let buffer = process.alloc(64)?;
    let umem_offset = QueueMemory::dpa(&buffer).umem_offset();
    assert_eq!(umem_offset, (process.dumem_id(), buffer.address() - process.heap_info().base));
    assert!(!buffer.is_empty() && process.alloc(0)?.is_empty());
    let add = || Function::<(u64, u32), u64>::named("add");
    assert_eq!(process.call(add(), (40, 2))?, 42);
    let attr = RpcAttr { storage: Some(buffer.clone()), ..RpcAttr::default() };
    assert_eq!(process.call_with_attr(&attr, add(), (1, 2))?, 3);
    let attr = RpcAttr { name: "adds".into(), ..RpcAttr::default() };
    assert_eq!(process.call_with_attr(&attr, add(), (1, 3))?, 4);
    assert_eq!(process.call_with_attr(&RpcAttr::default(), add(), (1, 4))?, 5);
    // Two calls had metadata, and so a number.
    let handler = EventHandlerConfig::new(Handler::named("handler"));
    assert_eq!(EventHandler::create(&process, &handler)?.id().0, 3);
    let _handler = EventHandler::create(&process, &handler)?;
    let clone = process.clone();
    refused(clone.destroy(), "the process is in use by event handler 4, buffer of 64 bytes");
    Ok(())
}

#[test]
fn memcpy_copies_host_and_heap_and_rejects_overlap() -> Documented<()> {
    let process = process()?;
    let buffer = process.alloc_from(&[0; 64])?;
    let at = buffer.address();
    let read = |offset| -> Documented<[u8; 8]> {
        let mut bytes = [0; 8];
        buffer.read_at(offset, &mut bytes)?;
        Ok(bytes)
    };
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
    process.memcpy(Source::Host(&bytes), Destination::Dpa(at), 7)?;
    assert_eq!(read(0)?, [1, 2, 3, 4, 5, 6, 7, 0]);
    process.memcpy(Source::Dpa(at), Destination::Dpa(at + 8), 8)?;
    process.memcpy(Source::Dpa(at + 8), Destination::Dpa(at + 24), 8)?;
    process.memcpy(Source::Dpa(at + 24), Destination::Dpa(at + 16), 8)?;
    assert_eq!([read(8)?, read(16)?], [[1, 2, 3, 4, 5, 6, 7, 0]; 2]);
    for (from, to) in [(at, at), (at, at + 7), (at + 7, at)] {
        let copied = process.memcpy(Source::Dpa(from), Destination::Dpa(to), 8);
        refused(copied, "overlap");
    }
    let mut there = [0; 8];
    process.memcpy(Source::Dpa(at), Destination::Host(&mut there), 3)?;
    assert_eq!(there, [1, 2, 3, 0, 0, 0, 0, 0]);
    process.memcpy(Source::Host(&bytes[4..]), Destination::Host(&mut there), 2)?;
    assert_eq!(there, [5, 6, 3, 0, 0, 0, 0, 0]);
    refused(process.memcpy(Source::Host(&bytes), Destination::Dpa(at), 9), "a slice of 8 bytes");
    let copied = process.memcpy(Source::Dpa(at), Destination::Host(&mut there), 9);
    refused(copied, "a slice of 8 bytes");
    let end = process.heap_info().base + process.heap_info().size;
    refused(process.memcpy(Source::Dpa(end - 7), Destination::Dpa(at), 8), "heap");
    refused(process.write(end - 7, &bytes), "heap");
    process.write(end - 8, &bytes)?;
    refused(buffer.write_at(57, &bytes), "8 bytes from byte 57 on are not in a buffer of 64 bytes");
    buffer.write_at(56, &bytes)?;
    assert_eq!(read(56)?, bytes);
    Ok(())
}

#[test]
fn fault_is_reported_once_per_process() -> Documented<()> {
    let app = App::new("faults", &file())?;
    let process = Process::create(&device(false)?, &app, &ProcessConfig::default())?;
    let mut text = Vec::new();
    process.display_error(&mut text)?;
    assert_eq!((process.error_status()?, text.len()), (0, 0));
    let call = process.device().begin_dpa_call(
        process.object(),
        &DpaEntry::at(function::FAULT),
        [0; 8],
    )?;
    while process.status()?.status.runs() {
        std::thread::yield_now();
    }
    let status = process.status()?.status;
    assert_eq!(process.error_status()?, status.0);
    assert!(status.is_error());
    let mut readable = [nix::poll::PollFd::new(process.error_fd()?, nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut readable, 0_u8)?, 1);
    process.display_error(&mut text)?;
    assert!(!text.is_empty());
    assert_eq!(process.error_status()?, 0, "the host has read it");
    assert_eq!(process.status()?.status, status);
    drop(call);
    let ended = |result: Result<(), Error>| matches!(result, Err(Error::Fatal(it)) if it == status);
    assert!(ended(process.alloc(64).map(drop)));
    assert!(ended(Uar::create(&process).map(drop)));
    assert!(ended(Outbox::create(&process, &OutboxConfig::default()).map(drop)));
    assert!(ended(process.write(process.heap_info().base, &[1])));
    // The device refuses, like for an ended process.
    let another = Process::create(process.device(), &sized(4, 8)?, &ProcessConfig::default())?;
    let word = Function::<(u64, u32), u64>::named("add");
    assert_eq!(another.call(word, (1, 2))?, 3, "another process continues");
    Ok(())
}

#[test]
fn error_handler_is_set_before_first_event_handler() -> Documented<()> {
    let process = process()?;
    refused(process.set_error_handler(&Handler::named("absent")), "no event handler absent");
    process.set_error_handler(&Handler::named("handler"))?;
    let handler = EventHandlerConfig::new(Handler::named("handler"));
    let _made = EventHandler::create(&process, &handler)?;
    let late = process.set_error_handler(&Handler::named("handler"));
    refused(late, "set before the first event handler is created");
    Ok(())
}

#[test]
fn errors_have_sources() {
    let io = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let below = verbless_command::Error::new(verbless_command::ErrorKind::Io, "reading", "");
    let device = Error::from(below.clone().with_source(io));
    assert!(device.source().is_some_and(|it| it.is::<std::io::Error>()));
    assert!(Error::from(below).source().is_none());
    assert!(Error::Fatal(DpaStatus(9)).source().is_none());
}

/// The program with the sizes of its functions `handler` and `add` set.
fn sized(handler: u64, add: u64) -> Documented<App> {
    let mut file = program();
    // The second and the fourth symbol, of 24 bytes each with the size at 16.
    for (index, size) in [(1, handler), (3, add)] {
        let at = 64 + 56 + 16 + 24 * index + 16;
        file[at..at + 8].copy_from_slice(&size.to_le_bytes());
    }
    Ok(App::new("sized", &file)?)
}

#[test]
fn symbol_data_is_bounded_by_symbol_size() -> Documented<()> {
    let code = [0x33, 0x05, 0xb5, 0x00, 0x67, 0x80, 0x00, 0x00, 0x67, 0x80, 0x00, 0x00];
    let app = sized(4, 8)?;
    assert_eq!(app.symbol_data("add").as_deref(), Some(&code[..8]));
    assert_eq!(app.symbol_data("handler").as_deref(), Some(&code[8..]));
    assert_eq!(app.symbol_data("absent"), None);
    assert_eq!(sized(4, 12)?.symbol_data("add").as_deref(), Some(&code[..]));
    assert_eq!(sized(4, 13)?.symbol_data("add"), None, "the symbol ends after its segment");
    assert_eq!(sized(5, 12)?.symbol_data("handler"), None);
    assert_eq!(sized(u64::MAX, 0)?.symbol_data("handler"), None);
    assert_eq!(sized(0, 0)?.symbol_data("add"), Some(Vec::new()), "no size is given");
    let process = Process::create(&device(false)?, &app, &ProcessConfig::default())?;
    assert_eq!(process.symbol_data("handler").as_deref(), Some(&code[8..]));
    let app = sized(2, 4)?;
    assert_eq!(app.function_at(ADD + 3), Some(("add", 3)));
    assert_eq!(app.function_at(ADD + 4), None, "between the two");
    assert_eq!(app.function_at(ADD + 9), Some(("handler", 1)));
    assert_eq!(app.function_at(ADD + 10), None);
    Ok(())
}

#[test]
fn long_ranges_are_copied_and_filled_whole() -> Documented<()> {
    const LENGTH: usize = 300_008;
    let process = process()?;
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    let from = process.alloc_from(&bytes)?;
    let to = process.alloc(LENGTH as u64 + 8)?;
    process.fill(to.address(), to.len(), 0xa5)?;
    let read = || -> Documented<Vec<u8>> {
        let mut there = vec![0; LENGTH + 8];
        to.read_at(0, &mut there)?;
        Ok(there)
    };
    assert!(read()? == [0xa5; LENGTH + 8]);
    let (source, destination) = (Source::Dpa(from.address()), Destination::Dpa(to.address()));
    process.memcpy(source, destination, LENGTH as u64)?;
    assert!(read()? == [&bytes[..], &[0xa5; 8]].concat());
    process.fill(to.address() + 8, LENGTH as u64 - 16, 0)?;
    let expected = [&bytes[..8], &vec![0; LENGTH - 16], &bytes[LENGTH - 8..], &[0xa5; 8]];
    assert!(read()? == expected.concat());
    Ok(())
}
