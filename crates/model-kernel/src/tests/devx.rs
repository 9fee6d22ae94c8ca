//! DevX commands: which ones pass, and which of their fields the kernel sets.

use std::sync::Arc;

use verbless_prm::Opcode;

use nix::errno::Errno;

use super::support::{Device, FIRST, Fixture, Request, TestClient, command};
use crate::account::{Account, ResourcePool};
use crate::mailbox::Field;
use crate::rules;

fn other(fixture: &Fixture, input: &[u8]) -> Result<(), Errno> {
    let mut output = [0; 16];
    Request::new(0x1000, 0x1000)
        .input(0x1000, input)
        .output(0x1001, &mut output)
        .send(&fixture.file)
}

fn on_object(fixture: &Fixture, method: u16, handle: u64, input: &[u8]) -> Result<(), Errno> {
    let mut output = [0; 16];
    Request::new(0x1001, method)
        .handle(0x1000, handle)
        .input(0x1001, input)
        .output(0x1002, &mut output)
        .send(&fixture.file)
}

fn uid(input: &[u8]) -> u16 {
    u16::from_be_bytes([input[2], input[3]])
}

/// The completion queue's event queue: the kernel creates its UAR page and the queue for other
/// events first.
const EQN: u32 = FIRST + 2;

fn create_cq() -> Vec<u8> {
    let mut input = command(Opcode::CREATE_CQ.0, 0, 0x110);
    Field(0x24, 31, 0).set(&mut input, EQN);
    input
}

