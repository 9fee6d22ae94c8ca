//! Work requests: an operation is a small value.
//!
//! What it needs goes into `new`, what it may have is a builder method:
//!
//! ```
//! use verbless_queue::wr::{Inline, Write};
//! use verbless_queue::{Lkey, RemoteAddr, Rkey, Sge};
//!
//! let to = RemoteAddr::new(0x7f00_0000_0000, Rkey(0x1234));
//! let one = Write::new(Sge::new(0x1000, 64, Lkey(0x5678)), to).signaled();
//! let gathered = Write::new([Sge::new(0x1000, 64, Lkey(0x5678)), Sge::new(0x2000, 8, Lkey(0x5678))], to);
//! let inline = Write::new(Inline(b"in the WQE itself"), to).solicited();
//! ```
//!
//! Local memory is named by an [`Sge`], by several (an array or a slice, which the device gathers or scatters in
//! order), or, for what is sent, is [`Inline`]: copied into the WQE, so that the buffer is free at once.

mod datagram;
mod payload;
mod umr;

use verbless_prm::hot::{AtomicSegment, CtrlFlags, RaddrSegment, completion, fence};
use zerocopy::transmute;

pub use datagram::To;
pub use payload::{Gather, Inline, Payload};
pub(crate) use payload::{data_segment, sge_units};
use sealed::{Encode, Message};
pub use umr::Umr;

use crate::completion::Operation;
use crate::ring::Wqe;
use crate::service::{Connected, Rc, Service, Ud};
use crate::types::{RemoteAddr, Rkey, Sge};

/// Why a request was not posted. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum PostError {
    /// The ring has too few free blocks. Poll: completions free them.
    #[error("the queue is full: poll for completions first")]
    Full,
    /// More memory pieces than the queue was created for.
    #[error("more SGEs than the queue was created for")]
    TooManySges,
    /// More inline data than the queue was created for.
    #[error("more inline data than the queue was created for")]
    InlineTooLong,
    /// A piece of more than 0x7fff_ffff bytes.
    #[error("an SGE of more than 0x7fffffff bytes")]
    SgeTooLong,
    /// An atomic's local memory is not 8 bytes.
    #[error("an atomic returns 8 bytes: its SGE must have that length")]
    AtomicLength,
    /// More pieces of a key than a request can hold.
    #[error("more than 52 pieces of a key in one request: put the list into memory")]
    TooManyPieces,
    /// A list of pieces that begins or ends where none may.
    #[error(
        "a list of pieces in memory begins at a multiple of 2048 and has a multiple of four entries, at most 65532"
    )]
    BadList,
}

/// Which earlier requests a request waits for, besides those that the transport orders anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fence {
    /// None.
    None = fence::NONE,
    /// Earlier changes of keys (UMR, [`LocalInvalidate`]).
    Small = fence::INITIATOR_SMALL,
    /// Earlier READs and atomics.
    Reads = fence::FENCE,
    /// Strong ordering.
    Strong = fence::STRONG_ORDERING,
    /// READs and atomics, and changes of keys.
    Full = fence::FENCE_AND_INITIATOR_SMALL,
}

/// What a queue can carry in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) sges: u32,
    pub(crate) inline: u32,
}

/// The optional parts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    fence: Fence,
    signaled: bool,
    solicited: bool,
}

impl Options {
    const NONE: Self = Self { fence: Fence::None, signaled: false, solicited: false };

    /// The second word of the control segment.
    #[inline(always)]
    pub(crate) const fn flags(self, immediate: u32) -> CtrlFlags {
        let ce = if self.signaled { completion::ALWAYS } else { completion::ON_ERROR };
        CtrlFlags::pack(self.fence as u8, ce, self.solicited, immediate)
    }
}

/// A work request for a send queue of service `S`: the types in this module, as far as the service has them.
#[diagnostic::on_unimplemented(
    message = "the transport service `{S}` has no `{Self}`",
    note = "`Uc` has no READ, atomics and SEND with invalidate; `Ud` has only `Send` and `SendImm`, each with `to(destination)`"
)]
pub trait WorkRequest<S: Service = Rc>: Encode {}

