//! Datagrams: a SEND with its destination.

use super::encode::{Encode, Limits, Options, PostError};
use crate::address::Destination;
use crate::ring::Wqe;
use crate::service::{Service, Ud};

const ADDRESS_DS: u32 = Ud::ADDRESS_DS;

/// A SEND with its destination.
///
/// ```
/// # use verbless_ring::{Destination, QueuePair, Ud, wr::{Inline, PostError, Send}};
/// # fn f(qp: &mut QueuePair<Ud>, peer: &Destination) -> Result<(), PostError> {
/// qp.post(&Send::new(Inline(b"hello")).signaled().to(peer), 7)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendTo<'a, M> {
    message: M,
    destination: &'a Destination,
}

impl<'a, M> SendTo<'a, M> {
    #[inline(always)]
    pub(super) const fn new(message: M, destination: &'a Destination) -> Self {
        Self { message, destination }
    }
}

/// The address is between the control segment and the payload.
impl<M: Encode> Encode for SendTo<'_, M> {
    const INLINE: bool = M::INLINE;
    const DS: u32 = ADDRESS_DS + M::DS;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError> {
        Ok(ADDRESS_DS + self.message.ds(limits)?)
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn fast_ds(&self, limits: &Limits) -> Option<u32> {
        Some(ADDRESS_DS + self.message.fast_ds(limits)?)
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn write(&self, wqe: &Wqe<'_>, at: usize, limits: &Limits) {
        let [first, second, third] = self.destination.segments;
        wqe.store(at, first);
        wqe.store(at + 1, second);
        wqe.store(at + 2, third);
        self.message.write(wqe, at + ADDRESS_DS as usize, limits);
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn options(&self) -> Options {
        self.message.options()
    }

    #[inline(always)]
    fn ctrl_imm(&self) -> u32 {
        self.message.ctrl_imm()
    }
}
