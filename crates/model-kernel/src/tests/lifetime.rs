//! What becomes of everything when a file is closed, and of the kernel's own when the last file is.

use nix::errno::Errno;

use super::super::rules::{self, op};
use super::support::{Bench, Device, Request, buffer, command};

#[test]
fn closing_a_file_destroys_its_objects_newest_first() {
    let bench = Bench::new();
    let (_memory, address) = buffer(1);
    bench.umem(address, 4096, 1, None).expect("a UMEM");
    bench.create(&command(op::ALLOC_PD, 0, 16)).expect("a PD");
    bench.create(&command(op::CREATE_MKEY, 0, 0x110)).expect("a key");
    bench.create(&command(op::CREATE_QP, 0, 0x110)).expect("a QP");
    let device = bench.device.clone();
    assert_eq!(bench.close(), 0);
    let commands = device.commands.lock().expect("nobody panicked");
    let order: Vec<u16> = commands
        .iter()
        .map(|command| rules::opcode(command))
        .skip_while(|&opcode| opcode != op::DESTROY_QP)
        .collect();
    let expected = [
        op::DESTROY_QP,
        op::DESTROY_MKEY,
        op::DEALLOC_PD,
        op::DESTROY_UMEM,
        op::DEALLOC_TRANSPORT_DOMAIN,
        op::DESTROY_UCTX,
        op::DESTROY_UCTX,
        op::DESTROY_EQ,
        op::DESTROY_EQ,
        op::DESTROY_EQ,
        op::DEALLOC_UAR,
        op::TEARDOWN_HCA,
        op::DISABLE_HCA,
    ];
    assert_eq!(order, expected);
}

#[test]
fn closing_a_file_silences_its_queue_pairs_before_their_keys_go() {
    let bench = Bench::new();
    bench.create(&command(op::CREATE_QP, 0, 0x110)).expect("a QP");
    bench.create(&command(op::CREATE_QP, 0, 0x110)).expect("another QP");
    bench.create(&command(op::CREATE_MKEY, 0, 0x110)).expect("a key");
    let device = bench.device.clone();
    assert_eq!(bench.close(), 0);
    let commands = device.commands.lock().expect("nobody panicked");
    let order: Vec<u16> = commands
        .iter()
        .map(|command| rules::opcode(command))
        .filter(|opcode| [op::DESTROY_QP, op::DESTROY_MKEY].contains(opcode))
        .collect();
    assert_eq!(order, [op::DESTROY_QP, op::DESTROY_QP, op::DESTROY_MKEY]);
}

#[test]
fn an_object_that_is_still_in_use_is_tried_again() {
    let bench = Bench::new();
    bench.create(&command(op::ALLOC_PD, 0, 16)).expect("a PD");
    bench.create(&command(op::CREATE_QP, 0, 0x110)).expect("a QP");
    bench.device.refuse_next(op::DESTROY_QP, 6);
    let device = bench.device.clone();
    assert_eq!(bench.close(), 0);
    assert_eq!(device.count(op::DESTROY_QP), 2);
    assert_eq!(device.count(op::DEALLOC_PD), 1);
}

#[test]
fn handles_are_given_out_again_lowest_first() {
    let bench = Bench::new();
    let pd = || bench.create(&command(op::ALLOC_PD, 0, 16)).expect("a PD");
    assert_eq!((pd(), pd(), pd()), (0, 1, 2));
    assert_eq!(bench.destroy(0x1001, 1), Ok(()));
    assert_eq!((pd(), pd()), (1, 3));
    assert_eq!(bench.close(), 0);
}

#[test]
fn a_device_that_refuses_the_kernel_is_not_attached_and_keeps_nothing() {
    use super::super::kernel::Kernel;
    for opcode in [op::QUERY_HCA_CAP, op::ALLOC_UAR, op::CREATE_EQ, op::CREATE_UCTX] {
        let device = Device::new();
        device.refuse_next(opcode, 8);
        let result = Kernel::attach(device.clone()).map(drop);
        assert_eq!(result, Err(Errno::ENOMEM), "{opcode:#x}");
        assert_eq!(device.held(), 0, "{opcode:#x}");
    }
}

#[test]
fn two_files_of_one_device_know_nothing_of_each_other() {
    let bench = Bench::new();
    let second = super::super::file::File::new(bench.file.kernel.clone(), bench.client.clone());
    let pd = bench.create(&command(op::ALLOC_PD, 0, 16)).expect("a PD");
    let mut destroy = Request::new(0x1001, 0x1001).handle(0x1000, pd);
    assert_eq!(destroy.send(&second), Err(Errno::ENOENT));
    drop(second);
    assert_eq!(bench.destroy(0x1001, pd), Ok(()));
    assert_eq!(bench.close(), 0);
}
