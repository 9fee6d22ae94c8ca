//! Regions that change, memory windows, QUERY_MR of an importer, and DevX commands on queues of
//! verbs.

use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::{CreateMkeyIn, MkeyAccessMode, Opcode};

use super::super::client::Capability;
use super::support::{Request, command};
use super::verbs_rig::{Verbs, fields, word};

const TRANSLATION: u32 = 1;
const PD: u32 = 2;
const ACCESS: u32 = 4;

/// Sends REREG_MR for a region of `verbs`; returns its key.
fn rereg(
    verbs: &Verbs,
    handle: u32,
    flags: u32,
    (start, length): (u64, u64),
    pd: u32,
    access: u32,
) -> Result<u32, Errno> {
    let values = [0, handle.into(), flags.into(), start, length, start, pd.into(), access.into()];
    let request = fields(&[8, 4, 4, 8, 8, 8, 4, 4], &values);
    let (response, _) = verbs.write(11, &request, 8, &[], 0)?;
    assert_eq!(response[..4], response[4..], "lkey and rkey are one");
    Ok(word(&response))
}

fn another_pd(verbs: &Verbs) -> u32 {
    word(&verbs.write(3, &[0; 8], 4, &[], 4).expect("a PD").0)
}

#[test]
fn rereg_mr_of_rights_or_pd_keeps_key() {
    let verbs = Verbs::new();
    let region = verbs.reg_mr(verbs.address, 0x1000, verbs.address, 1).expect("a region");
    let (handle, key) = (word(&region), word(&region[4..]));
    assert_eq!(rereg(&verbs, handle, ACCESS, (0, 0), 0, 1 | 2 | 4), Ok(key));
    let pd = another_pd(&verbs);
    assert_eq!(rereg(&verbs, handle, PD, (0, 0), pd, 0), Ok(key));
    let changes = verbs.fixture.device.reconfigured.lock().expect("no panic").clone();
    let [(index, flags), (_, moved)] = &changes[..] else { panic!("two changes") };
    assert_eq!(*index, key >> 8);
    assert!(flags.lw() && flags.rw() && flags.rr() && flags.lr() && !flags.a());
    assert!(moved.rw(), "the access flags stay");
    assert_ne!(moved.pd(), flags.pd());
    let dealloc = |pd: u32| verbs.write(4, &pd.to_ne_bytes(), 0, &[], 0).map(drop);
    assert_eq!(dealloc(pd), Err(Errno::EBUSY), "the region is in it");
    assert_eq!(dealloc(verbs.pd), Ok(()), "nothing is in it any more");
    assert_eq!(verbs.fixture.device.count(Opcode::CREATE_MKEY.0), 1);
    assert_eq!(verbs.fixture.close(), 0);
}

#[test]
fn rereg_mr_of_rights_keeps_pd() {
    let verbs = Verbs::new();
    let second = another_pd(&verbs);
    let core =
        fields(&[8, 8, 8, 8, 4, 4], &[0, verbs.address, 0x1000, verbs.address, second.into(), 1]);
    let (region, _) = verbs.write(9, &core, 12, &[], 0).expect("a region");
    let made: CreateMkeyIn = verbs.last(Opcode::CREATE_MKEY.0, CreateMkeyIn::from_prefix);
    rereg(&verbs, word(&region), ACCESS, (0, 0), 0, 1 | 4).expect("other access flags");
    let changes = verbs.fixture.device.reconfigured.lock().expect("no panic").clone();
    assert_eq!(changes[0].1.pd(), made.memory_key_mkey_entry().pd());
}

#[test]
fn rereg_mr_of_rights_on_dead_device_is_eio() {
    let verbs = Verbs::new();
    let region = verbs.reg_mr(verbs.address, 0x1000, verbs.address, 1).expect("a region");
    verbs.fixture.device.alive.store(false, Ordering::Relaxed);
    assert_eq!(rereg(&verbs, word(&region), ACCESS, (0, 0), 0, 1 | 4), Err(Errno::EIO));
}

#[test]
fn rereg_mr_of_translation_changes_key() {
    let verbs = Verbs::new();
    let region = verbs.reg_mr(verbs.address, 0x1000, verbs.address, 1).expect("a region");
    let (handle, key) = (word(&region), word(&region[4..]));
    let range = (verbs.address + 0x4000, 0x3000);
    let new = rereg(&verbs, handle, TRANSLATION, range, 0, 0).expect("the region moves");
    assert_ne!(new, key);
    let command: CreateMkeyIn = verbs.last(Opcode::CREATE_MKEY.0, CreateMkeyIn::from_prefix);
    let entry = command.memory_key_mkey_entry();
    assert!(entry.lw() && !entry.rw(), "the access flags stay");
    assert_eq!((entry.start_addr(), entry.len()), range);
    assert_eq!(verbs.fixture.device.count(Opcode::DESTROY_MKEY.0), 1);
    let query = |handle: u32| {
        let (mut lkey, mut rkey, mut length, mut address) = ([0; 4], [0; 4], [0; 8], [0; 8]);
        Request::new(7, 3)
            .handle(0, handle.into())
            .output(1, &mut lkey)
            .output(2, &mut rkey)
            .output(3, &mut length)
            .output(4, &mut address)
            .send(&verbs.fixture.file)
            .map(|()| (word(&lkey), word(&rkey), u64::from_ne_bytes(length), address))
    };
    assert_eq!(query(handle), Ok((new, new, 0x3000, range.0.to_ne_bytes())));
    assert_eq!(query(verbs.pd).map(drop), Err(Errno::EINVAL), "no region");
    assert_eq!(verbs.fixture.close(), 0);
}

