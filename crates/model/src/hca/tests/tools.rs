//! Registers, by those who may reach them: a kernel, contexts with TOOLS_RESOURCES, and by a
//! command of their own all others.

use verbless_prm::{
    AccessRegisterIn, AccessRegisterUserIn, CommandInput, DpaCap, NicCapExtReg, RegisterId,
    Structure, UctxCap,
};

use super::rig::Rig;
use crate::hca::Refusal;
use crate::profile::Profile;

const TOOLS: u32 = UctxCap::TOOLS_RESOURCES.0;
const READ: u16 = AccessRegisterIn::READ;

fn rig(profile: &str) -> Rig {
    Rig::up_of(Profile::load(profile).expect("it comes along"))
}

fn read<I: CommandInput>(
    rig: &mut Rig,
    uid: u16,
    id: RegisterId,
    asked: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let mut head = vec![0; <I as Structure>::BYTES];
    head[10..12].copy_from_slice(&id.0.to_be_bytes());
    let head = I::read_from_bytes(&head).expect("whole");
    rig.call::<I>(uid, READ, asked, asked.len(), |input| *input = head).map(|(_, it)| it)
}

/// The numbers of the DPA, as a sender reads them.
fn numbers<I: CommandInput>(rig: &mut Rig, uid: u16) -> Result<DpaCap, Refusal> {
    let mut asked = NicCapExtReg::default();
    asked.set_cap_group(1);
    let answer = read::<I>(rig, uid, RegisterId::NIC_CAP_EXT, asked.as_bytes())?;
    let register = NicCapExtReg::from_prefix(&answer).expect("whole");
    Ok(*DpaCap::from_prefix(register.cap_data()).expect("whole"))
}

#[test]
fn access_register_is_for_the_kernel_and_for_contexts_with_tools_resources() {
    let mut rig = rig("bluefield3");
    let [plain, tools] = [0, TOOLS].map(|cap| rig.uctx_that_may(cap));
    let units = numbers::<AccessRegisterIn>(&mut rig, 0).unwrap();
    assert!(units.max_num_dpa_eu() > 1);
    assert_eq!(numbers::<AccessRegisterIn>(&mut rig, tools), Ok(units));
    assert_eq!(numbers::<AccessRegisterIn>(&mut rig, plain), Err(Refusal::ToolsOnly));
    assert_eq!(numbers::<AccessRegisterUserIn>(&mut rig, plain), Ok(units));
    // And so are those of ports.
    let mut asked = [0; 0x40];
    asked[1] = 1;
    let mtu = read::<AccessRegisterIn>(&mut rig, 0, RegisterId::PMTU, &asked).unwrap();
    assert_eq!(read::<AccessRegisterIn>(&mut rig, tools, RegisterId::PMTU, &asked), Ok(mtu));
    let refused = read::<AccessRegisterIn>(&mut rig, plain, RegisterId::PMTU, &asked);
    assert_eq!(refused, Err(Refusal::ToolsOnly));
    let unknown = read::<AccessRegisterUserIn>(&mut rig, plain, RegisterId::PMTU, &asked);
    assert_eq!(unknown, Err(Refusal::NoSuchRegister), "which are not those of users");
}

#[test]
fn a_device_without_access_register_user_refuses_it_and_still_has_the_registers() {
    let mut rig = rig("bluefield3-fwctl");
    let tools = rig.uctx_that_may(TOOLS);
    assert_eq!(numbers::<AccessRegisterUserIn>(&mut rig, tools), Err(Refusal::Unsupported));
    assert!(numbers::<AccessRegisterIn>(&mut rig, tools).unwrap().max_num_dpa_eu() > 1);
}

#[test]
fn a_device_without_a_dpa_has_none_of_its_registers() {
    let mut rig = rig("connectx6dx");
    let refused = numbers::<AccessRegisterIn>(&mut rig, 0);
    assert_eq!(refused, Err(Refusal::NoSuchRegister));
}
