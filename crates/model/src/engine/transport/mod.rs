//! Messages that are carried whole, one module for each connected service: how a request that is
//! ready goes out, what a message meets at its receiver, and what that means to its sender.

mod connected;
mod rc;
mod uc;

pub(super) use connected::Carrier;
