//! A process's mappings and mounts from `/proc/PID/maps` and `/proc/PID/mountinfo`, and the check
//! whether a memory range can be pinned.
//!
//! The process controls the number and length of the lines, and the bytes of each name. [`Lines`]
//! keeps one line at a time, truncates long ones, and reads a bounded number of bytes.

pub(crate) mod procmap;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::ops::Range;

use nix::errno::Errno;

use self::procmap::Query;
use super::page::PAGE;
use super::refused::io_errno;
use super::refused::refused;

/// Bytes kept of a line of `/proc/PID/maps`: the mapping, and the start of its name.
const MAPS_LINE: usize = 512;
/// Bytes kept of a line of `/proc/PID/mountinfo`: the file system type follows two paths of 4 KiB,
/// with up to four bytes per character.
const MOUNTS_LINE: usize = 64 << 10;
/// Bytes of a read. The kernel fills one page of these files per read, and walks to its start.
const BUFFER: usize = 64 << 10;
/// Maximum bytes of one of these files: 65,530 mappings, Linux's default limit, with
/// names of 4 KiB.
const MAX_BYTES: usize = 256 << 20;

/// The lines of a file, truncated.
struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    longest: usize,
    /// Bytes that may still be read.
    left: usize,
}

impl<R: Read> Lines<R> {
    fn new(input: R, longest: usize, most: usize) -> Self {
        Self {
            input: BufReader::with_capacity(BUFFER, input),
            line: Vec::new(),
            longest,
            left: most,
        }
    }

    /// The next line, without its newline; `None` at the end. ENOMEM: the file is too long.
    fn next(&mut self) -> Result<Option<&[u8]>, Errno> {
        self.line.clear();
        let mut has_begun = false;
        loop {
            let bytes = match self.input.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(io_errno(error)),
            };
            if bytes.is_empty() {
                return Ok(has_begun.then_some(&self.line));
            }
            has_begun = true;
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            let kept = part.len().min(self.longest - self.line.len());
            self.line.extend_from_slice(&part[..kept]);
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            self.left = self.left.checked_sub(used).ok_or_else(|| {
                let words = "the process's list of mappings or mounts is longer than 256 MiB: \
                             unmap or unmount some";
                refused(Errno::ENOMEM, words)
            })?;
            if end.is_some() {
                return Ok(Some(&self.line));
            }
        }
    }
}

/// The mappings of a process in order, read from `/proc/PID/maps`.
pub struct Mappings<R>(Lines<R>);

impl<R: Read> Mappings<R> {
    /// Reads the mappings from a file at its start.
    pub fn of(maps: R) -> Self {
        Self(Lines::new(maps, MAPS_LINE, MAX_BYTES))
    }

    /// Range of the next mapping, and whether it is writable; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read (the system's errno), does not list mappings (EFAULT) or is too long
    /// (ENOMEM).
    pub fn next_range(&mut self) -> Result<Option<(Range<u64>, bool)>, Errno> {
        Ok(self.mapping_from(0)?.map(|mapping| (mapping.start..mapping.end, mapping.write)))
    }
}

/// The mappings of a process, by ascending addresses.
pub(super) trait Source {
    /// The first mapping that ends above `address`, which rises from call to call.
    fn mapping_from(&mut self, address: u64) -> Result<Option<Mapping<'_>>, Errno>;
}

impl<R: Read> Source for Mappings<R> {
    fn mapping_from(&mut self, address: u64) -> Result<Option<Mapping<'_>>, Errno> {
        loop {
            let Some(line) = self.0.next()? else { return Ok(None) };
            if Mapping::parse(line).ok_or(Errno::EFAULT)?.end > address {
                break;
            }
        }
        Mapping::parse(&self.0.line).map(Some).ok_or(Errno::EFAULT)
    }
}

/// A mapping of a process.
pub(super) struct Mapping<'a> {
    pub start: u64,
    pub end: u64,
    pub read: bool,
    pub write: bool,
    pub shared: bool,
    /// Major and minor number of the file system's device.
    pub device: (u32, u32),
    /// The start of the name, in the file system's bytes.
    pub path: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// Parses a line of `/proc/PID/maps`.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let (start, end) = text(words.next()?)?.split_once('-')?;
        let flags = words.next()?;
        let (major, minor) = text(words.nth(1)?)?.split_once(':')?;
        let path = words.nth(1).unwrap_or_default().trim_ascii_start();
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            read: flags.first() == Some(&b'r'),
            write: flags.get(1) == Some(&b'w'),
            shared: flags.get(3) == Some(&b's'),
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            path,
        })
    }

    /// Whether it is a shared mapping of a file that a program can open. Files of kernel-internal
    /// mounts are in memory.
    fn is_of_a_file(&self) -> bool {
        let internal = ["/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage", "[anon"];
        self.shared
            && !self.path.is_empty()
            && !internal.iter().any(|prefix| self.path.starts_with(prefix.as_bytes()))
    }

    fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.path)
    }
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

