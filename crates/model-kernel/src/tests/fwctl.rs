//! The control file, call by call: what Linux's fwctl passes, and each errno in Linux's order.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use proptest::prelude::*;
use verbless_prm::{COMMANDS, HcaCap, Opcode};

use super::super::client::Capability;
use super::super::fwctl::{Fwctl, is_offered};
use super::super::kernel::Kernel;
use super::super::{refused, rules};
use super::support::{Device, TestClient, buffer, command};
use crate::InProcess;
use crate::remote::FwctlFile;
use verbless_model::{Model, ObjectCounts, Profile};

const INFO: u32 = 0x9a00;
const RPC: u32 = 0x9a01;
const ACCESS_REGISTER: u16 = 0x805;
const ACCESS_REGISTER_USER: u16 = 0xb0c;
/// `enum fwctl_rpc_scope`.
const CONFIGURATION: u32 = 0;
const DEBUG_READ_ONLY: u32 = 1;
const DEBUG_WRITE: u32 = 2;
const DEBUG_WRITE_FULL: u32 = 3;

thread_local! {
    /// Why the last ioctl was refused.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

struct Fixture {
    device: Arc<Device>,
    client: Arc<TestClient>,
    control: Fwctl,
}

impl Fixture {
    /// A control file of a device that grants user contexts these privileges.
    fn new(uctx_cap: u32) -> Self {
        let mut caps = HcaCap::zeroed();
        caps.set_log_max_uctx(4);
        caps.set_uctx_cap(uctx_cap);
        let device = Arc::new(Device::with(caps, false));
        let kernel =
            Kernel::attach(device.clone(), Default::default()).expect("the device accepts it");
        let control = Fwctl::open(kernel).expect("a user context");
        Self { device, client: TestClient::new(), control }
    }

    /// An ioctl with the words of a structure, which it may change. A refused ioctl must have a
    /// reason, unless its address is unmapped.
    fn ioctl(&self, request: u32, words: &mut [u64]) -> Result<(), Errno> {
        refused::take();
        let result = self.control.ioctl(&*self.client, request, words.as_mut_ptr() as u64);
        let reason = refused::take();
        if let Err(errno) = result
            && errno != Errno::EFAULT
        {
            assert!(reason.is_some(), "{request:#x} is refused with {errno}, without a reason");
        }
        REASON.set(reason.map(|(_, words)| words.into_owned()));
        result
    }

    /// Why the last ioctl was refused.
    fn reason(&self) -> String {
        REASON.take().unwrap_or_default()
    }

    /// FWCTL_RPC of these mailboxes.
    fn rpc(&self, scope: u32, input: &[u8], output: &mut [u8]) -> Result<u32, Errno> {
        let mut words = rpc(scope, input.len(), output.len());
        words[2] = input.as_ptr() as u64;
        words[3] = output.as_mut_ptr() as u64;
        self.ioctl(RPC, &mut words).map(|()| (words[1] >> 32) as u32)
    }

    /// Whether a command is passed.
    fn passes(&self, scope: u32, opcode: u16, op_mod: u16) -> bool {
        let mut input = command(opcode, 0, 16);
        input[6..8].copy_from_slice(&op_mod.to_be_bytes());
        match self.rpc(scope, &input, &mut [0; 16]) {
            Ok(_) => true,
            Err(errno) => {
                assert_eq!(errno, Errno::EBADMSG, "{opcode:#x}");
                false
            }
        }
    }
}

/// `struct fwctl_rpc` without addresses.
fn rpc(scope: u32, in_len: usize, out_len: usize) -> [u64; 4] {
    [u64::from(scope) << 32 | 32, (out_len as u64) << 32 | in_len as u64, 0, 0]
}

/// The opcode and uid of the last command, if the device has had one with this opcode.
fn sent(device: &Device, opcode: u16) -> Option<Vec<u8>> {
    device.last(opcode)
}

#[test]
fn info_reports_uid_and_capabilities() {
    let fixture = Fixture::new(7);
    let create =
        sent(&fixture.device, Opcode::CREATE_UCTX.0).expect("the open created a user context");
    assert_eq!(create[0x10..0x14], [0, 0, 0, 4], "TOOLS_RESOURCES and nothing else");
    let mut data = [0xa5_u8; 24];
    let mut words = [24, 16 << 32, data.as_mut_ptr() as u64];
    fixture.ioctl(INFO, &mut words).expect("the request is valid");
    assert_eq!(words[1], 8 << 32 | 1, "8 bytes of mlx5");
    let uid = u32::from_ne_bytes(*data[..4].first_chunk().unwrap());
    assert!(uid != 0 && data[4..8] == 4_u32.to_ne_bytes(), "{data:x?}");
    assert!(data[8..16] == [0; 8] && data[16..] == [0xa5; 8], "the rest of the room is 0");
    // A caller without room gets no data.
    let mut words = [24, 0, 0];
    fixture.ioctl(INFO, &mut words).expect("the request is valid");
    assert_eq!(words[1], 1);
    let mut words = [24, 4 << 32, data.as_mut_ptr() as u64 + 16];
    fixture.ioctl(INFO, &mut words).expect("the request is valid");
    assert_eq!((words[1] >> 32, &data[20..]), (8, &[0xa5; 4][..]));
    assert_eq!(fixture.ioctl(INFO, &mut [24 | 1 << 32, 0, 0]), Err(Errno::EOPNOTSUPP));
    assert_eq!(fixture.ioctl(INFO, &mut [24, 8 << 32, 8]), Err(Errno::EFAULT));
    // Firmware that does not know the privilege grants none.
    let fixture = Fixture::new(3);
    let create =
        sent(&fixture.device, Opcode::CREATE_UCTX.0).expect("the open created a user context");
    assert_eq!(create[0x10..0x14], [0; 4]);
}

#[test]
fn oversized_structure_is_rejected() {
    let fixture = Fixture::new(7);
    let most = 2 << 20;
    let mut words = vec![0_u64; most / 8];
    words[0] = most as u64;
    assert_eq!(fixture.ioctl(INFO, &mut words), Ok(()));
    for size in [most as u64 + 1, u32::MAX.into()] {
        assert_eq!(fixture.ioctl(INFO, &mut [size, 0, 0]), Err(Errno::E2BIG), "{size} bytes");
        assert_eq!(fixture.ioctl(RPC, &mut [size, 0, 0, 0]), Err(Errno::E2BIG), "{size} bytes");
        let mut data = [0xa5_u8; 16];
        let result = fixture.ioctl(INFO, &mut [24, size << 32, data.as_mut_ptr() as u64]);
        assert_eq!((result, data), (Err(Errno::E2BIG), [0xa5; 16]), "room of {size} bytes");
    }
    let mut room = vec![0xa5_u8; most];
    let result = fixture.ioctl(INFO, &mut [24, (most as u64) << 32, room.as_mut_ptr() as u64]);
    assert!(result.is_ok() && room[8..].iter().all(|&byte| byte == 0), "{result:?}");
}

#[test]
fn longer_structure_must_be_zero_extended() {
    let fixture = Fixture::new(7);
    for (request, words, expected) in [
        (INFO, &mut [23, 0, 0, 0][..], Err(Errno::EINVAL)),
        (INFO, &mut [24, 0, 0, 1], Ok(())),
        (INFO, &mut [32, 0, 0, 0], Ok(())),
        (INFO, &mut [32, 0, 0, 1], Err(Errno::E2BIG)),
        (RPC, &mut [24, 0, 0, 0], Err(Errno::EINVAL)),
        (0x9a02, &mut [24, 0, 0, 0], Err(Errno::ENOTTY)),
        (0xc018_9a00, &mut [24, 0, 0, 0], Err(Errno::ENOTTY)),
    ] {
        assert_eq!(fixture.ioctl(request, words), expected, "{request:#x} {words:x?}");
    }
    assert_eq!(fixture.control.ioctl(&*fixture.client, INFO, 16), Err(Errno::EFAULT));
}

#[test]
fn rpc_checks_follow_kernel_order() {
    let fixture = Fixture::new(7);
    let (memory, mailbox) = buffer(1);
    let send = |scope, in_len, out_len, at: u64| {
        let mut words = rpc(scope, in_len, out_len);
        (words[2], words[3]) = (at, at);
        fixture.ioctl(RPC, &mut words)
    };
    const MAX_BYTES: usize = 2 << 20;
    // The check of the length comes first, then the scope, the input, its length, the command.
    assert_eq!(send(9, MAX_BYTES + 1, 0, 8), Err(Errno::EMSGSIZE));
    assert_eq!(send(9, 0, MAX_BYTES + 1, 8), Err(Errno::EMSGSIZE));
    assert_eq!(send(9, MAX_BYTES, 0, 8), Err(Errno::EOPNOTSUPP));
    assert_eq!(send(DEBUG_WRITE_FULL, 16, 16, 8), Err(Errno::EPERM));
    fixture.client.capabilities.store(1 << Capability::SysRawio as u32, Ordering::Relaxed);
    assert_eq!(send(DEBUG_WRITE_FULL, 16, 16, 8), Err(Errno::EFAULT));
    assert_eq!(send(CONFIGURATION, 15, 16, 8), Err(Errno::EFAULT));
    assert_eq!(send(CONFIGURATION, 15, 16, mailbox), Err(Errno::EMSGSIZE));
    assert_eq!(send(CONFIGURATION, 0, 16, 8), Err(Errno::EMSGSIZE));
    assert_eq!(send(CONFIGURATION, 16, 15, mailbox), Err(Errno::EMSGSIZE));
    assert_eq!(send(DEBUG_WRITE, 16, 16, mailbox), Err(Errno::EBADMSG), "opcode 0");
    let nop = command(Opcode::NOP.0, 0, 16);
    assert_eq!(fixture.rpc(DEBUG_READ_ONLY, &nop, &mut [0; 16]), Ok(16));
    let mut words = rpc(DEBUG_READ_ONLY, 16, 16);
    (words[2], words[3]) = (nop.as_ptr() as u64, 8);
    assert_eq!(
        fixture.ioctl(RPC, &mut words),
        Err(Errno::EFAULT),
        "the outbox's address is unmapped"
    );
    drop(memory);
}

#[test]
fn refusals_name_the_value_and_the_limit() {
    let fixture = Fixture::new(7);
    let nop = command(Opcode::NOP.0, 0, 16);
    let reason = |scope, input: &[u8], room: usize| {
        let errno =
            fixture.rpc(scope, input, &mut vec![0; room]).expect_err("the request is refused");
        format!("{errno:?}: {}", fixture.reason())
    };
    assert_eq!(
        reason(CONFIGURATION, &nop, 16),
        "EBADMSG: NOP is not passed through fwctl in scope 0: it needs scope 1 or higher"
    );
    let create = command(Opcode::CREATE_MKEY.0, 0, 16);
    assert!(reason(DEBUG_WRITE, &create, 16).ends_with("in scope 2: no scope passes it"));
    assert!(reason(7, &nop, 16).ends_with("there is no scope 7: scopes are 0 to 3"));
    let lengths = reason(DEBUG_READ_ONLY, &nop, 12);
    assert!(lengths.contains("inbox of 16 and an outbox of 12 bytes: one is shorter than 16"));
    fixture.ioctl(0x9a02, &mut [24, 0, 0]).expect_err("there is none");
    assert!(fixture.reason().contains("no ioctl 0x9a02: it has FWCTL_INFO (0x9a00)"));
    fixture.device.removed.store(true, Ordering::Relaxed);
    let removed = reason(DEBUG_READ_ONLY, &nop, 16);
    assert!(removed.ends_with("the device was removed or reset: close the file"), "{removed}");
}

#[test]
fn rpc_opcodes_are_limited_by_scope() {
    let fixture = Fixture::new(7);
    let passes = |scope, opcode: Opcode, op_mod| fixture.passes(scope, opcode.0, op_mod);
    for opcode in [
        Opcode::QUERY_HCA_CAP,
        Opcode::QUERY_ADAPTER,
        Opcode::QUERY_ROCE_ADDRESS,
        Opcode::QUERY_VUID,
        Opcode::SET_HCA_CAP,
    ] {
        assert!(passes(CONFIGURATION, opcode, 0), "{opcode:?}");
    }
    for opcode in [Opcode::NOP, Opcode::QUERY_QP, Opcode::QUERY_MKEY, Opcode::QUERY_PAGES] {
        assert!(!passes(CONFIGURATION, opcode, 0), "{opcode:?}");
        assert!(passes(DEBUG_READ_ONLY, opcode, 0), "{opcode:?}");
    }
    for opcode in [ACCESS_REGISTER, ACCESS_REGISTER_USER] {
        assert!(fixture.passes(CONFIGURATION, opcode, 0), "a write");
        assert!(!fixture.passes(CONFIGURATION, opcode, 1), "a read");
        assert!(fixture.passes(DEBUG_READ_ONLY, opcode, 1), "a read");
    }
    const SET_DIAGNOSTIC_PARAMS: u16 = 0x820;
    assert!(!fixture.passes(DEBUG_READ_ONLY, SET_DIAGNOSTIC_PARAMS, 0));
    assert!(fixture.passes(DEBUG_WRITE, SET_DIAGNOSTIC_PARAMS, 0));
    for command in COMMANDS {
        let changes = ["CREATE_", "ALLOC_", "DESTROY_", "DEALLOC_", "MODIFY_", "MANAGE_"];
        if changes.iter().any(|verb| command.name.starts_with(verb)) {
            assert!(!fixture.passes(DEBUG_WRITE, command.opcode, 0), "{}", command.name);
        }
    }
}

#[test]
fn rpc_stamps_uid_of_file() {
    let fixture = Fixture::new(7);
    let mut input = command(Opcode::QUERY_ADAPTER.0, 0, 16);
    input[2..4].copy_from_slice(&[0xde, 0xad]);
    let before = input.clone();
    fixture.rpc(CONFIGURATION, &input, &mut [0; 16]).expect("the command is passed");
    assert_eq!(input, before, "the caller's inbox is unchanged");
    let query = sent(&fixture.device, Opcode::QUERY_ADAPTER.0).expect("the device got the command");
    let uid = u16::from_be_bytes([query[2], query[3]]);
    assert!(uid != 0 && uid != 0xdead, "{uid:#x}");
    fixture.device.refuse_next(Opcode::QUERY_ADAPTER.0, 3);
    let mut output = [0xa5; 16];
    let answer = fixture.rpc(CONFIGURATION, &input, &mut output);
    assert_eq!((answer, output[0], &output[4..8]), (Ok(16), 3, &[0, 0, 0x12, 0x34][..]));
}

#[test]
fn uctx_is_destroyed_with_file() {
    let fixture = Fixture::new(7);
    let count = |device: &Device| device.count(Opcode::DESTROY_UCTX.0);
    fixture.device.alive.store(false, Ordering::Relaxed);
    let nop = command(Opcode::NOP.0, 0, 16);
    assert_eq!(fixture.rpc(DEBUG_READ_ONLY, &nop, &mut [0; 16]), Err(Errno::ENXIO));
    fixture.device.removed.store(true, Ordering::Relaxed);
    assert_eq!(fixture.rpc(DEBUG_READ_ONLY, &nop, &mut [0; 16]), Err(Errno::ENODEV));
    assert_eq!(fixture.ioctl(INFO, &mut [24, 0, 0]), Err(Errno::ENODEV));
    fixture.device.removed.store(false, Ordering::Relaxed);
    fixture.device.alive.store(true, Ordering::Relaxed);
    let Fixture { device, control, .. } = fixture;
    let before = count(&device);
    drop(control);
    assert_eq!(count(&device), before + 2, "the file's user context, and the kernel's unused one");
    assert_eq!(device.held(), 0);
}

#[test]
fn open_fails_if_create_uctx_fails() {
    let device = Device::new();
    let kernel = Kernel::attach(device.clone(), Default::default()).expect("the device accepts it");
    device.refuse_next(Opcode::CREATE_UCTX.0, 8);
    assert_eq!(Fwctl::open(kernel).err(), Some(Errno::ENOMEM));
}

#[test]
fn fwctl_is_offered_except_on_sub_functions() {
    assert!(is_offered(3, false) && !is_offered(0, false) && !is_offered(7, true));
    let profile = Profile::load("bluefield3").expect("the profile is built in");
    let model = Model::builder().device_with_topology(profile).stepped().build();
    let kinds: Vec<_> = model
        .all_devices()
        .iter()
        .map(|device| (device.on_card().role, FwctlFile::is_offered(device)))
        .collect();
    assert!(kinds.iter().any(|(role, _)| *role == verbless_model::Role::Sf));
    for (role, offered) in kinds {
        assert_eq!(offered, role != verbless_model::Role::Sf, "{role:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn random_fwctl_calls_leave_no_objects(
        calls in prop::collection::vec(
            (
                prop_oneof![Just(INFO), Just(RPC), any::<u32>()],
                prop_oneof![4 => Just(32_u32), 2 => Just(24), 1 => 0..5000_u32],
                prop_oneof![4 => 0..4_u32, 1 => any::<u32>()],
                prop_oneof![4 => 0..0x400_u32, 1 => any::<u32>()],
                prop_oneof![4 => 0..0x400_u32, 1 => any::<u32>()],
                0..3_u8,
                any::<prop::sample::Index>(),
                prop::collection::vec(any::<u8>(), 0..0x60),
            ),
            1..16,
        ),
    ) {
        let profile = Profile::load("bluefield3-fwctl").expect("the profile is built in");
        let model = Model::builder().device(profile).stepped().build();
        let control = FwctlFile::open(&InProcess::of(&model), 0).expect("the control file opens");
        let client = TestClient::new();
        let (memory, at) = buffer(4);
        for (request, size, scope, in_len, out_len, addresses, which, tail) in calls {
            let opcode = COMMANDS[which.index(COMMANDS.len())].opcode;
            let mut input = command(opcode, 0, 0x400);
            input[4..4 + tail.len()].copy_from_slice(&tail);
            let mut output = vec![0_u8; 0x400];
            let mut words = vec![0_u64; 5000 / 8 + 1];
            words[..2].copy_from_slice(&rpc(scope, in_len as usize, out_len as usize)[..2]);
            words[0] = words[0] & !0xffff_ffff | u64::from(size);
            // Addresses outside any Rust object, or unmapped ones.
            let (from, to) = match addresses {
                0 => (input.as_ptr() as u64, output.as_mut_ptr() as u64),
                1 => (at, at + 0x1000),
                _ => (u64::from(scope) % 4096, u64::from(in_len) % 4096),
            };
            let longest = in_len.max(out_len) as usize;
            if addresses == 0 && longest > 0x400 {
                continue;
            }
            if addresses == 1 && longest > 0x1000 {
                continue;
            }
            (words[2], words[3]) = if request == INFO { (to, 0) } else { (from, to) };
            let result = control.ioctl(&*client, request, words.as_mut_ptr() as u64);
            if result.is_ok() && request == RPC {
                prop_assert_ne!(rules::opcode(&input), Opcode::CREATE_MKEY);
            }
        }
        drop(memory);
        drop(control);
        prop_assert_eq!(model.counts(0), ObjectCounts::default());
    }
}
