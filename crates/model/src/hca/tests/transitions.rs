//! The transitions of QPs.

use verbless_prm::{
    AddressPath, AtomicMode, Init2initQpIn, Init2rtrQpIn, OptParamMask, PathMtu, Qp2errIn,
    Qp2rstIn, QpContext, QueryQpIn, RoceL3Type, RoceVersion, Rst2initQpIn, Rtr2rtsQpIn,
    Rts2rtsQpIn, ServiceType, SetRoceAddressIn, SqdRtsQpIn, Sqerr2rtsQpIn, TimestampFormat,
};

use super::rig::{Rig, User};
use crate::hca::Refusal;
use crate::hca::objects::{Address, QpState};
use crate::profile::{Link, Profile};

/// A transition of the QP.
type Transition = fn(&mut QpRig) -> Result<(), Refusal>;

/// A QP, and the commands that change its state.
struct QpRig {
    rig: Rig,
    user: User,
    qpn: u32,
}

macro_rules! transitions {
    ($($name:ident = $input:ident, $start:expr;)*) => {$(
        fn $name(
            &mut self,
            optional: u32,
            edit: impl FnOnce(&mut QpContext),
        ) -> Result<(), Refusal> {
            let qpn = self.qpn;
            self.rig.send::<$input>(self.user.uid, |input| {
                input.set_qpn(qpn).set_opt_param_mask(optional);
                $start(input.qpc_mut());
                edit(input.qpc_mut());
            }).map(|_| ())
        }
    )*};
}

impl QpRig {
    fn new(link: Link) -> Self {
        Self::with_service(link, ServiceType::RC)
    }

    fn with_service(link: Link, service: ServiceType) -> Self {
        let mut rig = Rig::up(link);
        let user = rig.user();
        let made = rig.qp(user, |input| {
            input.qpc_mut().set_st(service);
        });
        let qpn = made.unwrap();
        Self { rig, user, qpn }
    }

    transitions! {
        rst2init = Rst2initQpIn, |qpc: &mut QpContext| {
            qpc.set_pm_state(verbless_prm::PathMigrationState::MIGRATED).set_rwe(true);
            qpc.primary_address_path_mut().set_vhca_port_num(1);
        };
        init2init = Init2initQpIn, |_| {};
        init2rtr = Init2rtrQpIn, |qpc: &mut QpContext| {
            qpc.set_mtu(PathMtu::MTU_1024).set_log_msg_max(30).set_remote_qpn(0x99);
            qpc.set_next_rcv_psn(0x1234).set_min_rnr_nak(12).set_log_rra_max(2);
            qpc.primary_address_path_mut().set_vhca_port_num(1).set_rlid(7);
        };
        rtr2rts = Rtr2rtsQpIn, |qpc: &mut QpContext| {
            qpc.set_next_send_psn(0x4321).set_retry_count(7).set_rnr_retry(6).set_log_sra_max(3);
            qpc.primary_address_path_mut().set_ack_timeout(14);
        };
        rts2rts = Rts2rtsQpIn, |_| {};
        sqerr2rts = Sqerr2rtsQpIn, |_| {};
        sqd2rts = SqdRtsQpIn, |_| {};
    }

    fn move_to_error(&mut self) -> Result<(), Refusal> {
        let qpn = self.qpn;
        self.rig
            .send::<Qp2errIn>(self.user.uid, |input| {
                input.set_qpn(qpn);
            })
            .map(|_| ())
    }

    fn move_to_reset(&mut self) -> Result<(), Refusal> {
        let qpn = self.qpn;
        self.rig
            .send::<Qp2rstIn>(self.user.uid, |input| {
                input.set_qpn(qpn);
            })
            .map(|_| ())
    }

    fn query(&mut self) -> QpContext {
        let qpn = self.qpn;
        let query = self.rig.send::<QueryQpIn>(self.user.uid, |input| {
            input.set_qpn(qpn);
        });
        *query.unwrap().qpc()
    }

    fn state(&self) -> QpState {
        self.rig.locked.functions[0].hca.objects.qps[&self.qpn].state
    }

