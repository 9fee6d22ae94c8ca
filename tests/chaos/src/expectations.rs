//! The errno that Linux returns for calls with exactly one mistake, if it is certain.
//!
//! From `drivers/infiniband/core/uverbs_ioctl.c` (`ib_uverbs_ioctl`, `ib_uverbs_cmd_verbs`),
//! `fs/open.c`, `fs/stat.c`, `fs/namei.c` of Linux 6.1 to 6.12.

use nix::errno::Errno;
use verbless_conformance::{Stop, ensure};
use verbless_devx::abi::request::RDMA_VERBS_IOCTL;
use verbless_devx::{Backend, Kernel};

use crate::raw::{Arena, PAGE, call, plain};

const VERBS: u64 = RDMA_VERBS_IOCTL as u64;
/// GET_CONTEXT, an existing method.
const OBJECT: u64 = 0;
const METHOD: u64 = 3;
/// Offsets in the arena: a request, a path, an input or output structure.
const REQUEST: u64 = 0;
const PATH: u64 = PAGE;
const LONG_PATH_AT: u64 = 2 * PAGE;
const BUFFER: u64 = 6 * PAGE;

struct Expectations {
    arena: Arena,
    checked: u32,
    wrong: Vec<String>,
}

/// Makes every call, and fails if one returns another errno; returns the number of calls.
pub(crate) fn check(device: &str) -> Result<u32, Stop> {
    let arena = Arena::new()?;
    let mut expectations = Expectations { arena, checked: 0, wrong: Vec::new() };
    let devices = Kernel::new().enumerate()?;
    let info = devices.iter().find(|info| info.name == device);
    let node = info.ok_or_else(|| Stop::fail(format!("no device {device}")))?.node.clone();
    let result = expectations
        .all(&format!("/dev/infiniband/{node}"), &format!("/sys/class/infiniband/{device}"));
    arena.free()?;
    result?;
    ensure!(
        expectations.wrong.is_empty(),
        "results that differ from Linux's:\n{}",
        expectations.wrong.join("\n")
    );
    Ok(expectations.checked)
}

/// A header's first word.
fn header(length: u64, object: u64, method: u64, attributes: u64) -> u64 {
    length | object << 16 | method << 32 | attributes << 48
}

impl Expectations {
    fn all(&mut self, node: &str, link: &str) -> Result<(), Stop> {
        let path = self.path(node);
        let device = call(plain::OPEN, [path, libc::O_RDWR as u64, 0, 0, 0, 0])?;
        let other = call(plain::OPEN, [self.path("/dev/null"), 0, 0, 0, 0, 0])?;
        let result = self
            .requests(device, other)
            .and_then(|()| self.opens(node, other))
            .and_then(|()| self.file_status_calls(node, link, device));
        call(libc::SYS_close, [device, 0, 0, 0, 0, 0])?;
        call(libc::SYS_close, [other, 0, 0, 0, 0, 0])?;
        self.refuses("closed descriptor", Errno::EBADF, libc::SYS_ioctl, &[device, VERBS, 0])?;
        result
    }

    fn path(&self, path: &str) -> u64 {
        self.arena.fill(PATH, format!("{path}\0").as_bytes());
        self.arena.at(PATH)
    }

    fn refuses(
        &mut self,
        what: &str,
        expected: Errno,
        number: libc::c_long,
        arguments: &[u64],
    ) -> Result<(), Stop> {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        let got = call(number, all);
        if got != Err(expected) {
            self.wrong.push(format!(
                "{what}: system call {number} returns {got:?}; Linux returns {expected:?}"
            ));
        }
        self.checked += 1;
        Ok(())
    }

    /// Expects this errno for a request of these words.
    fn request(
        &mut self,
        what: &str,
        expected: Errno,
        device: u64,
        words: &[u64],
    ) -> Result<(), Stop> {
        words
            .iter()
            .enumerate()
            .for_each(|(at, word)| self.arena.put(REQUEST + 8 * at as u64, *word));
        self.refuses(what, expected, libc::SYS_ioctl, &[device, VERBS, self.arena.at(REQUEST)])
    }

