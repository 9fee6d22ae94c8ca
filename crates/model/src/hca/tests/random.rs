//! Random commands to a function with one object of each kind: no panic, and a clean end.

use proptest::prelude::*;
use verbless_prm::{
    COMMANDS, CommandStatus, DisableHcaIn, Init2initQpIn, Init2rtrQpIn, ModifyCqIn, ModifySqIn,
    PathMigrationState, PathMtu, Qp2errIn, Qp2rstIn, QueryCqIn, QueryQpIn, QuerySqIn, Rst2initQpIn,
    Rtr2rtsQpIn, SqState, TeardownHcaIn, TeardownProfile,
};

use super::rig::{Rig, User};
use crate::ObjectCounts;
use crate::cases::at_most;
use crate::hca::Refusal;
use crate::profile::Link;

/// Numbers that exist, and some that do not.
fn number(user: User, qp: u32, mkey: u32) -> impl Strategy<Value = u32> {
    let known = vec![user.pd, user.uar, user.umem, user.cq, qp, mkey, 0x10, 1, 0, 0xff_ffff];
    prop_oneof![4 => proptest::sample::select(known), 1 => any::<u32>()]
}

/// A function with one object of each kind; the numbers of its QP and mkey.
fn seeded(link: Link) -> (Rig, User, u32, u32) {
    let mut rig = Rig::up(link);
    let user = rig.user();
    let qp = rig.qp(user, |_| {}).unwrap();
    let mkey = rig.mkey(user, |_| {}).unwrap();
    let transitions: Result<(), Refusal> = (|| {
        let sq = rig.sq(user, |_| {})?;
        rig.send::<ModifySqIn>(user.uid, |input| {
            input.set_sqn(sq).ctx_mut().set_state(SqState::RDY);
        })?;
        rig.send::<QuerySqIn>(user.uid, |input| {
            input.set_sqn(sq);
        })?;
        rig.send::<Rst2initQpIn>(user.uid, |input| {
            let context = input.set_qpn(qp).qpc_mut();
            context.set_pm_state(PathMigrationState::MIGRATED).set_rwe(true);
            context.primary_address_path_mut().set_vhca_port_num(1);
        })?;
        rig.send::<Init2initQpIn>(user.uid, |input| {
            input.set_qpn(qp);
        })?;
        if link == Link::Infiniband {
            rig.send::<Init2rtrQpIn>(user.uid, |input| {
                let context = input.set_qpn(qp).qpc_mut();
                context.set_mtu(PathMtu::MTU_1024).set_remote_qpn(qp);
                context.primary_address_path_mut().set_vhca_port_num(1).set_rlid(1);
            })?;
            rig.send::<Rtr2rtsQpIn>(user.uid, |input| {
                input.set_qpn(qp);
            })?;
        }
        rig.send::<Qp2errIn>(user.uid, |input| {
            input.set_qpn(qp);
        })?;
        rig.send::<Qp2rstIn>(user.uid, |input| {
            input.set_qpn(qp);
        })?;
        rig.send::<QueryQpIn>(user.uid, |input| {
            input.set_qpn(qp);
        })?;
        rig.send::<ModifyCqIn>(user.uid, |input| {
            input.set_cqn(user.cq).set_modify_field_select(1);
        })?;
        rig.send::<QueryCqIn>(user.uid, |input| {
            input.set_cqn(user.cq);
        })?;
        Ok(())
    })();
    transitions.unwrap();
    (rig, user, qp, mkey)
}

/// A generated command.
#[derive(Debug, Clone)]
struct Command {
    /// The index of an earlier accepted command to start from, if any.
    accepted: Option<usize>,
    opcode: u16,
    kernel: bool,
    op_mod: u16,
    /// Lengths of inbox and outbox, if not the command's own.
    lengths: Option<(usize, usize)>,
    /// The object number, where most commands have it.
    number: u32,
    /// Bytes to change, by offset and value.
    patches: Vec<(usize, u8)>,
    list: Vec<u8>,
}