    /// Brings a QP in RST to `state`.
    fn bring_to(&mut self, state: QpState) {
        let steps = match state {
            QpState::Reset => 0,
            QpState::Init => 1,
            QpState::Rtr => 2,
            _ => 3,
        };
        let transitions: [Transition; 3] =
            [|it| it.rst2init(0, |_| {}), |it| it.init2rtr(0, |_| {}), |it| it.rtr2rts(0, |_| {})];
        for step in &transitions[..steps] {
            step(self).unwrap();
        }
        if state == QpState::Error {
            self.move_to_error().unwrap();
        }
        assert_eq!(self.state(), state);
    }
}

#[test]
fn each_transition_needs_its_start_state() {
    use QpState::{Error, Init, Reset, Rtr, Rts, SqDrained, SqError};
    let transitions: [(QpState, QpState, Transition); 7] = [
        (Reset, Init, |it| it.rst2init(0, |_| {})),
        (Init, Init, |it| it.init2init(0, |_| {})),
        (Init, Rtr, |it| it.init2rtr(0, |_| {})),
        (Rtr, Rts, |it| it.rtr2rts(0, |_| {})),
        (Rts, Rts, |it| it.rts2rts(0, |_| {})),
        (SqError, Rts, |it| it.sqerr2rts(0, |_| {})),
        (SqDrained, Rts, |it| it.sqd2rts(0, |_| {})),
    ];
    for start in [Reset, Init, Rtr, Rts, Error] {
        for (from, to, step) in transitions {
            let mut qp_rig = QpRig::new(Link::Infiniband);
            qp_rig.bring_to(start);
            let outcome = step(&mut qp_rig);
            if start == from {
                outcome.unwrap();
                assert_eq!(qp_rig.state(), to);
            } else {
                assert_eq!(outcome, Err(Refusal::QpState), "{start:?}, {from:?} to {to:?}");
                assert_eq!(qp_rig.state(), start);
            }
        }
        let mut qp_rig = QpRig::new(Link::Infiniband);
        qp_rig.bring_to(start);
        qp_rig.move_to_error().unwrap();
        assert_eq!(qp_rig.state(), Error);
        qp_rig.move_to_reset().unwrap();
        assert_eq!(qp_rig.state(), Reset);
        qp_rig.bring_to(Rts);
    }
}

#[test]
fn transition_changes_only_its_own_fields() {
    let mut qp_rig = QpRig::new(Link::Infiniband);
    qp_rig
        .rst2init(0, |qpc| {
            qpc.set_remote_qpn(0x55);
        })
        .unwrap();
    let context = qp_rig.query();
    assert_eq!(
        (context.state(), context.rwe(), context.rre()),
        (QpState::Init.to_prm(), true, false)
    );
    assert_eq!((context.remote_qpn(), context.log_sq_size()), (0, 6));
    // An unselected option is ignored.
    qp_rig
        .init2init(OptParamMask::RRE.0, |qpc| {
            qpc.set_rre(true).set_rwe(false);
        })
        .unwrap();
    assert!(qp_rig.query().rre() && qp_rig.query().rwe());
    qp_rig
        .init2rtr(OptParamMask::RWE.0, |qpc| {
            qpc.set_rwe(false).set_rre(false);
        })
        .unwrap();
    let context = qp_rig.query();
    assert!(context.rre() && !context.rwe());
    assert_eq!((context.mtu(), context.remote_qpn()), (PathMtu::MTU_1024, 0x99));
    assert_eq!((context.next_rcv_psn(), context.min_rnr_nak()), (0x1234, 12));
    assert_eq!(context.primary_address_path().rlid(), 7);
    qp_rig
        .rtr2rts(OptParamMask::RNR_TIMEOUT.0, |qpc| {
            qpc.set_min_rnr_nak(3);
        })
        .unwrap();
    let context = qp_rig.query();
    assert_eq!(
        (context.next_send_psn(), context.retry_count(), context.rnr_retry()),
        (0x4321, 7, 6)
    );
    assert_eq!((context.min_rnr_nak(), context.primary_address_path().ack_timeout()), (3, 14));
    let qp = &qp_rig.rig.locked.functions[0].hca.objects.qps[&qp_rig.qpn];
    assert_eq!((qp.requester.psn, qp.responder.psn, qp.remote_qpn), (0x4321, 0x1234, 0x99));
    assert_eq!((qp.requester.max_rd_atomic, qp.responder.max_dest_rd_atomic), (8, 4));
    assert_eq!((qp.log_mtu, qp.remote), (10, Some(Address::Lid(7))));
    assert!(qp.responder.allow_read && !qp.responder.allow_write && !qp.responder.allow_atomic);
    qp_rig
        .rts2rts(OptParamMask::RWE.0, |qpc| {
            qpc.set_rwe(true);
        })
        .unwrap();
    assert!(qp_rig.query().rwe());
}