    fn requests(&mut self, device: u64, other: u64) -> Result<(), Stop> {
        let (arena, ioctl) = (self.arena, libc::SYS_ioctl);
        for (what, address) in [
            ("request at NULL", 0),
            ("request in unmapped memory", arena.unmapped()),
            ("header that ends in unmapped memory", arena.unmapped() - 16),
            ("request at a kernel address", u64::MAX - 7),
        ] {
            self.refuses(what, Errno::EFAULT, ioctl, &[device, VERBS, address])?;
        }
        for request in [0x1b00, 0x1b02, VERBS | 1 << 31, VERBS ^ 1 << 30, VERBS ^ 8 << 16] {
            if request != VERBS {
                self.refuses(
                    "unknown ioctl number",
                    Errno::ENOTTY,
                    ioctl,
                    &[device, request, arena.at(0)],
                )?;
            }
        }
        self.refuses("ioctl of another file", Errno::ENOTTY, ioctl, &[other, VERBS, arena.at(0)])?;
        self.refuses("invalid descriptor", Errno::EBADF, ioctl, &[u64::MAX, VERBS, arena.at(0)])?;
        for (length, attributes) in [
            (0, 0),
            (8, 0),
            (23, 0),
            (32, 0),
            (24, 1),
            (40, 0),
            (40, 2),
            (4104, 255),
            (65528, 4094),
        ] {
            let words = [header(length, OBJECT, METHOD, attributes), 0, 1];
            self.request(
                "length that does not match the attribute count",
                Errno::EINVAL,
                device,
                &words,
            )?;
        }
        let good = header(24, OBJECT, METHOD, 0);
        self.request("first reserved word set", Errno::EPROTONOSUPPORT, device, &[good, 1, 1])?;
        self.request(
            "second reserved word set",
            Errno::EPROTONOSUPPORT,
            device,
            &[good, 0, 1 | 1 << 32],
        )?;
        self.request("driver_id of another driver", Errno::EINVAL, device, &[good, 0, 2])?;
        let unknown = header(24, 0x77, METHOD, 0);
        self.request("unknown object", Errno::EPROTONOSUPPORT, device, &[unknown, 0, 1])?;
        let unknown = header(24, OBJECT, 0x77, 0);
        self.request("unknown method", Errno::EPROTONOSUPPORT, device, &[unknown, 0, 1])?;
        // The header is the last one that fits.
        let last = arena.len() - 24;
        arena.put(last + 8, 0);
        arena.put(last + 16, 1);
        let at = arena.read_only() - 24;
        self.hide(true)?;
        arena.put(last, header(24 + 16, OBJECT, METHOD, 1));
        let result = self
            .refuses("attributes in unmapped memory", Errno::EFAULT, ioctl, &[device, VERBS, at])
            .and_then(|()| {
                arena.put(last, header(24 + 16, OBJECT, METHOD, 2));
                let what = "wrong length and attributes in unmapped memory";
                self.refuses(what, Errno::EINVAL, ioctl, &[device, VERBS, at])
            })
            .and_then(|()| {
                arena.put(last, header(24 + 16, 0x77, METHOD, 1));
                let what = "unknown object and attributes in unmapped memory";
                self.refuses(what, Errno::EPROTONOSUPPORT, ioctl, &[device, VERBS, at])
            });
        self.hide(false)?;
        result
    }

    /// Makes the page after the arena's last writable one unreadable, or readable again.
    fn hide(&self, hidden: bool) -> Result<(), Stop> {
        let protection = if hidden { libc::PROT_NONE } else { libc::PROT_READ } as u64;
        call(libc::SYS_mprotect, [self.arena.read_only(), PAGE, protection, 0, 0, 0])?;
        Ok(())
    }