/// Per device: whether the file system is in memory, that is, tracks no dirty pages.
type InMemory = BTreeMap<(u32, u32), bool>;

fn read_mounts(mounts: impl Read) -> Result<InMemory, Errno> {
    let (mut lines, mut found) = (Lines::new(mounts, MOUNTS_LINE, MAX_BYTES), InMemory::new());
    while let Some(line) = lines.next()? {
        if let Some((device, in_memory)) = parse_mount(line) {
            found.entry(device).or_insert(in_memory);
        }
    }
    Ok(found)
}

fn parse_mount(line: &[u8]) -> Option<((u32, u32), bool)> {
    let mut words = line.split(|&byte| byte == b' ');
    let (major, minor) = text(words.nth(2)?)?.split_once(':')?;
    let kind = words.skip_while(|&word| word != b"-").nth(1)?;
    let in_memory = [&b"tmpfs"[..], b"ramfs", b"hugetlbfs", b"devtmpfs"].contains(&kind);
    Some(((major.parse().ok()?, minor.parse().ok()?), in_memory))
}

/// Attempts before a range counts as not pinnable.
const MAX_ATTEMPTS: usize = 3;

/// Whether a long-term pin of a range (address, length) would succeed, by the process's mappings
/// and mounts, and by `probe`. `open` opens `maps` or `mountinfo` of the process; `mountinfo` is
/// read at most once. Asks the kernel for the range's mappings; a kernel that cannot answer
/// (`procmap`) lists all.
///
/// As in the kernel, every page must be mapped and readable. A pin for writing also needs writable
/// pages, and no shared mapping of a file with dirty tracking: the kernel would miss the device's
/// writes (`mm/gup.c`, `writeable_file_mapping_allowed`). Shared memory (memfd, tmpfs, hugetlbfs)
/// has no dirty tracking.
///
/// # Errors
/// EFAULT: the pin would fail; ENOMEM: the process has too many mappings or mounts; errors of
/// `open` and `probe`.
pub fn check_pin(
    open: impl Fn(&str) -> Result<File, Errno>,
    probe: impl FnMut() -> Result<(), Errno>,
    range: (u64, u64),
    writable: bool,
) -> Result<(), Errno> {
    let check = |known: &mut Option<InMemory>| {
        let maps = open("maps")?;
        let mut mounts = (known, || open("mountinfo"));
        match check_mappings(&mut Query::of(&maps), &mut mounts, range, writable) {
            Err(procmap::UNSUPPORTED) => {
                check_mappings(&mut Mappings::of(&maps), &mut mounts, range, writable)
            }
            checked => checked,
        }
    };
    check_repeatedly(check, probe)
}

/// `check` gets the mounts that an earlier attempt read.
fn check_repeatedly(
    check: impl Fn(&mut Option<InMemory>) -> Result<(), Errno>,
    mut probe: impl FnMut() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut mounts = None;
    with_retries(|| {
        check(&mut mounts)?;
        probe()
    })
}

/// Repeats the check `attempt` of a range; EFAULT only if every attempt fails.
///
/// The process's other threads change mappings while the list is read line by line. Once, a check
/// failed for a range that stayed mapped, for an unknown reason; the log records further cases.
fn with_retries(mut attempt: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for missed in 0..MAX_ATTEMPTS - 1 {
        let seen = attempt();
        if seen != Err(Errno::EFAULT) {
            if missed > 0 {
                tracing::warn!(missed, ?seen, "a range to pin was found unmapped at first");
            }
            return seen;
        }
    }
    attempt()
}

