//! Access to registers by sender: the kernel, contexts with TOOLS_RESOURCES, and other contexts,
//! which must use ACCESS_REGISTER_USER.

use verbless_prm::{
    AccessRegisterIn, AccessRegisterUserIn, CommandInput, DpaCap, InitHcaIn, NicCapExtReg,
    NicDpaEugReg, NicDpaOperation, RegisterId, Structure, TeardownHcaIn, TeardownProfile, UctxCap,
};

use super::rig::Rig;
use crate::hca::Refusal;
use crate::profile::Profile;

const TOOLS: u32 = UctxCap::TOOLS_RESOURCES.0;
const READ: u16 = AccessRegisterIn::READ;

fn rig(profile: &str) -> Rig {
    Rig::up_of(Profile::load(profile).expect("the profile is built in"))
}

fn read<I: CommandInput>(
    rig: &mut Rig,
    uid: u16,
    id: RegisterId,
    asked: &[u8],
) -> Result<Vec<u8>, Refusal> {
    access::<I>(rig, (uid, READ), id, asked)
}

/// Reads or writes, by op_mod.
fn access<I: CommandInput>(
    rig: &mut Rig,
    (uid, op_mod): (u16, u16),
    id: RegisterId,
    asked: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let mut head = vec![0; <I as Structure>::BYTES];
    head[10..12].copy_from_slice(&id.0.to_be_bytes());
    let head = I::read(&head).expect("whole");
    rig.call::<I>(uid, op_mod, asked, asked.len(), |input| *input = head).map(|(_, it)| it)
}

/// The DPA's capabilities, as a sender reads them.
fn dpa_cap<I: CommandInput>(rig: &mut Rig, uid: u16) -> Result<DpaCap, Refusal> {
    let mut asked = NicCapExtReg::default();
    asked.set_cap_group(1);
    let answer = read::<I>(rig, uid, RegisterId::NIC_CAP_EXT, asked.as_bytes())?;
    let register = NicCapExtReg::from_prefix(&answer).expect("whole");
    Ok(*DpaCap::from_prefix(register.cap_data()).expect("whole"))
}

#[test]
fn access_register_needs_kernel_or_tools_resources() {
    let mut rig = rig("bluefield3");
    let [plain, tools] = [0, TOOLS].map(|cap| rig.uctx_with_caps(cap));
    let units = dpa_cap::<AccessRegisterIn>(&mut rig, 0).unwrap();
    assert!(units.max_num_dpa_eu() > 1);
    assert_eq!(dpa_cap::<AccessRegisterIn>(&mut rig, tools), Ok(units));
    assert_eq!(dpa_cap::<AccessRegisterIn>(&mut rig, plain), Err(Refusal::ToolsOnly));
    assert_eq!(dpa_cap::<AccessRegisterUserIn>(&mut rig, plain), Ok(units));
    // Registers of ports are refused too.
    let mut asked = [0; 0x40];
    asked[1] = 1;
    let mtu = read::<AccessRegisterIn>(&mut rig, 0, RegisterId::PMTU, &asked).unwrap();
    assert_eq!(read::<AccessRegisterIn>(&mut rig, tools, RegisterId::PMTU, &asked), Ok(mtu));
    let refused = read::<AccessRegisterIn>(&mut rig, plain, RegisterId::PMTU, &asked);
    assert_eq!(refused, Err(Refusal::ToolsOnly));
    let unknown = read::<AccessRegisterUserIn>(&mut rig, plain, RegisterId::PMTU, &asked);
    assert_eq!(unknown, Err(Refusal::NoSuchRegister), "PMTU is not a register of users");
}

#[test]
fn missing_access_register_user_is_rejected() {
    let mut rig = rig("bluefield3-fwctl");
    let tools = rig.uctx_with_caps(TOOLS);
    assert_eq!(dpa_cap::<AccessRegisterUserIn>(&mut rig, tools), Err(Refusal::Unsupported));
    assert!(dpa_cap::<AccessRegisterIn>(&mut rig, tools).unwrap().max_num_dpa_eu() > 1);
}

#[test]
fn device_without_dpa_has_no_dpa_registers() {
    let mut rig = rig("connectx6dx");
    let refused = dpa_cap::<AccessRegisterIn>(&mut rig, 0);
    assert_eq!(refused, Err(Refusal::NoSuchRegister));
}

/// Creates a group of one execution unit; returns the group's number.
fn make_group(rig: &mut Rig, uid: u16, unit: u16) -> Result<u16, Refusal> {
    let mut register = NicDpaEugReg::default();
    register.set_operation(NicDpaOperation::CREATE);
    register.set_member_mask(usize::from(unit / 32), 1 << (unit % 32));
    let by = (uid, AccessRegisterIn::WRITE);
    let made = access::<AccessRegisterIn>(rig, by, RegisterId::NIC_DPA_EUG, register.as_bytes())?;
    Ok(NicDpaEugReg::from_prefix(&made).expect("whole").eug_id())
}

fn read_group(rig: &mut Rig, id: u16) -> Result<(), Refusal> {
    let mut register = NicDpaEugReg::default();
    register.set_eug_id(id);
    let asked = register.as_bytes();
    read::<AccessRegisterIn>(rig, 0, RegisterId::NIC_DPA_EUG, asked).map(drop)
}

#[test]
fn teardown_removes_all_dpa_unit_groups() {
    let mut rig = rig("bluefield3");
    let tools = rig.uctx_with_caps(TOOLS);
    let made = [(0, 1), (tools, 2)].map(|(uid, unit)| make_group(&mut rig, uid, unit).unwrap());
    let again = make_group(&mut rig, 0, 2);
    assert_eq!(again, Err(Refusal::DpaUnitTaken), "an EU that is in a group");
    for id in made {
        read_group(&mut rig, id).unwrap();
    }
    rig.send::<TeardownHcaIn>(0, |input| {
        input.set_profile(TeardownProfile::FORCE_CLOSE);
    })
    .unwrap();
    rig.send::<InitHcaIn>(0, |_| {}).unwrap();
    for id in made {
        assert_eq!(read_group(&mut rig, id), Err(Refusal::NoSuchDpaGroup));
    }
    make_group(&mut rig, 0, 2).unwrap();
}
