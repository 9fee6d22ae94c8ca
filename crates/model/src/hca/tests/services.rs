//! QPs of every transport service, from RST to RTS as the kernel moves them, and the agents of
//! MAD_IFC.

use verbless_prm::{
    Init2initQpIn, Init2rtrQpIn, MadIfcIn, ModifyHcaVportContextIn, OptParamMask,
    PathMigrationState, PathMtu, QueryHcaVportContextIn, QueryNicVportContextIn, QueryQpIn,
    Rst2initQpIn, Rtr2rtsQpIn, ServiceType,
};

use super::rig::{Rig, User};
use crate::hca::Refusal;
use crate::hca::state::Violations;
use crate::profile::Link;

/// The kernel, with the objects that a queue needs.
fn kernel(rig: &mut Rig) -> User {
    let user = rig.user();
    User { uid: 0, ..user }
}

fn rst2init(rig: &mut Rig, user: User, qpn: u32) -> Result<(), Refusal> {
    rig.send::<Rst2initQpIn>(user.uid, |input| {
        let context = input.set_qpn(qpn).qpc_mut();
        context.set_pm_state(PathMigrationState::MIGRATED).set_q_key(0x1111_1111);
        context.primary_address_path_mut().set_vhca_port_num(1);
    })
    .map(|_| ())
}

fn init2rtr(rig: &mut Rig, user: User, qpn: u32, options: u32) -> Result<(), Refusal> {
    rig.send::<Init2rtrQpIn>(user.uid, |input| {
        input.set_qpn(qpn).set_opt_param_mask(options);
        input.qpc_mut().set_mtu(PathMtu::MTU_4096).set_log_msg_max(12).set_q_key(0x2222_2222);
    })
    .map(|_| ())
}

#[test]
fn unconnected_qp_needs_no_path() {
    for st in [ServiceType::UD, ServiceType::QP0, ServiceType::QP1, ServiceType::REG_UMR] {
        let mut rig = Rig::up(Link::Infiniband);
        let user = kernel(&mut rig);
        let qpn = rig
            .qp(user, |input| {
                input.qpc_mut().set_st(st);
            })
            .unwrap();
        rst2init(&mut rig, user, qpn).unwrap();
        init2rtr(&mut rig, user, qpn, 0).unwrap();
        rig.send::<Rtr2rtsQpIn>(user.uid, |input| {
            input.set_qpn(qpn);
        })
        .unwrap();
        let context = rig
            .send::<QueryQpIn>(user.uid, |input| {
                input.set_qpn(qpn);
            })
            .unwrap();
        assert_eq!(context.qpc().q_key(), 0x1111_1111);
        assert_eq!(context.qpc().primary_address_path().vhca_port_num(), 1);
    }
}

#[test]
fn connected_qp_needs_a_path() {
    for st in [ServiceType::RC, ServiceType::UC] {
        let mut rig = Rig::up(Link::Infiniband);
        let user = rig.user();
        let qpn = rig
            .qp(user, |input| {
                input.qpc_mut().set_st(st);
            })
            .unwrap();
        rst2init(&mut rig, user, qpn).unwrap();
        assert_eq!(init2rtr(&mut rig, user, qpn, 0), Err(Refusal::PathPort));
    }
}

#[test]
fn each_service_accepts_its_own_options() {
    let (read, key) = (OptParamMask::RRE.0, OptParamMask::Q_KEY.0);
    for (st, taken, refused) in [
        (ServiceType::UD, key, read),
        (ServiceType::UC, OptParamMask::RWE.0, read),
        (ServiceType::RC, read, key),
    ] {
        let mut rig = Rig::up(Link::Infiniband);
        let user = rig.user();
        let qpn = rig
            .qp(user, |input| {
                input.qpc_mut().set_st(st);
            })
            .unwrap();
        rst2init(&mut rig, user, qpn).unwrap();
        let mut init2init = |options| {
            rig.send::<Init2initQpIn>(user.uid, |input| {
                input.set_qpn(qpn).set_opt_param_mask(options);
                input.qpc_mut().set_q_key(0x3333_3333);
            })
            .map(|_| ())
        };
        assert_eq!(init2init(refused), Err(Refusal::QpOptional), "{st:?}");
        assert_eq!(init2init(taken), Ok(()), "{st:?}");
        if st == ServiceType::UD {
            let context = rig
                .send::<QueryQpIn>(user.uid, |input| {
                    input.set_qpn(qpn);
                })
                .unwrap();
            assert_eq!(context.qpc().q_key(), 0x3333_3333);
        }
    }
}

#[test]
fn kernel_only_services_are_rejected_for_users() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    for st in [ServiceType::QP0, ServiceType::QP1, ServiceType::REG_UMR, ServiceType::MLX] {
        let made = rig.qp(user, |input| {
            input.qpc_mut().set_st(st);
        });
        assert_eq!(made, Err(Refusal::TransportService));
    }
}

