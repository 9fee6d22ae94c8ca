//! One mapping of a process by its address: the ioctl PROCMAP_QUERY of `/proc/PID/maps`, since
//! Linux 6.11 (`include/uapi/linux/fs.h`). Its cost does not depend on the number of mappings.
#![allow(unsafe_code)] // a system call that no dependency wraps

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use super::{Mapping, Source};

/// Bytes of the longest name that the kernel returns.
const NAME: usize = 4096;

/// The error of a system without PROCMAP_QUERY, or one that cannot answer: read the list instead.
pub(super) const UNSUPPORTED: Errno = Errno::ENOTTY;

/// Flags of a query: the mapping at the address, or else the next one.
const COVERING_OR_NEXT: u64 = 0x10;
/// Flags of a mapping.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const SHARED: u64 = 8;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    access: u64,
    page: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

nix::ioctl_readwrite!(procmap_query, b'f', 17, ProcmapQuery);

/// The mappings in an open `/proc/PID/maps`.
pub(super) struct Query<'a> {
    maps: &'a File,
    name: Vec<u8>,
}

impl<'a> Query<'a> {
    pub(super) fn of(maps: &'a File) -> Self {
        Self { maps, name: Vec::new() }
    }
}

impl Source for Query<'_> {
    fn mapping_from(&mut self, address: u64) -> Result<Option<Mapping<'_>>, Errno> {
        self.name.clear();
        let Some(mut found) = query(self.maps, address, &mut self.name)? else { return Ok(None) };
        // Only the name of a shared mapping matters, and a name takes time.
        if found.access & SHARED != 0 {
            self.name.resize(NAME, 0);
            found = query(self.maps, address, &mut self.name)?.ok_or(UNSUPPORTED)?;
            // The size includes the zero at the end.
            self.name.truncate((found.name_size as usize).saturating_sub(1));
        }
        Ok(Some(Mapping {
            start: found.start,
            end: found.end,
            read: found.access & READABLE != 0,
            write: found.access & WRITABLE != 0,
            shared: found.access & SHARED != 0,
            device: (found.device[0], found.device[1]),
            path: &self.name,
        }))
    }
}

/// The range of the mapping at an address, or of the next one, and whether it is writable. `maps`:
/// an open `/proc/PID/maps`.
///
/// # Errors
/// ENOTTY: this system cannot answer; read the list ([`Mappings`](super::Mappings)).
pub fn mapping_from(maps: &File, address: u64) -> Result<Option<(Range<u64>, bool)>, Errno> {
    let found = query(maps, address, &mut [])?;
    Ok(found.map(|found| (found.start..found.end, found.access & WRITABLE != 0)))
}

fn query(maps: &File, address: u64, name: &mut [u8]) -> Result<Option<ProcmapQuery>, Errno> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        flags: COVERING_OR_NEXT,
        address,
        name_size: name.len() as u32,
        ..Default::default()
    };
    if !name.is_empty() {
        query.name = name.as_mut_ptr() as u64;
    }
    // SAFETY: the kernel reads and writes one structure of this layout, and at most `name_size`
    // bytes of the name.
    match unsafe { procmap_query(maps.as_raw_fd(), &raw mut query) } {
        Ok(_) => Ok(Some(query)),
        Err(Errno::ENOENT) => Ok(None),
        // The list is read instead, and says what is wrong.
        Err(_) => Err(UNSUPPORTED),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::super::Mappings;
    use super::*;

    /// What [`check_pin`](super::super::check_pin) uses of a mapping.
    type Facts = (Range<u64>, [bool; 3], (u32, u32), Vec<u8>);

    fn facts(mapping: &Mapping<'_>) -> Facts {
        // The kernel is asked for names of shared mappings only.
        let path = if mapping.shared { mapping.path.to_vec() } else { Vec::new() };
        let flags = [mapping.read, mapping.write, mapping.shared];
        (mapping.start..mapping.end, flags, mapping.device, path)
    }

    fn own_maps() -> File {
        File::open("/proc/self/maps").expect("a process has a list of mappings")
    }

    #[test]
    fn query_finds_what_the_list_shows() {
        let file: OwnedFd = memfd_create("named", MFdFlags::empty()).expect("a memfd");
        nix::unistd::ftruncate(&file, 8192).expect("it has two pages");
        // SAFETY: a new mapping.
        let shared = unsafe {
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), 8192, access, flags, file.as_raw_fd(), 0)
        } as u64;
        let text = facts as *const () as u64;
        let on_stack = &raw const text as u64;
        let mut names = Vec::new();
        for address in [shared, shared + 4097, text, on_stack] {
            let maps = own_maps();
            let mut query = Query::of(&maps);
            let found = match query.mapping_from(address) {
                Err(UNSUPPORTED) => return,
                found => facts(&found.expect("an answer").expect("a mapping")),
            };
            let mut list = Mappings::of(own_maps());
            let listed = list.mapping_from(address).expect("a list").expect("a mapping");
            assert_eq!(found, facts(&listed), "{address:#x}");
            names.push(found.3);
        }
        assert_eq!(names[0], b"/memfd:named (deleted)");
        // SAFETY: nothing uses the mapping.
        unsafe { libc::munmap(shared as *mut _, 8192) };
    }

    #[test]
    fn query_ends_after_the_last_mapping() {
        let maps = own_maps();
        match mapping_from(&maps, 0) {
            Err(UNSUPPORTED) => return,
            found => assert!(found.is_ok_and(|it| it.is_some_and(|(range, _)| range.start > 0))),
        }
        assert_eq!(mapping_from(&maps, u64::MAX), Ok(None));
        let other = File::open("/dev/null").expect("there is /dev/null");
        assert_eq!(mapping_from(&other, 0), Err(UNSUPPORTED));
    }
}