/// `mounts`: the known mounts, and how to open the file that lists them.
fn check_mappings<R: Read>(
    maps: &mut impl Source,
    mounts: &mut (&mut Option<InMemory>, impl Fn() -> Result<R, Errno>),
    (address, length): (u64, u64),
    writable: bool,
) -> Result<(), Errno> {
    let (known, open_mounts) = mounts;
    let mut next = address & !(PAGE - 1);
    let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
    while next < end {
        let Some(mapping) = maps.mapping_from(next)? else { return Err(Errno::EFAULT) };
        let allowed = if writable { mapping.write } else { mapping.read };
        if mapping.start > next || !allowed {
            return Err(Errno::EFAULT);
        }
        if writable && mapping.is_of_a_file() {
            let mounts = match known {
                Some(mounts) => mounts,
                None => known.insert(read_mounts(open_mounts()?)?),
            };
            // If the mount is unknown, the mapping comes from another mount namespace.
            let in_memory = mounts.get(&mapping.device).copied();
            if !in_memory.unwrap_or_else(|| mapping.path.starts_with(b"/dev/shm/")) {
                let words = format!(
                    "a shared mapping of a file on disk cannot be pinned for writing: {} at \
                     {next:#x}; map it MAP_PRIVATE, or a file of a tmpfs",
                    mapping.name()
                );
                return Err(refused(Errno::EFAULT, words));
            }
        }
        next = mapping.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::refused;
    use super::*;

    const MAPS: &str = "\
1000-3000 r--p 00000000 00:00 0
3000-5000 rw-p 00000000 00:00 0 [heap]
5000-6000 rw-s 00000000 fe:01 77                         /tmp/on disk
6000-7000 rw-s 00000000 00:01 78                         /memfd:ring (deleted)
7000-8000 ---p 00000000 00:00 0
a000-b000 rw-p 00000000 00:00 0
c000-d000 rw-s 00000000 00:1f 79                         /run/user/1000/ring
d000-e000 rw-s 00000000 00:20 80                         /dev/shm/on disk
e000-f000 rw-s 00000000 00:21 81                         /dev/shm/of another's mounts
f000-10000 rw-s 00000000 fe:01 82                        /dev/zero (deleted)";

    /// `fe:01` is 254:1, `00:1f` is 0:31; the last has optional fields.
    const MOUNTS: &str = "\
27 1 254:1 / / rw,relatime - ext4 /dev/vda rw
31 27 0:31 / /run/user/1000 rw,nosuid shared:7 master:2 - tmpfs tmpfs rw,size=4k
32 27 0:32 / /dev/shm rw - overlay overlay rw";

    /// The check with these lists; `reads` counts how often each is read.
    fn check(
        (maps, mounts): (&[u8], &[u8]),
        range: (u64, u64),
        writable: bool,
        reads: &Cell<(u32, u32)>,
    ) -> Result<(), Errno> {
        let open = |name: &str| {
            let (of_maps, of_mounts) = reads.get();
            let (counts, text) = match name {
                "maps" => ((of_maps + 1, of_mounts), maps),
                _ => ((of_maps, of_mounts + 1), mounts),
            };
            reads.set(counts);
            Ok(text)
        };
        let check = |known: &mut _| {
            let mut mounts = (known, || open("mountinfo"));
            check_mappings(&mut Mappings::of(open("maps")?), &mut mounts, range, writable)
        };
        check_repeatedly(check, || Ok(()))
    }

    const LISTS: (&[u8], &[u8]) = (MAPS.as_bytes(), MOUNTS.as_bytes());

    #[test]
    fn pin_follows_mapping_permissions() {
        let cases = [
            (0x1000, 0x4000, false, Ok(())),
            (0x1000, 0x4000, true, Err(Errno::EFAULT)),
            (0x3000, 0x2000, true, Ok(())),
            (0x3fff, 1, true, Ok(())),
            (0x5000, 0x1000, false, Ok(())),
            (0x5000, 0x1000, true, Err(Errno::EFAULT)),
            (0x6000, 0x1000, true, Ok(())),
            (0x6fff, 2, false, Err(Errno::EFAULT)),
            (0x8000, 1, false, Err(Errno::EFAULT)),
            (0xa000, 0x1001, true, Err(Errno::EFAULT)),
            (0xfff, 2, false, Err(Errno::EFAULT)),
            (0xc000, 0x1000, true, Ok(())),
            (0xd000, 0x1000, true, Err(Errno::EFAULT)),
            (0xd000, 0x1000, false, Ok(())),
            (0xe000, 0x2000, true, Ok(())),
            (u64::MAX, 2, false, Err(Errno::EFAULT)),
        ];
        for (address, length, writable, expected) in cases {
            let got = check(LISTS, (address, length), writable, &Cell::default());
            assert_eq!(got, expected, "{address:#x}+{length:#x} writable={writable}");
        }
    }

    #[test]
    fn pin_of_a_file_on_disk_names_the_rule() {
        refused::take();
        assert_eq!(check(LISTS, (0x5000, 8), true, &Cell::default()), Err(Errno::EFAULT));
        let (_, words) = refused::take().expect("a reason");
        let rule = "a shared mapping of a file on disk cannot be pinned for writing: /tmp/on disk";
        assert!(words.starts_with(rule), "{words}");
        assert_eq!(check(LISTS, (0x7000, 8), true, &Cell::default()), Err(Errno::EFAULT));
        assert_eq!(refused::take(), None);
    }

    #[test]
    fn mounts_are_read_once_for_a_pin() {
        let reads = Cell::default();
        let shared = |at: u32| format!("{at:x}000-{:x}000 rw-s 0 00:1f 79 /run/ring\n", at + 1);
        let maps: String = (1..=100).map(shared).collect();
        let lists = (maps.as_bytes(), MOUNTS.as_bytes());
        assert_eq!(check(lists, (0x1000, 100 << 12), true, &reads), Ok(()));
        assert_eq!(reads.replace((0, 0)), (1, 1));
        // Each attempt reads to the end of the mappings.
        assert_eq!(check(lists, (0x1000, 101 << 12), true, &reads), Err(Errno::EFAULT));
        assert_eq!(reads.replace((0, 0)), (3, 1));
        assert_eq!(check(lists, (0x1000, 100 << 12), false, &reads), Ok(()));
        assert_eq!(reads.get(), (1, 0));
    }

    #[test]
    fn mapping_name_may_be_any_bytes_of_any_length() {
        let mut maps =
            b"1000-2000 rw-p 0 fe:01 7 /tmp/\xff\xfe\n2000-3000 rw-s 0 fe:01 8 /".to_vec();
        maps.resize(1 << 20, 0xff);
        maps.extend(b"\n3000-4000 rw-p 0 00:00 0\n");
        let pin = |address, writable| {
            check((&maps, MOUNTS.as_bytes()), (address, 0x1000), writable, &Cell::default())
        };
        assert_eq!(
            (pin(0x1000, true), pin(0x2000, false), pin(0x3000, true)),
            (Ok(()), Ok(()), Ok(()))
        );
        refused::take();
        assert_eq!(pin(0x2000, true), Err(Errno::EFAULT));
        let (_, words) = refused::take().expect("a reason");
        assert!(words.contains('\u{fffd}') && words.len() < 4 * MAPS_LINE, "{words}");
    }

    #[test]
    fn lines_are_cut_and_bounded() {
        let text = b"abcdef\n\nabc\nabcdefgh";
        let mut lines = Lines::new(&text[..], 4, text.len());
        let all: Vec<_> =
            std::iter::from_fn(|| lines.next().expect("the list is short").map(<[u8]>::to_vec))
                .collect();
        assert_eq!(all, [&b"abcd"[..], b"", b"abc", b"abcd"]);
        // Truncated bytes count.
        let mut lines = Lines::new(&text[..], 4, text.len() - 1);
        (0..3).for_each(|_| assert!(lines.next().is_ok()));
        refused::take();
        assert_eq!(lines.next(), Err(Errno::ENOMEM));
        assert!(refused::take().is_some_and(|(_, words)| words.contains("256 MiB")));
        // An endless line counts.
        let mut lines = Lines::new(std::io::repeat(b'x'), 4, 1 << 20);
        assert_eq!(lines.next(), Err(Errno::ENOMEM));
        assert!(lines.line.capacity() <= 8);
    }

    #[test]
    fn file_system_type_is_found_behind_long_paths() {
        let path = "\\040".repeat(4096);
        let mount = |kind| format!("27 1 0:31 {path} {path} rw shared:7 - {kind} x rw\n");
        for (kind, in_memory) in [("tmpfs", true), ("ext4", false)] {
            let found = read_mounts(mount(kind).as_bytes()).expect("the list is short");
            assert_eq!(found, [((0, 31), in_memory)].into(), "{kind}");
        }
    }

    #[test]
    fn pin_fails_after_three_failed_lookups() {
        let fault = Err(Errno::EFAULT);
        for (answers, expected, left) in [
            (vec![Ok(()), fault], Ok(()), 1),
            (vec![fault, Ok(()), fault], Ok(()), 1),
            (vec![fault, fault, Ok(()), fault], Ok(()), 1),
            (vec![fault, fault, fault, Ok(())], fault, 1),
            (vec![fault, Err(Errno::ESRCH), Ok(())], Err(Errno::ESRCH), 1),
        ] {
            let mut answers = answers.into_iter();
            let got = with_retries(|| answers.next().expect("no more attempts than needed"));
            assert_eq!((got, answers.len()), (expected, left));
        }
    }
}