impl<S: Service> WorkRequest<S> for Nop {}
impl<S: Connected, P: Payload> WorkRequest<S> for Send<P> {}
impl<S: Connected, P: Payload> WorkRequest<S> for SendImm<P> {}
impl<S: Connected, P: Payload> WorkRequest<S> for Write<P> {}
impl<S: Connected, P: Payload> WorkRequest<S> for WriteImm<P> {}
impl<S: Connected> WorkRequest<S> for LocalInvalidate {}
impl<S: Connected> WorkRequest<S> for Umr<'_> {}
impl<P: Payload> WorkRequest<Rc> for SendInvalidate<P> {}
impl<P: Gather> WorkRequest<Rc> for Read<P> {}
impl WorkRequest<Rc> for CompareSwap {}
impl WorkRequest<Rc> for FetchAdd {}
impl<M: Message> WorkRequest<Ud> for To<'_, M> {}

pub(crate) mod sealed {
    use super::*;

    /// How a request becomes a WQE. Sealed, because a wrong `units` or `write` would corrupt its neighbours.
    pub trait Encode: Copy {
        /// The operation; its number is the opcode of the control segment.
        const OPERATION: Operation;
        /// Whether data stands in the WQE itself.
        const INLINE: bool = false;

        /// Length of the WQE in 16-byte units, control segment included; at most 63.
        #[allow(private_interfaces, reason = "the trait cannot be named outside")]
        fn units(&self, limits: &Limits) -> Result<u32, PostError>;
        /// The same, unless the request is unusual: empty where a constant is hoped for, or an error.
        #[allow(private_interfaces, reason = "the trait cannot be named outside")]
        #[inline(always)]
        fn usual_units(&self, limits: &Limits) -> Option<u32> {
            self.units(limits).ok()
        }
        /// Stores everything behind the control segment.
        fn write(&self, wqe: &Wqe<'_>);
        #[allow(private_interfaces, reason = "the trait cannot be named outside")]
        fn options(&self) -> Options;
        /// The last word of the control segment.
        fn immediate(&self) -> u32 {
            0
        }
    }

