//! Invalid commands and requests: each is refused with its reason, and has no effect.

use verbless_command::{CapMode, CapPage};
use verbless_devx::abi::attr::{devx_other, devx_umem_reg, query_port};
use verbless_devx::abi::request::MANDATORY;
use verbless_devx::abi::{Method, method};
use verbless_devx::{Context, Errno, ErrorKind, OpenDevice};
use verbless_prm as prm;
use verbless_prm::CommandStatus;

use crate::case::cases;
use crate::raw::{Payload, RawAttribute, request};
use crate::{Lab, Stop, ensure, ensure_eq};

cases!(
    "refusal",
    "Invalid commands and requests: each is refused with its reason, and has no effect.":
    unknown_command_is_rejected_with_opcode,
    devx_blocks_privileged_commands,
    create_command_is_rejected_as_general_one,
    unknown_capability_page_is_rejected,
    input_or_output_shorter_than_header_is_rejected,
    truncated_create_command_is_rejected,
    command_above_attribute_length_is_rejected,
    trailing_command_bytes_do_no_harm,
    query_of_object_behind_another_handle_is_rejected,
    request_without_context_is_rejected,
    second_context_on_one_file_is_rejected,
    unknown_method_is_rejected,
    unknown_mandatory_attribute_is_rejected,
    missing_attribute_is_rejected,
    duplicate_attribute_is_rejected,
    attribute_of_wrong_length_is_rejected,
    invalid_ioctl_header_is_rejected,
    unmapped_attribute_pointer_is_efault,
    unknown_handle_is_rejected,
);

/// A header: opcode and op_mod.
fn header(opcode: u16, op_mod: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&opcode.to_be_bytes());
    bytes[6..8].copy_from_slice(&op_mod.to_be_bytes());
    bytes
}

fn unknown_command_is_rejected_with_opcode(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    // DevX passes every opcode of 0xb00 to 0xcff, known or not.
    let refused = device.devx_other(&header(0xcfe, 0), &mut [0; 16]).err();
    let error = refused.ok_or_else(|| Stop::fail("command 0xcfe worked"))?;
    ensure_eq!(error.kind(), ErrorKind::Command, format!("the kind of {error}"));
    let status = (!device.hides_refusals()).then_some(CommandStatus::BAD_OP.0);
    ensure_eq!(error.status(), status, "status");
    let text = error.to_string();
    ensure!(text.contains("0xcfe") && text.contains("BAD_OP"), "{text:?} does not say it");
    Ok(device.nop()?)
}

fn devx_blocks_privileged_commands(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    for command in [
        &prm::CREATE_EQ,
        &prm::TEARDOWN_HCA,
        &prm::SET_ROCE_ADDRESS,
        &prm::MANAGE_PAGES,
        &prm::MAD_IFC,
    ] {
        let refused = device.devx_other(&header(command.opcode, 0), &mut [0; 16]).err();
        let error = refused.ok_or_else(|| Stop::fail(format!("{} worked", command.name)))?;
        ensure_eq!(error.errno(), Some(Errno::EINVAL), command.name);
        ensure_eq!(error.status(), None, command.name);
        ensure!(error.to_string().contains(command.name), "{error} does not name it");
    }
    Ok(device.nop()?)
}

fn create_command_is_rejected_as_general_one(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let input = prm::AllocTransportDomainIn::new();
    let refused = device.devx_other(input.as_bytes(), &mut [0; 16]).err();
    ensure_eq!(refused.and_then(|error| error.errno()), Some(Errno::EINVAL), "as a general one");
    // As a creation it passes, and its handle destroys it.
    drop(device.obj_create(input.as_bytes(), &mut [0; 16])?);
    Ok(())
}