    fn opens(&mut self, node: &str, other: u64) -> Result<(), Stop> {
        let (arena, open) = (self.arena, plain::OPEN);
        let path = self.path(node);
        let create = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR) as u64;
        self.refuses(
            "device opened with O_DIRECTORY",
            Errno::ENOTDIR,
            open,
            &[path, libc::O_DIRECTORY as u64],
        )?;
        self.refuses(
            "existing device opened with O_CREAT and O_EXCL",
            Errno::EEXIST,
            open,
            &[path, create],
        )?;
        let path = self.path(&format!("{node}9999"));
        self.refuses("missing device", Errno::ENOENT, open, &[path])?;
        let path = self.path(&format!("{node}/x"));
        self.refuses("path below a device", Errno::ENOTDIR, open, &[path])?;
        let path = self.path(&format!("/dev/infiniband/{}", "x".repeat(256)));
        self.refuses("name of 256 letters", Errno::ENAMETOOLONG, open, &[path])?;
        arena.fill(LONG_PATH_AT, &[b'a'; 2 * PAGE as usize]);
        self.refuses(
            "path without a terminator",
            Errno::ENAMETOOLONG,
            open,
            &[arena.at(LONG_PATH_AT)],
        )?;
        for (what, address) in [
            ("path at NULL", 0),
            ("path in unmapped memory", arena.unmapped()),
            ("path at a kernel address", u64::MAX - 7),
        ] {
            self.refuses(what, Errno::EFAULT, open, &[address])?;
        }
        let path = self.path("uverbs0");
        self.refuses(
            "path relative to an invalid descriptor",
            Errno::EBADF,
            libc::SYS_openat,
            &[9999, path, 0],
        )?;
        self.refuses(
            "path relative to a descriptor that is not a directory",
            Errno::ENOTDIR,
            libc::SYS_openat,
            &[other, path, 0],
        )?;
        self.opens_with_a_structure(node)
    }

    fn opens_with_a_structure(&mut self, node: &str) -> Result<(), Stop> {
        let (arena, path) = (self.arena, self.path(node));
        let here = libc::AT_FDCWD as u64;
        let beneath = libc::RESOLVE_BENEATH;
        for (what, expected, how, size) in [
            ("open_how of 0 bytes", Errno::EINVAL, [0, 0, 0], 0),
            ("open_how of 16 bytes", Errno::EINVAL, [0, 0, 0], 16),
            ("unknown open flag", Errno::EINVAL, [1 << 40, 0, 0], 24),
            ("mode without O_CREAT", Errno::EINVAL, [0, 0o600, 0], 24),
            ("unknown resolve flag", Errno::EINVAL, [0, 0, 1 << 40], 24),
            ("path outside RESOLVE_BENEATH", Errno::EXDEV, [0, 0, beneath], 24),
        ] {
            how.iter().enumerate().for_each(|(at, word)| arena.put(BUFFER + 8 * at as u64, *word));
            let arguments = [here, path, arena.at(BUFFER), size];
            self.refuses(what, expected, libc::SYS_openat2, &arguments)?;
        }
        let arguments = [here, path, arena.unmapped(), 24];
        self.refuses("open_how in unmapped memory", Errno::EFAULT, libc::SYS_openat2, &arguments)
    }

    fn file_status_calls(&mut self, node: &str, link: &str, device: u64) -> Result<(), Stop> {
        let arena = self.arena;
        let (here, buffer) = (libc::AT_FDCWD as u64, arena.at(BUFFER));
        let path = self.path(node);
        for to in [0, arena.unmapped(), arena.read_only(), arena.unmapped() - 8] {
            let what = "stat buffer in unmapped or read-only memory";
            self.refuses(what, Errno::EFAULT, plain::STAT, &[path, to])?;
            self.refuses(what, Errno::EFAULT, libc::SYS_fstat, &[device, to])?;
            self.refuses(what, Errno::EFAULT, libc::SYS_statx, &[here, path, 0, 0x7ff, to])?;
        }
        let odd = 0x4_0000;
        self.refuses(
            "unknown flags",
            Errno::EINVAL,
            libc::SYS_newfstatat,
            &[here, path, buffer, odd],
        )?;
        self.refuses(
            "unknown flags",
            Errno::EINVAL,
            libc::SYS_statx,
            &[here, path, odd, 0x7ff, buffer],
        )?;
        let reserved = 0x8000_0000;
        let arguments = [here, path, 0, reserved, buffer];
        self.refuses("reserved statx mask bit", Errno::EINVAL, libc::SYS_statx, &arguments)?;
        let both = 0x6000;
        let arguments = [here, path, both, 0x7ff, buffer];
        self.refuses("conflicting statx sync flags", Errno::EINVAL, libc::SYS_statx, &arguments)?;
        self.refuses("unknown access mode", Errno::EINVAL, plain::ACCESS, &[path, 8])?;
        self.refuses("unknown flags", Errno::EINVAL, libc::SYS_faccessat2, &[here, path, 0, odd])?;
        self.refuses("execute access to a device", Errno::EACCES, plain::ACCESS, &[path, 1])?;
        self.refuses("readlink of a device", Errno::EINVAL, plain::READLINK, &[path, buffer, 64])?;
        let path = self.path(link);
        for room in [0, 1 << 31, 0xffff_ffff] {
            self.refuses(
                "readlink buffer of invalid size",
                Errno::EINVAL,
                plain::READLINK,
                &[path, buffer, room],
            )?;
        }
        let arguments = [path, arena.unmapped(), 64];
        self.refuses(
            "readlink buffer in unmapped memory",
            Errno::EFAULT,
            plain::READLINK,
            &arguments,
        )
    }
}
