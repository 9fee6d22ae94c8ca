//! Multicast groups: membership rules, limits, and how QPs leave.

use verbless_prm::{AttachToMcgIn, DestroyQpIn, DetachFromMcgIn, ServiceType};

use super::rig::{Rig, User};
use crate::hca::Refusal;
use crate::profile::Link;

const GROUP: [u8; 16] = [0xff; 16];

fn ud(rig: &mut Rig, user: User) -> u32 {
    rig.qp(user, |input| {
        input.qpc_mut().set_st(ServiceType::UD);
    })
    .unwrap()
}

fn attach(rig: &mut Rig, user: User, qpn: u32, group: [u8; 16]) -> Result<(), Refusal> {
    rig.send::<AttachToMcgIn>(user.uid, |input| {
        input.set_qpn(qpn).set_multicast_gid(&group);
    })
    .map(|_| ())
}

fn detach(rig: &mut Rig, user: User, qpn: u32) -> Result<(), Refusal> {
    rig.send::<DetachFromMcgIn>(user.uid, |input| {
        input.set_qpn(qpn).set_multicast_gid(&GROUP);
    })
    .map(|_| ())
}

#[test]
fn group_exists_while_a_qp_is_attached() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let (one, two) = (ud(&mut rig, user), ud(&mut rig, user));
    for qpn in [one, two, one] {
        attach(&mut rig, user, qpn, GROUP).unwrap();
    }
    assert_eq!(rig.locked.functions[0].hca.objects.groups.get(&GROUP).unwrap().len(), 2);
    detach(&mut rig, user, one).unwrap();
    assert_eq!(detach(&mut rig, user, one), Err(Refusal::NotInGroup));
    rig.send::<DestroyQpIn>(user.uid, |input| {
        input.set_qpn(two);
    })
    .unwrap();
    assert_eq!(rig.locked.functions[0].hca.objects.groups.len(), 0);
    assert_eq!(detach(&mut rig, user, one), Err(Refusal::NotInGroup));
}

#[test]
fn attach_needs_ud_qp_and_multicast_gid() {
    let mut rig = Rig::up(Link::Infiniband);
    let (user, other) = (rig.user(), rig.user());
    let (rc, qpn) = (rig.qp(user, |_| {}).unwrap(), ud(&mut rig, user));
    assert_eq!(attach(&mut rig, user, rc, GROUP), Err(Refusal::Group));
    assert_eq!(attach(&mut rig, user, qpn, [0xfe; 16]), Err(Refusal::Group));
    // IPv4 addresses as RoCE v2 maps them: 239.1.1.1 is multicast, 192.0.2.1 is unicast.
    let mapped = |address| {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, address, 1, 1, 1]);
        gid
    };
    for (first, joined) in
        [(239, Ok(())), (224, Ok(())), (223, Err(Refusal::Group)), (240, Err(Refusal::Group))]
    {
        assert_eq!(attach(&mut rig, user, qpn, mapped(first)), joined, "{first}.1.1.1");
    }
    assert_eq!(attach(&mut rig, other, qpn, GROUP), Err(Refusal::NoSuchQp));
}

#[test]
fn group_size_is_limited_by_max_qp_mcg() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let max = rig.locked.functions[0].hca.caps.general().max_qp_mcg();
    for _ in 0..max {
        let qpn = ud(&mut rig, user);
        attach(&mut rig, user, qpn, GROUP).unwrap();
    }
    let qpn = ud(&mut rig, user);
    assert_eq!(attach(&mut rig, user, qpn, GROUP), Err(Refusal::TooMany));
}