fn unknown_capability_page_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let refused = lab.device()?.query_hca_cap(CapPage(0x7f), CapMode::Current).err();
    let error = refused.ok_or_else(|| Stop::fail("page 0x7f could be read"))?;
    ensure_eq!(error.kind(), ErrorKind::Command, format!("the kind of {error}"));
    ensure!(error.to_string().contains("QUERY_HCA_CAP"), "{error} does not name the command");
    Ok(())
}

fn input_or_output_shorter_than_header_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let whole = header(prm::NOP.opcode, 0);
    for (input, output) in
        [(0, 16), (1, 16), (2, 16), (8, 16), (15, 16), (16, 0), (16, 8), (16, 15)]
    {
        let refused = device.devx_other(&whole[..input], &mut vec![0; output]).err();
        let errno = refused.and_then(|error| error.errno());
        ensure_eq!(errno, Some(Errno::EINVAL), format!("{input} bytes in, {output} out"));
    }
    Ok(device.nop()?)
}

fn truncated_create_command_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let input = prm::CreateCqIn::new();
    // With an existing event queue; otherwise the kernel refuses it before the device can.
    let mut input = input;
    input.cq_context_mut().set_c_eqn_or_apu_element(device.query_eqn(0)?);
    let refused = device.obj_create(&input.as_bytes()[..0x60], &mut [0; 16]).err();
    let error = refused.ok_or_else(|| Stop::fail("half a CREATE_CQ made a CQ"))?;
    ensure_eq!(error.kind(), ErrorKind::Command, format!("the kind of {error}"));
    let has_status = error.status().is_some_and(|status| status != 0);
    ensure!(has_status || device.hides_refusals(), "{error} has no status");
    ensure!(error.to_string().contains("CREATE_CQ"), "{error} does not name the command");
    Ok(device.nop()?)
}

fn command_above_attribute_length_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let mut long = vec![0; 1 << 16];
    long[..16].copy_from_slice(&header(prm::NOP.opcode, 0));
    let refused = device.devx_other(&long, &mut [0; 16]).err();
    ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::InvalidInput), "65536 bytes in");
    let refused = device.devx_other(&long[..16], &mut vec![0; 1 << 16]).err();
    ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::InvalidInput), "65536 bytes out");
    Ok(device.nop()?)
}

fn trailing_command_bytes_do_no_harm(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    for length in [17, 512, 4096, 65535] {
        let mut long = vec![0xff; length];
        long[..16].copy_from_slice(&header(prm::NOP.opcode, 0));
        // A device may ignore bytes after the end, or refuse them.
        if let Err(error) = device.devx_other(&long, &mut vec![0; length]) {
            ensure!(error.to_string().contains("NOP"), "{error} does not name the command");
        }
    }
    Ok(device.nop()?)
}

fn query_of_object_behind_another_handle_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let mut counters = Vec::new();
    for _ in 0..2 {
        let mut output = prm::AllocQCounterOut::zeroed();
        let input = prm::AllocQCounterIn::new();
        let object = device.obj_create(input.as_bytes(), output.as_bytes_mut())?;
        counters.push((object, output.counter_set_id()));
    }
    let mut query = prm::QueryQCounterIn::new();
    query.set_counter_set_id(counters[1].1);
    let mut output = prm::QueryQCounterOut::zeroed();
    let refused = counters[0].0.query(query.as_bytes(), output.as_bytes_mut()).err();
    ensure_eq!(
        refused.and_then(|error| error.errno()),
        Some(Errno::EINVAL),
        "errno for another counter set"
    );
    Ok(counters[1].0.query(query.as_bytes(), output.as_bytes_mut())?)
}

/// An open file, with or without a context.
fn file(lab: &Lab) -> Result<std::sync::Arc<dyn OpenDevice>, Stop> {
    Ok(lab.backend().open(lab.info())?)
}