    /// A SEND: what a datagram can be.
    pub trait Message: Encode {
        type Payload: Payload;
        fn payload(&self) -> &Self::Payload;
    }
}

/// The builder methods that every request has.
macro_rules! options {
    ($name:ident $(<$p:ident: $bound:ident>)?) => {
        options!(impl ($(<$p: $bound>)?) $name $(<$p>)?);
    };
    (impl ($($generics:tt)*) $type:ty) => {
        impl $($generics)* $type {
            /// Asks for a completion. Without it there is one only if the request fails.
            #[inline(always)]
            pub const fn signaled(mut self) -> Self {
                self.options.signaled = true;
                self
            }

            /// Waits for earlier READs, atomics and changes of keys: [`Fence::Full`].
            #[inline(always)]
            pub const fn fence(self) -> Self {
                self.fence_with(Fence::Full)
            }

            /// Waits for what `fence` says.
            #[inline(always)]
            pub const fn fence_with(mut self, fence: Fence) -> Self {
                self.options.fence = fence;
                self
            }

            /// Makes the peer's completion a solicited one: it wakes who armed for solicited completions only.
            /// Without effect where the peer gets no completion.
            #[inline(always)]
            pub const fn solicited(mut self) -> Self {
                self.options.solicited = true;
                self
            }
        }
    };
}

options!(impl () Umr<'_>);

/// Sends a message into the peer's next receive.
#[derive(Clone, Copy, Debug)]
pub struct Send<P> {
    payload: P,
    options: Options,
}
options!(Send<P: Payload>);

impl<P: Payload> Send<P> {
    /// Sends `payload`.
    #[inline(always)]
    pub const fn new(payload: P) -> Self {
        Self { payload, options: Options::NONE }
    }
}

/// Sends a message with 32 bits beside it, which the peer finds in its completion.
#[derive(Clone, Copy, Debug)]
pub struct SendImm<P> {
    payload: P,
    immediate: u32,
    options: Options,
}
options!(SendImm<P: Payload>);

impl<P: Payload> SendImm<P> {
    /// Sends `payload` and `immediate`.
    #[inline(always)]
    pub const fn new(payload: P, immediate: u32) -> Self {
        Self { payload, immediate, options: Options::NONE }
    }
}

/// Sends a message, and invalidates a key of the peer when it arrives.
#[derive(Clone, Copy, Debug)]
pub struct SendInvalidate<P> {
    payload: P,
    rkey: Rkey,
    options: Options,
}
options!(SendInvalidate<P: Payload>);

impl<P: Payload> SendInvalidate<P> {
    /// Sends `payload` and invalidates `rkey`.
    #[inline(always)]
    pub const fn new(payload: P, rkey: Rkey) -> Self {
        Self { payload, rkey, options: Options::NONE }
    }
}

/// Writes into memory of the peer. The peer notices nothing.
#[derive(Clone, Copy, Debug)]
pub struct Write<P> {
    payload: P,
    remote: RemoteAddr,
    options: Options,
}
options!(Write<P: Payload>);

impl<P: Payload> Write<P> {
    /// Writes `payload` to `remote`.
    #[inline(always)]
    pub const fn new(payload: P, remote: RemoteAddr) -> Self {
        Self { payload, remote, options: Options::NONE }
    }
}

/// Writes into memory of the peer, then takes one of its receives to tell it so, with 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct WriteImm<P> {
    payload: P,
    remote: RemoteAddr,
    immediate: u32,
    options: Options,
}
options!(WriteImm<P: Payload>);

impl<P: Payload> WriteImm<P> {
    /// Writes `payload` to `remote`, and tells the peer `immediate`.
    #[inline(always)]
    pub const fn new(payload: P, remote: RemoteAddr, immediate: u32) -> Self {
        Self { payload, remote, immediate, options: Options::NONE }
    }
}

/// Reads memory of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Read<P> {
    into: P,
    remote: RemoteAddr,
    options: Options,
}
options!(Read<P: Gather>);

impl<P: Gather> Read<P> {
    /// Reads from `remote` as many bytes as `into` takes.
    #[inline(always)]
    pub const fn new(into: P, remote: RemoteAddr) -> Self {
        Self { into, remote, options: Options::NONE }
    }
}

/// Compares 8 bytes of the peer with a value, and swaps in another if they are equal. Atomic among atomics of the
/// same device.
#[derive(Clone, Copy, Debug)]
pub struct CompareSwap {
    old: Sge,
    remote: RemoteAddr,
    operands: AtomicSegment,
    options: Options,
}
options!(CompareSwap);

impl CompareSwap {
    /// If the 8 bytes at `remote` (aligned to 8) are `compare`, they become `swap`. What they were is written to
    /// `old`, which must be 8 bytes.
    #[inline(always)]
    pub const fn new(old: Sge, remote: RemoteAddr, compare: u64, swap: u64) -> Self {
        Self { old, remote, operands: AtomicSegment::new(swap, compare), options: Options::NONE }
    }
}

/// Adds to 8 bytes of the peer. Atomic among atomics of the same device.
#[derive(Clone, Copy, Debug)]
pub struct FetchAdd {
    old: Sge,
    remote: RemoteAddr,
    operands: AtomicSegment,
    options: Options,
}
options!(FetchAdd);

impl FetchAdd {
    /// Adds `add` to the 8 bytes at `remote` (aligned to 8). What they were is written to `old`, which must be 8 bytes.
    #[inline(always)]
    pub const fn new(old: Sge, remote: RemoteAddr, add: u64) -> Self {
        Self { old, remote, operands: AtomicSegment::new(add, 0), options: Options::NONE }
    }
}

/// Does nothing, in its turn.
#[derive(Clone, Copy, Debug)]
pub struct Nop {
    options: Options,
}
options!(Nop);

