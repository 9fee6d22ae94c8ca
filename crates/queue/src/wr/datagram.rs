//! Datagrams: a SEND that says whom it is for.

use super::payload::sealed::Sealed as _;
use super::sealed::{Encode, Message};
use super::{Limits, Options, Payload, PostError, Send, SendImm};
use crate::address::Destination;
use crate::completion::Operation;
use crate::ring::Wqe;

/// A message and whom it is for: a datagram.
#[derive(Clone, Copy, Debug)]
pub struct To<'a, M> {
    message: M,
    destination: &'a Destination,
}

impl<P: Payload> Send<P> {
    /// Makes a datagram of it: the last thing to say of the request.
    ///
    /// ```
    /// # use verbless_queue::{Destination, QueuePair, Ud, wr::{Inline, PostError, Send}};
    /// # fn f(qp: &mut QueuePair<Ud>, peer: &Destination) -> Result<(), PostError> {
    /// qp.post(&Send::new(Inline(b"hello")).signaled().to(peer), 7)?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub const fn to(self, destination: &Destination) -> To<'_, Self> {
        To { message: self, destination }
    }
}

impl<P: Payload> SendImm<P> {
    /// Makes a datagram of it: the last thing to say of the request.
    #[inline(always)]
    pub const fn to(self, destination: &Destination) -> To<'_, Self> {
        To { message: self, destination }
    }
}

impl<P: Payload> Message for Send<P> {
    type Payload = P;

    #[inline(always)]
    fn payload(&self) -> &P {
        &self.payload
    }
}

impl<P: Payload> Message for SendImm<P> {
    type Payload = P;

    #[inline(always)]
    fn payload(&self) -> &P {
        &self.payload
    }
}

/// The address stands between the control segment and the payload.
impl<M: Message> Encode for To<'_, M> {
    const OPERATION: Operation = M::OPERATION;
    const INLINE: bool = M::INLINE;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn units(&self, limits: &Limits) -> Result<u32, PostError> {
        Ok(4 + self.message.payload().units(limits)?)
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn usual_units(&self, limits: &Limits) -> Option<u32> {
        Some(4 + self.message.payload().usual_units(limits)?)
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>) {
        let [first, second, third] = self.destination.segments;
        wqe.store(1, first);
        wqe.store(2, second);
        wqe.store(3, third);
        self.message.payload().write(wqe, 4);
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn options(&self) -> Options {
        self.message.options()
    }

    #[inline(always)]
    fn immediate(&self) -> u32 {
        self.message.immediate()
    }
}
