//! Registers, by either access: the same results, and an error text if a device offers neither.

use std::sync::{Arc, Mutex};

use verbless_command::{Device, DpaEuPartitionAttr, ErrorKind, RegisterAccess};
use verbless_devx::{Backend, FwctlScope};
use verbless_model::{Model, ObjectCounts, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::{
    AccessRegisterIn, AccessRegisterOut, CommandStatus, NicDpaEugReg, NicDpaOperation, Opcode,
    QueryAdapterIn, QueryAdapterOut, RegisterId,
};

fn open(profile: Profile) -> (Model, Device) {
    let model = Model::builder().device(profile).stepped().build();
    let device = another(&model);
    (model, device)
}

fn another(model: &Model) -> Device {
    let backend = InProcess::of(model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    Device::open(&backend, &info).expect("the model opens")
}

fn load(name: &str) -> Profile {
    Profile::load(name).expect("the profile is built in")
}

/// BlueField-3 without ACCESS_REGISTER_USER; user contexts may have these privileges.
fn with_uctx_cap(bits: &str) -> Profile {
    let text = format!(
        "base = \"bluefield3\"\n[caps.general]\naccess_register_user = false\nuctx_cap = {bits}\n"
    );
    Profile::from_toml(&text).expect("a profile")
}

/// Opcodes and uids of the register commands during `f`.
fn register_commands<R>(model: &Model, f: impl FnOnce() -> R) -> (R, Vec<(u16, u16)>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let watch = model.watch_commands(move |executed| {
        let word = |at: usize| u16::from_be_bytes([executed.input[at], executed.input[at + 1]]);
        if [Opcode::ACCESS_REGISTER.0, Opcode::ACCESS_REGISTER_USER.0].contains(&word(0)) {
            log.lock().unwrap().push((word(0), word(2)));
        }
    });
    let result = f();
    drop(watch);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (result, seen)
}

#[test]
fn both_register_ways_read_same_dpa_caps() {
    let (user_model, user) = open(load("bluefield3"));
    let (control_model, control) = open(load("bluefield3-fwctl"));
    assert_eq!(user.register_access().unwrap(), RegisterAccess::User);
    assert_eq!(control.register_access().unwrap(), RegisterAccess::Fwctl);
    let info = control.fwctl().unwrap().expect("a file").info().unwrap();
    let (by_user, sent) = register_commands(&user_model, || user.dpa_caps().unwrap());
    assert!(matches!(sent[..], [(0xb0c, 1..)]), "{sent:x?}");
    let (by_control, sent) = register_commands(&control_model, || control.dpa_caps().unwrap());
    assert_eq!(sent, [(0x805, info.uid as u16)], "with the uid of the file");
    assert_eq!(by_user, by_control);
    assert!(by_control.units > 1, "{by_control:?}");
}

#[test]
fn fwctl_creates_changes_and_destroys_dpa_groups() {
    let (_model, device) = open(load("bluefield3-fwctl"));
    let units = device.dpa_caps().unwrap().units;
    let attr = |unit| DpaEuPartitionAttr {
        units: vec![unit],
        functions: vec![device.caps().general.vhca_id()],
        max_groups: 1,
    };
    let partition = device.create_dpa_partition(&attr(units - 1)).unwrap();
    partition.set_units(&[units - 2]).unwrap();
    assert_eq!(partition.query().unwrap(), attr(units - 2));
    partition.set_max_groups(3).unwrap();
    assert_eq!(partition.query().unwrap(), DpaEuPartitionAttr { max_groups: 3, ..attr(units - 2) });
    partition.set_functions(&[]).unwrap();
    let alone = DpaEuPartitionAttr { functions: vec![], max_groups: 3, ..attr(units - 2) };
    assert_eq!(partition.query().unwrap(), alone);
    let other = device.create_dpa_partition(&attr(units - 3)).unwrap();
    assert_ne!(other.id(), partition.id());
    assert_eq!(other.query().unwrap(), attr(units - 3), "a query names its partition by number");
    partition.set_units(&[units - 2, units - 4]).unwrap();
    let group = partition.create_group("one", &[units - 2]).unwrap();
    assert_eq!(group.units().unwrap(), [units - 2]);
    group.set_units(&[units - 4]).unwrap();
    assert_eq!(group.units().unwrap(), [units - 4]);
    drop(group);
    let group = partition.create_group("two", &[units - 4]).expect("the unit is free again");
    let error = partition.destroy().expect_err("a group is in the partition");
    assert_eq!(error.kind(), ErrorKind::Command, "{error}");
    assert!(error.to_string().contains("ACCESS_REGISTER (0x805) by FWCTL_RPC"), "{error}");
    group.destroy().unwrap();
    partition.destroy().unwrap();
    assert!(partition.query().is_err(), "the partition was destroyed");
}

/// After DESTROY the id may belong to a new group, so the drop must not send another one.
#[test]
fn dpa_group_sends_destroy_once() {
    let (model, device) = open(load("bluefield3"));
    let group = device.create_dpa_group("one", &[2]).unwrap();
    let (result, sent) = register_commands(&model, move || group.destroy());
    result.unwrap();
    assert_eq!(sent.len(), 1, "{sent:x?}");
}

#[test]
fn failed_destroy_returns_dpa_group() {
    let (model, device) = open(load("bluefield3"));
    let group = device.create_dpa_group("one", &[2]).unwrap();
    model.fail_command(0, Opcode::ACCESS_REGISTER_USER, 1, CommandStatus::BAD_RES_STATE, 7);
    let failed = group.destroy().unwrap_err();
    assert_eq!(failed.object.units().unwrap(), [2], "the object still exists");
    failed.object.destroy().unwrap();
}

/// Creates or destroys a group of one unit, as raw bytes, without a handle that cleans up.
fn write_group(
    device: &Device,
    operation: NicDpaOperation,
    id: u16,
    unit: u16,
) -> Result<u16, verbless_command::Error> {
    let mut register = NicDpaEugReg::default();
    register.set_operation(operation).set_eug_id(id).set_member_mask(0, 1 << unit);
    let mut head = AccessRegisterIn::new();
    head.set_op_mod(AccessRegisterIn::WRITE).set_register_id(RegisterId::NIC_DPA_EUG);
    let input = [head.as_bytes().as_slice(), register.as_bytes()].concat();
    let mut output = vec![0; AccessRegisterOut::BYTES + NicDpaEugReg::BYTES];
    let control = device.fwctl()?.expect("a file");
    control.rpc(FwctlScope::Configuration, &input, &mut output)?;
    let answer = NicDpaEugReg::from_prefix(&output[AccessRegisterOut::BYTES..]);
    Ok(answer.expect("a register").eug_id())
}

#[test]
fn fwctl_group_ends_with_its_file() {
    let (model, first) = open(load("bluefield3-fwctl"));
    let second = another(&model);
    let id = write_group(&first, NicDpaOperation::CREATE, 0, 7).unwrap();
    let error = write_group(&second, NicDpaOperation::DESTROY, id, 7)
        .expect_err("the group belongs to the other function");
    assert_eq!(error.status(), Some(CommandStatus::BAD_RES.0), "{error}");
    write_group(&second, NicDpaOperation::CREATE, 0, 7).expect_err("the unit is in a group");
    drop(first);
    write_group(&second, NicDpaOperation::CREATE, 0, 7).expect("the unit is free");
}

#[test]
fn error_without_register_way_names_both() {
    for (bits, said) in [("3", "TOOLS_RESOURCES is not among"), ("0", "no /dev/fwctl/fwctlN")] {
        let (model, device) = open(with_uctx_cap(bits));
        assert_eq!(device.fwctl().unwrap().is_some(), bits != "0");
        let (error, sent) = register_commands(&model, || device.dpa_caps().expect_err("no way"));
        assert_eq!((error.kind(), sent.len()), (ErrorKind::NotSupported, 0), "{error}");
        let text = error.to_string();
        for part in ["access_register_user is 0", said] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn fwctl_file_closes_with_context() {
    let (model, device) = open(load("bluefield3-fwctl"));
    let before = model.counts(0);
    let control = device.fwctl().unwrap().expect("a file");
    assert_ne!(model.counts(0), before, "the device has a user context");
    let again = device.fwctl().unwrap().expect("a file").info().unwrap();
    assert_eq!(control.info().unwrap(), again, "there is one for each context");
    let mut output = QueryAdapterOut::zeroed();
    let input = QueryAdapterIn::new();
    control.rpc(FwctlScope::Configuration, input.as_bytes(), output.as_bytes_mut()).unwrap();
    assert!(output.query_adapter_struct().vsd_contd_psid().starts_with(b"VBL"));
    drop(device);
    assert_eq!(model.counts(0), ObjectCounts::default());
}

#[test]
fn dpa_group_is_destroyed_by_id() {
    let (_model, device) = open(load("bluefield3-fwctl"));
    let groups = [(2, "one"), (3, "two"), (4, "three")]
        .map(|(unit, name)| (unit, device.create_dpa_group(name, &[unit]).unwrap()));
    for (unit, group) in &groups {
        assert_eq!(group.units().unwrap(), [*unit]);
        write_group(&device, NicDpaOperation::DESTROY, group.id(), *unit).unwrap();
        assert!(group.units().is_err(), "group {} is gone", group.id());
    }
}
