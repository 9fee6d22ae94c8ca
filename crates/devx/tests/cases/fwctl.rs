//! The control file of a function (`/dev/fwctl/fwctlN`): how it is found, its requests, and the
//! meaning of each refusal.
#![allow(unsafe_code, reason = "the fake kernel writes where requests point")]

use std::sync::{Arc, Mutex};

use crate::support::fake::{Fake, info};
use crate::support::tree::Tree;
use verbless_devx::abi::fwctl::{FWCTL_INFO, FWCTL_RPC, scope};
use verbless_devx::{
    Backend, Context, Errno, Error, ErrorKind, FwctlScope, Mapping, OpenDevice, OpenFwctl,
    Protection,
};

/// An ioctl as the kernel sees it, and how it answers.
type Decide = dyn Fn(u32, &mut [u64]) -> Result<(), Errno> + Send + Sync;

struct File(Box<Decide>);

// SAFETY: the answers write to outputs only.
unsafe impl OpenFwctl for File {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u64]) -> Result<(), Errno> {
        (self.0)(request, argument)
    }
}

/// A device with a control file, or with one that cannot be opened.
struct Device {
    verbs: Arc<Fake>,
    control: Result<Arc<File>, ErrorKind>,
}

// SAFETY: requests and answers are those of the fake.
unsafe impl OpenDevice for Device {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: the caller vouches for the request.
        unsafe { self.verbs.ioctl(request) }
    }

    fn page_size(&self) -> usize {
        self.verbs.page_size()
    }

    fn mmap(&self, _: u64, _: usize, _: Protection) -> Result<Mapping, Errno> {
        Err(Errno::EINVAL)
    }

    fn open_fwctl(&self) -> Result<Option<Arc<dyn OpenFwctl>>, Error> {
        match &self.control {
            Ok(file) => Ok(Some(file.clone())),
            Err(kind) => Err(Error::new(*kind, "opening it", "")),
        }
    }
}

fn context(
    decide: impl Fn(u32, &mut [u64]) -> Result<(), Errno> + Send + Sync + 'static,
) -> Context {
    let device =
        Device { verbs: Fake::new(|_, _| None), control: Ok(Arc::new(File(Box::new(decide)))) };
    Context::from_device(Arc::new(device), info()).unwrap()
}

/// Writes an answer to an address of a request.
fn write(address: u64, bytes: &[u8]) {
    // SAFETY: the caller of the request promises writable bytes, and the tests write no more.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[test]
fn fwctl_requests_match_kernel_headers() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let context = context(move |request, words| {
        log.lock().unwrap().push((request, words.to_vec()));
        match request {
            FWCTL_INFO => {
                write(words[2], &[9, 0, 0, 0, 5, 0, 0, 0]);
                words[1] = 8 << 32 | 1;
            }
            _ => write(words[3], &[0; 16]),
        }
        Ok(())
    });
    let control = context.fwctl().unwrap().unwrap();
    let info = control.info().unwrap();
    assert_eq!((info.uid, info.uctx_caps, info.has_tools_resources()), (9, 5, true));
    let (input, mut output) = ([0x01; 24], [0xa5; 40]);
    control.rpc(FwctlScope::DebugReadOnly, &input, &mut output).unwrap();
    assert_eq!((output[15], output[16]), (0, 0xa5));
    let seen = seen.lock().unwrap();
    let [(0x9a00, first), (0x9a01, second)] = &seen[..] else { panic!("{seen:x?}") };
    assert_eq!(first.len(), 3);
    assert_eq!((first[0], first[1]), (24, 8 << 32), "size 24, no flags, room for 8 bytes");
    assert_eq!(second.len(), 4);
    assert_eq!((low(second[0]), high(second[0])), (32, scope::DEBUG_READ_ONLY));
    assert_eq!((low(second[1]), high(second[1])), (24, 40));
    assert_eq!(second[2], input.as_ptr() as u64);
    assert_eq!(second[3], output.as_ptr() as u64);
}

