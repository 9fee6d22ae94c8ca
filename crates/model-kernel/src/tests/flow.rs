//! The rules of flow matchers and flows that the kernel checks before it sends a command.

use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::{FlowDestinationType, Opcode, SetFlowTableEntryIn};

use super::super::client::Capability;
use super::support::{Fixture, Request, command};

const DEFAULT_MISS: u32 = 1;
const DROP: u32 = 2;

fn privileged() -> Fixture {
    let fixture = Fixture::new();
    fixture.client.capabilities.store(1 << Capability::NetRaw as u32, Ordering::Relaxed);
    fixture
}

pub(super) fn matcher(
    fixture: &Fixture,
    mask: &[u8],
    more: &[(u16, Vec<u8>)],
) -> Result<u64, Errno> {
    by_priority(fixture, 3, mask, more)
}

fn by_priority(
    fixture: &Fixture,
    priority: u16,
    mask: &[u8],
    more: &[(u16, Vec<u8>)],
) -> Result<u64, Errno> {
    let mut request = Request::new(0x1003, 0x1000)
        .handle(0x1000, 0)
        .input(0x1001, mask)
        .input(0x1002, &priority.to_ne_bytes())
        .input(0x1003, &[1]);
    for (id, bytes) in more {
        request = request.input(*id, bytes);
    }
    request.send(&fixture.file).map(|()| request.data(0))
}

/// Sends CREATE_FLOW; returns the rule's handle.
fn flow(
    fixture: &Fixture,
    matcher: u64,
    to: Option<u64>,
    tag: Option<u32>,
    flags: Option<u32>,
    value: &[u8],
) -> Result<u64, Errno> {
    let mut request =
        Request::new(9, 0x1000).handle(0x1000, 0).input(0x1001, value).handle(0x1004, matcher);
    if let Some(to) = to {
        request = request.handle(0x1003, to);
    }
    if let Some(tag) = tag {
        request = request.input(0x1006, &tag.to_ne_bytes());
    }
    if let Some(flags) = flags {
        request = request.input(0x1009, &flags.to_ne_bytes());
    }
    request.send(&fixture.file).map(|()| request.data(0))
}

