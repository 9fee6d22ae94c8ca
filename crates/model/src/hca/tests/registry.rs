//! Every kind of the registry: an object that another refers to stays, and goes once nothing does.

use std::collections::BTreeSet;

use verbless_prm as prm;
use verbless_prm::{
    AllocQCounterIn, AllocTransportDomainIn, AllocXrcdIn, CommandInfo, CommandInput, CreateQpIn,
    CreateRmpIn, CreateXrcSrqIn, GeneralObjectType, RqType, WqType,
};

use super::rig::{Rig, UMEM, User, pages};
use crate::hca::Refusal;
use crate::hca::kinds::kinds;
use crate::hca::registry::{Kind, ObjectKind, kind};
use crate::profile::Link;

/// What the registry says of a kind.
struct Said {
    commands: &'static [&'static CommandInfo],
    absent: Refusal,
    in_use: Option<Refusal>,
}

macro_rules! said {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) => $object:ty {
        numbers: [$($numbers:tt)*],
        object: { $($entry:tt)* },
        commands: { $($who:ident $input:ident $(of $type:ident)? => $handler:expr;)* }
    })*) => {
        fn said(kind: Kind) -> Said {
            match kind {
                $(Kind::$kind => Said {
                    commands: const { &[$(<prm::$input as CommandInput>::INFO),*] },
                    absent: kind::$kind::ABSENT,
                    in_use: kind::$kind::IN_USE,
                },)*
            }
        }
    };
}

kinds!(said);

/// Sends the command that destroys an object. All of them have the number in their third dword;
/// kinds with two such commands refuse the one for the other sort.
fn destroy(rig: &mut Rig, (kind, number): (Kind, u32)) -> Result<(), Refusal> {
    let said = said(kind);
    let ends = |command: &&&CommandInfo| {
        ["DESTROY_", "DEALLOC_"].iter().any(|verb| command.name.starts_with(verb))
    };
    let mut result = Err(said.absent);
    for command in said.commands.iter().filter(ends) {
        let mut input = vec![0; command.input.bytes];
        input[..2].copy_from_slice(&command.opcode.to_be_bytes());
        if command.opcode == prm::DESTROY_GENERAL_OBJECT.opcode {
            input[6..8].copy_from_slice(&GeneralObjectType::MKEY.0.to_be_bytes());
        }
        input[8..12].copy_from_slice(&number.to_be_bytes());
        result = rig.raw(&input, &mut vec![0; command.output.bytes]);
        if result != Err(said.absent) {
            break;
        }
    }
    result
}

fn xrc_srq(rig: &mut Rig, user: User) {
    let xrcd = rig.send::<AllocXrcdIn>(user.uid, |_| {}).unwrap().xrcd();
    rig.call::<CreateXrcSrqIn>(user.uid, 0, &pages(1), 0, |input| {
        let context = input.xrc_srq_context_entry_mut();
        context.set_log_xrc_srq_size(4).set_log_rq_stride(1).set_xrcd(xrcd).set_pd(user.pd);
        context.set_cqn(user.cq).set_db_record_addr_h(1);
    })
    .unwrap();
}

fn rmp(rig: &mut Rig, user: User) -> u32 {
    let made = rig.send::<CreateRmpIn>(user.uid, |input| {
        let wq = input.ctx_mut().wq_mut();
        wq.set_wq_type(WqType::LINKED_LIST).set_pd(user.pd).set_log_wq_stride(5).set_log_wq_sz(4);
        wq.set_wq_umem_valid(true).set_wq_umem_id(user.umem).set_wq_umem_offset(0x3_0000);
        wq.set_dbr_umem_valid(true).set_dbr_umem_id(user.umem).set_dbr_addr(UMEM - 32);
    });
    made.unwrap().rmpn()
}

/// At least one object of every kind. Whoever adds a kind makes one here, and, if others may refer
/// to it, one that does.
fn one_of_each(rig: &mut Rig) {
    let user = rig.user();
    xrc_srq(rig, user);
    let rmp = rmp(rig, user);
    let counter = rig.send::<AllocQCounterIn>(user.uid, |_| {}).unwrap().counter_set_id();
    rig.qp(user, |input: &mut CreateQpIn| {
        let context = input.qpc_mut();
        context.set_counter_set_id(counter).set_rq_type(RqType::SRQ).set_srqn_rmpn_xrqn(rmp);
    })
    .unwrap();
    rig.sq(user, |_| {}).unwrap();
    let mkey = rig.mkey(user, |_| {}).unwrap();
    rig.offer(user.uid, mkey, [7; 32]).unwrap();
    rig.alias(user, (1, mkey), [7; 32]).unwrap();
    rig.send::<AllocTransportDomainIn>(user.uid, |_| {}).unwrap();
}

#[test]
fn of_every_kind_what_is_in_use_is_not_destroyed_and_goes_after_its_users() {
    let mut rig = Rig::up(Link::Infiniband);
    one_of_each(&mut rig);
    let (mut refused, mut destroyed) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let all = rig.world.functions[0].hca.objects.references();
        let used: BTreeSet<_> = all.iter().flat_map(|(_, to)| to.iter().copied()).collect();
        for &(object, _) in all.iter().filter(|(object, _)| used.contains(object)) {
            let (kind, number) = object;
            let expected = said(kind).in_use.expect("a kind that others refer to has a refusal");
            assert_eq!(destroy(&mut rig, object), Err(expected), "{kind:?} {number:#x}");
            refused.insert(kind);
        }
        // What a user context holds would go with it.
        let free = |&&(object, _): &&((Kind, u32), _)| {
            !used.contains(&object) && (object.0 != Kind::Uctx || all.len() == 1)
        };
        let Some(&(object, _)) = all.iter().find(free) else {
            assert!(all.is_empty(), "each of these is used: {all:x?}");
            break;
        };
        assert_eq!(destroy(&mut rig, object), Ok(()), "{object:x?}, which nothing uses any more");
        assert_eq!(destroy(&mut rig, object), Err(said(object.0).absent), "{object:x?}, twice");
        destroyed.insert(object.0);
    }
    let every: BTreeSet<Kind> = Kind::ALL.iter().copied().collect();
    assert_eq!(destroyed, every, "there was no object of some kind");
    let with_users = every.into_iter().filter(|&kind| said(kind).in_use.is_some());
    assert_eq!(refused, with_users.collect(), "some kind had no users");
    assert_eq!(rig.counts(), Default::default());
}