#[test]
fn failed_rpc_reports_status_and_syndrome() {
    let context = context(|_, words| {
        write(words[3], &[0x2, 0, 0, 0, 0x12, 0x34, 0x56, 0x78]);
        Ok(())
    });
    let control = context.fwctl().unwrap().unwrap();
    let mut input = [0; 16];
    input[..2].copy_from_slice(&0x805_u16.to_be_bytes());
    let error = control.rpc(FwctlScope::Configuration, &input, &mut [0; 16]).unwrap_err();
    assert_eq!((error.kind(), error.status()), (ErrorKind::Command, Some(2)));
    assert_eq!((error.syndrome(), error.errno()), (Some(0x1234_5678), None));
    let text = error.to_string();
    assert!(text.contains("ACCESS_REGISTER (0x805) by FWCTL_RPC"), "{text}");
    assert!(text.contains("status 0x2 (BAD_OP)"), "{text}");
}

#[test]
fn rpc_errno_maps_to_kind_and_hint() {
    let errno = Arc::new(Mutex::new(Errno::EIO));
    let next = errno.clone();
    let context = context(move |_, _| Err(*next.lock().unwrap()));
    let control = context.fwctl().unwrap().unwrap();
    let send = |answer, scope| {
        *errno.lock().unwrap() = answer;
        let error = control.rpc(scope, &[0; 16], &mut [0; 16]).unwrap_err();
        assert_eq!(error.errno(), Some(answer));
        (error.kind(), error.to_string())
    };
    for (errno, kind, said) in [
        (Errno::EBADMSG, ErrorKind::Refused, "does not pass this command through fwctl"),
        (Errno::EMSGSIZE, ErrorKind::InvalidInput, "16 bytes to 2 MiB"),
        (Errno::EPERM, ErrorKind::Permission, "security module"),
        (Errno::EOPNOTSUPP, ErrorKind::Refused, "scope"),
        (Errno::ENODEV, ErrorKind::DeviceGone, "open it again"),
        (Errno::ENXIO, ErrorKind::DeviceGone, "open it again"),
        (Errno::ENOTTY, ErrorKind::Refused, "not a fwctl device"),
    ] {
        let (found, text) = send(errno, FwctlScope::DebugReadOnly);
        assert!(found == kind && text.contains(said), "{errno}: {found:?}: {text}");
    }
    let (_, text) = send(Errno::EBADMSG, FwctlScope::Configuration);
    assert!(text.contains("DebugReadOnly"), "{text}");
}

#[test]
fn rpc_rejects_mailbox_below_header_or_above_2_mib() {
    let context = context(|_, words| {
        write(words[3], &[0; 16]);
        Ok(())
    });
    let control = context.fwctl().unwrap().unwrap();
    let send = |input: usize, output: usize| {
        let (input, mut output) = (vec![0; input], vec![0; output]);
        control.rpc(FwctlScope::Configuration, &input, &mut output)
    };
    for (input, output, said) in [
        (15, 16, "input mailbox has 15"),
        (16, 0, "output mailbox has 0"),
        (16, (2 << 20) + 1, "2 MiB"),
    ] {
        let error = send(input, output).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.errno().is_none() && error.to_string().contains(said), "{error}");
    }
    send(16, 2 << 20).unwrap();
}

#[test]
fn answer_of_wrong_type_or_length_is_rejected() {
    let kind = Arc::new(Mutex::new((2_u64, 8_u64)));
    let next = kind.clone();
    let context = context(move |request, words| {
        let (kind, bytes) = *next.lock().unwrap();
        if request == FWCTL_RPC {
            words[1] = words[1] & 0xffff_ffff | bytes << 32;
        } else {
            words[1] = bytes << 32 | kind;
        }
        Ok(())
    });
    let control = context.fwctl().unwrap().unwrap();
    let error = control.info().unwrap_err();
    assert!(
        error.kind() == ErrorKind::InvalidResponse && error.to_string().contains("type 2"),
        "{error}"
    );
    *kind.lock().unwrap() = (1, 4);
    assert_eq!(control.info().unwrap_err().kind(), ErrorKind::InvalidResponse);
    let error = control.rpc(FwctlScope::Configuration, &[0; 16], &mut [0; 16]).unwrap_err();
    assert!(
        error.kind() == ErrorKind::InvalidResponse && error.to_string().contains("4 bytes"),
        "{error}"
    );
}

#[test]
fn failed_open_of_fwctl_file_is_retried() {
    let verbs = Fake::new(|_, _| None);
    let device = Device { verbs, control: Err(ErrorKind::Permission) };
    let context = Context::from_device(Arc::new(device), info()).unwrap();
    for _ in 0..2 {
        assert_eq!(context.fwctl().unwrap_err().kind(), ErrorKind::Permission);
    }
    let without = Context::from_device(Fake::new(|_, _| None), info()).unwrap();
    assert!(without.fwctl().unwrap().is_none());
}