/// Sends a MAD of this class, method, attribute and modifier with some data; returns the response.
fn mad(
    rig: &mut Rig,
    class: u8,
    method: u8,
    attribute: u16,
    modifier: u32,
    data: &[u8],
) -> Result<[u8; 256], Refusal> {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, class, 1, method]);
    mad[8..16].copy_from_slice(&7_u64.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad[64..64 + data.len()].copy_from_slice(data);
    let (output, _) = rig.call::<MadIfcIn>(0, MadIfcIn::IGNORE_KEYS, &[], 0, |input| {
        input.set_port(1).set_mad(&mad);
    })?;
    Ok(*output.response_mad_packet())
}

fn u64_at(mad: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(mad[at..at + 8].try_into().unwrap())
}

#[test]
fn subnet_agent_reports_node_identity() {
    let mut rig = Rig::up(Link::Infiniband);
    let identity = rig.locked.functions[0].hca.identity.clone();
    let info = mad(&mut rig, 0x01, 1, 0x11, 0, &[]).unwrap();
    assert_eq!(info[3], 0x81);
    assert_eq!(info[4..6], [0, 0]);
    assert_eq!(u64_at(&info, 8), 7, "the transaction is the request's");
    assert_eq!(info[64..68], [1, 1, 1, 1]);
    assert_eq!(u64_at(&info, 64 + 12), identity.node_guid);
    assert_eq!(u64_at(&info, 64 + 20), identity.ports[0].guid);
    let name = mad(&mut rig, 0x01, 1, 0x10, 0, &[]).unwrap();
    assert!(name[64..].starts_with(b"BlueField-3"));
    let guids = mad(&mut rig, 0x01, 1, 0x14, 0, &[]).unwrap();
    assert_eq!(u64_at(&guids, 64), identity.ports[0].guid);
    let keys = mad(&mut rig, 0x01, 1, 0x16, 0, &[]).unwrap();
    assert_eq!(keys[64..68], [0xff, 0xff, 0, 0]);
    let directed = mad(&mut rig, 0x81, 1, 0x11, 0, &[]).unwrap();
    assert_eq!(directed[4..6], [0x80, 0], "a response has the direction bit");
}

#[test]
fn subnet_manager_may_change_lid_of_active_port() {
    let mut rig = Rig::up(Link::Infiniband);
    let lid = rig.locked.functions[0].hca.ports[0].lid;
    let info = mad(&mut rig, 0x01, 1, 0x15, 1, &[]).unwrap();
    assert_eq!(info[64 + 16..64 + 18], lid.to_be_bytes());
    assert_eq!(info[64 + 32] & 0xf, 4, "ACTIVE");
    assert_eq!(info[64 + 33] >> 4, 5, "LinkUp");
    // 1X to 4X; up to NDR, which the older fields show as QDR; eight lanes.
    assert_eq!(info[64 + 29..64 + 32], [0x13, 0x13, 2]);
    assert_eq!((info[64 + 32] >> 4, info[64 + 35]), (7, 0x47));
    assert_eq!(info[64 + 62..64 + 64], [0x8f, 0xf]);
    assert_eq!((info[64 + 37] >> 4, info[64 + 43] >> 4), (4, 4));
    let mut new = [0; 64];
    new[16..18].copy_from_slice(&0x1234_u16.to_be_bytes());
    let answer = mad(&mut rig, 0x01, 2, 0x15, 1, &new).unwrap();
    assert_eq!((&answer[4..6], &answer[80..82]), (&[0, 0][..], &[0x12, 0x34][..]));
    let context = rig.send::<QueryHcaVportContextIn>(0, |_| {}).unwrap();
    assert_eq!(context.hca_vport_context().lid(), 0x1234);
    let mut set = |port, lid: u16| {
        let mut new = [0xff; 64];
        new[16..18].copy_from_slice(&lid.to_be_bytes());
        let answer = mad(&mut rig, 0x01, 2, 0x15, port, &new).unwrap();
        (answer[5] >> 2, answer[80..82].to_vec())
    };
    // Port 0 is the port of the request.
    assert_eq!(set(0, 0xbfff), (0, vec![0xbf, 0xff]));
    assert_eq!(set(1, 1), (0, vec![0, 1]));
    for (port, lid) in [(1, 0), (1, 0xc000), (1, 0xffff), (2, 2)] {
        assert_eq!(set(port, lid).0, 7, "port {port}, LID {lid:#x}");
    }
    assert_eq!(rig.locked.functions[0].hca.ports[0].lid, 1);
}

#[test]
fn port_info_matches_specification_layout() {
    let mut rig = Rig::up(Link::Infiniband);
    let whole = mad(&mut rig, 0x01, 1, 0x15, 1, &[]).unwrap();
    let mut expected = [0; 64];
    expected[8..16].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    // The port's and the subnet manager's LID, and the capabilities.
    expected[16..20].copy_from_slice(&[0, 1, 0, 1]);
    expected[20..24].copy_from_slice(&[0xa6, 0x51, 0xe8, 0x48]);
    // The port's number, widths, speeds, states.
    expected[28..36].copy_from_slice(&[1, 0x13, 0x13, 2, 0x74, 0x52, 0, 0x47]);
    // MTU (4096, current and maximum), virtual lanes, GUIDs, subnet timeout.
    expected[36..38].copy_from_slice(&[0x50, 0x40]);
    expected[41..44].copy_from_slice(&[5, 0, 0x40]);
    expected[50..52].copy_from_slice(&[8, 0x12]);
    expected[62..].copy_from_slice(&[0x8f, 0xf]);
    assert_eq!(whole[64..128], expected);
}