#[test]
fn transition_rejects_foreign_optional_params() {
    let none = |_: &mut QpContext| {};
    let mut qp_rig = QpRig::new(Link::Infiniband);
    let refused = Err(Refusal::QpOptional);
    assert_eq!(qp_rig.rst2init(OptParamMask::RWE.0, none), refused);
    qp_rig.rst2init(0, none).unwrap();
    assert_eq!(qp_rig.init2init(OptParamMask::RNR_TIMEOUT.0, none), refused);
    let other_port = qp_rig.init2init(OptParamMask::PRI_PORT.0, |qpc| {
        qpc.primary_address_path_mut().set_vhca_port_num(2);
    });
    assert_eq!(other_port, Err(Refusal::PathPort));
    assert_eq!(qp_rig.init2rtr(OptParamMask::ACK_TIMEOUT.0, none), refused);
    assert_eq!(qp_rig.init2rtr(OptParamMask::ALT_ADDR_PATH.0, none), Err(Refusal::Unsupported));
    qp_rig.init2rtr(0, none).unwrap();
    assert_eq!(qp_rig.rtr2rts(OptParamMask::PKEY_INDEX.0, none), refused);
    assert_eq!(qp_rig.rtr2rts(OptParamMask::PM_STATE.0, none), Err(Refusal::QpMigration));
    qp_rig.rtr2rts(0, none).unwrap();
    assert_eq!(qp_rig.rts2rts(OptParamMask::Q_KEY.0, none), refused);
    // A ConnectX-7 refuses it with syndrome 0x498c8b.
    assert_eq!(qp_rig.rts2rts(OptParamMask::PRIMARY_ADDR_PATH.0, none), refused);
    assert_eq!(qp_rig.rts2rts(0x8000_0000, none), refused);
}

#[test]
fn lag_port_before_rts_needs_its_capability() {
    let lag = OptParamMask::LAG_TX_AFF.0;
    let set = |qp_rig: &mut QpRig, on| {
        let caps = &mut qp_rig.rig.locked.functions[0].hca.caps;
        caps.general_mut().set_init2_lag_tx_port_affinity(on);
    };
    let mut qp_rig = QpRig::new(Link::Infiniband);
    qp_rig.rst2init(0, |_| {}).unwrap();
    for on in [false, true] {
        set(&mut qp_rig, on);
        let expected = if on { Ok(()) } else { Err(Refusal::QpOptional) };
        assert_eq!(qp_rig.init2init(lag, |_| {}), expected);
    }
    set(&mut qp_rig, false);
    assert_eq!(qp_rig.init2rtr(lag, |_| {}), Err(Refusal::QpOptional));
    set(&mut qp_rig, true);
    assert_eq!(qp_rig.init2rtr(lag, |_| {}), Ok(()));
}

