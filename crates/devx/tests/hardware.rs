//! The kernel backend on a real device. Where there is none, each case is reported as ignored, with
//! the reason. Only objects of its own are touched.
#![allow(unsafe_code, reason = "registers memory that outlives the registration")]

use libtest_mimic::{Arguments, Failed, Trial};
use verbless_devx::abi::core::access;
use verbless_devx::{Backend, Context, DeviceInfo, Kernel, PageSizes, UarKind};

type Case = fn(&Context) -> Result<(), Failed>;

const CASES: &[(&str, Case)] = &[
    ("the_context_knows_its_limits", the_context_knows_its_limits),
    ("every_port_answers", every_port_answers),
    ("the_gid_table_agrees_with_its_entries", the_gid_table_agrees_with_its_entries),
    ("a_protection_domain_comes_and_goes", a_protection_domain_comes_and_goes),
    ("doorbell_pages_are_mapped", doorbell_pages_are_mapped),
    ("memory_is_registered_and_given_back", memory_is_registered_and_given_back),
    ("event_channels_are_empty_at_first", event_channels_are_empty_at_first),
    ("capabilities_are_answered", capabilities_are_answered),
];

fn main() {
    let device = Kernel::new().enumerate().map(|mut devices| devices.swap_remove(0));
    let trials = CASES.iter().map(|&(name, case)| match &device {
        Ok(info) => {
            let info = info.clone();
            Trial::test(name, move || run(&info, case))
        }
        Err(error) => Trial::test(name, || Ok(()))
            .with_kind(format!("skipped: {:?}", error.kind()))
            .with_ignored_flag(true),
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn run(info: &DeviceInfo, case: Case) -> Result<(), Failed> {
    let context = Context::open(&Kernel::new(), info)?;
    case(&context)?;
    if context.leaked() != 0 {
        return Err(format!("{} objects leaked", context.leaked()).into());
    }
    Ok(())
}

fn ensure(what: &str, holds: bool) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(what.into()) }
}

fn the_context_knows_its_limits(context: &Context) -> Result<(), Failed> {
    let attributes = context.attributes();
    ensure("completion vectors", attributes.completion_vectors > 0)?;
    ensure("ports", attributes.driver.num_ports > 0)?;
    ensure("dynamic UARs", attributes.driver.tot_bfregs == 0)
}

fn every_port_answers(context: &Context) -> Result<(), Failed> {
    for port in &context.info().ports {
        let attributes = context.query_port(port.number)?;
        ensure("link layer", attributes.link_layer() == port.link_layer)?;
    }
    ensure("port 0 is refused", context.query_port(0).is_err())
}

fn the_gid_table_agrees_with_its_entries(context: &Context) -> Result<(), Failed> {
    for entry in context.gid_table()? {
        ensure("entry", context.gid_entry(entry.port, entry.index)? == entry)?;
    }
    Ok(())
}

fn a_protection_domain_comes_and_goes(context: &Context) -> Result<(), Failed> {
    let pd = context.alloc_pd()?;
    ensure("a number", pd.pdn() != 0)?;
    Ok(pd.destroy()?)
}

fn doorbell_pages_are_mapped(context: &Context) -> Result<(), Failed> {
    context.uar_alloc(UarKind::NonCached)?.destroy()?;
    if context.attributes().blue_flame_bytes() != 0 {
        context.uar_alloc(UarKind::BlueFlame)?.destroy()?;
    }
    Ok(())
}

fn memory_is_registered_and_given_back(context: &Context) -> Result<(), Failed> {
    let memory = vec![0u8; 1 << 16];
    let (address, length) = (memory.as_ptr().expose_provenance() as u64, memory.len() as u64);
    // SAFETY: the vector lives until the registration is given back, and forever if that fails.
    let umem = unsafe { context.umem_reg(address, length, access::LOCAL_WRITE, PageSizes::Any) }?;
    if let Err(failed) = umem.destroy() {
        std::mem::forget(memory);
        return Err(failed.error.into());
    }
    Ok(())
}

fn event_channels_are_empty_at_first(context: &Context) -> Result<(), Failed> {
    ensure("events", context.event_channel(true)?.read()?.is_none())?;
    ensure("events with data", context.event_channel(false)?.read()?.is_none())?;
    ensure("answers", context.command_channel()?.read()?.is_none())?;
    ensure("asynchronous events", context.async_event_alloc()?.read()?.is_none())
}

fn capabilities_are_answered(context: &Context) -> Result<(), Failed> {
    let mut output = vec![0; 4112];
    let query_hca_cap = [0x01, 0x00, 0, 0, 0, 0, 0, 0x01, 0, 0, 0, 0, 0, 0, 0, 0];
    context.devx_other(&query_hca_cap, &mut output)?;
    ensure("capabilities", output[16..].iter().any(|&byte| byte != 0))
}
