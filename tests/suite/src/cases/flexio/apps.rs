//! Programs by name and model of hardware, what is known of their functions and symbols, and the
//! units that a file of resources names for them.

use verbless_command::{Affinity, DpaThreadState};
use verbless_flexio::app::MAX_NAME_LEN;
use verbless_flexio::version::{Version, set_version, version};
use verbless_flexio::{
    App, AppSelect, Apps, EventHandler, EventHandlerConfig, Function, Handler, HwModel, Resources,
};

use super::failed;
use super::rig::{Rig, app};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure_eq, until};

cases!(
    "flexio_apps",
    "FlexIO's apps: by name and model of hardware, symbols, functions, resources, versions.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    an_app_is_chosen_by_name_and_hardware_model,
    a_name_has_256_bytes_at_most,
    the_data_of_a_symbol_is_that_of_the_program_s_file,
    what_is_known_of_a_function_is_told,
    the_hardware_model_is_that_of_the_pci_device,
    a_version_is_set_once,
    a_thread_runs_on_the_units_that_resources_name,
);

fn an_app_is_chosen_by_name_and_hardware_model(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let elf = app()?;
    // Files that are told apart by a byte behind them.
    let of = |name: &str, mark: u8| App::new(name, &[elf.elf(), &[mark]].concat());
    let mark = |app: &App| app.elf().last().copied();
    let mut apps = Apps::default();
    for (name, model, number) in [
        ("worker", HwModel::Default, 0),
        ("worker", HwModel::Cx8, 3),
        ("other", HwModel::Bf3, 2),
        ("newer", HwModel::Cx9, 4),
    ] {
        apps.register(of(name, number)?, model)?;
    }
    let listed: Vec<_> = apps.list().map(|(app, model)| (app.name(), model)).collect();
    ensure_eq!(listed[2..], [("other", HwModel::Bf3), ("newer", HwModel::Cx9)], "the list");
    let on_device = |name| AppSelect { device: Some(&device), ..AppSelect::new(name) };
    let for_model = |name, hw_model| AppSelect { hw_model, ..AppSelect::new(name) };
    ensure_eq!(mark(apps.get(&on_device("other"))?), Some(2), "the one for just this model");
    ensure_eq!(mark(apps.get(&on_device("worker"))?), Some(0), "the one for any model");
    ensure_eq!(mark(apps.get(&for_model("worker", HwModel::Cx8))?), Some(3), "of another model");
    failed("no app", apps.get(&on_device("none")), "no program none")?;
    failed("an app of other models", apps.get(&on_device("newer")), "newer is for ConnectX-9")?;
    failed("no device", apps.get(&AppSelect::new("worker")), "no device is given")?;
    failed("two of one model", apps.register(of("worker", 9)?, HwModel::Cx8), "already")?;
    failed("one of no model", apps.register(of("none", 9)?, HwModel::NotAvailable), "no model")
}

fn a_name_has_256_bytes_at_most(_: &Lab) -> Result<(), Stop> {
    let elf = app()?;
    let named = |length| App::new(&"n".repeat(length), elf.elf());
    ensure_eq!(named(MAX_NAME_LEN)?.name().len(), 256, "the longest name");
    failed("a longer one", named(MAX_NAME_LEN + 1), "has 257 bytes, of 256 at most")
}

fn the_data_of_a_symbol_is_that_of_the_program_s_file(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    // What a process makes of its memory is not in the file.
    let shown = Function::<(usize,), u64>::named("shown");
    process.call(shown, (0,))?;
    ensure_eq!(process.call(Function::<(usize,), u64>::named("shown"), (0,))?, 97, "its memory");
    for data in [process.app().symbol_data("SHOWN_BYTES"), process.symbol_data("SHOWN_BYTES")] {
        ensure_eq!(data.as_deref(), Some(&b"a file\0"[..]), "bytes");
    }
    ensure_eq!(process.symbol_data("SHOWN_ZEROS"), Some(vec![0; 24]), "zeros");
    ensure_eq!(process.symbol_data("missing"), None, "a symbol that is not there");
    Ok(())
}

fn what_is_known_of_a_function_is_told(_: &Lab) -> Result<(), Stop> {
    let app = app()?;
    for (name, signature, event_handler) in
        [("add", "add(u64,u32)->u64", false), ("drain", "drain", true)]
    {
        let info = app.function_info(name).ok_or_else(|| Stop::fail("it is not known"))?;
        ensure_eq!((info.name, info.signature), (name, signature), "its name and signature");
        ensure_eq!(info.event_handler, event_handler, "whether {name} is an event handler");
        ensure_eq!(Some(info.address), app.symbol(name), "the address of {name}");
    }
    // An object is no function.
    ensure_eq!(app.function_info("SHOWN_BYTES"), None, "a function that is not there");
    Ok(())
}

fn the_hardware_model_is_that_of_the_pci_device(lab: &Lab) -> Result<(), Stop> {
    // Of profiles with a DPA there is one.
    ensure_eq!(HwModel::of(&lab.device()?), HwModel::Bf3, "the model");
    ensure_eq!(HwModel::Bf3 as u16, 2, "its number");
    Ok(())
}

fn a_version_is_set_once(_: &Lab) -> Result<(), Stop> {
    let older = Version::new(24, 10, 0);
    failed("a version to come", set_version(Version::new(25, 1, 1)), "above 25.1.0")?;
    for _ in 0..2 {
        set_version(Version::CURRENT)?;
        failed("another version", set_version(older), "it is set once")?;
        ensure_eq!(version(), Version::CURRENT, "the version");
    }
    Ok(())
}

fn a_thread_runs_on_the_units_that_resources_name(lab: &Lab) -> Result<(), Stop> {
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
    ensure_eq!((one.eus(), two.eus()), (&[40, 41][..], &[][..]), "units");
    failed("another key", Resources::new("three", FILE), "they have one, two")?;
    let wrong = [FILE, b"    eus: [65536]\n"].concat();
    failed("a unit that cannot be", Resources::new("one", &wrong), "line 10: \"65536\"")?;
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
        let info = until("its run", || {
            handler.query().ok().filter(|it| it.runs == 1 && it.state == DpaThreadState::IDLE)
        })?;
        ensure_eq!(info.unit, u32::from(unit), "the unit that it ran on");
    }
    Ok(())
}