fn command() -> impl Strategy<Value = Command> {
    let (_, user, qp, mkey) = seeded(Link::Infiniband);
    let opcode = prop_oneof![
        9 => (0..COMMANDS.len()).prop_map(|index| COMMANDS[index].opcode),
        1 => any::<u16>(),
    ];
    let op_mod = prop_oneof![3 => Just(0), 1 => 0_u16..4, 1 => any::<u16>()];
    let lengths = proptest::option::weighted(0.2, (0_usize..0x300, 8_usize..0x300));
    let value = prop_oneof![any::<u8>(), (0_u32..8).prop_map(|bit| 1 << bit), Just(0)];
    let patches = proptest::collection::vec((0_usize..0x140, value), 0..4);
    let list = proptest::collection::vec(any::<u8>(), 0..256);
    let accepted = proptest::option::weighted(0.6, any::<proptest::sample::Index>())
        .prop_map(|index| index.map(|index| index.index(usize::MAX)));
    let number = number(user, qp, mkey);
    (accepted, opcode, any::<bool>(), op_mod, lengths, number, patches, list).prop_map(
        |(accepted, opcode, kernel, op_mod, lengths, number, patches, list)| Command {
            accepted,
            opcode,
            kernel,
            op_mod,
            lengths,
            number,
            patches,
            list,
        },
    )
}

fn send(rig: &mut Rig, user: User, command: &Command) {
    if let Some(index) = command.accepted {
        let mut input = rig.accepted[index % rig.accepted.len()].clone();
        for &(at, value) in &command.patches {
            if let Some(byte) = input.get_mut(at).filter(|_| at >= 4) {
                *byte = value;
            }
        }
        let _ = rig.raw(&input, &mut [0xa5; 0x1100]);
        return;
    }
    let info = verbless_prm::CommandInfo::by_opcode(command.opcode);
    let own = info.map_or((16, 16), |info| (info.input.bytes, info.output.bytes));
    let mut input = vec![0; own.0.max(16)];
    input[8..12].copy_from_slice(&command.number.to_be_bytes());
    for &(at, value) in &command.patches {
        if let Some(byte) = input.get_mut(at) {
            *byte = value;
        }
    }
    input[..2].copy_from_slice(&command.opcode.to_be_bytes());
    let uid = if command.kernel { 0 } else { user.uid };
    input[2..4].copy_from_slice(&uid.to_be_bytes());
    input[6..8].copy_from_slice(&command.op_mod.to_be_bytes());
    input.extend(&command.list);
    let (length_in, length_out) = command.lengths.unwrap_or((input.len(), own.1 + 64));
    input.resize(length_in, 0);
    let mut output = vec![0xa5; length_out];
    let refused = rig.raw(&input, &mut output).is_err();
    if !refused && let Some(&status) = output.first() {
        assert_eq!(CommandStatus(status), CommandStatus::OK);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..at_most(400) })]

    #[test]
    fn random_commands_leave_nothing_after_teardown(
        ethernet in any::<bool>(),
        commands in proptest::collection::vec(command(), 1..40),
    ) {
        let (mut rig, user, ..) =
            seeded(if ethernet { Link::Ethernet } else { Link::Infiniband });
        for command in &commands {
            send(&mut rig, user, command);
        }
        let objects = &mut rig.locked.functions[0].hca.objects;
        let counted = objects.uses.clone();
        objects.index_again();
        prop_assert_eq!(counted, objects.uses.clone(), "use counts differ from a recount");
        let _ = rig.send::<TeardownHcaIn>(0, |input| {
            input.set_profile(TeardownProfile::FORCE_CLOSE);
        });
        // A forced teardown keeps the EQs: the driver gets its completion there.
        let left = ObjectCounts { eqs: rig.counts().eqs, ..Default::default() };
        prop_assert_eq!(rig.counts(), left);
        let _ = rig.send::<DisableHcaIn>(0, |_| {});
        prop_assert_eq!(rig.counts(), Default::default());
    }

    #[test]
    fn random_bytes_never_panic(
        input in proptest::collection::vec(any::<u8>(), 0..600),
        length in 0_usize..600,
    ) {
        let (mut rig, ..) = seeded(Link::Infiniband);
        let _ = rig.raw(&input, &mut vec![0; length.max(8)]);
    }
}