#[test]
fn malformed_rereg_mr_is_rejected() {
    let verbs = Verbs::new();
    let region = verbs.reg_mr(verbs.address, 0x1000, verbs.address, 0).expect("a region");
    let handle = word(&region);
    let range = (verbs.address, 0x1000);
    for (case, handle, flags, range, pd, access, errno) in [
        ("nothing changes", handle, 0, range, 0, 0, Errno::EINVAL),
        ("an unknown change", handle, 8, range, 0, 0, Errno::EOPNOTSUPP),
        ("no region", handle + 9, TRANSLATION, range, 0, 0, Errno::ENOENT),
        ("a PD", verbs.pd, TRANSLATION, range, 0, 0, Errno::EINVAL),
        ("no PD", handle, PD, range, handle, 0, Errno::EINVAL),
        ("remote write alone", handle, ACCESS, range, 0, 2, Errno::EINVAL),
        ("pinned for reading", handle, ACCESS, range, 0, 1, Errno::EACCES),
        ("no memory", handle, TRANSLATION, (0x1000, 0x1000), 0, 0, Errno::EFAULT),
        ("on demand", handle, ACCESS, range, 0, 1 << 6, Errno::EOPNOTSUPP),
    ] {
        assert_eq!(rereg(&verbs, handle, flags, range, pd, access), Err(errno), "{case}");
    }
    let fixed = Verbs::with(|caps| {
        caps.set_umr_extended_translation_offset(false);
    });
    let region = fixed.reg_mr(fixed.address, 0x1000, fixed.address, 1).expect("a region");
    let refused = rereg(&fixed, word(&region), ACCESS, range, 0, 1 | 2);
    assert_eq!(refused, Err(Errno::EOPNOTSUPP), "the device's key takes no UMR");
    assert_eq!(verbs.fixture.close(), 0);
}

/// Sends ALLOC_MW of a type; returns the window's handle and key.
fn window(verbs: &Verbs, kind: u8, driver: &[u8]) -> Result<(u32, u32), Errno> {
    let request = fields(&[8, 4, 1, 3], &[0, verbs.pd.into(), kind.into(), 0]);
    let (response, _) = verbs.write(14, &request, 8, driver, 0)?;
    Ok((word(&response), word(&response[4..])))
}

#[test]
fn mw_is_free_mkey_with_entries() {
    let verbs = Verbs::new();
    for (kind, invalidated_by_peers) in [(1, false), (2, true)] {
        let (handle, key) = window(&verbs, kind, &[0; 8]).expect("a window");
        let command: CreateMkeyIn = verbs.last(Opcode::CREATE_MKEY.0, CreateMkeyIn::from_prefix);
        let entry = command.memory_key_mkey_entry();
        assert!(entry.free() && entry.umr_en() && entry.lr() && !entry.rw() && !entry.lw());
        assert_eq!(entry.access_mode_1_0(), MkeyAccessMode::KLMS.0);
        assert_eq!((entry.translations_octword_size(), entry.qpn()), (4, 0xff_ffff));
        assert_eq!((entry.en_rinval(), entry.mkey_7_0()), (invalidated_by_peers, key as u8));
        assert_eq!(command.uid(), 0, "the kernel's own, as Linux makes it");
        let dealloc_pd = || verbs.write(4, &verbs.pd.to_ne_bytes(), 0, &[], 0).map(drop);
        assert_eq!(dealloc_pd(), Err(Errno::EBUSY));
        assert_eq!(verbs.write(16, &handle.to_ne_bytes(), 0, &[], 0).map(drop), Ok(()));
        assert_eq!(verbs.write(16, &handle.to_ne_bytes(), 0, &[], 0), Err(Errno::ENOENT));
    }
    let (handle, _) = window(&verbs, 2, &[0, 0, 0, 0, 5, 0, 0, 0]).expect("of five entries");
    let command: CreateMkeyIn = verbs.last(Opcode::CREATE_MKEY.0, CreateMkeyIn::from_prefix);
    assert_eq!(command.memory_key_mkey_entry().translations_octword_size(), 8);
    assert_eq!(Request::new(8, 0).handle(0, handle.into()).send(&verbs.fixture.file), Ok(()));
    for (case, kind, driver, errno) in [
        ("an unknown type", 3, [0; 8], Errno::EINVAL),
        ("a mask", 1, [1, 0, 0, 0, 0, 0, 0, 0], Errno::EOPNOTSUPP),
        ("a reserved byte", 1, [0, 0, 0, 0, 0, 1, 0, 0], Errno::EOPNOTSUPP),
    ] {
        assert_eq!(window(&verbs, kind, &driver), Err(errno), "{case}");
    }
    let without = Verbs::with(|caps| {
        caps.set_imaicl(false);
    });
    assert_eq!(window(&without, 1, &[0; 8]), Err(Errno::EOPNOTSUPP));
    assert_eq!(verbs.fixture.close(), 0);
}