#[test]
fn qp_transition_refuses_each_invalid_field() {
    type Edit = fn(&mut QpContext);
    let mut qp_rig = QpRig::new(Link::Infiniband);
    let init: &[(Edit, Refusal)] = &[
        (
            |qpc| {
                qpc.primary_address_path_mut().set_vhca_port_num(0);
            },
            Refusal::PathPort,
        ),
        (
            |qpc| {
                qpc.primary_address_path_mut().set_vhca_port_num(2);
            },
            Refusal::PathPort,
        ),
        (
            |qpc| {
                qpc.primary_address_path_mut().set_pkey_index(1);
            },
            Refusal::PathPkey,
        ),
        (
            |qpc| {
                qpc.primary_address_path_mut().set_pkey_index(128);
            },
            Refusal::PathPkey,
        ),
        (
            |qpc| {
                qpc.set_pm_state(verbless_prm::PathMigrationState::REARM);
            },
            Refusal::QpMigration,
        ),
        (
            |qpc| {
                qpc.set_atomic_mode(AtomicMode::UP_TO_64B);
            },
            Refusal::QpAtomicMode,
        ),
        (
            |qpc| {
                qpc.set_atomic_mode(AtomicMode(15));
            },
            Refusal::QpAtomicMode,
        ),
        (
            |qpc| {
                qpc.set_counter_set_id(9);
            },
            Refusal::NoSuchCounter,
        ),
    ];
    for (number, (edit, expected)) in init.iter().enumerate() {
        assert_eq!(qp_rig.rst2init(0, edit), Err(*expected), "INIT, case {number}");
    }
    qp_rig.rst2init(0, |_| {}).unwrap();
    let rtr: &[(Edit, Refusal)] = &[
        (
            |qpc| {
                qpc.set_mtu(PathMtu(0));
            },
            Refusal::QpMtu,
        ),
        (
            |qpc| {
                qpc.set_mtu(PathMtu(6));
            },
            Refusal::QpMtu,
        ),
        (
            |qpc| {
                qpc.set_mtu(PathMtu::RAW_ETHERNET);
            },
            Refusal::QpMtu,
        ),
        (
            |qpc| {
                qpc.set_log_msg_max(31);
            },
            Refusal::QpMessage,
        ),
        (
            |qpc| {
                qpc.set_log_rra_max(5);
            },
            Refusal::QpReads,
        ),
        (
            |qpc| {
                qpc.primary_address_path_mut().set_vhca_port_num(0);
            },
            Refusal::PathPort,
        ),
        (
            |qpc| {
                qpc.primary_address_path_mut().set_rlid(0);
            },
            Refusal::PathLid,
        ),
        (
            |qpc| {
                qpc.primary_address_path_mut().set_rlid(0xc000);
            },
            Refusal::PathLid,
        ),
        (
            |qpc| {
                qpc.primary_address_path_mut().set_grh(true).set_src_addr_index(8);
            },
            Refusal::PathGid,
        ),
    ];
    for (number, (edit, expected)) in rtr.iter().enumerate() {
        assert_eq!(qp_rig.init2rtr(0, edit), Err(*expected), "RTR, case {number}");
    }
    let loopback = |qpc: &mut QpContext| {
        qpc.primary_address_path_mut().set_rlid(0).set_fl(true);
    };
    assert_eq!(
        qp_rig.init2rtr(0, loopback),
        Err(Refusal::PathLoopback),
        "the profile does not have it"
    );
    let general = qp_rig.rig.locked.functions[0].hca.caps.general_mut();
    general.set_fl_rc_qp_when_roce_disabled(true);
    qp_rig.init2rtr(0, loopback).unwrap();
    assert_eq!(
        qp_rig.rig.locked.functions[0].hca.objects.qps[&qp_rig.qpn].remote,
        Some(Address::Own)
    );
    assert_eq!(
        qp_rig.rtr2rts(0, |qpc| {
            qpc.set_log_sra_max(5);
        }),
        Err(Refusal::QpReads)
    );
    assert_eq!(qp_rig.state(), QpState::Rtr);
}