#[test]
fn matcher_accepts_known_fields_of_received_packets() {
    let fixture = privileged();
    let long = |last: u8| [vec![0xff; 512], vec![0, last]].concat();
    let number = |value: u64| value.to_ne_bytes().to_vec();
    let flags = |value: u32| value.to_ne_bytes().to_vec();
    for (case, mask, more, expected) in [
        ("plain", vec![1; 9], vec![], Ok(())),
        ("zeros after the known bytes", long(0), vec![], Ok(())),
        ("bits after the known bytes", long(1), vec![], Err(Errno::EINVAL)),
        ("received packets", vec![1; 9], vec![(0x1005, number(0))], Ok(())),
        ("sent packets", vec![1; 9], vec![(0x1005, number(1))], Err(Errno::EOPNOTSUPP)),
        ("the last type", vec![1; 9], vec![(0x1005, number(4))], Err(Errno::EOPNOTSUPP)),
        ("no type", vec![1; 9], vec![(0x1005, number(5))], Err(Errno::EINVAL)),
        ("no flag", vec![1; 9], vec![(0x1004, flags(0))], Ok(())),
        ("the flag of egress", vec![1; 9], vec![(0x1004, flags(4))], Err(Errno::EOPNOTSUPP)),
        ("an unknown flag", vec![1; 9], vec![(0x1004, flags(2))], Err(Errno::EINVAL)),
        (
            "flags and type",
            vec![1; 9],
            vec![(0x1004, flags(0)), (0x1005, number(0))],
            Err(Errno::EINVAL),
        ),
    ] {
        assert_eq!(matcher(&fixture, &mask, &more).map(drop), expected, "{case}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn flow_needs_one_destination_or_drop() {
    let fixture = privileged();
    let by = matcher(&fixture, &[0xff; 64], &[]).expect("a matcher");
    let make = |opcode: Opcode| fixture.create(&command(opcode.0, 0, 0x40)).expect("an object");
    let (tir, table, pd) =
        (make(Opcode::CREATE_TIR), make(Opcode::CREATE_FLOW_TABLE), make(Opcode::ALLOC_PD));
    let mut value = [0; 64];
    let mut next = 0;
    let mut add = |to, tag, flags| {
        next += 1;
        value[0] = next;
        let made = flow(&fixture, by, to, tag, flags, &value).map(drop);
        let entry = fixture.device.last(Opcode::SET_FLOW_TABLE_ENTRY.0);
        let kind = entry.and_then(|entry| {
            let entry = SetFlowTableEntryIn::from_prefix(&entry)?;
            (entry.flow_context().match_value().as_bytes()[0] == next)
                .then(|| entry.flow_context().action())
        });
        assert_eq!(made.is_ok(), kind.is_some(), "the device gets a command for each rule made");
        made
    };
    for (case, to, tag, flags, expected) in [
        ("a TIR", Some(tir), None, None, Ok(())),
        ("a TIR, and no flag", Some(tir), None, Some(0), Ok(())),
        ("a table", Some(table), None, None, Ok(())),
        ("a PD", Some(pd), None, None, Err(Errno::EINVAL)),
        ("nothing", None, None, None, Err(Errno::EINVAL)),
        ("nothing, and no flag", None, None, Some(0), Err(Errno::EINVAL)),
        ("drop", None, None, Some(DROP), Ok(())),
        ("a TIR and drop", Some(tir), None, Some(DROP), Err(Errno::EINVAL)),
        ("a TIR and the default", Some(tir), None, Some(DEFAULT_MISS), Err(Errno::EINVAL)),
        ("the default", None, None, Some(DEFAULT_MISS), Err(Errno::EOPNOTSUPP)),
        ("both flags", None, None, Some(DEFAULT_MISS | DROP), Err(Errno::EINVAL)),
        ("an unknown flag", None, None, Some(4), Err(Errno::EINVAL)),
        ("the largest tag", Some(tir), Some(0xff_ffff), None, Ok(())),
        ("a tag too large", Some(tir), Some(0x100_0000), None, Err(Errno::EINVAL)),
    ] {
        assert_eq!(add(to, tag, flags), expected, "{case}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn flow_destination_has_device_object_number() {
    let fixture = privileged();
    let by = matcher(&fixture, &[0xff; 64], &[]).expect("a matcher");
    for (create, kind) in [
        (Opcode::CREATE_TIR, FlowDestinationType::TIR),
        (Opcode::CREATE_FLOW_TABLE, FlowDestinationType::FLOW_TABLE),
    ] {
        let mut answer = [0; 16];
        answer[8..12].copy_from_slice(&0x77u32.to_be_bytes());
        fixture.device.answer(create, 0, &answer);
        let to = fixture.create(&command(create.0, 0, 0x40)).expect("an object");
        let value = [create.0 as u8; 64];
        flow(&fixture, by, Some(to), None, None, &value).expect("a flow");
        let entry = fixture.device.last(Opcode::SET_FLOW_TABLE_ENTRY.0).expect("sent");
        let to = &entry[SetFlowTableEntryIn::BYTES..][..8];
        assert_eq!(to, [kind.0, 0, 0, 0x77, 0, 0, 0, 0], "{create:?}");
    }
}

#[test]
fn flow_needs_cap_net_raw_matcher_and_priority() {
    let fixture = privileged();
    let tir = fixture.create(&command(Opcode::CREATE_TIR.0, 0, 0x40)).expect("a TIR");
    for (priority, expected) in [(0, Ok(())), (15, Ok(())), (16, Err(Errno::ENOMEM))] {
        let by = by_priority(&fixture, priority, &[0xff; 64], &[]).expect("a matcher");
        let made = flow(&fixture, by, Some(tir), None, None, &[0; 64]).map(drop);
        assert_eq!(made, expected, "priority {priority}");
    }
    let by = matcher(&fixture, &[0xff; 64], &[]).expect("a matcher");
    let long = [vec![0; 513], vec![1]].concat();
    assert_eq!(flow(&fixture, by, Some(tir), None, None, &long), Err(Errno::EINVAL));
    let short = flow(&fixture, by, Some(tir), None, None, &[1; 8]);
    assert_eq!(short.map(drop), Ok(()), "eight bytes are in the attribute itself");
    assert_eq!(flow(&fixture, tir, Some(tir), None, None, &[0; 64]), Err(Errno::EINVAL));
    fixture.client.capabilities.store(0, Ordering::Relaxed);
    assert_eq!(flow(&fixture, by, Some(tir), None, None, &[0; 64]), Err(Errno::EPERM));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn driver_methods_fail_with_eio_after_removal() {
    let fixture = privileged();
    let mut nothing = Request::new(9, 0x1000);
    assert_eq!(nothing.send(&fixture.file), Err(Errno::EINVAL));
    fixture.device.alive.store(false, Ordering::Relaxed);
    assert_eq!(nothing.send(&fixture.file), Err(Errno::EINVAL), "a failed device has its driver");
    fixture.device.removed.store(true, Ordering::Relaxed);
    assert_eq!(nothing.send(&fixture.file), Err(Errno::EIO));
}
