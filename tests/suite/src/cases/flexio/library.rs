//! The parts of FlexIO's host library that need no process and no unpublished layout: programs by
//! name and by hardware model, a program's file, versions, resource files, transport domains. They
//! work on hardware, too.

use verbless_flexio::app::MAX_NAME_LEN;
use verbless_flexio::version::{Version, set_version, version};
use verbless_flexio::{
    App, AppSelect, Apps, Arguments, HwModel, Resources, SqTis, TransportDomain,
};

use super::failed;
use super::rig::app;
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "flexio_library",
    "FlexIO's library without a process: apps, models of hardware, versions, transport domains.",
    needs [cap!(apu)]:
    app_is_selected_by_name_and_hw_model [Need::DpaProgram],
    app_name_is_limited_to_256_bytes [Need::DpaProgram],
    app_has_name_elf_and_symbols [Need::DpaProgram],
    app_symbol_data_matches_file [Need::DpaProgram],
    function_info_gives_signature_and_address [Need::DpaProgram],
    arguments_are_packed_into_words_by_type,
    hw_model_follows_pci_device_id,
    version_is_set_once,
    resources_are_selected_by_name,
    tis_rejects_transport_domain_of_another_context [cap!(log_max_tis)],
);

fn app_is_selected_by_name_and_hw_model(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let elf = app()?;
    let (own, other) = match HwModel::of(&device) {
        HwModel::Cx9 => (HwModel::Cx9, HwModel::Bf3),
        // A VF does not report its model.
        HwModel::NotAvailable => (HwModel::Default, HwModel::Cx9),
        own => (own, HwModel::Cx9),
    };
    // Files that differ in a byte after them.
    let of = |name: &str, mark: u8| App::new(name, &[elf.elf(), &[mark]].concat());
    let mark = |app: &App| app.elf().last().copied();
    let mut apps = Apps::default();
    for (name, model, number) in [
        ("worker", HwModel::Default, 0),
        ("worker", other, 3),
        ("here", own, 2),
        ("there", other, 4),
    ] {
        apps.register(of(name, number)?, model)?;
    }
    let listed: Vec<_> = apps.list().map(|(app, model)| (app.name(), model)).collect();
    ensure_eq!(listed[2..], [("here", own), ("there", other)], "the list");
    let on_device = |name| AppSelect { device: Some(&device), ..AppSelect::new(name) };
    let for_model = |name, hw_model| AppSelect { hw_model, ..AppSelect::new(name) };
    ensure_eq!(mark(apps.get(&on_device("here"))?), Some(2), "the app for exactly this model");
    ensure_eq!(mark(apps.get(&on_device("worker"))?), Some(0), "the app for any model");
    ensure_eq!(mark(apps.get(&for_model("worker", other))?), Some(3), "of another model");
    failed("no app", apps.get(&on_device("none")), "no program none")?;
    failed(
        "an app of other models",
        apps.get(&on_device("there")),
        &format!("there is for {other}"),
    )?;
    failed("no device", apps.get(&AppSelect::new("worker")), "no device is given")?;
    failed("two of one model", apps.register(of("worker", 9)?, other), "already")?;
    failed(
        "an app for no hardware model",
        apps.register(of("none", 9)?, HwModel::NotAvailable),
        "no model",
    )
}

fn app_name_is_limited_to_256_bytes(_: &Lab) -> Result<(), Stop> {
    let elf = app()?;
    let named = |length| App::new(&"n".repeat(length), elf.elf());
    ensure_eq!(named(MAX_NAME_LEN)?.name().len(), 256, "the longest name");
    failed("a longer one", named(MAX_NAME_LEN + 1), "has 257 bytes; the limit is 256")
}

fn app_has_name_elf_and_symbols(_: &Lab) -> Result<(), Stop> {
    let app = app()?;
    ensure_eq!(app.name(), "shown", "the name");
    let path = crate::dpa_program()
        .ok_or_else(|| Stop::fail("no compiled program was given (--dpa-program)"))?;
    ensure!(app.elf() == std::fs::read(path)?, "the file is another");
    ensure!(app.symbol("add").is_some_and(|at| at != 0), "no address of a function");
    ensure_eq!(app.symbol("subtract"), None, "a symbol that the program does not have");
    for entry in ["add(u64,u32)->u64", "drain"] {
        ensure!(app.entry_points().any(|it| it == entry), "{entry} is not an entry point");
    }
    Ok(())
}

