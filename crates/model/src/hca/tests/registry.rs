//! Every kind of the registry: an object in use cannot be destroyed, and can be once unused; and
//! code that serves all kinds names none of them.

use std::collections::BTreeSet;

use verbless_prm as prm;
use verbless_prm::{
    AllocQCounterIn, AllocXrcdIn, CreateQpIn, CreateRmpIn, CreateXrcSrqIn, FlowDestinationType,
    GeneralObjectType, RqType, TableMissAction, WqType,
};

use super::rig::{Rig, UMEM, User, pages, program};
use crate::hca::Refusal;
use crate::hca::commands::command::Command;
use crate::hca::kinds::KINDS;
use crate::hca::registry::{ObjectKind, kind};
use crate::profile::Link;

/// Sends the command that destroys an object; its third dword has the number. For a flow table,
/// destroys its groups first. A kind may have two destroy commands (an SRQ's, an RMP's): the one
/// for another sort of object is refused.
fn destroy(rig: &mut Rig, (kind, number): (ObjectKind, u32)) -> Result<(), Refusal> {
    let entry = &KINDS[kind as usize];
    if kind == ObjectKind::FlowTable {
        return destroy_table(rig, number);
    }
    let ends = |command: &&Command| {
        ["DESTROY_", "DEALLOC_"].iter().any(|verb| command.info.name.starts_with(verb))
    };
    let mut result = Err(entry.absent);
    for command in entry.commands.iter().filter(ends) {
        let mut input = vec![0; command.info.input.bytes];
        input[..2].copy_from_slice(&command.info.opcode.to_be_bytes());
        if let Some(object_type) = command.object_type {
            input[6..8].copy_from_slice(&object_type.0.to_be_bytes());
        }
        input[8..12].copy_from_slice(&number.to_be_bytes());
        result = rig.raw(&input, &mut vec![0; command.info.output.bytes]);
        if result != Err(entry.absent) {
            break;
        }
    }
    result
}

/// Destroys the groups and entries of an unused flow table, then the table.
fn destroy_table(rig: &mut Rig, number: u32) -> Result<(), Refusal> {
    let objects = &mut rig.locked.functions[0].hca.objects;
    if !objects.is_used(ObjectKind::FlowTable, number) {
        let emptied = objects.change(kind::FlowTable, number, |table| {
            table.entries.clear();
            table.groups.clear();
        });
        emptied.ok_or(Refusal::NoSuchFlowTable)?;
    }
    let destroyed = rig.send::<prm::DestroyFlowTableIn>(0, |input| {
        input.set_table_id(number);
    });
    destroyed.map(|_| ())
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

/// At least one object of every kind. A new kind needs an object here, and if other objects may
/// refer to it, an object that does.
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
    rig.allow_access(user.uid, mkey, [7; 32]).unwrap();
    rig.alias(user, (1, mkey), [7; 32]).unwrap();
    make_frame_objects(rig, user);
    make_dpa_objects(rig, user);
}

/// An SQ that sends through a TIS; and a table that sends its misses to another table, which has an
/// entry for a TIR of an RQ.
fn make_frame_objects(rig: &mut Rig, user: User) {
    let td = rig.td(user);
    let tis = rig.tis(user, td, |_| {}).unwrap();
    rig.sq(user, |input| {
        input.ctx_mut().set_tis_lst_sz(1).set_tis_num_0(tis);
    })
    .unwrap();
    let rq = rig.rq(user, |_| {}).unwrap();
    let tir = rig.tir(user, (td, rq), |_| {}).unwrap();
    let first = rig.table(user.uid, |_| {}).unwrap();
    let last = rig.table(user.uid, |input| {
        input.flow_table_context_mut().set_level(0).set_table_miss_id(first);
        input.flow_table_context_mut().set_table_miss_action(TableMissAction::FWD);
    });
    let group = rig.group((user.uid, last.unwrap()), |_| {}).unwrap();
    rig.entry((user.uid, last.unwrap(), group), (FlowDestinationType::TIR, tir), |_| {}).unwrap();
}

