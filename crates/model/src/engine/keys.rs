//! Memory keys: resolves (key, address, length) into SGEs of host memory, with every check that
//! protects that memory.

use crate::hca::objects::{Alias, Interleaved, Klm, Limits, Mkey, Translation};
use crate::memory::{Space, Spaces};
use crate::numbered::Numbered;

/// A memory range that a message reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sge {
    /// Host memory: which, and where.
    Memory { space: Space, address: u64, length: u64 },
    /// Bytes of the WQE itself (inline data), from this offset.
    Inline { at: usize, length: u64 },
    /// The null key: reads as zeros, discards writes.
    Null { length: u64 },
}

impl Sge {
    pub(crate) fn length(self) -> u64 {
        match self {
            Self::Memory { length, .. } | Self::Inline { length, .. } | Self::Null { length } => {
                length
            }
        }
    }
}

/// Whether one of these SGEs is memory of a program that has ended.
#[cold]
pub(crate) fn are_gone(spaces: &Spaces, sges: &[Sge]) -> bool {
    sges.iter().any(|sge| match *sge {
        Sge::Memory { space, address, .. } => spaces.get(space).is_gone(address),
        Sge::Inline { .. } | Sge::Null { .. } => false,
    })
}

/// The right that an access needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessRight {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    Atomic,
}

impl AccessRight {
    /// The right that an access needs on the keys in an indirect key's entries. Remote rights are
    /// checked on the key that the peer names (a memory window grants what its region does not), so
    /// that the entries' keys need only local rights.
    fn of_entries(self) -> Self {
        match self {
            Self::LocalRead | Self::RemoteRead => Self::LocalRead,
            Self::LocalWrite | Self::RemoteWrite | Self::Atomic => Self::LocalWrite,
        }
    }
}

/// Why a key refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyRefusal {
    /// No key has the index.
    NoKey,
    /// The low byte differs: a stale key.
    Variant,
    /// The key is free: invalidated, or not yet filled.
    Free,
    /// The key belongs to another protection domain.
    Pd,
    /// The key belongs to another QP.
    Qp,
    /// The key does not allow this kind of access.
    Access,
    /// The range is not within the key's.
    Bounds,
    /// The translation is invalid: too deep, too long, or with a hole.
    Translation,
    /// The key is an alias of a key of another function. That key was destroyed, or may not be
    /// reached since.
    Foreign,
}

/// The domain and QP that use a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyUser {
    pub pd: u32,
    pub qpn: u32,
    /// The queue's own requests may name the reserved lkey, which covers all of memory.
    pub reserved_lkey: bool,
}

/// The key allows use by any QP.
pub(crate) const ANY_QP: u32 = 0xff_ffff;
/// Maximum number of entries of indirect keys that one list of data segments may visit, so that a
/// key that refers to itself ends soon.
pub(crate) const VISITS: u32 = 1 << 18;

/// A range of addresses of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub key: u32,
    pub address: u64,
    pub length: u64,
}

/// The keys of a function.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub mkeys: &'a Numbered<u32, Mkey>,
    /// Aliases in the function for keys of other functions; their indexes share one range with
    /// those of its own keys.
    pub aliases: &'a Numbered<u32, Alias>,
    pub limits: &'a Limits,
    /// The address space that the translations refer to.
    pub space: Space,
    /// The other locked functions.
    pub neighbours: &'a dyn Neighbours,
}

/// The locked functions other than the one whose keys are resolved.
pub(crate) trait Neighbours {
    /// The keys of function `id`; `None` if it is not locked, or dead.
    fn keys(&self, id: usize) -> Option<Keys<'_>>;
}

/// For a lookup that cannot cross to another function.
pub(crate) struct NoNeighbours;

impl Neighbours for NoNeighbours {
    fn keys(&self, _: usize) -> Option<Keys<'_>> {
        None
    }
}

impl<'a> Keys<'a> {
    /// The keys of a function, this one or another.
    fn of(self, function: usize) -> Option<Keys<'a>> {
        match Space::of(function) == self.space {
            true => Some(self),
            false => self.neighbours.keys(function),
        }
    }

    /// Resolves a range and adds its memory to `sges`; `visits` is the rest of the list's
    /// [`VISITS`].
    ///
    /// If it refuses, `sges` may hold a part of the range. A length of 0 checks the key and adds
    /// nothing.
    pub(crate) fn resolve(
        self,
        user: KeyUser,
        range: Range,
        need: AccessRight,
        visits: &mut u32,
        sges: &mut Vec<Sge>,
    ) -> Result<(), KeyRefusal> {
        let mut walk = Walk { keys: self, user, need, visits, sges };
        walk.key(range.key, range.address, range.length, self.limits.max_indirection)
    }
}