#[test]
fn roce_path_needs_gid_unicast_mac_and_udp_port() {
    let mut qp_rig = QpRig::new(Link::Ethernet);
    qp_rig.rst2init(0, |_| {}).unwrap();
    let good = |qpc: &mut QpContext| {
        let path = qpc.primary_address_path_mut();
        path.set_rlid(0).set_src_addr_index(2).set_rgid_rip(&[9; 16]).set_udp_sport(0xc001);
        path.set_rmac_47_32(0x0200).set_rmac_31_0(5);
    };
    assert_eq!(qp_rig.init2rtr(0, good), Err(Refusal::PathGid));
    qp_rig
        .rig
        .send::<SetRoceAddressIn>(0, |input| {
            input.set_roce_address_index(2);
            let entry = input.roce_address_mut();
            entry.set_source_l3_address(&[8; 16]).set_roce_l3_type(RoceL3Type::IPV6);
            entry.set_roce_version(RoceVersion::V2);
        })
        .unwrap();
    let path = |edit: fn(&mut AddressPath)| {
        move |qpc: &mut QpContext| {
            good(qpc);
            edit(qpc.primary_address_path_mut());
        }
    };
    for (edit, expected) in [
        (
            (|path| {
                path.set_src_addr_index(3);
            }) as fn(&mut AddressPath),
            Refusal::PathGid,
        ),
        (
            |path| {
                path.set_src_addr_index(255);
            },
            Refusal::PathGid,
        ),
        (
            |path| {
                path.set_rmac_47_32(0x0100);
            },
            Refusal::PathMac,
        ),
        (
            |path| {
                path.set_rmac_47_32(0).set_rmac_31_0(0);
            },
            Refusal::PathMac,
        ),
        (
            |path| {
                path.set_udp_sport(0);
            },
            Refusal::PathUdpPort,
        ),
        (
            |path| {
                path.set_udp_sport(0xbfff);
            },
            Refusal::PathUdpPort,
        ),
    ] {
        assert_eq!(qp_rig.init2rtr(0, path(edit)), Err(expected));
    }
    qp_rig.init2rtr(0, good).unwrap();
    let qp = &qp_rig.rig.locked.functions[0].hca.objects.qps[&qp_rig.qpn];
    let expected = Address::Roce { gid: [9; 16], mac: [2, 0, 0, 0, 0, 5], own: 2 };
    assert_eq!(qp.remote, Some(expected));
}

#[test]
fn loopback_path_needs_no_address_with_roce_on() {
    let loopback = |qpc: &mut QpContext| {
        qpc.primary_address_path_mut().set_rlid(0).set_fl(true);
    };
    let refused = Err(Refusal::PathLoopback);
    // fl_rc_qp_when_roce_disabled is clear, set in the general caps, or set in the RoCE caps.
    for (general, page, while_off) in
        [(false, false, refused), (true, false, Ok(())), (false, true, Ok(()))]
    {
        let mut qp_rig = QpRig::new(Link::Ethernet);
        let caps = &mut qp_rig.rig.locked.functions[0].hca.caps;
        caps.general_mut().set_fl_rc_qp_when_roce_disabled(general);
        caps.roce_mut().set_fl_rc_qp_when_roce_disabled(page);
        qp_rig.rst2init(0, |_| {}).unwrap();
        assert!(qp_rig.rig.locked.functions[0].hca.roce_address(0).is_err());
        qp_rig.init2rtr(0, loopback).unwrap();
        let qp = &qp_rig.rig.locked.functions[0].hca.objects.qps[&qp_rig.qpn];
        assert_eq!(qp.remote, Some(Address::Own));
        qp_rig.move_to_reset().unwrap();
        let mut off = qp_rig.rig.locked.functions[0].hca.nic_vport();
        off.context.set_roce_en(false);
        qp_rig.rig.locked.functions[0].hca.nic_vport = Some(off);
        qp_rig.rst2init(0, |_| {}).unwrap();
        assert_eq!(qp_rig.init2rtr(0, loopback), while_off);
    }
    // The capability applies to RC QPs.
    let mut qp_rig = QpRig::with_service(Link::Ethernet, ServiceType::UC);
    qp_rig.rst2init(0, |_| {}).unwrap();
    assert_eq!(qp_rig.init2rtr(0, loopback), refused);
}

#[test]
fn reset_empties_qp_queues() {
    let mut qp_rig = QpRig::new(Link::Infiniband);
    qp_rig.bring_to(QpState::Rts);
    let qp = qp_rig.rig.locked.functions[0].hca.objects.qps.get_mut(&qp_rig.qpn).unwrap();
    (qp.sq.as_mut().unwrap().consumer, qp.sq.as_mut().unwrap().producer) = (5, 6);
    qp.rq.as_mut().unwrap().consumer = 7;
    let context = qp_rig.query();
    assert_eq!((context.hw_sq_wqebb_counter(), context.sw_sq_wqebb_counter()), (5, 6));
    assert_eq!(context.hw_rq_counter(), 7);
    qp_rig.move_to_reset().unwrap();
    let context = qp_rig.query();
    assert_eq!((context.hw_sq_wqebb_counter(), context.sw_sq_wqebb_counter()), (0, 0));
    assert_eq!((context.hw_rq_counter(), context.next_send_psn()), (0, 0));
}