#[test]
fn key_violations_appear_in_port_info_and_contexts() {
    let violations = Violations { pkey: 0x102, qkey: 0x304 };
    let mut rig = Rig::up(Link::Infiniband);
    rig.locked.functions[0].hca.ports[0].violations = violations;
    let info = mad(&mut rig, 0x01, 1, 0x15, 1, &[]).unwrap();
    // M_Key violations stay 0.
    assert_eq!(info[64 + 44..64 + 50], [0, 0, 1, 2, 3, 4]);
    let context = rig.send::<QueryHcaVportContextIn>(0, |_| {}).unwrap();
    let context = context.hca_vport_context();
    assert_eq!(
        (context.pkey_violation_counter(), context.qkey_violation_counter()),
        (0x102, 0x304)
    );
    let mut rig = Rig::up(Link::Ethernet);
    rig.locked.functions[0].hca.ports[0].violations = violations;
    let context = rig.send::<QueryNicVportContextIn>(0, |_| {}).unwrap();
    assert_eq!(context.nic_vport_context().qkey_violation_counter(), 0x304);
}

#[test]
fn performance_agent_reports_zero_counters() {
    for link in [Link::Infiniband, Link::Ethernet] {
        let mut rig = Rig::up(link);
        let asked: [u8; 192] = std::array::from_fn(|at| at as u8 + 1);
        let info = mad(&mut rig, 0x04, 1, 0x01, 0, &asked).unwrap();
        // Versions, and the capability of 64-bit counters.
        assert_eq!((&info[4..6], &info[64..68]), (&[0, 0][..], &[1, 1, 2, 0][..]));
        assert_eq!(info[68..], [0; 188]);
        for counters in [0x12, 0x1d] {
            let answer = mad(&mut rig, 0x04, 1, counters, 0, &asked).unwrap();
            // The requested port, and zeros.
            assert_eq!((&answer[4..6], &answer[64..66]), (&[0, 0][..], &[0, 2][..]));
            assert_eq!(answer[66..], [0; 190]);
        }
        let unknown = mad(&mut rig, 0x04, 1, 0x20, 0, &asked).unwrap();
        assert_eq!(unknown[4..6], [0, 3 << 2]);
    }
}

#[test]
fn agents_answer_unknown_attributes_with_status() {
    let mut rig = Rig::up(Link::Infiniband);
    let unknown = mad(&mut rig, 0x01, 1, 0xff90, 0, &[]).unwrap();
    assert_eq!(unknown[4..6], [0, 3 << 2]);
    // Eight GUIDs and 32 P_Keys a block, of tables of 8 and of 128; port 0 is the request's port.
    for (attribute, block, status) in
        [(0x14, 0, 0), (0x14, 1, 7), (0x16, 3, 0), (0x16, 4, 7), (0x15, 0, 0), (0x15, 2, 7)]
    {
        let answer = mad(&mut rig, 0x01, 1, attribute, block, &[]).unwrap();
        assert_eq!(answer[4..6], [0, status << 2], "{attribute:#x}, {block}");
    }
    let counters = mad(&mut rig, 0x04, 1, 0x12, 0, &[0, 1]).unwrap();
    assert_eq!((counters[4], counters[65]), (0, 1));
    assert_eq!(mad(&mut rig, 0x09, 1, 0x11, 0, &[]), Err(Refusal::MadPacket));
    assert_eq!(mad(&mut rig, 0x01, 5, 0x11, 0, &[]), Err(Refusal::MadPacket));
    let port = rig.call::<MadIfcIn>(0, MadIfcIn::IGNORE_KEYS, &[], 0, |input| {
        input.set_port(9);
    });
    assert_eq!(port.err(), Some(Refusal::NoSuchPort));
}

#[test]
fn software_sets_cap_mask1_of_its_port() {
    let mut rig = Rig::up(Link::Infiniband);
    let mut offer = |bits, select| {
        rig.send::<ModifyHcaVportContextIn>(0, |input| {
            let context = input.hca_vport_context_mut();
            context.set_cap_mask1(bits).set_cap_mask1_field_select(select);
        })
        .map(|_| ())
    };
    const CM: u32 = 1 << 16;
    assert_eq!(offer(CM, 1), Err(Refusal::VportField));
    assert_eq!(offer(CM, CM), Ok(()));
    let context = rig.send::<QueryHcaVportContextIn>(0, |_| {}).unwrap();
    assert_eq!(context.hca_vport_context().cap_mask1() & CM, CM);
}