/// NOP as a request of its own, with one more attribute and a hook that can corrupt it.
fn nop(
    device: &dyn OpenDevice,
    more: Option<RawAttribute<'_>>,
    spoil: impl FnOnce(&mut [u64]),
) -> Result<(), Errno> {
    let input = header(prm::NOP.opcode, 0);
    let mut output = [0; 16];
    let mut attributes = vec![
        RawAttribute { id: devx_other::CMD_IN, flags: MANDATORY, payload: Payload::Input(&input) },
        RawAttribute {
            id: devx_other::CMD_OUT,
            flags: MANDATORY,
            payload: Payload::Output(&mut output),
        },
    ];
    attributes.extend(more);
    request(device, method::DEVX_OTHER, &mut attributes, spoil)
}

fn request_without_context_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = file(lab)?;
    ensure_eq!(nop(&*device, None, |_| {}), Err(Errno::EINVAL), "without a context");
    let context = Context::from_device(device.clone(), lab.info().clone())?;
    ensure_eq!(nop(&*device, None, |_| {}), Ok(()), "with one");
    drop(context);
    Ok(())
}

fn second_context_on_one_file_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = file(lab)?;
    let first = Context::from_device(device.clone(), lab.info().clone())?;
    let second = Context::from_device(device, lab.info().clone()).err();
    ensure_eq!(second.and_then(|error| error.errno()), Some(Errno::EINVAL), "the second");
    first.query_port(1)?;
    Ok(())
}

/// A file with a context.
fn ready(lab: &Lab) -> Result<(std::sync::Arc<dyn OpenDevice>, Context), Stop> {
    let device = file(lab)?;
    let context = Context::from_device(device.clone(), lab.info().clone())?;
    Ok((device, context))
}

fn unknown_method_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (device, _context) = ready(lab)?;
    for (object, method) in [(0x1000, 0x10ff), (0x10ff, 0x1000), (0xfff, 0), (0, 0x7f)] {
        let got = request(&*device, Method { object, method }, &mut [], |_| {});
        ensure_eq!(got, Err(Errno::EPROTONOSUPPORT), format!("method {object:#x}.{method:#x}"));
    }
    Ok(())
}

fn unknown_mandatory_attribute_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (device, _context) = ready(lab)?;
    for (flags, expected) in [(MANDATORY, Err(Errno::EPROTONOSUPPORT)), (0, Ok(()))] {
        for id in [0x10ff, 0xff] {
            let more = RawAttribute { id, flags, payload: Payload::Number(4, 7) };
            ensure_eq!(nop(&*device, Some(more), |_| {}), expected, format!("attribute {id:#x}"));
        }
    }
    Ok(())
}

fn missing_attribute_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (device, _context) = ready(lab)?;
    let input = header(prm::NOP.opcode, 0);
    let mut only = [RawAttribute {
        id: devx_other::CMD_IN,
        flags: MANDATORY,
        payload: Payload::Input(&input),
    }];
    let got = request(&*device, method::DEVX_OTHER, &mut only, |_| {});
    ensure_eq!(got, Err(Errno::EINVAL), "without an output");
    let got = request(&*device, method::DEVX_OTHER, &mut [], |_| {});
    ensure_eq!(got, Err(Errno::EINVAL), "without anything");
    Ok(())
}

fn duplicate_attribute_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (device, _context) = ready(lab)?;
    let input = header(prm::NOP.opcode, 0);
    let again =
        RawAttribute { id: devx_other::CMD_IN, flags: MANDATORY, payload: Payload::Input(&input) };
    ensure_eq!(nop(&*device, Some(again), |_| {}), Err(Errno::EINVAL), "CMD_IN twice");
    Ok(())
}

