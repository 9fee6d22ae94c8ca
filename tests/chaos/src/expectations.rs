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
            .and_then(|()| self.questions(node, link, device));
        call(libc::SYS_close, [device, 0, 0, 0, 0, 0])?;
        call(libc::SYS_close, [other, 0, 0, 0, 0, 0])?;
        self.refuses(
            "a descriptor that was closed",
            Errno::EBADF,
            libc::SYS_ioctl,
            &[device, VERBS, 0],
        )?;
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
            ("a request at 0", 0),
            ("a request where nothing is", arena.nowhere()),
            ("a header with an end where nothing is", arena.nowhere() - 16),
            ("a request beyond all memory", u64::MAX - 7),
        ] {
            self.refuses(what, Errno::EFAULT, ioctl, &[device, VERBS, address])?;
        }
        for request in [0x1b00, 0x1b02, VERBS | 1 << 31, VERBS ^ 1 << 30, VERBS ^ 8 << 16] {
            if request != VERBS {
                self.refuses(
                    "another request",
                    Errno::ENOTTY,
                    ioctl,
                    &[device, request, arena.at(0)],
                )?;
            }
        }
        self.refuses("another file", Errno::ENOTTY, ioctl, &[other, VERBS, arena.at(0)])?;
        self.refuses("no descriptor", Errno::EBADF, ioctl, &[u64::MAX, VERBS, arena.at(0)])?;
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
                "a length that is not that of its attributes",
                Errno::EINVAL,
                device,
                &words,
            )?;
        }
        let good = header(24, OBJECT, METHOD, 0);
        self.request("a reserved word", Errno::EPROTONOSUPPORT, device, &[good, 1, 1])?;
        self.request(
            "another reserved word",
            Errno::EPROTONOSUPPORT,
            device,
            &[good, 0, 1 | 1 << 32],
        )?;
        self.request("another driver", Errno::EINVAL, device, &[good, 0, 2])?;
        let unknown = header(24, 0x77, METHOD, 0);
        self.request("an unknown object", Errno::EPROTONOSUPPORT, device, &[unknown, 0, 1])?;
        let unknown = header(24, OBJECT, 0x77, 0);
        self.request("an unknown method", Errno::EPROTONOSUPPORT, device, &[unknown, 0, 1])?;
        // The header is the last one that fits.
        let last = arena.len() - 24;
        arena.put(last + 8, 0);
        arena.put(last + 16, 1);
        let at = arena.read_only() - 24;
        self.hide(true)?;
        arena.put(last, header(24 + 16, OBJECT, METHOD, 1));
        let result = self
            .refuses("attributes where nothing is", Errno::EFAULT, ioctl, &[device, VERBS, at])
            .and_then(|()| {
                arena.put(last, header(24 + 16, OBJECT, METHOD, 2));
                let what = "a wrong length before attributes where nothing is";
                self.refuses(what, Errno::EINVAL, ioctl, &[device, VERBS, at])
            })
            .and_then(|()| {
                arena.put(last, header(24 + 16, 0x77, METHOD, 1));
                let what = "an unknown object before attributes where nothing is";
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
            "a device as a directory",
            Errno::ENOTDIR,
            open,
            &[path, libc::O_DIRECTORY as u64],
        )?;
        self.refuses("a device to be made", Errno::EEXIST, open, &[path, create])?;
        let path = self.path(&format!("{node}9999"));
        self.refuses("a device that is not there", Errno::ENOENT, open, &[path])?;
        let path = self.path(&format!("{node}/x"));
        self.refuses("something in a device", Errno::ENOTDIR, open, &[path])?;
        let path = self.path(&format!("/dev/infiniband/{}", "x".repeat(256)));
        self.refuses("a name of 256 letters", Errno::ENAMETOOLONG, open, &[path])?;
        arena.fill(LONG_PATH_AT, &[b'a'; 2 * PAGE as usize]);
        self.refuses(
            "a path without an end",
            Errno::ENAMETOOLONG,
            open,
            &[arena.at(LONG_PATH_AT)],
        )?;
        for (what, address) in [
            ("a path at 0", 0),
            ("a path where nothing is", arena.nowhere()),
            ("a path beyond all memory", u64::MAX - 7),
        ] {
            self.refuses(what, Errno::EFAULT, open, &[address])?;
        }
        let path = self.path("uverbs0");
        self.refuses("below no directory", Errno::EBADF, libc::SYS_openat, &[9999, path, 0])?;
        self.refuses(
            "below a file that is not a directory",
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
            ("no room for flags", Errno::EINVAL, [0, 0, 0], 0),
            ("too little room", Errno::EINVAL, [0, 0, 0], 16),
            ("a flag that there is not", Errno::EINVAL, [1 << 40, 0, 0], 24),
            ("a mode for nothing", Errno::EINVAL, [0, 0o600, 0], 24),
            ("a rule that there is not", Errno::EINVAL, [0, 0, 1 << 40], 24),
            ("a path that leads out", Errno::EXDEV, [0, 0, beneath], 24),
        ] {
            how.iter().enumerate().for_each(|(at, word)| arena.put(BUFFER + 8 * at as u64, *word));
            let arguments = [here, path, arena.at(BUFFER), size];
            self.refuses(what, expected, libc::SYS_openat2, &arguments)?;
        }
        let arguments = [here, path, arena.nowhere(), 24];
        self.refuses("flags where nothing is", Errno::EFAULT, libc::SYS_openat2, &arguments)
    }

    fn questions(&mut self, node: &str, link: &str, device: u64) -> Result<(), Stop> {
        let arena = self.arena;
        let (here, buffer) = (libc::AT_FDCWD as u64, arena.at(BUFFER));
        let path = self.path(node);
        for to in [0, arena.nowhere(), arena.read_only(), arena.nowhere() - 8] {
            let what = "an answer where it cannot be";
            self.refuses(what, Errno::EFAULT, plain::STAT, &[path, to])?;
            self.refuses(what, Errno::EFAULT, libc::SYS_fstat, &[device, to])?;
            self.refuses(what, Errno::EFAULT, libc::SYS_statx, &[here, path, 0, 0x7ff, to])?;
        }
        let odd = 0x4_0000;
        self.refuses("odd flags", Errno::EINVAL, libc::SYS_newfstatat, &[here, path, buffer, odd])?;
        self.refuses(
            "odd flags",
            Errno::EINVAL,
            libc::SYS_statx,
            &[here, path, odd, 0x7ff, buffer],
        )?;
        let reserved = 0x8000_0000;
        let arguments = [here, path, 0, reserved, buffer];
        self.refuses("a reserved mask", Errno::EINVAL, libc::SYS_statx, &arguments)?;
        let both = 0x6000;
        let arguments = [here, path, both, 0x7ff, buffer];
        self.refuses("two ways to be fresh", Errno::EINVAL, libc::SYS_statx, &arguments)?;
        self.refuses("an odd right", Errno::EINVAL, plain::ACCESS, &[path, 8])?;
        self.refuses("odd flags", Errno::EINVAL, libc::SYS_faccessat2, &[here, path, 0, odd])?;
        self.refuses("a device as a program", Errno::EACCES, plain::ACCESS, &[path, 1])?;
        self.refuses("a device as a link", Errno::EINVAL, plain::READLINK, &[path, buffer, 64])?;
        let path = self.path(link);
        for room in [0, 1 << 31, 0xffff_ffff] {
            self.refuses("no room", Errno::EINVAL, plain::READLINK, &[path, buffer, room])?;
        }
        let arguments = [path, arena.nowhere(), 64];
        self.refuses("a link where it cannot be", Errno::EFAULT, plain::READLINK, &arguments)
    }
}