struct Walk<'a> {
    keys: Keys<'a>,
    user: KeyUser,
    need: AccessRight,
    visits: &'a mut u32,
    sges: &'a mut Vec<Sge>,
}

impl Walk<'_> {
    fn key(&mut self, key: u32, address: u64, length: u64, depth: u32) -> Result<(), KeyRefusal> {
        let reserved = self.user.reserved_lkey && key == self.keys.limits.reserved_lkey;
        if reserved && matches!(self.need, AccessRight::LocalRead | AccessRight::LocalWrite) {
            self.memory(address, length);
            return Ok(());
        }
        let Some(mkey) = self.keys.mkeys.get(&(key >> 8)) else {
            let alias = self.keys.aliases.get(&(key >> 8)).ok_or(KeyRefusal::NoKey)?;
            return self.alias(alias, key, address, length, depth);
        };
        self.check(mkey, key)?;
        self.translate(mkey, address, length, depth)
    }

    /// Finds the memory behind a key that has been checked.
    #[inline]
    fn translate(
        &mut self,
        mkey: &Mkey,
        address: u64,
        length: u64,
        depth: u32,
    ) -> Result<(), KeyRefusal> {
        let at = bounds(mkey, address, length)?;
        match &mkey.translation {
            Translation::Physical => self.memory(address, length),
            Translation::Null => self.sges.push(Sge::Null { length }),
            Translation::Pages(memory) => {
                memory
                    .runs(at, length, |address, length| self.memory(address, length))
                    .map_err(|_| KeyRefusal::Bounds)?;
            }
            Translation::Indirect { entries, log_entry_size } => {
                let depth = depth.checked_sub(1).ok_or(KeyRefusal::Translation)?;
                self.need = self.need.of_entries();
                self.indirect(entries, *log_entry_size, at, length, depth)?;
            }
            Translation::Interleaved(layout) => {
                let depth = depth.checked_sub(1).ok_or(KeyRefusal::Translation)?;
                self.need = self.need.of_entries();
                self.interleaved(layout, at, length, depth)?;
            }
            &Translation::Crossing { function, key } => {
                let depth = depth.checked_sub(1).ok_or(KeyRefusal::Translation)?;
                self.need = self.need.of_entries();
                self.crossing(mkey, function, key, (address, length), depth)?;
            }
        }
        Ok(())
    }

    fn check(&self, mkey: &Mkey, key: u32) -> Result<(), KeyRefusal> {
        match () {
            () if u32::from(mkey.variant) != key & 0xff => Err(KeyRefusal::Variant),
            () if mkey.free => Err(KeyRefusal::Free),
            // The null key belongs to every domain.
            () if mkey.pd != self.user.pd && !mkey.is_null() => Err(KeyRefusal::Pd),
            () if mkey.qpn != ANY_QP && mkey.qpn != self.user.qpn => Err(KeyRefusal::Qp),
            () => self.allowed(mkey),
        }
    }

    fn allowed(&self, mkey: &Mkey) -> Result<(), KeyRefusal> {
        let access = &mkey.access;
        let allowed = match self.need {
            AccessRight::LocalRead => access.local_read,
            AccessRight::LocalWrite => access.local_write,
            AccessRight::RemoteRead => access.remote_read,
            AccessRight::RemoteWrite => access.remote_write,
            AccessRight::Atomic => access.atomic,
        };
        if allowed { Ok(()) } else { Err(KeyRefusal::Access) }
    }

    /// An alias has a domain of its own; everything else is its target's.
    #[cold]
    fn alias(
        &mut self,
        alias: &Alias,
        key: u32,
        address: u64,
        length: u64,
        depth: u32,
    ) -> Result<(), KeyRefusal> {
        if key & 0xff != 0 {
            return Err(KeyRefusal::Variant);
        }
        if alias.pd != self.user.pd {
            return Err(KeyRefusal::Pd);
        }
        let keys = self.keys.of(alias.function).ok_or(KeyRefusal::Foreign)?;
        let target = keys.mkeys.get(&alias.index).ok_or(KeyRefusal::Foreign)?;
        // A new key with the index of an opened key is not open itself.
        if target.offer.as_ref().is_none_or(|offer| offer.serial != alias.serial) {
            return Err(KeyRefusal::Foreign);
        }
        self.foreign(keys, target, (address, length), depth)
    }

    /// A crossing key uses the addresses of its target. The target must have been created for that
    /// (`crossed_side_mkey`); within one function both must have one owner.
    #[cold]
    fn crossing(
        &mut self,
        mkey: &Mkey,
        function: usize,
        key: u32,
        range: (u64, u64),
        depth: u32,
    ) -> Result<(), KeyRefusal> {
        let own = Space::of(function) == self.keys.space;
        let keys = self.keys.of(function).ok_or(KeyRefusal::Foreign)?;
        let target = keys.mkeys.get(&(key >> 8)).ok_or(KeyRefusal::Foreign)?;
        let open = match own {
            true => mkey.uid == 0 || target.uid == mkey.uid,
            false => target.context.crossed_side_mkey(),
        };
        if !open {
            return Err(KeyRefusal::Foreign);
        }
        if u32::from(target.variant) != key & 0xff {
            return Err(KeyRefusal::Variant);
        }
        self.foreign(keys, target, range, depth)
    }

    /// Continues with the keys of the target's function, in the target's domain.
    #[cold]
    fn foreign(
        &mut self,
        keys: Keys<'_>,
        target: &Mkey,
        (address, length): (u64, u64),
        depth: u32,
    ) -> Result<(), KeyRefusal> {
        if target.free {
            return Err(KeyRefusal::Free);
        }
        if target.qpn != ANY_QP {
            return Err(KeyRefusal::Qp);
        }
        self.allowed(target)?;
        let user = KeyUser { pd: target.pd, reserved_lkey: false, ..self.user };
        let Self { need, visits, sges, .. } = self;
        let mut walk = Walk { keys, user, need: *need, visits, sges };
        walk.translate(target, address, length, depth)
    }

    fn memory(&mut self, address: u64, length: u64) {
        if length == 0 {
            return;
        }
        let space = self.keys.space;
        if let Some(Sge::Memory { space: before, address: start, length: size }) =
            self.sges.last_mut()
            && *before == space
            && start.checked_add(*size) == Some(address)
        {
            *size += length;
            return;
        }
        self.sges.push(Sge::Memory { space, address, length });
    }

    /// `at` is the offset into the concatenation of the entries.
    fn indirect(
        &mut self,
        entries: &[Klm],
        log_entry_size: Option<u32>,
        mut at: u64,
        mut length: u64,
        depth: u32,
    ) -> Result<(), KeyRefusal> {
        let mut rest = entries;
        if let Some(log) = log_entry_size {
            let skip = usize::try_from(at.checked_shr(log).unwrap_or(0))
                .map_err(|_| KeyRefusal::Bounds)?;
            rest = entries.get(skip..).ok_or(KeyRefusal::Bounds)?;
            at &= 1_u64.checked_shl(log).map_or(u64::MAX, |size| size - 1);
        }
        for entry in rest {
            if length == 0 {
                break;
            }
            *self.visits = self.visits.checked_sub(1).ok_or(KeyRefusal::Translation)?;
            let size = log_entry_size
                .map_or(u64::from(entry.length), |log| 1_u64.checked_shl(log).unwrap_or(u64::MAX));
            if at >= size {
                at -= size;
                continue;
            }
            let here = (size - at).min(length);
            let address = entry.address.checked_add(at).ok_or(KeyRefusal::Translation)?;
            self.key(entry.key, address, here, depth)?;
            length -= here;
            at = 0;
        }
        if length == 0 { Ok(()) } else { Err(KeyRefusal::Bounds) }
    }

    /// `at` is the offset into all the rounds.
    fn interleaved(
        &mut self,
        layout: &Interleaved,
        at: u64,
        mut length: u64,
        depth: u32,
    ) -> Result<(), KeyRefusal> {
        let (mut round, mut at) = (at / layout.length, at % layout.length);
        while length > 0 {
            if round >= layout.rounds.into() {
                return Err(KeyRefusal::Bounds);
            }
            for (klm, stride) in &*layout.klms {
                if length == 0 {
                    break;
                }
                *self.visits = self.visits.checked_sub(1).ok_or(KeyRefusal::Translation)?;
                let size = u64::from(klm.length);
                if at >= size {
                    at -= size;
                    continue;
                }
                let here = (size - at).min(length);
                let from = round * u64::from(*stride) + at;
                let address = klm.address.checked_add(from).ok_or(KeyRefusal::Translation)?;
                self.key(klm.key, address, here, depth)?;
                length -= here;
                at = 0;
            }
            round += 1;
        }
        Ok(())
    }
}

/// Offset of `address` from the key's start, if the whole range is within the key.
fn bounds(mkey: &Mkey, address: u64, length: u64) -> Result<u64, KeyRefusal> {
    let end = address.checked_add(length).ok_or(KeyRefusal::Bounds)?;
    match mkey.length {
        None => Ok(address.wrapping_sub(mkey.start)),
        Some(size) => {
            let at = address.checked_sub(mkey.start).ok_or(KeyRefusal::Bounds)?;
            // The end of a key that reaches the top of the address space overflows; compare offsets
            // instead.
            let within = at <= size && end - address <= size - at;
            if within { Ok(at) } else { Err(KeyRefusal::Bounds) }
        }
    }
}