fn attribute_of_wrong_length_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (device, _context) = ready(lab)?;
    // An 8-byte number, given with fewer and with more bytes.
    for length in [0, 1, 4, 7] {
        let mut response = [0u8; 48];
        let mut attributes = [
            RawAttribute {
                id: query_port::PORT_NUM,
                flags: MANDATORY,
                payload: Payload::Number(length, 1),
            },
            RawAttribute {
                id: query_port::RESP,
                flags: MANDATORY,
                payload: Payload::Output(&mut response),
            },
        ];
        let got = request(&*device, method::QUERY_PORT, &mut attributes, |_| {});
        ensure_eq!(got, Err(Errno::EINVAL), format!("a port number of {length} bytes"));
    }
    let long = [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let mut response = [0u8; 48];
    let mut attributes = [
        RawAttribute { id: query_port::PORT_NUM, flags: MANDATORY, payload: Payload::Input(&long) },
        RawAttribute {
            id: query_port::RESP,
            flags: MANDATORY,
            payload: Payload::Output(&mut response),
        },
    ];
    let got = request(&*device, method::QUERY_PORT, &mut attributes, |_| {});
    ensure!(got.is_err(), "a port number of 12 bytes was taken");
    Ok(())
}

fn invalid_ioctl_header_is_rejected(lab: &Lab) -> Result<(), Stop> {
    type Spoil = fn(&mut [u64]);
    let (device, _context) = ready(lab)?;
    // The header's first word: length, object, method, number of attributes.
    for (length, count) in [(0, 2), (24, 2), (40, 2), (55, 2), (57, 2), (24, 1), (56, 1)] {
        let got = nop(&*device, None, |words| {
            words[0] = words[0] & 0x0000_ffff_ffff_0000 | count << 48 | length;
        });
        ensure_eq!(got, Err(Errno::EINVAL), format!("{length} bytes, {count} attributes"));
    }
    let others: [(&str, Spoil, Errno); 3] = [
        ("driver 2", |words| words[2] = 2, Errno::EINVAL),
        ("the first reserved word", |words| words[1] = 1, Errno::EPROTONOSUPPORT),
        ("the second reserved word", |words| words[2] |= 1 << 32, Errno::EPROTONOSUPPORT),
    ];
    for (what, spoil, errno) in others {
        ensure_eq!(nop(&*device, None, spoil), Err(errno), what);
    }
    Ok(())
}

fn unmapped_attribute_pointer_is_efault(lab: &Lab) -> Result<(), Stop> {
    let (device, context) = ready(lab)?;
    let input = header(prm::NOP.opcode, 0);
    let mut output = [0; 16];
    let mut attributes = [
        RawAttribute { id: devx_other::CMD_IN, flags: MANDATORY, payload: Payload::Nowhere(16) },
        RawAttribute {
            id: devx_other::CMD_OUT,
            flags: MANDATORY,
            payload: Payload::Output(&mut output),
        },
    ];
    let got = request(&*device, method::DEVX_OTHER, &mut attributes, |_| {});
    ensure_eq!(got, Err(Errno::EFAULT), "input");
    let mut attributes = [
        RawAttribute { id: devx_other::CMD_IN, flags: MANDATORY, payload: Payload::Input(&input) },
        RawAttribute { id: devx_other::CMD_OUT, flags: MANDATORY, payload: Payload::Nowhere(16) },
    ];
    let got = request(&*device, method::DEVX_OTHER, &mut attributes, |_| {});
    ensure_eq!(got, Err(Errno::EFAULT), "output");
    context.query_port(1)?;
    Ok(())
}

fn unknown_handle_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (device, _context) = ready(lab)?;
    let id = verbless_devx::abi::attr::devx_umem_dereg::HANDLE;
    let mut attributes =
        [RawAttribute { id, flags: MANDATORY, payload: Payload::Number(0, 0xfff) }];
    let got = request(&*device, method::DEVX_UMEM_DEREG, &mut attributes, |_| {});
    ensure_eq!(got, Err(Errno::ENOENT), "a UMEM that is none");
    let mut attributes =
        [RawAttribute { id: devx_umem_reg::LEN, flags: MANDATORY, payload: Payload::Number(8, 1) }];
    let got = request(&*device, method::DEVX_UMEM_REG, &mut attributes, |_| {});
    ensure!(got.is_err(), "a UMEM was registered without an address");
    Ok(())
}
