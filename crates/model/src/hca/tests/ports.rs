//! Ports: their contexts, address tables and registers.

use verbless_prm::{
    IbPortState, ModifyNicVportContextIn, QueryHcaVportContextIn, QueryHcaVportGidIn,
    QueryHcaVportPkeyIn, QueryNicVportContextIn, QueryRoceAddressIn, QueryVportStateIn, RegisterId,
    RoceL3Type, RoceVersion, SetRoceAddressIn, VportListType, VportState,
};

use super::rig::Rig;
use crate::hca::Refusal;
use crate::profile::Link;

#[test]
fn ib_port_is_active_with_lid_gid_and_default_pkey() {
    let mut rig = Rig::up(Link::Infiniband);
    let context = rig.send::<QueryHcaVportContextIn>(0, |_| {}).unwrap();
    let context = context.hca_vport_context();
    assert_eq!((context.port_state(), context.lid()), (IbPortState::ACTIVE, 1));
    let guid = context.port_guid();
    let gid = |rig: &mut Rig, index, room| {
        rig.call::<QueryHcaVportGidIn>(0, 0, &[], room, |input| {
            input.set_gid_index(index);
        })
        .map(|(output, gids)| (output.gids_num(), gids))
    };
    let (count, first) = gid(&mut rig, 0, 16).unwrap();
    assert_eq!((count, &first[..8]), (1, &[0xfe, 0x80, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(first[8..], guid.to_be_bytes());
    assert_eq!(gid(&mut rig, 1, 16).unwrap(), (1, vec![0; 16]));
    assert_eq!(gid(&mut rig, 0xffff, 8 * 16).unwrap().0, 8);
    assert_eq!(gid(&mut rig, 0xffff, 7 * 16), Err(Refusal::OutputTooShort));
    assert_eq!(gid(&mut rig, 8, 16), Err(Refusal::GidIndex));
    let pkey = |rig: &mut Rig, index, room| {
        rig.call::<QueryHcaVportPkeyIn>(0, 0, &[], room, |input| {
            input.set_pkey_index(index);
        })
        .map(|(_, pkeys)| pkeys)
    };
    assert_eq!(pkey(&mut rig, 0, 4).unwrap(), [0, 0, 0xff, 0xff]);
    assert_eq!(pkey(&mut rig, 0xffff, 128 * 4).unwrap()[4..], [0; 127 * 4]);
    assert_eq!(pkey(&mut rig, 128, 4), Err(Refusal::PkeyIndex));
    let no_such_port = rig.send::<QueryHcaVportContextIn>(0, |input| {
        input.set_port_num(2);
    });
    assert_eq!(no_such_port, Err(Refusal::NoSuchPort));
    let another = rig.send::<QueryHcaVportContextIn>(0, |input| {
        input.set_other_vport(true).set_vport_number(1);
    });
    assert_eq!(another, Err(Refusal::NoSuchFunction));
}

#[test]
fn down_port_is_reported_down() {
    let mut rig = Rig::up(Link::Infiniband);
    rig.locked.functions[0].hca.ports[0].up = false;
    let context = rig.send::<QueryHcaVportContextIn>(0, |_| {}).unwrap();
    assert_eq!(context.hca_vport_context().port_state(), IbPortState::DOWN);
    let state = rig.send::<QueryVportStateIn>(0, |_| {}).unwrap();
    assert_eq!(state.state(), VportState::DOWN);
}

#[test]
fn ethernet_port_has_mac_and_roce_addresses() {
    let mut rig = Rig::up(Link::Ethernet);
    let context = rig.send::<QueryNicVportContextIn>(0, |_| {}).unwrap();
    let context = context.nic_vport_context();
    assert!(context.roce_en());
    assert_eq!(context.permanent_address().mac_addr_47_32() >> 8, 0x02);
    let set = |rig: &mut Rig, index, version, l3| {
        rig.send::<SetRoceAddressIn>(0, |input| {
            input.set_roce_address_index(index);
            let entry = input.roce_address_mut();
            entry.set_source_l3_address(&[7; 16]).set_source_mac_31_0(9);
            entry.set_roce_version(version).set_roce_l3_type(l3);
        })
        .map(|_| ())
    };
    set(&mut rig, 3, RoceVersion::V2, RoceL3Type::IPV6).unwrap();
    assert_eq!(rig.locked.functions[0].hca.ports[0].gids, [[7; 16]]);
    let bad = Err(Refusal::RoceAddress);
    assert_eq!(set(&mut rig, 3, RoceVersion(1), RoceL3Type::IPV6), bad);
    assert_eq!(set(&mut rig, 3, RoceVersion(200), RoceL3Type::IPV6), bad);
    assert_eq!(set(&mut rig, 3, RoceVersion::V2, RoceL3Type(2)), bad);
    assert_eq!(set(&mut rig, 255, RoceVersion::V2, RoceL3Type::IPV6), Err(Refusal::GidIndex));
    let get = |rig: &mut Rig, index| {
        rig.send::<QueryRoceAddressIn>(0, |input| {
            input.set_roce_address_index(index);
        })
        .map(|output| *output.roce_address().source_l3_address())
    };
    assert_eq!(get(&mut rig, 3), Ok([7; 16]));
    assert_eq!(get(&mut rig, 4), Ok([0; 16]));
    assert_eq!(get(&mut rig, 255), Err(Refusal::GidIndex));
    rig.send::<SetRoceAddressIn>(0, |input| {
        input.set_roce_address_index(3);
    })
    .unwrap();
    assert!(rig.locked.functions[0].hca.ports[0].gids.is_empty());
}

#[test]
fn vport_address_lists_are_limited_by_kind() {
    let mut rig = Rig::up(Link::Ethernet);
    let set = |rig: &mut Rig, kind, count: u16, list: &[u8]| {
        rig.call::<ModifyNicVportContextIn>(0, 0, list, 0, |input| {
            input.field_select_mut().set_addresses_list(true);
            input.nic_vport_context_mut().set_allowed_list_type(kind).set_allowed_list_size(count);
        })
        .map(|_| ())
    };
    let general = *rig.locked.functions[0].hca.caps.general();
    for (kind, log_max) in [
        (VportListType::UC, general.log_max_current_uc_list()),
        (VportListType::MC, general.log_max_current_mc_list()),
        (VportListType::VLAN, general.log_max_vlan_list()),
    ] {
        let max = 1 << log_max;
        let list: Vec<u8> = (0..8 * (usize::from(max) + 1)).map(|at| at as u8).collect();
        set(&mut rig, kind, 2, &list).unwrap();
        assert_eq!(set(&mut rig, kind, max + 1, &list), Err(Refusal::VportField), "{kind:?}");
        let short = &list[..8 * usize::from(max) - 1];
        assert_eq!(set(&mut rig, kind, max, short), Err(Refusal::ListTooShort), "{kind:?}");
        let get = |rig: &mut Rig, room| {
            rig.call::<QueryNicVportContextIn>(0, 0, &[], room, |input| {
                input.set_allowed_list_type(kind);
            })
            .map(|(output, got)| (output.nic_vport_context().allowed_list_size(), got))
        };
        assert_eq!(get(&mut rig, 16), Ok((2, list[..16].to_vec())), "as before, {kind:?}");
        set(&mut rig, kind, max, &list).unwrap();
        let whole = list[..8 * usize::from(max)].to_vec();
        assert_eq!(get(&mut rig, whole.len()), Ok((max, whole)), "{kind:?}");
        assert_eq!(get(&mut rig, 8), Err(Refusal::OutputTooShort), "{kind:?}");
    }
    assert_eq!(set(&mut rig, VportListType(7), 1, &[0; 8]), Err(Refusal::VportField));
}

#[test]
fn vport_accepts_listed_macs_or_all_if_promiscuous() {
    let mut rig = Rig::up(Link::Ethernet);
    let own = rig.locked.functions[0].hca.addresses(1).macs;
    assert_eq!(own.len(), 1);
    let listed = verbless_wire::Mac([2, 1, 2, 3, 4, 5]);
    let list = [&[0, 0], &listed.0[..]].concat();
    let set = |rig: &mut Rig, kind, edit: fn(&mut ModifyNicVportContextIn)| {
        rig.call::<ModifyNicVportContextIn>(0, 0, &list, 0, |input| {
            input.nic_vport_context_mut().set_allowed_list_type(kind).set_allowed_list_size(1);
            edit(input);
        })
        .map(|_| ())
    };
    let addresses = |input: &mut ModifyNicVportContextIn| {
        input.field_select_mut().set_addresses_list(true);
    };
    set(&mut rig, VportListType::MC, addresses).unwrap();
    assert_eq!(rig.locked.functions[0].hca.addresses(1).macs, own, "that is not a list of these");
    set(&mut rig, VportListType::UC, addresses).unwrap();
    let now = rig.locked.functions[0].hca.addresses(1);
    assert_eq!((now.macs.len(), now.macs.contains(&listed), now.promiscuous), (2, true, false));
    set(&mut rig, VportListType::UC, |input| {
        input.field_select_mut().set_promisc(true);
        input.nic_vport_context_mut().set_promisc_uc(true);
    })
    .unwrap();
    assert!(rig.locked.functions[0].hca.addresses(1).promiscuous);
}

#[test]
fn vport_loopback_blocking_follows_capability() {
    let mut rig = Rig::up(Link::Ethernet);
    let block = |rig: &mut Rig, of_groups: bool| {
        rig.send::<ModifyNicVportContextIn>(0, |input| {
            let (fields, of_one) = (input.field_select_mut(), !of_groups);
            fields.set_disable_mc_local_lb(of_groups).set_disable_uc_local_lb(of_one);
            let context = input.nic_vport_context_mut();
            context.set_disable_mc_local_lb(of_groups).set_disable_uc_local_lb(of_one);
        })
        .map(|_| ())
    };
    let blocked = |rig: &Rig| {
        let hca = &rig.locked.functions[0].hca;
        [false, true].map(|group| hca.blocks_own(group))
    };
    let refused = Err(Refusal::VportField);
    let general = |rig: &mut Rig, uc, mc| {
        let caps = rig.locked.functions[0].hca.caps.general_mut();
        caps.set_disable_local_lb_uc(uc).set_disable_local_lb_mc(mc);
    };
    general(&mut rig, false, false);
    assert_eq!((block(&mut rig, true), block(&mut rig, false)), (refused, refused));
    general(&mut rig, false, true);
    assert_eq!((block(&mut rig, true), block(&mut rig, false)), (Ok(()), refused));
    assert_eq!(blocked(&rig), [false, true]);
    general(&mut rig, true, false);
    assert_eq!((block(&mut rig, true), block(&mut rig, false)), (refused, Ok(())));
    assert_eq!(blocked(&rig), [true, true]);
}

#[test]
fn commands_of_other_link_type_are_rejected() {
    let mut rig = Rig::up(Link::Ethernet);
    let context = rig.send::<QueryHcaVportContextIn>(0, |_| {});
    assert_eq!(context, Err(Refusal::WrongLink));
    // But a table of P_Keys, which Linux reads on either.
    let (_, pkey) = rig.call::<QueryHcaVportPkeyIn>(0, 0, &[], 4, |_| {}).unwrap();
    assert_eq!(pkey, [0, 0, 0xff, 0xff]);
    let mut rig = Rig::up(Link::Infiniband);
    assert_eq!(rig.send::<QueryRoceAddressIn>(0, |_| {}), Err(Refusal::WrongLink));
    assert_eq!(rig.send::<SetRoceAddressIn>(0, |_| {}), Err(Refusal::WrongLink));
}

#[test]
fn register_reads_match_profile() {
    let mut rig = Rig::up(Link::Infiniband);
    let mut asked = [0; 0x10];
    asked[1] = 1;
    let register = rig.register(RegisterId::PMTU.0, &asked).unwrap();
    assert_eq!(register[..6], [0, 1, 0, 0, 0x10, 0x00]);
    asked[1] = 2;
    assert_eq!(rig.register(RegisterId::PMTU.0, &asked), Err(Refusal::NoSuchPort));
    assert_eq!(rig.register(RegisterId::PMTU.0, &asked[..8]), Err(Refusal::InputTooShort));
    assert_eq!(rig.register(0x1234, &asked), Err(Refusal::NoSuchRegister));
    let write = rig.call::<verbless_prm::AccessRegisterIn>(0, 0, &asked, 16, |input| {
        input.set_register_id(RegisterId::PMTU);
    });
    assert_eq!(write.err(), Some(Refusal::RegisterReadOnly));
}