fn function_info_gives_signature_and_address(_: &Lab) -> Result<(), Stop> {
    let app = app()?;
    for (name, signature, event_handler) in
        [("add", "add(u64,u32)->u64", false), ("drain", "drain", true)]
    {
        let info =
            app.function_info(name).ok_or_else(|| Stop::fail("the app has no such function"))?;
        ensure_eq!(
            (info.name, info.signature),
            (name, signature),
            "the function's name and signature"
        );
        ensure_eq!(info.event_handler, event_handler, "whether {name} is an event handler");
        ensure_eq!(Some(info.address), app.symbol(name), "the address of {name}");
    }
    // A data object is not a function.
    ensure_eq!(app.function_info("SHOWN_BYTES"), None, "a function that does not exist");
    Ok(())
}

fn arguments_are_packed_into_words_by_type(_: &Lab) -> Result<(), Stop> {
    let words = (-1_i8, 0xff_u8, -2_i32, u32::MAX, true, i64::MIN, usize::MAX, 7_u16).to_words();
    let signed = |value: i64| value as u64;
    let expected = [signed(-1), 0xff, signed(-2), 0xffff_ffff, 1, signed(i64::MIN), u64::MAX, 7];
    ensure_eq!(words[..8], expected, "words of eight arguments");
    ensure_eq!(words[8..], [0; 8], "words after the last");
    ensure_eq!(().to_words(), [0; 16], "words of no arguments");
    Ok(())
}

fn hw_model_follows_pci_device_id(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let id = device.info().device_id;
    // One of the model's profiles has a DPA.
    if device.adapter().is_model() {
        ensure_eq!(HwModel::of(&device), HwModel::Bf3, "the model of hardware");
    }
    ensure_eq!(HwModel::Bf3 as u16, 2, "the number of HwModel::Bf3");
    let expected = match id {
        0x1021 => HwModel::Cx7,
        0xa2dc => HwModel::Bf3,
        0x1023 => HwModel::Cx8,
        0x1025 => HwModel::Cx9,
        _ => HwModel::NotAvailable,
    };
    ensure_eq!(HwModel::of(&device), expected, "of PCI device {id:#x}");
    Ok(())
}

fn version_is_set_once(_: &Lab) -> Result<(), Stop> {
    let older = Version::new(24, 10, 0);
    failed("a later version", set_version(Version::new(25, 1, 1)), "above 25.1.0")?;
    for _ in 0..2 {
        set_version(Version::CURRENT)?;
        failed("another version", set_version(older), "it is set once")?;
        ensure_eq!(version(), Version::CURRENT, "the version");
    }
    Ok(())
}

fn app_symbol_data_matches_file(_: &Lab) -> Result<(), Stop> {
    let app = app()?;
    ensure_eq!(app.symbol_data("SHOWN_BYTES"), Some(b"a file\0".to_vec()), "bytes");
    ensure_eq!(app.symbol_data("SHOWN_ZEROS"), Some(vec![0; 24]), "zeros");
    ensure_eq!(app.symbol_data("missing"), None, "a symbol that does not exist");
    Ok(())
}

fn resources_are_selected_by_name(_: &Lab) -> Result<(), Stop> {
    const FILE: &[u8] = b"version: 1\n\
        resources:\n\
        \x20 one:\n\
        \x20   app_name: shown\n\
        \x20   eus: [40, 41]\n\
        \x20 two: # without units\n\
        \x20   app_name: \"other\"\n\
        \x20   eu_groups:\n\
        \x20     - 3\n";
    let (one, two) = (Resources::new("one", FILE)?, Resources::new("two", FILE)?);
    ensure_eq!((one.app_name(), two.app_name()), ("shown", "other"), "names");
    ensure_eq!((one.eu_groups(), two.eu_groups()), (&[][..], &[3][..]), "groups");
    ensure_eq!((one.eus(), two.eus()), (&[40, 41][..], &[][..]), "EUs");
    failed("another key", Resources::new("three", FILE), "they have one, two")?;
    let wrong = [FILE, b"    eus: [65536]\n"].concat();
    failed("an EU that cannot be", Resources::new("one", &wrong), "line 10: \"65536\"")
}

fn tis_rejects_transport_domain_of_another_context(lab: &Lab) -> Result<(), Stop> {
    let (device, other) = (lab.device()?, lab.device()?);
    let domain = TransportDomain::create(&device)?;
    failed("a TIS of another context", SqTis::create(&other, &domain), "another device context")?;
    let tis = SqTis::create(&device, &domain)?;
    ensure_eq!(
        tis.object().query()?.transport_domain(),
        domain.object().number(),
        "the transport domain of the TIS"
    );
    failed("a domain with a TIS", domain.clone().destroy(), "in use")?;
    tis.destroy()?;
    Ok(domain.destroy()?)
}