#[test]
fn command_may_omit_qpc_extension() {
    let mut qp_rig = QpRig::new(Link::Infiniband);
    qp_rig.bring_to(QpState::Rts);
    let mut input = [0; 0x110];
    input[..2].copy_from_slice(&0x505_u16.to_be_bytes());
    input[2..4].copy_from_slice(&qp_rig.user.uid.to_be_bytes());
    input[9..12].copy_from_slice(&qp_rig.qpn.to_be_bytes()[1..]);
    qp_rig.rig.raw(&input, &mut [0; 16]).unwrap();
    assert_eq!(qp_rig.rig.raw(&input[..0x10f], &mut [0; 16]), Err(Refusal::InputTooShort));
    let extended = qp_rig.rig.send::<Rts2rtsQpIn>(qp_rig.user.uid, |input| {
        input.set_qpn(qp_rig.qpn).set_qpc_ext(true);
    });
    assert_eq!(extended.err(), Some(Refusal::Unsupported));
}

#[test]
fn ts_format_must_match_a_device_clock() {
    use TimestampFormat as T;
    let real_time = Profile::load("connectx6dx-realtime").expect("the profile is built in");
    // On an InfiniBand port mlx5_ib requests the free-running clock without checking.
    let infiniband = real_time.clone().with_link(Link::Infiniband);
    let free_running = Profile::load("connectx6dx").expect("the profile is built in");
    for (profile, lacks) in
        [(real_time, T::FREE_RUNNING), (infiniband, T::REAL_TIME), (free_running, T::REAL_TIME)]
    {
        let mut rig = Rig::up_of(profile);
        let user = rig.user();
        for format in [T::FREE_RUNNING, T::DEFAULT, T::REAL_TIME] {
            let qp = rig.qp(user, |input| {
                input.qpc_mut().set_ts_format(format);
            });
            let sq = rig.sq(user, |input| {
                input.ctx_mut().set_ts_format(format);
            });
            for made in [qp, sq] {
                match format == lacks {
                    true => assert_eq!(made, Err(Refusal::TimestampFormat), "{format:?}"),
                    false => assert!(made.is_ok(), "{format:?}: {made:?}"),
                }
            }
        }
    }
}

#[test]
fn rst2init_ignores_armed_pm_state() {
    use verbless_prm::PathMigrationState as P;
    for (state, taken) in [(P::ARMED, true), (P::MIGRATED, true), (P::REARM, false)] {
        let mut qp_rig = QpRig::new(Link::Infiniband);
        let done = qp_rig.rst2init(0, |qpc| {
            qpc.set_pm_state(state);
        });
        assert_eq!(done.is_ok(), taken, "{state:?}: {done:?}");
        assert_eq!(qp_rig.query().pm_state(), P::MIGRATED);
    }
}

#[test]
fn qp_mtu_is_limited_by_port_mtu() {
    let ethernet = Profile::load("connectx6dx").expect("the profile is built in");
    let numbers = ethernet.port().clone();
    assert_eq!((numbers.active_mtu, numbers.max_mtu), (1024, 4096));
    let mut qp_rig = QpRig::new(Link::Ethernet);
    qp_rig.rst2init(0, |_| {}).unwrap();
    let refused = qp_rig.init2rtr(0, |qpc| {
        qpc.set_mtu(PathMtu::MTU_2048);
    });
    assert_eq!(refused, Err(Refusal::QpMtu));

    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let qpn = rig
        .qp(user, |input| {
            input.qpc_mut().set_st(ServiceType::UD);
        })
        .unwrap();
    let mut qp_rig = QpRig { rig, user, qpn };
    qp_rig.rst2init(0, |_| {}).unwrap();
    qp_rig
        .init2rtr(0, |qpc| {
            qpc.set_mtu(PathMtu::MTU_4096).set_log_msg_max(12);
        })
        .unwrap();
}
