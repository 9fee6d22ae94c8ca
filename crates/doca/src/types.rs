//! Types shared by many objects (`doca_types.h`).

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign};

use verbless_queue::access::{KeyAccess, RemoteAccess};

/// Data that a program attaches to a job and gets back with its completion (`union doca_data`): a
/// number, or a pointer as one.
///
/// ```
/// use verbless_doca::UserData;
///
/// let mine = Box::new(5_u32);
/// let data = UserData::from(&raw const *mine);
/// // … which comes back in an event:
/// assert_eq!(data.as_ptr::<u32>().cast_const(), &raw const *mine);
/// assert_eq!(UserData::from(7).0, 7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserData(pub u64);

impl From<u64> for UserData {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl<T> From<*const T> for UserData {
    fn from(pointer: *const T) -> Self {
        Self(pointer.expose_provenance() as u64)
    }
}

impl<T> From<*mut T> for UserData {
    fn from(pointer: *mut T) -> Self {
        Self(pointer.expose_provenance() as u64)
    }
}

impl UserData {
    /// The pointer that the data was made from; for a number, that address.
    pub fn as_ptr<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

/// Access rights to the memory of a map (`enum doca_access_flags`, and `enum
/// doca_mmap_access_flags` of 1.3).
///
/// | flag | bit | lets |
/// |---|---|---|
/// | [`LOCAL_READ_ONLY`](Self::LOCAL_READ_ONLY) | none | devices of this side read |
/// | [`LOCAL_READ_WRITE`](Self::LOCAL_READ_WRITE) | 0 | devices of this side read and write |
/// | [`RDMA_READ`](Self::RDMA_READ) | 1 | a peer read |
/// | [`RDMA_WRITE`](Self::RDMA_WRITE) | 2 | a peer write |
/// | [`RDMA_ATOMIC`](Self::RDMA_ATOMIC) | 3 | a peer use atomics |
/// | [`DPU_READ_ONLY`](Self::DPU_READ_ONLY) | 4 | the DPU read |
/// | [`DPU_READ_WRITE`](Self::DPU_READ_WRITE) | 5 | the DPU read and write |
///
/// ```
/// use verbless_doca::AccessFlags;
///
/// let access = AccessFlags::LOCAL_READ_WRITE | AccessFlags::DPU_READ_ONLY;
/// assert!(access.is_dpu() && !access.is_rdma());
/// assert_eq!(access.bits(), 0b01_0001);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AccessFlags(u32);

impl AccessFlags {
    /// Devices of this side read.
    pub const LOCAL_READ_ONLY: Self = Self(0);
    /// Devices of this side read and write.
    pub const LOCAL_READ_WRITE: Self = Self(1);
    /// A peer reads.
    pub const RDMA_READ: Self = Self(1 << 1);
    /// A peer writes.
    pub const RDMA_WRITE: Self = Self(1 << 2);
    /// A peer uses atomics.
    pub const RDMA_ATOMIC: Self = Self(1 << 3);
    /// The DPU reads.
    pub const DPU_READ_ONLY: Self = Self(1 << 4);
    /// The DPU reads and writes.
    pub const DPU_READ_WRITE: Self = Self(1 << 5);

    const NAMES: [(Self, &str); 6] = [
        (Self::LOCAL_READ_WRITE, "LOCAL_READ_WRITE"),
        (Self::RDMA_READ, "RDMA_READ"),
        (Self::RDMA_WRITE, "RDMA_WRITE"),
        (Self::RDMA_ATOMIC, "RDMA_ATOMIC"),
        (Self::DPU_READ_ONLY, "DPU_READ_ONLY"),
        (Self::DPU_READ_WRITE, "DPU_READ_WRITE"),
    ];

    /// The bits of the C enumeration.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Flags of these bits; `None` if a bit has no meaning.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits >> 6 == 0 { Some(Self(bits)) } else { None }
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether one of the flags of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether a peer has any permission.
    pub const fn is_rdma(self) -> bool {
        self.intersects(Self(0b1110))
    }

    /// Whether the DPU has any permission.
    pub const fn is_dpu(self) -> bool {
        self.intersects(Self(0b11_0000))
    }

    /// Whether devices of this side may write.
    pub const fn is_local_write(self) -> bool {
        self.contains(Self::LOCAL_READ_WRITE)
    }

