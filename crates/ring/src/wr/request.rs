//! The requests: what each needs, what it may have, and the segments that it becomes.

use verbless_prm::hot::{AtomicSegment, RaddrSegment};
use zerocopy::transmute;

use super::encode::{Encode, Fence, Limits, Options, PostError, Request};
use super::info::{Capability, OperationInfo};
use super::payload::{Gather, Payload, data_segment};
use crate::completion::Operation;
use crate::ring::Wqe;
use crate::service::{Class, class};
use crate::types::{RemoteAddr, Rkey, Sge};

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

            /// Makes the peer's completion a solicited one: it wakes who armed for solicited
            /// completions only. Without effect where the peer gets no completion.
            #[inline(always)]
            pub const fn solicited(mut self) -> Self {
                self.options.solicited = true;
                self
            }
        }
    };
}
pub(super) use options;

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

/// Compares 8 bytes of the peer with a value, and swaps in another if they are equal. Atomic among
/// atomics of the same device.
#[derive(Clone, Copy, Debug)]
pub struct CompareSwap {
    old: Sge,
    remote: RemoteAddr,
    operands: AtomicSegment,
    options: Options,
}
options!(CompareSwap);

impl CompareSwap {
    /// If the 8 bytes at `remote` (aligned to 8) are `compare`, they become `swap`. What they were
    /// is written to `old`, which must be 8 bytes.
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
    /// Adds `add` to the 8 bytes at `remote` (aligned to 8). What they were is written to `old`,
    /// which must be 8 bytes.
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

/// The entry of an operation at its request type.
macro_rules! operation {
    ($name:ident $(<$p:ident: $bound:ident>)?:
     $text:literal, $operation:ident, op_mod $op_mod:literal,
     class $class:ident $(, needs $needs:ident)?) => {
        operation!(impl ($(<$p: $bound>)?) $name $(<$p>)?: $text, $operation, op_mod $op_mod,
                   class $class $(, needs $needs)?);
    };
    (impl ($($generics:tt)*) $type:ty: $text:literal, $operation:ident, op_mod $op_mod:literal,
     class $class:ident $(, needs $needs:ident)?) => {
        impl $($generics)* Request for $type {
            type Class = class::$class;
            const INFO: OperationInfo = OperationInfo {
                name: $text,
                operation: Operation::$operation,
                op_mod: $op_mod,
                class: Class::$class,
                needs: operation!(@ $($needs)?),
            };
        }
    };
    (@) => { None };
    (@ $needs:ident) => { Some(Capability::$needs) };
}
pub(super) use operation;

operation!(Nop: "NOP", Nop, op_mod 0, class Nop);
operation!(Send<P: Payload>: "SEND", Send, op_mod 0, class Send);
operation!(SendImm<P: Payload>: "SEND with immediate", SendImm, op_mod 0, class Send);
operation!(SendInvalidate<P: Payload>: "SEND with invalidate", SendInvalidate, op_mod 0,
           class Invalidate);
operation!(Write<P: Payload>: "RDMA WRITE", Write, op_mod 0, class Write);
operation!(WriteImm<P: Payload>: "RDMA WRITE with immediate", WriteImm, op_mod 0, class Write);
operation!(Read<P: Gather>: "RDMA READ", Read, op_mod 0, class Read);
operation!(CompareSwap: "compare and swap", CompareSwap, op_mod 0, class Atomic, needs Atomics);
operation!(FetchAdd: "fetch and add", FetchAdd, op_mod 0, class Atomic, needs Atomics);

/// Implements [`Encode`] from its parts, which most requests share.
macro_rules! encode {
    ($name:ident $(<$p:ident: $bound:ident>)?; $self:ident;
     $(inline = $inline:expr;)? $(remote = $remote:ident;)? $(payload = $payload:ident;)?
     $(immediate = $imm:expr;)?) => {
        impl $(<$p: $bound>)? Encode for $name $(<$p>)? {
            $(const INLINE: bool = $inline;)?

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn ds(&$self, _limits: &Limits) -> Result<u32, PostError> {
                let ds = 1;
                $(let ds = ds + { let _ = $self.$remote; 1 };)?
                $(let ds = ds + $self.$payload.ds(_limits)?;)?
                Ok(ds)
            }

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn usual_ds(&$self, _limits: &Limits) -> Option<u32> {
                let ds = 1;
                $(let ds = ds + { let _ = $self.$remote; 1 };)?
                $(let ds = ds + $self.$payload.usual_ds(_limits)?;)?
                Some(ds)
            }

            #[inline(always)]
            fn write(&$self, _wqe: &Wqe<'_>, _at: usize) {
                $(
                    let remote = RaddrSegment::new($self.$remote.address, $self.$remote.rkey.0);
                    _wqe.store(_at, transmute!(remote));
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

encode!(Send<P: Payload>; self; inline = P::INLINE; payload = payload;);
encode!(SendImm<P: Payload>; self; inline = P::INLINE; payload = payload;
    immediate = self.immediate;);
encode!(SendInvalidate<P: Payload>; self; inline = P::INLINE; payload = payload;
    immediate = self.rkey.0;);
encode!(Write<P: Payload>; self; inline = P::INLINE; remote = remote; payload = payload;);
encode!(WriteImm<P: Payload>; self; inline = P::INLINE; remote = remote; payload = payload;
    immediate = self.immediate;);
encode!(Read<P: Gather>; self; remote = remote; payload = into;);
encode!(Nop; self;);

/// COMPARE_SWAP and FETCH_ADD: remote address, operands, one SGE of 8 bytes.
macro_rules! encode_atomic {
    ($name:ident) => {
        impl Encode for $name {
            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn ds(&self, _: &Limits) -> Result<u32, PostError> {
                if self.old.length == 8 { Ok(4) } else { Err(PostError::AtomicLength) }
            }

            #[inline(always)]
            fn write(&self, wqe: &Wqe<'_>, at: usize) {
                wqe.store(
                    at,
                    transmute!(RaddrSegment::new(self.remote.address, self.remote.rkey.0)),
                );
                wqe.store(at + 1, transmute!(self.operands));
                wqe.store(at + 2, data_segment(&self.old));
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