#[test]
fn other_passes_listed_and_general_opcodes_only() {
    let fixture = Fixture::new();
    for opcode in [
        0x100, 0x101, 0x10a, 0x740, 0x750, 0x752, 0x754, 0x760, 0x762, 0x76f, 0x770, 0x80a, 0x80d,
        0x822, 0x824, 0x826, 0x842, 0xb00, 0xb0c, 0xb16, 0xb22, 0xcff,
    ] {
        assert_eq!(other(&fixture, &command(opcode, 0, 16)), Ok(()), "{opcode:#x}");
        let sent = fixture.device.last(opcode).expect("the command was passed");
        assert_ne!(uid(&sent), 0, "{opcode:#x} goes out under the context's uid");
    }
    for opcode in [
        0x0, 0x102, 0x104, 0x200, 0x203, 0x301, 0x400, 0x500, 0x764, 0x761, 0x800, 0x802, 0x805,
        0x92f, 0xa00, 0xa04, 0xa08, 0xaff, 0xd00, 0xffff,
    ] {
        assert_eq!(other(&fixture, &command(opcode, 0, 16)), Err(Errno::EINVAL), "{opcode:#x}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn create_modify_and_query_pass_listed_opcodes_only() {
    let fixture = Fixture::new();
    for opcode in [0x301, 0x203, 0x402, 0x802, 0x805, 0xa04, 0xa08, 0x101, 0xb16, 0x600, 0x502] {
        let input = command(opcode, 0, 0x110);
        assert_eq!(fixture.create(&input), Err(Errno::EINVAL), "create {opcode:#x}");
    }
    let mut two_psvs = command(Opcode::CREATE_PSV.0, 2 << 28, 16);
    assert_eq!(fixture.create(&two_psvs), Err(Errno::EINVAL));
    two_psvs[8] = 1 << 4;
    let psv = fixture.create(&two_psvs).expect("one PSV passes");
    assert_eq!(fixture.destroy(0x1001, psv), Ok(()));
    let qp = fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("a QP");
    let qpn = FIRST + 6;
    for opcode in
        [Opcode::CREATE_QP.0, Opcode::DESTROY_QP.0, Opcode::QUERY_QP.0, Opcode::QUERY_HCA_CAP.0]
    {
        let input = command(opcode, qpn, 0x110);
        assert_eq!(on_object(&fixture, 0x1002, qp, &input), Err(Errno::EINVAL), "{opcode:#x}");
    }
    for opcode in
        [Opcode::CREATE_QP.0, Opcode::DESTROY_QP.0, Opcode::RST2INIT_QP.0, Opcode::QUERY_HCA_CAP.0]
    {
        let input = command(opcode, qpn, 0x110);
        assert_eq!(on_object(&fixture, 0x1003, qp, &input), Err(Errno::EINVAL), "{opcode:#x}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn command_must_match_object_of_handle() {
    let fixture = Fixture::new();
    let qp = fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("a QP");
    let qpn = Field(0x8, 23, 0);
    let made = fixture.device.count(Opcode::CREATE_QP.0);
    assert_eq!(made, 1);
    // The destroy command holds the number that the device returned; destroy a twin to find it.
    let pd = fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("a PD");
    assert_eq!(fixture.destroy(0x1001, pd), Ok(()));
    let number = qpn.get(&fixture.device.last(Opcode::DEALLOC_PD.0).expect("sent")) - 1;
    for (method, opcode) in
        [(0x1003, Opcode::QUERY_QP.0), (0x1002, Opcode::RST2INIT_QP.0), (0x1002, Opcode::QP_2ERR.0)]
    {
        let right = command(opcode, number, 0x110);
        let wrong = command(opcode, number + 1, 0x110);
        assert_eq!(on_object(&fixture, method, qp, &right), Ok(()), "{opcode:#x}");
        assert_eq!(on_object(&fixture, method, qp, &wrong), Err(Errno::EINVAL), "{opcode:#x}");
    }
    // The same number of another kind of object.
    let cq = command(Opcode::QUERY_CQ.0, number, 16);
    assert_eq!(on_object(&fixture, 0x1003, qp, &cq), Err(Errno::EINVAL));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn object_command_to_another_vhca_is_rejected() {
    let fixture = Fixture::new();
    let mut input = command(Opcode::ALLOC_PD.0, 0, 16);
    input[5] = 1;
    assert_eq!(fixture.create(&input), Err(Errno::EINVAL));
    let pd = fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("a PD");
    let mut query = command(Opcode::QUERY_CQ.0, 1, 16);
    query[4] = 1;
    assert_eq!(on_object(&fixture, 0x1003, pd, &query), Err(Errno::EINVAL));
    assert_eq!(on_object(&fixture, 0x1002, pd, &query), Err(Errno::EINVAL));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn kernel_requires_registered_memory() {
    let fixture = Fixture::new();
    let cases: &[(u16, usize, &[Field])] = &[
        (Opcode::CREATE_CQ.0, 0x110, &[Field(0x5c, 31, 31), Field(0x10, 25, 25)]),
        (Opcode::CREATE_QP.0, 0x110, &[Field(0x10c, 31, 31), Field(0xe8, 28, 28)]),
        (Opcode::CREATE_RQ.0, 0x110, &[Field(0x74, 31, 31), Field(0x74, 30, 30)]),
        (Opcode::CREATE_SQ.0, 0x110, &[Field(0x74, 31, 31), Field(0x74, 30, 30)]),
        (Opcode::CREATE_RMP.0, 0x110, &[Field(0x74, 31, 31), Field(0x74, 30, 30)]),
        (Opcode::CREATE_XRC_SRQ.0, 0x110, &[Field(0x5c, 31, 31), Field(0x18, 24, 24)]),
        (Opcode::CREATE_MKEY.0, 0x110, &[Field(0xc, 30, 30)]),
    ];
    for &(opcode, bytes, flags) in cases {
        let mut input = command(opcode, 0, bytes);
        if opcode == Opcode::CREATE_CQ.0 {
            input = create_cq();
        }
        fixture.create(&input).expect("DevX passes the command");
        let sent = fixture.device.last(opcode).expect("the command was passed");
        for flag in flags {
            assert_eq!(flag.get(&sent), 1, "{opcode:#x} {flag:?}");
        }
        assert_ne!(uid(&sent), 0, "{opcode:#x}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn modify_cq_requires_registered_memory() {
    let fixture = Fixture::new();
    let cq = fixture.create(&create_cq()).expect("a CQ");
    // UAR, async EQ, two completion EQs, the spare uid, the context's uid and its transport domain
    // precede it.
    let number = (FIRST..FIRST + 16)
        .find(|&number| {
            on_object(&fixture, 0x1003, cq, &command(Opcode::QUERY_CQ.0, number, 16)).is_ok()
        })
        .expect("the CQ has a number");
    assert_eq!(
        on_object(&fixture, 0x1002, cq, &command(Opcode::MODIFY_CQ.0, number, 0x110)),
        Ok(())
    );
    let sent = fixture.device.last(Opcode::MODIFY_CQ.0).expect("the command was passed");
    assert_eq!(Field(0x5c, 31, 31).get(&sent), 1);
}

#[test]
fn mkey_umem_bit_is_set_in_memory_modes_only() {
    let fixture = Fixture::new();
    let access_mode = |mode: u32| {
        let mut input = command(Opcode::CREATE_MKEY.0, 0, 0x110);
        Field(0x10, 9, 8).set(&mut input, mode & 3);
        Field(0x10, 28, 26).set(&mut input, mode >> 2);
        input
    };
    for (mode, valid) in [(0, 1), (1, 1), (2, 0), (3, 0), (4, 1), (5, 1)] {
        fixture.create(&access_mode(mode)).expect("DevX passes the command");
        let sent = fixture.device.last(Opcode::CREATE_MKEY.0).expect("the command was passed");
        assert_eq!(Field(0xc, 30, 30).get(&sent), valid, "mode {mode}");
    }
    assert_eq!(fixture.create(&command(Opcode::CREATE_MKEY.0, 0, 0x4f)), Err(Errno::EINVAL));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn cq_requires_completion_eq() {
    let fixture = Fixture::new();
    for queue in [0, FIRST + 1, EQN + 2, u32::MAX] {
        let mut input = create_cq();
        Field(0x24, 31, 0).set(&mut input, queue);
        assert_eq!(fixture.create(&input), Err(Errno::ENOENT), "queue {queue}");
    }
    assert_eq!(fixture.device.count(Opcode::CREATE_CQ.0), 0);
    assert_eq!(
        fixture.create(&command(Opcode::CREATE_CQ.0, 0, 16)),
        Err(Errno::ENOENT),
        "too short to name one"
    );
}

#[test]
fn refused_create_fills_outbox_with_eremoteio() {
    let fixture = Fixture::new();
    fixture.device.refuse_next(Opcode::ALLOC_PD.0, 0x8);
    let input = command(Opcode::ALLOC_PD.0, 0, 16);
    let mut output = [0xff; 16];
    let mut request = Request::new(0x1001, 0x1000)
        .handle(0x1000, 0)
        .input(0x1001, &input)
        .output(0x1002, &mut output);
    assert_eq!(request.send(&fixture.file), Err(Errno::EREMOTEIO));
    assert_eq!(output[..8], [8, 0, 0, 0, 0, 0, 0x12, 0x34]);
    assert_eq!(request.flags(2), 3);
    fixture.device.refuse_next(Opcode::QUERY_ADAPTER.0, 0x3);
    assert_eq!(other(&fixture, &command(Opcode::QUERY_ADAPTER.0, 0, 16)), Err(Errno::EREMOTEIO));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn refused_command_fills_outbox_with_status() {
    let fixture = Fixture::new();
    fixture.device.refuse_next(Opcode::QUERY_ADAPTER.0, 0x3);
    let mut output = [0xff; 16];
    let input = command(Opcode::QUERY_ADAPTER.0, 0, 16);
    let mut request =
        Request::new(0x1000, 0x1000).input(0x1000, &input).output(0x1001, &mut output);
    assert_eq!(request.send(&fixture.file), Err(Errno::EREMOTEIO));
    assert_eq!(output[..8], [3, 0, 0, 0, 0, 0, 0x12, 0x34]);
}

#[test]
fn vhca_tunnel_passes_any_command() {
    for tunnel in [false, true] {
        let mut device = Device::with(Device::new().caps, false);
        device.caps.set_vhca_tunnel_commands(u64::from(tunnel));
        let fixture = Fixture::of(Arc::new(device));
        let mut input = command(Opcode::QUERY_MKEY.0, 0, 16);
        assert_eq!(other(&fixture, &input), Err(Errno::EINVAL), "to the function itself");
        input[5] = 1;
        let expected = if tunnel { Ok(()) } else { Err(Errno::EINVAL) };
        assert_eq!(other(&fixture, &input), expected, "tunnel: {tunnel}");
    }
}

#[test]
fn fte_create_and_modify_differ_by_op_mod() {
    let fixture = Fixture::new();
    let mut input = command(Opcode::SET_FLOW_TABLE_ENTRY.0, 0, 0x40);
    Field(0x20, 31, 0).set(&mut input, 7);
    let entry = fixture.create(&input).expect("an entry");
    assert_eq!(on_object(&fixture, 0x1002, entry, &input), Err(Errno::EINVAL));
    input[7] = 1;
    assert_eq!(on_object(&fixture, 0x1002, entry, &input), Ok(()));
    assert_eq!(fixture.create(&input), Err(Errno::EINVAL));
}

#[test]
fn general_object_query_checks_type() {
    let fixture = Fixture::new();
    let mut answer = [0; 16];
    answer[8..12].copy_from_slice(&9u32.to_be_bytes());
    fixture.device.answer(Opcode::CREATE_GENERAL_OBJECT, 0x13, &answer);
    let of = |opcode: Opcode, kind: u8| {
        let mut input = command(opcode.0, 9, 0x40);
        input[7] = kind;
        input
    };
    let object = fixture.create(&of(Opcode::CREATE_GENERAL_OBJECT, 0x13)).expect("an object");
    let query = |kind| on_object(&fixture, 0x1003, object, &of(Opcode::QUERY_GENERAL_OBJECT, kind));
    assert_eq!(query(0x13), Ok(()));
    assert_eq!(query(0x14), Err(Errno::EINVAL));
    assert_eq!(query(0), Err(Errno::EINVAL));
}

#[test]
fn create_mkey_requires_whole_context() {
    let fixture = Fixture::new();
    let create = |bytes| fixture.create(&command(Opcode::CREATE_MKEY.0, 0, bytes)).map(drop);
    assert_eq!(create(0x4c), Err(Errno::EINVAL));
    assert_eq!(create(0x50), Ok(()));
}

#[test]
fn bulk_counter_query_is_bounded_by_bulk_size() {
    let fixture = Fixture::new();
    let answer = |number: u32| {
        let mut output = [0; 16];
        output[8..12].copy_from_slice(&number.to_be_bytes());
        fixture.device.answer(Opcode::ALLOC_FLOW_COUNTER, 0, &output);
    };
    // The command gives a bulk in units of 128, or as a logarithm.
    for (word, bulk) in [(0, 1), (1, 128), (2, 256), (3 << 8, 8), (3 << 8 | 1, 8)] {
        answer(1000);
        let mut input = command(Opcode::ALLOC_FLOW_COUNTER.0, 0, 16);
        Field(0xc, 31, 0).set(&mut input, word);
        let counters = fixture.create(&input).expect("counters");
        let query = |number| {
            let mut input = command(Opcode::QUERY_FLOW_COUNTER.0, 0, 0x20);
            Field(0x1c, 31, 0).set(&mut input, number);
            on_object(&fixture, 0x1003, counters, &input)
        };
        assert_eq!(query(1000), Ok(()), "{word:#x}");
        assert_eq!(query(1000 + bulk - 1), Ok(()), "{word:#x}");
        assert_eq!(query(1000 + bulk), Err(Errno::EINVAL), "{word:#x}");
        assert_eq!(query(999), Err(Errno::EINVAL), "{word:#x}");
        let other = command(Opcode::QUERY_MODIFY_HEADER_CONTEXT.0, 1000, 16);
        assert_eq!(on_object(&fixture, 0x1003, counters, &other), Err(Errno::EINVAL));
    }
}

#[test]
fn destroy_command_is_built_from_create() {
    let cases: &[(u16, u16, usize)] = &[
        (Opcode::CREATE_MKEY.0, Opcode::DESTROY_MKEY.0, 16),
        (Opcode::CREATE_QP.0, Opcode::DESTROY_QP.0, 16),
        (Opcode::ALLOC_PD.0, Opcode::DEALLOC_PD.0, 16),
        (Opcode::ALLOC_TRANSPORT_DOMAIN.0, Opcode::DEALLOC_TRANSPORT_DOMAIN.0, 16),
        (Opcode::CREATE_TIR.0, Opcode::DESTROY_TIR.0, 16),
        (Opcode::CREATE_FLOW_TABLE.0, Opcode::DESTROY_FLOW_TABLE.0, 0x40),
        (Opcode::CREATE_FLOW_GROUP.0, Opcode::DESTROY_FLOW_GROUP.0, 0x40),
        (Opcode::CREATE_GENERAL_OBJECT.0, Opcode::DESTROY_GENERAL_OBJECT.0, 16),
    ];
    for &(create, destroy, bytes) in cases {
        let fixture = Fixture::new();
        let mut input = command(create, 0, 0x110);
        input[7] = 0x1c;
        input[0x10] = 0x77;
        let handle = fixture.create(&input).expect("DevX passes the command");
        let created = fixture.device.last(create).expect("the command was passed");
        assert_eq!(fixture.destroy(0x1001, handle), Ok(()), "{create:#x}");
        let sent = fixture.device.last(destroy).expect("the command was sent");
        assert_eq!((sent.len(), uid(&sent)), (bytes, uid(&created)), "{create:#x}");
        match Opcode(create) {
            Opcode::CREATE_GENERAL_OBJECT => assert_eq!(sent[7], 0x1c),
            Opcode::CREATE_FLOW_TABLE | Opcode::CREATE_FLOW_GROUP => assert_eq!(sent[0x10], 0x77),
            _ => assert_eq!(sent[4..8], [0; 4]),
        }
        assert_eq!(fixture.close(), 0);
    }
}

#[test]
fn object_numbers_have_24_or_32_bits() {
    let mut output = [0; 16];
    output[8..12].copy_from_slice(&[0x81, 2, 3, 4]);
    for (opcode, number) in [
        (Opcode::CREATE_QP, 0x02_0304),
        (Opcode::ALLOC_PD, 0x02_0304),
        (Opcode::CREATE_GENERAL_OBJECT, 0x8102_0304),
        (Opcode::ALLOC_FLOW_COUNTER, 0x8102_0304),
        (Opcode::ALLOC_MODIFY_HEADER_CONTEXT, 0x8102_0304),
    ] {
        let input = command(opcode.0, 0x99, 0x110);
        let created =
            rules::created_object(&input, &output).expect("the command creates an object");
        assert_eq!(created.id.number, number, "{opcode:?}");
        assert_eq!(rules::destroyed_number(&created.destroy), Some(number), "{opcode:?}");
    }
}

#[test]
fn unreportable_object_is_destroyed() {
    let fixture = Fixture::new();
    let input = command(Opcode::ALLOC_PD.0, 0, 16);
    let mut request = Request::new(0x1001, 0x1000)
        .handle(0x1000, 0)
        .input(0x1001, &input)
        .raw(0x1002, 16, 1, 0, 8);
    assert_eq!(request.send(&fixture.file), Err(Errno::EFAULT));
    assert_eq!(fixture.device.count(Opcode::DEALLOC_PD.0), 1);
    assert_eq!(fixture.destroy(0x1001, 0), Err(Errno::ENOENT));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn refused_destroy_keeps_handle() {
    let fixture = Fixture::new();
    let pd = fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("a PD");
    for (status, errno) in
        [(6, Errno::EBUSY), (5, Errno::EINVAL), (8, Errno::ENOMEM), (1, Errno::EIO)]
    {
        fixture.device.refuse_next(Opcode::DEALLOC_PD.0, status);
        assert_eq!(fixture.destroy(0x1001, pd), Err(errno), "status {status}");
    }
    assert_eq!(fixture.destroy(0x1001, pd), Ok(()));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn without_devx_only_cap_and_vport_queries_pass() {
    let fixture = Fixture::without_context(Device::new());
    fixture.get_context(0).expect("a context");
    assert_eq!(other(&fixture, &command(Opcode::QUERY_HCA_CAP.0, 0, 16)), Ok(()));
    let sent = fixture.device.last(Opcode::QUERY_HCA_CAP.0).expect("the command was passed");
    assert_ne!(uid(&sent), 0, "the kernel's spare uid replaces it");
    assert_eq!(other(&fixture, &command(Opcode::QUERY_ADAPTER.0, 0, 16)), Err(Errno::EINVAL));
    assert_eq!(fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)), Err(Errno::EINVAL));
    let (_memory, address) = super::support::buffer(1);
    assert_eq!(fixture.umem(address, 4096, 1, None), Err(Errno::EINVAL));
    let channel = fixture.channel(0).expect("channels need no DevX");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&channel) as u64;
    let mut subscribe = Request::new(0x1000, 0x1003).handle(0x1000, fd).input(0x1002, &[9, 0]);
    assert_eq!(subscribe.send(&fixture.file), Err(Errno::EINVAL));
}

#[test]
fn file_without_context_creates_nothing() {
    let fixture = Fixture::without_context(Device::new());
    assert_eq!(other(&fixture, &command(Opcode::QUERY_HCA_CAP.0, 0, 16)), Err(Errno::EINVAL));
    assert_eq!(fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)), Err(Errno::EINVAL));
    assert_eq!(fixture.channel(0).map(drop), Err(Errno::EINVAL));
    let protection = verbless_devx::Protection::Write;
    assert_eq!(fixture.file.mmap(0, 4096, protection).map(drop), Err(Errno::EINVAL));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn query_eqn_maps_vector_to_eqn() {
    let fixture = Fixture::new();
    let query = |vector: u32| {
        let mut number = [0; 4];
        Request::new(0x1000, 0x1002)
            .input(0x1000, &vector.to_ne_bytes())
            .output(0x1001, &mut number)
            .send(&fixture.file)
            .map(|()| u32::from_ne_bytes(number))
    };
    assert_eq!(query(0), Ok(EQN));
    assert_eq!(query(1), Ok(EQN + 1));
    assert_eq!(query(2), Err(Errno::EINVAL), "the device has three vectors, one for other events");
    assert_eq!(query(0x1_0001), Ok(EQN + 1), "the kernel takes 16 bits of it");
    assert_eq!(query(u32::MAX), Err(Errno::EINVAL));
}

#[test]
fn async_query_answers_by_record() {
    use std::io::Read;
    let fixture = Fixture::new();
    let qp = fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("a QP");
    let number = (FIRST..FIRST + 16)
        .find(|&number| {
            on_object(&fixture, 0x1003, qp, &command(Opcode::QUERY_QP.0, number, 16)).is_ok()
        })
        .expect("the QP has a number");
    let mut alloc = Request::new(0x1004, 0x1000).handle(0x1000, 0);
    assert_eq!(alloc.send(&fixture.file), Ok(()));
    let query = |opcode: u16, length: u64| {
        let input = command(opcode, number, 16);
        Request::new(0x1001, 0x1004)
            .handle(0x1000, qp)
            .input(0x1001, &input)
            .handle(0x1002, alloc.data(0))
            .number(0x1003, 0x1122_3344_5566_7788)
            .number(0x1004, length)
            .send(&fixture.file)
    };
    assert_eq!(query(Opcode::QUERY_CQ.0, 272), Err(Errno::EINVAL));
    assert_eq!(query(Opcode::RST2INIT_QP.0, 272), Err(Errno::EINVAL));
    assert_eq!(query(Opcode::QUERY_QP.0, 0x1_0000), Err(Errno::EINVAL));
    assert_eq!(query(Opcode::QUERY_QP.0, 272), Ok(()));
    fixture.device.refuse_next(Opcode::QUERY_QP.0, 5);
    assert_eq!(query(Opcode::QUERY_QP.0, 16), Ok(()), "a refusal is an answer too");
    let mut file = std::fs::File::from(fixture.take_fd(alloc.data(0)));
    let mut record = [0xff; 512];
    assert_eq!(file.read(&mut record).expect("a record"), 8 + 272);
    assert_eq!(record[..9], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0]);
    assert_eq!(file.read(&mut record).expect("a record"), 8 + 16);
    assert_eq!(record[8], 5);
    for _ in 0..17 {
        assert_eq!(query(Opcode::QUERY_QP.0, 0xf000), Ok(()));
    }
    let left = (1 << 20) - 17 * 0xf000;
    for (length, expected) in
        [(left + 1, Err(Errno::EAGAIN)), (left, Ok(())), (16, Err(Errno::EAGAIN))]
    {
        assert_eq!(
            query(Opcode::QUERY_QP.0, length),
            expected,
            "no more than 1 MiB waits: {length}"
        );
    }
}

#[test]
fn async_query_without_room_for_its_record_fails() {
    let filter = Arc::new(Account::with(ResourcePool::of([100, 100, 0, 0])));
    let fixture = Fixture::of_client(Device::new(), TestClient::with(filter));
    super::support::get_context(&fixture.file, 1).expect("a context");
    let qp = fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("a QP");
    let names_qp = |number: &u32| {
        on_object(&fixture, 0x1003, qp, &command(Opcode::QUERY_QP.0, *number, 16)).is_ok()
    };
    let number = (FIRST..FIRST + 16).find(names_qp).expect("the QP has a number");
    let mut alloc = Request::new(0x1004, 0x1000).handle(0x1000, 0);
    assert_eq!(alloc.send(&fixture.file), Ok(()));
    let query = || {
        Request::new(0x1001, 0x1004)
            .handle(0x1000, qp)
            .input(0x1001, &command(Opcode::QUERY_QP.0, number, 16))
            .handle(0x1002, alloc.data(0))
            .number(0x1003, 1)
            .number(0x1004, 0xf000)
            .send(&fixture.file)
    };
    // The socket buffer holds some records.
    assert_eq!(query(), Ok(()));
    let refused = (0..16).map(|_| query()).find(|result| *result != Ok(()));
    assert_eq!(refused, Some(Err(Errno::ENOMEM)));
}

/// Linux 5.10 returns the errno of the status for a refused command, without the outbox.
#[test]
fn linux_5_10_hides_outbox_of_refused_command() {
    let fixture = Fixture::like(crate::KernelRelease::V5_10);
    let input = command(Opcode::QUERY_ADAPTER.0, 0, 16);
    for (status, errno) in [
        (0x3, Errno::EINVAL),
        (0x6, Errno::EBUSY),
        (0x8, Errno::ENOMEM),
        (0xf, Errno::EAGAIN),
        (0x51, Errno::EIO),
    ] {
        fixture.device.refuse_next(Opcode::QUERY_ADAPTER.0, status);
        let mut output = [0xff; 16];
        let mut request =
            Request::new(0x1000, 0x1000).input(0x1000, &input).output(0x1001, &mut output);
        assert_eq!(request.send(&fixture.file), Err(errno), "{status:#x}");
        assert_eq!(output, [0xff; 16], "{status:#x}");
    }
    fixture.device.refuse_next(Opcode::ALLOC_PD.0, 0x8);
    assert_eq!(fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)), Err(Errno::ENOMEM));
    let esw = command(Opcode::QUERY_ESW_FUNCTIONS.0, 0, 16);
    assert_eq!(other(&fixture, &esw), Err(Errno::EINVAL), "DevX does not pass it");
    assert_eq!(fixture.close(), 0);
}
