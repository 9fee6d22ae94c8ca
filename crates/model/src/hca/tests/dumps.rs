//! Core dumps of DPA processes: one whose context ends during the write, and one that cannot be
//! written.

use verbless_prm::{
    CommandInput, CommandStatus, CreateGeneralObjectIn, DestroyGeneralObjectIn, DestroyUctxIn,
    DestroyUmemIn, DpaCoreDump, DpaProcess, GeneralObjectType,
};

use super::rig::{Rig, UMEM, User, program};
use crate::engine::{begin, resume};
use crate::hca::Refusal;
use crate::profile::Link;

/// A process with a heap of 16 MiB.
fn process(rig: &mut Rig, user: User) -> u32 {
    let mut process = DpaProcess::default();
    process.set_bin_umem_id(user.umem).set_bin_bytes(program().len() as u64);
    process.set_heap_bytes(16 << 20);
    rig.general(user.uid, GeneralObjectType::DPA_PROCESS, &process).unwrap()
}

/// A core dump of it, into the whole UMEM.
fn dump(process: u32, user: User) -> DpaCoreDump {
    let mut dump = DpaCoreDump::default();
    dump.set_process_id(process).set_umem_id(user.umem).set_dump_bytes(UMEM);
    dump
}

#[test]
fn context_may_end_during_core_dump() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let context = dump(process(&mut rig, user), user);
    let mut input = CreateGeneralObjectIn::new();
    input.set_obj_type(GeneralObjectType::DPA_CORE_DUMP);
    let mut input = [input.as_bytes().as_slice(), context.as_bytes()].concat();
    let opcode = <CreateGeneralObjectIn as CommandInput>::INFO.opcode;
    input[..2].copy_from_slice(&opcode.to_be_bytes());
    input[2..4].copy_from_slice(&user.uid.to_be_bytes());
    let mut output = [0xa5; 16];
    let mut rest = begin(&mut rig.locked, 0, &input, &mut output);
    for _ in 0..16 {
        let dumping = rest.expect("there is more to look at");
        rest = resume(&mut rig.locked, 0, dumping, &input, &mut output);
    }
    assert_eq!(rig.counts().dpa_core_dumps, 1);
    rig.send::<DestroyUctxIn>(0, |input| _ = input.set_uid(user.uid)).unwrap();
    // Another object may have the number meanwhile.
    let other = rig.user();
    let rest = resume(&mut rig.locked, 0, rest.expect("more"), &input, &mut output);
    assert!(rest.is_none());
    assert_eq!(output[0], CommandStatus::BAD_RES.0);
    assert_eq!(rig.counts().dpa_core_dumps, 0);
    process(&mut rig, other);
}

#[test]
fn core_dump_holds_its_umem_until_destroyed() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let process = process(&mut rig, user);
    let umem = rig.umem(user.uid, 0, true).unwrap();
    let short = *dump(process, user).set_umem_id(umem).set_dump_bytes(8);
    let dump = rig.general(user.uid, GeneralObjectType::DPA_CORE_DUMP, &short).unwrap();
    let destroy_umem = |rig: &mut Rig| {
        rig.send::<DestroyUmemIn>(user.uid, |input| _ = input.set_umem_id(umem)).map(drop)
    };
    assert_eq!(destroy_umem(&mut rig), Err(Refusal::UmemInUse));
    let kind = GeneralObjectType::DPA_CORE_DUMP.0;
    rig.call::<DestroyGeneralObjectIn>(user.uid, kind, &[], 0, |input| _ = input.set_obj_id(dump))
        .unwrap();
    assert_eq!(destroy_umem(&mut rig), Ok(()));
}

#[test]
fn failed_core_dump_leaves_no_object() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let context = dump(process(&mut rig, user), user);
    let kind = GeneralObjectType::DPA_CORE_DUMP;
    assert_eq!(rig.general(user.uid, kind, &context), Err(Refusal::UmemPages));
    assert_eq!(rig.counts().dpa_core_dumps, 0);
    // A short buffer stays unwritten.
    let short = *context.clone().set_dump_bytes(8);
    assert!(rig.general(user.uid, kind, &short).is_ok());
    assert_eq!(rig.counts().dpa_core_dumps, 1);
}

#[test]
fn create_rejects_alias_range_and_chosen_number() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let mut context = DpaProcess::default();
    context.set_bin_umem_id(user.umem).set_bin_bytes(program().len() as u64);
    let kind = GeneralObjectType::DPA_PROCESS.0;
    let heads: [fn(&mut CreateGeneralObjectIn); 3] = [
        |input| _ = input.set_alias_object(true),
        |input| _ = input.set_log_obj_range(1),
        |input| _ = input.set_obj_id(1),
    ];
    for (at, head) in heads.into_iter().enumerate() {
        let made = rig.call(user.uid, kind, context.as_bytes(), 0, head).map(drop);
        assert_eq!(made, Err(Refusal::Unsupported), "head {at}");
    }
    assert_eq!(rig.counts().dpa_processes, 0);
    rig.call(user.uid, kind, context.as_bytes(), 0, |_: &mut CreateGeneralObjectIn| {}).unwrap();
}