    /// The rights of the key for devices of this side and peers; the DPU has another. A key with
    /// remote write must have local write too, so the local right comes with the peer's; the
    /// submission of a job checks that the job does not use it.
    pub(crate) const fn key(self) -> KeyAccess {
        let (write, atomic) = (self.contains(Self::RDMA_WRITE), self.contains(Self::RDMA_ATOMIC));
        KeyAccess {
            local_write: self.is_local_write() || write || atomic,
            remote: RemoteAccess { read: self.contains(Self::RDMA_READ), write, atomic },
            relaxed_ordering: false,
            crossing: false,
        }
    }
}

impl AccessFlags {
    /// The rights of the key that the DPU aliases. The DPU uses the alias in its own requests, as a
    /// local key, and as the remote key of a queue pair that is its own peer.
    pub(crate) const fn dpu_key(self) -> KeyAccess {
        let write = self.contains(Self::DPU_READ_WRITE);
        KeyAccess {
            local_write: write,
            remote: RemoteAccess { read: true, write, atomic: write },
            relaxed_ordering: false,
            crossing: false,
        }
    }
}

impl BitOr for AccessFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for AccessFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for AccessFlags {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Debug for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names =
            Self::NAMES.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| *name);
        f.write_str(names.next().unwrap_or("LOCAL_READ_ONLY"))?;
        names.try_for_each(|name| write!(f, " | {name}"))
    }
}

/// The type of a PCI function (`enum doca_pci_func_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PciFuncType {
    /// A physical function.
    Pf = 0,
    /// A virtual function.
    Vf = 1,
    /// A sub-function.
    Sf = 2,
}

/// A PCI address: domain, bus, device, function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain; 0 on most machines.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

/// `PciAddress(…)` around the text of `Display`, whose numbers are hexadecimal.
impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PciAddress({self})")
    }
}

/// `08:00.0`, or `0000:08:00.0` with the domain.
impl std::str::FromStr for PciAddress {
    type Err = crate::error::Error;

    fn from_str(text: &str) -> crate::error::Result<Self> {
        let parse = || {
            let (front, function) = text.rsplit_once('.')?;
            let mut parts = front.rsplit(':');
            let device = u8::from_str_radix(parts.next()?, 16).ok().filter(|&it| it < 32)?;
            let bus = u8::from_str_radix(parts.next()?, 16).ok()?;
            let domain = parts.next().map_or(Some(0), |it| u32::from_str_radix(it, 16).ok())?;
            let function = function.parse().ok().filter(|&it: &u8| it < 8)?;
            parts.next().is_none().then_some(Self { domain, bus, device, function })
        };
        parse().ok_or_else(|| {
            crate::error::Error::new(
                crate::error::ErrorKind::InvalidValue,
                format!("{text:?} is no PCI address: write it as 08:00.0 or 0000:08:00.0"),
            )
        })
    }
}