#[test]
fn query_pd_returns_its_number() {
    let verbs = Verbs::new();
    let (core, driver) = verbs.write(3, &[0; 8], 4, &[], 4).expect("a PD");
    let mut number = [0; 4];
    let mut query = Request::new(1, 0x1000).handle(0x1000, word(&core).into());
    query = query.output(0x1001, &mut number);
    assert_eq!(query.send(&verbs.fixture.file), Ok(()));
    assert_eq!(number[..], driver[..]);
}

#[test]
fn devx_commands_reach_verbs_objects_by_handle() {
    let verbs = Verbs::new();
    let (cq, cqn) = verbs.plain_cq();
    let (qp, qpn) =
        verbs.qp(2, (cq, cq), None, [4, 8, 1, 4, 0], &verbs.qp_driver(8, 1 << 10)).expect("a QP");
    let send = |method: u16, handle: u64, opcode: u16, number: u32| {
        let mut output = [0; 0x100];
        Request::new(0x1001, method)
            .handle(0x1000, handle)
            .input(0x1001, &command(opcode, number, 0x110))
            .output(0x1002, &mut output)
            .send(&verbs.fixture.file)
    };
    const QUERY: u16 = 0x1003;
    const MODIFY: u16 = 0x1002;
    for (case, method, handle, opcode, number, answer) in [
        ("a CQ", QUERY, cq, Opcode::QUERY_CQ.0, cqn, Ok(())),
        ("a CQ's change", MODIFY, cq, Opcode::MODIFY_CQ.0, cqn, Ok(())),
        ("a QP", QUERY, qp, Opcode::QUERY_QP.0, qpn, Ok(())),
        ("a QP's change", MODIFY, qp, Opcode::RTS2RTS_QP.0, qpn, Ok(())),
        ("another CQ", QUERY, cq, Opcode::QUERY_CQ.0, cqn + 1, Err(Errno::EINVAL)),
        ("a QP by a CQ's handle", QUERY, cq, Opcode::QUERY_QP.0, qpn, Err(Errno::EINVAL)),
        ("a PD", QUERY, verbs.pd.into(), Opcode::QUERY_CQ.0, cqn, Err(Errno::EINVAL)),
    ] {
        assert_eq!(send(method, handle, opcode, number), answer, "{case}");
    }
    let change = verbs.fixture.device.last(Opcode::MODIFY_CQ.0).expect("the command was sent");
    assert_eq!(change[0x5c] >> 7, 1, "its record must be in registered memory");
    assert_ne!(u16::from_be_bytes([change[2], change[3]]), 0, "of the client's context");
}

#[test]
fn privileged_qkey_needs_cap_net_raw() {
    let verbs = Verbs::new();
    let (cq, _) = verbs.plain_cq();
    let (qp, _) =
        verbs.qp(4, (cq, cq), None, [4, 8, 1, 4, 0], &verbs.qp_driver(8, 1 << 10)).expect("a QP");
    let qkey = 0x8001_0000u32.to_ne_bytes();
    let to_init =
        || verbs.modify(qp, 1 | 1 << 4 | 1 << 5 | 1 << 6, &[(72, &qkey), (96, &[1]), (104, &[1])]);
    assert_eq!(to_init(), Err(Errno::EPERM));
    let raw = 1 << Capability::NetRaw as u32;
    verbs.fixture.client.capabilities.store(raw, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(to_init(), Ok(()));
}

#[test]
fn query_qp_reports_receive_queue_capacity() {
    let verbs = Verbs::new();
    let (cq, _) = verbs.plain_cq();
    let query = |capacity, driver: Vec<u8>| {
        let (qp, _) = verbs.qp(2, (cq, cq), None, capacity, &driver).expect("a QP");
        let request = fields(&[8, 4, 4], &[0, qp, 0]);
        let (response, _) =
            verbs.write(25, &request, 128, &[], 0).expect("the write command is known");
        [64, 68, 72, 76, 80].map(|at| word(&response[at..]))
    };
    let driver = verbs.qp_driver(8, 1 << 10);
    assert_eq!(query([4, 5, 1, 3, 7], driver), [0, 8, 0, 4, 0], "8 receives of 64 bytes");
    let signed = verbs.qp_driver(8, 1 << 10 | 1);
    assert_eq!(query([4, 5, 1, 3, 7], signed), [0, 8, 0, 3, 0], "a segment is the signature");
    let none = verbs.qp_driver(0, 1 << 10);
    assert_eq!(query([4, 0, 1, 0, 0], none), [0; 5]);
}