/// A machine with one function, whose uverbs node can be opened.
fn machine() -> Tree {
    let tree = Tree::new();
    tree.function("0000:08:00.0", Some("mlx5_core"))
        .rdma("mlx5_0", "uverbs0", "pci0000:00/0000:08:00.0")
        .file("dev/uverbs0", "");
    tree
}

fn control_of(tree: &Tree) -> Result<Option<Arc<dyn OpenFwctl>>, Error> {
    let kernel = tree.kernel();
    let device = kernel.enumerate().unwrap().remove(0);
    kernel.open(&device).unwrap().open_fwctl()
}

#[test]
fn fwctl_node_is_found_in_sysfs() {
    let tree = machine();
    assert!(control_of(&tree).unwrap().is_none(), "the machine has no node");
    tree.directory("sys/devices/pci0000:00/0000:08:00.0/fwctl/fwctl7");
    let error = control_of(&tree).err().expect("the device has no fwctl node");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoDevice, Some(Errno::ENOENT)));
    let text = error.to_string();
    assert!(text.contains("fwctl/fwctl7") && text.contains("--device=/dev/fwctl"), "{text}");
    tree.file("fwctl/fwctl7", "");
    let file = control_of(&tree).unwrap().expect("the fwctl node exists");
    // SAFETY: no address is in it.
    let answer = unsafe { file.ioctl(FWCTL_INFO, &mut [24, 0, 0]) };
    assert_eq!(answer, Err(Errno::ENOTTY), "the node is a regular file");
}

#[test]
fn fwctl_file_stays_with_opened_function() {
    let tree = machine();
    tree.directory("sys/devices/pci0000:00/0000:08:00.0/fwctl/fwctl7");
    tree.function("0000:09:00.0", Some("mlx5_core"));
    tree.directory("sys/devices/pci0000:00/0000:09:00.0/fwctl/fwctl8");
    let kernel = tree.kernel();
    let opened = kernel.open(&kernel.enumerate().unwrap()[0]).unwrap();
    // The drivers reload and the numbers change.
    let link = "sys/class/infiniband_verbs/uverbs0/device";
    tree.unlink(link).link(link, "sys/devices/pci0000:00/0000:09:00.0");
    tree.file("fwctl/fwctl8", "");
    let error = opened.open_fwctl().err().expect("opened the other function's file");
    assert!(error.to_string().contains("fwctl/fwctl7"), "{error}");
    tree.file("fwctl/fwctl7", "");
    assert!(opened.open_fwctl().unwrap().is_some());
    assert!(control_of(&tree).unwrap().is_some(), "a new open finds the other function's");
}

#[test]
fn node_with_wrong_dev_number_is_rejected() {
    let tree = machine();
    tree.directory("sys/devices/pci0000:00/0000:08:00.0/fwctl/fwctl7");
    tree.directory("fwctl").link("fwctl/fwctl7", "/dev/null");
    tree.file("sys/devices/pci0000:00/0000:08:00.0/fwctl/fwctl7/dev", "1:3");
    assert!(control_of(&tree).unwrap().is_some(), "the number is its own");
    tree.file("sys/devices/pci0000:00/0000:08:00.0/fwctl/fwctl7/dev", "240:7");
    let error = control_of(&tree).err().expect("the number is another's");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Refused, None));
    assert!(error.to_string().contains("of another device"), "{error}");
}

#[test]
fn sf_has_no_fwctl_file_of_its_parent() {
    let tree = Tree::new();
    let parent = "pci0000:00/0000:08:00.0/mlx5_core.sf.2";
    tree.function("0000:08:00.0", Some("mlx5_core")).rdma("mlx5_2", "uverbs2", parent);
    tree.directory("sys/bus/auxiliary/drivers/mlx5_core.sf");
    tree.link(&format!("sys/devices/{parent}/driver"), "sys/bus/auxiliary/drivers/mlx5_core.sf");
    tree.directory("sys/devices/pci0000:00/0000:08:00.0/fwctl/fwctl0").file("fwctl/fwctl0", "");
    tree.file("dev/uverbs2", "");
    assert!(control_of(&tree).unwrap().is_none());
}