impl Nop {
    /// A request that does nothing.
    #[inline(always)]
    pub const fn new() -> Self {
        Self { options: Options::NONE }
    }
}

impl Default for Nop {
    fn default() -> Self {
        Self::new()
    }
}

/// Invalidates a key of our own that UMR may change. Requests behind it that must not use the key any more need
/// [`Fence::Small`].
#[derive(Clone, Copy, Debug)]
pub struct LocalInvalidate {
    rkey: Rkey,
    options: Options,
}
options!(LocalInvalidate);

impl LocalInvalidate {
    /// Invalidates `rkey`.
    #[inline(always)]
    pub const fn new(rkey: Rkey) -> Self {
        Self { rkey, options: Options::NONE }
    }
}

/// Implements [`Encode`] from its parts, which most requests share.
macro_rules! encode {
    ($name:ident $(<$p:ident: $bound:ident>)? = $operation:ident; $self:ident;
     $(inline = $inline:expr;)? $(remote = $remote:ident;)? $(payload = $payload:ident;)? $(immediate = $imm:expr;)?) => {
        impl $(<$p: $bound>)? Encode for $name $(<$p>)? {
            const OPERATION: Operation = Operation::$operation;
            $(const INLINE: bool = $inline;)?

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn units(&$self, _limits: &Limits) -> Result<u32, PostError> {
                let units = 1;
                $(let units = units + { let _ = $self.$remote; 1 };)?
                $(let units = units + $self.$payload.units(_limits)?;)?
                Ok(units)
            }

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn usual_units(&$self, _limits: &Limits) -> Option<u32> {
                let units = 1;
                $(let units = units + { let _ = $self.$remote; 1 };)?
                $(let units = units + $self.$payload.usual_units(_limits)?;)?
                Some(units)
            }

            #[inline(always)]
            fn write(&$self, _wqe: &Wqe<'_>) {
                let _at = 1;
                $(
                    _wqe.store(_at, transmute!(RaddrSegment::new($self.$remote.address, $self.$remote.rkey.0)));
                    let _at = _at + 1;
                )?
                $($self.$payload.write(_wqe, _at);)?
            }

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn options(&$self) -> Options {
                $self.options
            }

            $(
                #[inline(always)]
                fn immediate(&$self) -> u32 {
                    $imm
                }
            )?
        }
    };
}

encode!(Send<P: Payload> = Send; self; inline = P::INLINE; payload = payload;);
encode!(SendImm<P: Payload> = SendImm; self; inline = P::INLINE; payload = payload; immediate = self.immediate;);
encode!(SendInvalidate<P: Payload> = SendInvalidate; self; inline = P::INLINE; payload = payload;
    immediate = self.rkey.0;);
encode!(Write<P: Payload> = Write; self; inline = P::INLINE; remote = remote; payload = payload;);
encode!(WriteImm<P: Payload> = WriteImm; self; inline = P::INLINE; remote = remote; payload = payload;
    immediate = self.immediate;);
encode!(Read<P: Gather> = Read; self; remote = remote; payload = into;);
encode!(Nop = Nop; self;);

/// COMPARE_SWAP and FETCH_ADD: remote address, operands, one piece of 8 bytes.
macro_rules! encode_atomic {
    ($name:ident) => {
        impl Encode for $name {
            const OPERATION: Operation = Operation::$name;

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn units(&self, _: &Limits) -> Result<u32, PostError> {
                if self.old.length == 8 { Ok(4) } else { Err(PostError::AtomicLength) }
            }

            #[inline(always)]
            fn write(&self, wqe: &Wqe<'_>) {
                wqe.store(
                    1,
                    transmute!(RaddrSegment::new(self.remote.address, self.remote.rkey.0)),
                );
                wqe.store(2, transmute!(self.operands));
                wqe.store(3, data_segment(&self.old));
            }

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn options(&self) -> Options {
                self.options
            }
        }
    };
}
encode_atomic!(CompareSwap);
encode_atomic!(FetchAdd);