impl PciAddress {
    /// Completes an address that was parsed from `text` without a domain: takes the domain of the
    /// only address in `there` that matches otherwise, else 0.
    pub(crate) fn in_domain_of(self, text: &str, there: impl Iterator<Item = Self>) -> Self {
        if text.matches(':').count() > 1 {
            return self;
        }
        let mut alike = there.filter(|it| Self { domain: self.domain, ..*it } == self);
        match alike.next() {
            Some(first) if alike.all(|it| it == first) => first,
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_match_c_enumeration() {
        let all = AccessFlags::NAMES.map(|(flag, _)| flag.bits());
        assert_eq!(all, [1, 2, 4, 8, 16, 32]);
        assert_eq!(AccessFlags::LOCAL_READ_ONLY.bits(), 0);
        assert_eq!(AccessFlags::from_bits(64), None);
        assert_eq!(AccessFlags::from_bits(63).map(AccessFlags::bits), Some(63));
    }

    #[test]
    fn flag_operators_and_predicates_follow_bits() {
        let (read, write) = (AccessFlags::RDMA_READ, AccessFlags::RDMA_WRITE);
        let mut both = read | write | write;
        assert_eq!((both.bits(), (both & write).bits()), (6, 4));
        both |= write;
        both |= AccessFlags::DPU_READ_ONLY;
        assert_eq!(both.bits(), 0b1_0110);
        assert!(both.contains(read) && both.contains(read | write) && !read.contains(both));
        assert!(both.intersects(read) && read.intersects(both) && !read.intersects(write));
        for (flag, _) in AccessFlags::NAMES {
            let (rdma, dpu) = (0b1110 & flag.bits() != 0, 0b11_0000 & flag.bits() != 0);
            assert_eq!((flag.is_rdma(), flag.is_dpu()), (rdma, dpu), "{flag:?}");
            assert_eq!(flag.is_local_write(), flag.bits() == 1, "{flag:?}");
        }
    }

    #[test]
    fn dpu_flags_become_alias_rights() {
        let key = |local_write| KeyAccess {
            local_write,
            remote: RemoteAccess { read: true, write: local_write, atomic: local_write },
            relaxed_ordering: false,
            crossing: false,
        };
        assert_eq!(AccessFlags::DPU_READ_ONLY.dpu_key(), key(false));
        let both = AccessFlags::DPU_READ_ONLY | AccessFlags::DPU_READ_WRITE;
        assert_eq!(both.dpu_key(), key(true));
        let peer = AccessFlags::RDMA_READ.key().remote;
        assert_eq!(peer, RemoteAccess { read: true, write: false, atomic: false });
        let peer = (AccessFlags::RDMA_WRITE | AccessFlags::RDMA_ATOMIC).key().remote;
        assert_eq!(peer, RemoteAccess { read: false, write: true, atomic: true });
    }

    #[test]
    fn pointer_round_trips_through_user_data() {
        let mut mine = 5_u32;
        let pointer = &raw mut mine;
        assert_eq!(UserData::from(pointer).as_ptr(), pointer);
        assert_eq!(UserData::from(pointer.cast_const()).0, pointer.expose_provenance() as u64);
        assert_eq!(UserData::from(7), UserData(7));
    }

    #[test]
    fn flags_show_their_names() {
        let flags = AccessFlags::RDMA_READ | AccessFlags::LOCAL_READ_WRITE;
        assert_eq!(format!("{flags:?}"), "LOCAL_READ_WRITE | RDMA_READ");
        assert_eq!(format!("{:?}", AccessFlags::LOCAL_READ_ONLY), "LOCAL_READ_ONLY");
    }

    #[test]
    fn local_write_follows_write_flags() {
        assert!(!AccessFlags::LOCAL_READ_ONLY.key().local_write);
        assert!(!(AccessFlags::RDMA_READ | AccessFlags::DPU_READ_ONLY).key().local_write);
        for flag in [AccessFlags::RDMA_WRITE, AccessFlags::RDMA_ATOMIC] {
            assert!(flag.key().local_write, "{flag:?}");
        }
        let dpu = (AccessFlags::DPU_READ_WRITE | AccessFlags::LOCAL_READ_WRITE).key();
        assert_eq!(dpu, KeyAccess::LOCAL, "what the DPU may do is not a peer's right");
    }

    #[test]
    fn pci_address_parses_with_and_without_domain() {
        let address = PciAddress { domain: 0, bus: 0xb, device: 0, function: 2 };
        assert_eq!("0b:00.2".parse::<PciAddress>().unwrap(), address);
        assert_eq!("0000:0b:00.2".parse::<PciAddress>().unwrap(), address);
        assert_eq!(address.to_string(), "0000:0b:00.2");
        assert_eq!(format!("{address:?}"), "PciAddress(0000:0b:00.2)");
        assert!("ff:1f.7".parse::<PciAddress>().is_ok(), "the last of each");
        for bad in ["", "0b", "0b:00", "0b:20.0", "0b:00.8", "1:2:3:4.5", "0b:00.", "zz:00.0"] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }
    #[test]
    fn missing_domain_resolves_to_only_match_or_0() {
        let there = |domains: &[u32]| {
            let other = PciAddress { domain: 7, bus: 1, device: 0, function: 0 };
            let alike = |&domain| PciAddress { domain, bus: 0xb, device: 0, function: 2 };
            let all: Vec<_> = domains.iter().map(alike).chain([other]).collect();
            let domain = |text: &str| {
                let address: PciAddress = text.parse().unwrap();
                address.in_domain_of(text, all.iter().copied()).domain
            };
            (domain("0b:00.2"), domain("0000:0b:00.2"), domain("5:0b:00.2"))
        };
        assert_eq!(there(&[0]), (0, 0, 5));
        assert_eq!(there(&[0xfb0b]), (0xfb0b, 0, 5));
        assert_eq!(there(&[0xfb0b, 0xfb0b]), (0xfb0b, 0, 5), "a function and its sub-functions");
        assert_eq!(there(&[0xfb0b, 1]), (0, 0, 5));
        assert_eq!(there(&[]), (0, 0, 5));
    }
}