/// A process with a thread that a CQ starts, a call, an outbox, a window and a core dump; an
/// emulated device with an EQ that a CQ names, and a doorbell.
fn make_dpa_objects(rig: &mut Rig, user: User) {
    let mut process = prm::DpaProcess::default();
    process.set_bin_umem_id(user.umem).set_bin_bytes(program().len() as u64).set_heap_bytes(5000);
    let process = rig.general(user.uid, GeneralObjectType::DPA_PROCESS, &process).unwrap();
    let mut outbox = prm::DpaOutbox::default();
    outbox.set_process_id(process).set_uar_page(user.uar);
    rig.general(user.uid, GeneralObjectType::DPA_OUTBOX, &outbox).unwrap();
    let mut extension = prm::DpaUarExtension::default();
    extension.set_uar_page(user.uar).set_vhca_id(1);
    rig.general(user.uid, GeneralObjectType::DPA_UAR_EXTENSION, &extension).unwrap();
    let mut window = prm::DpaWindow::default();
    window.set_process_id(process).set_pd(user.pd);
    rig.general(user.uid, GeneralObjectType::DPA_WINDOW, &window).unwrap();
    let mut thread = prm::DpaThread::default();
    thread.set_process_id(process).set_entry(0x4000_0000).set_outbox_id(0).set_window_id(0);
    thread.set_second_window_id(0xffff);
    let thread = rig.general(user.uid, GeneralObjectType::DPA_THREAD, &thread).unwrap();
    let mut call = prm::DpaCall::default();
    call.set_process_id(process).set_entry(0x4000_0000).set_outbox_id(0xffff);
    call.set_window_id(0xffff).set_second_window_id(0);
    rig.general(user.uid, GeneralObjectType::DPA_CALL, &call).unwrap();
    let mut dump = prm::DpaCoreDump::default();
    dump.set_process_id(process).set_umem_id(user.umem);
    rig.general(user.uid, GeneralObjectType::DPA_CORE_DUMP, &dump).unwrap();
    rig.cq(user, |input| {
        input.cq_context_mut().set_apu_cq(true).set_c_eqn_or_apu_element(thread);
    })
    .unwrap();
    let mut device = prm::DpaEmulatedDevice::default();
    device.set_queues(1).set_vectors(1);
    let kind = GeneralObjectType::DPA_EMULATED_DEVICE;
    let device = rig.general(user.uid, kind, &device).unwrap();
    let mut eq = prm::DpaEq::default();
    eq.set_umem_id(user.umem).set_uar_page(user.uar).set_device_valid(true).set_device_id(device);
    let eq = rig.general(user.uid, GeneralObjectType::DPA_EQ, &eq).unwrap();
    let cq = rig.cq(user, |input| {
        let context = input.cq_context_mut().set_apu_cq(true).set_ext_element_type(2);
        context.set_c_eqn_or_apu_element(eq);
    });
    let mut doorbell = prm::DpaEmulatedDoorbell::default();
    doorbell.set_device_id(device).set_cqn(cq.unwrap());
    rig.general(user.uid, GeneralObjectType::DPA_EMULATED_DOORBELL, &doorbell).unwrap();
}

