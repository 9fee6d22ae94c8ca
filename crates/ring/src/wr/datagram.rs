//! Datagrams: a SEND that says whom it is for.

use super::encode::{Encode, Limits, Options, PostError, Request};
use super::info::OperationInfo;
use super::payload::Payload;
use super::request::{Send, SendImm};
use crate::address::Destination;
use crate::completion::Operation;
use crate::ring::Wqe;
use crate::service::{Class, Service, Ud, class};

const ADDRESS_DS: u32 = Ud::ADDRESS_DS;

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
    /// # use verbless_ring::{Destination, QueuePair, Ud, wr::{Inline, PostError, Send}};
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

impl<M: Request> Request for To<'_, M> {
    type Class = class::Datagram;
    const INFO: OperationInfo = OperationInfo {
        class: Class::Datagram,
        name: match M::INFO.operation {
            Operation::SendImm => "SEND with immediate to a destination",
            _ => "SEND to a destination",
        },
        ..M::INFO
    };
}

/// The address stands between the control segment and the payload.
impl<M: Encode> Encode for To<'_, M> {
    const INLINE: bool = M::INLINE;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError> {
        Ok(ADDRESS_DS + self.message.ds(limits)?)
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn usual_ds(&self, limits: &Limits) -> Option<u32> {
        Some(ADDRESS_DS + self.message.usual_ds(limits)?)
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) {
        let [first, second, third] = self.destination.segments;
        wqe.store(at, first);
        wqe.store(at + 1, second);
        wqe.store(at + 2, third);
        self.message.write(wqe, at + ADDRESS_DS as usize);
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
