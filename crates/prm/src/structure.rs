//! The common part of all generated views.
//!
//! Every view is a [`Packed`] with its own layout: the common methods are compiled once, and a
//! generated file adds only the accessors of the fields.

use core::fmt::{self, Debug};
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::CommandInfo;
use crate::generated::command::CommandStatus;
use crate::reflect::{StructInfo, View};

/// A structure of the device, as exactly its bytes.
pub trait Structure:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy + Debug + Default + 'static
{
    /// Size in bytes, a tail not counted.
    const BYTES: usize = size_of::<Self>();
    /// The structure's name, fields and sources.
    const INFO: &'static StructInfo;

    /// A copy of the structure at the start of `bytes`; `None` if `bytes` is too short.
    fn read(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(structure, _)| structure)
    }
}

/// The layout of a [`Packed`].
pub trait Layout: 'static {
    /// Name, fields and sources.
    const INFO: &'static StructInfo;
}

/// `N` bytes with the layout `L`: the type of every view, such as
/// [`CqContext`](crate::CqContext). Its fields are big-endian.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Packed<L: Layout, const N: usize>(pub(crate) [u8; N], PhantomData<L>);

impl<L: Layout, const N: usize> Packed<L, N> {
    /// Size in bytes, a tail not counted.
    pub const BYTES: usize = N;
    /// The structure's name, fields and sources.
    pub const INFO: &'static StructInfo = L::INFO;

    /// A value with all bits zero.
    #[inline]
    pub const fn zeroed() -> Self {
        Self([0; N], PhantomData)
    }

    /// The structure at the start of `bytes`; `None` if `bytes` is too short.
    #[inline]
    pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(bytes).ok().map(|(structure, _)| structure)
    }

    /// The structure at the start of `bytes`, mutable; `None` if `bytes` is too short.
    #[inline]
    pub fn from_prefix_mut(bytes: &mut [u8]) -> Option<&mut Self> {
        Self::mut_from_prefix(bytes).ok().map(|(structure, _)| structure)
    }

    /// The structure's bytes.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The structure's bytes, mutable.
    #[inline]
    pub const fn as_bytes_mut(&mut self) -> &mut [u8; N] {
        &mut self.0
    }
}

impl<L: Layout, const N: usize> Structure for Packed<L, N> {
    const INFO: &'static StructInfo = L::INFO;
}

// `derive` would require these traits of the layout, which is only a name.
impl<L: Layout, const N: usize> Clone for Packed<L, N> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Layout, const N: usize> Copy for Packed<L, N> {}

impl<L: Layout, const N: usize> PartialEq for Packed<L, N> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<L: Layout, const N: usize> Eq for Packed<L, N> {}

impl<L: Layout, const N: usize> Hash for Packed<L, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<L: Layout, const N: usize> Default for Packed<L, N> {
    #[inline]
    fn default() -> Self {
        Self::zeroed()
    }
}

impl<L: Layout, const N: usize> fmt::Debug for Packed<L, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&View::new(L::INFO, &self.0), f)
    }
}

/// The input of a command.
pub trait CommandInput: Structure {
    /// The output of the same command.
    type Output: CommandOutput;
    /// The command.
    const INFO: &'static CommandInfo;
    /// Whether only the model has the layout. Hardware must never see it.
    const MODEL_ONLY: bool = <Self as Structure>::INFO.is_model_only()
        || <Self::Output as Structure>::INFO.is_model_only();
}

/// The output of a command: it begins with a status and a syndrome.
pub trait CommandOutput: Structure {
    /// The status of the command.
    fn status(&self) -> CommandStatus {
        CommandStatus(self.as_bytes()[0])
    }

    /// The firmware's reason for a bad status; 0 if there is none.
    fn syndrome(&self) -> u32 {
        crate::bits::get(self.as_bytes(), 32, 32) as u32
    }
}

/// The structure at byte `at`. Panics if it is not within `bytes`.
#[inline(always)]
pub(crate) fn nested<T: Structure>(bytes: &[u8], at: usize) -> &T {
    let (structure, _) =
        T::ref_from_prefix(&bytes[at..]).expect("the field lies in the outer structure");
    structure
}

/// The structure at byte `at`, mutable. Panics if it is not within `bytes`.
#[inline(always)]
pub(crate) fn nested_mut<T: Structure>(bytes: &mut [u8], at: usize) -> &mut T {
    let (structure, _) =
        T::mut_from_prefix(&mut bytes[at..]).expect("the field lies in the outer structure");
    structure
}