#[test]
fn used_objects_of_every_kind_stay_until_unused() {
    let mut rig = Rig::up(Link::Ethernet);
    one_of_each(&mut rig);
    let (mut refused, mut destroyed) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let all = rig.locked.functions[0].hca.objects.references();
        let used: BTreeSet<_> = all.iter().flat_map(|(_, to)| to.iter().copied()).collect();
        for ((kind, _), to) in &all {
            let first = to.iter().all(|(used, _)| kind <= used);
            assert!(first, "the end of a context destroys {kind:?} after what it uses: {to:x?}");
        }
        for &(object, _) in all.iter().filter(|(object, _)| used.contains(object)) {
            let (kind, number) = object;
            let expected =
                KINDS[kind as usize].in_use.expect("a kind that others refer to has a refusal");
            assert_eq!(destroy(&mut rig, object), Err(expected), "{kind:?} {number:#x}");
            refused.insert(kind);
        }
        // A user context's objects end with it.
        let free = |&&(object, _): &&((ObjectKind, u32), _)| {
            // A process's heap ends with the process.
            let umems = &rig.locked.functions[0].hca.objects.umems;
            let heap = object.0 == ObjectKind::Umem
                && umems.get(&object.1).is_some_and(|umem| umem.device);
            !heap && !used.contains(&object) && (object.0 != ObjectKind::Uctx || all.len() == 1)
        };
        let Some(&(object, _)) = all.iter().find(free) else {
            assert!(all.is_empty(), "each of these is used: {all:x?}");
            break;
        };
        assert_eq!(destroy(&mut rig, object), Ok(()), "{object:x?}, which nothing uses any more");
        assert_eq!(
            destroy(&mut rig, object),
            Err(KINDS[object.0 as usize].absent),
            "{object:x?}, twice"
        );
        destroyed.insert(object.0);
    }
    let every: BTreeSet<ObjectKind> = ObjectKind::ALL.iter().copied().collect();
    assert_eq!(destroyed, every, "there was no object of some kind");
    let with_users = every.into_iter().filter(|&kind| KINDS[kind as usize].in_use.is_some());
    assert_eq!(refused, with_users.collect(), "some kind had no users");
    assert_eq!(rig.counts(), Default::default());
}

/// The words of a name in lower case: `FlowTable`, `flow_table` and `FLOW_TABLE` have the same
/// ones.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && before.is_lowercase() {
            words.push(String::new());
        }
        words.last_mut().unwrap().extend((c != '_').then_some(c.to_ascii_lowercase()));
        before = c;
    }
    words
}

/// The names in a source that are those of kinds or contain them; tests, comments, attributes and
/// the list of kinds are left out.
fn named(source: &str) -> Vec<&str> {
    let kinds: Vec<_> = ObjectKind::NAMES.iter().flatten().map(|name| words(name)).collect();
    let code = source.split("\nmod tests {").next().unwrap();
    let (before, list) = code.split_once("\nobject_kinds! {").unwrap_or((code, "\n}"));
    let after = list.split_once("\n}").unwrap().1;
    let lines = before.lines().chain(after.lines()).map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("//") && !line.starts_with("#["));
    // Names in string literals do not count.
    let code = lines.flat_map(|line| line.split('"').step_by(2));
    let names = code.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let has = |name: &&str| {
        let name = words(name);
        kinds.iter().any(|kind| name.windows(kind.len()).any(|part| part == kind))
    };
    names.filter(has).collect()
}

#[test]
fn generic_code_names_no_object_kind() {
    let sources = [
        ("index", include_str!("../index.rs")),
        ("numbers", include_str!("../numbers.rs")),
        ("refusal", include_str!("../refusal/mod.rs")),
        ("registry", include_str!("../registry.rs")),
        ("removal", include_str!("../removal.rs")),
        ("commands/call", include_str!("../commands/call.rs")),
        ("commands/command", include_str!("../commands/command.rs")),
        ("commands/execute", include_str!("../commands/execute.rs")),
        ("commands/removal", include_str!("../commands/removal.rs")),
    ];
    for (file, source) in sources {
        // A command comes from a user context, and a reset ends all of them.
        let allowed =
            |name: &&str| file == "commands/execute" && words(name)[0].starts_with("uctx");
        let named: Vec<_> = named(source).into_iter().filter(|name| !allowed(name)).collect();
        assert!(named.is_empty(), "{file} names kinds of objects: {named:?}");
    }
    assert_eq!(
        named("fn a() { b.cqs }\n#[c(Cq)] // Cq\nNoSuchFlowTable; \"Qp\" UmemSize"),
        ["cqs", "NoSuchFlowTable", "UmemSize"]
    );
}
