//! Unreliable connected.

super::declare::service! {
    /// Unreliable connected: messages of one or more packets to one peer, without acknowledgement.
    /// The peer drops a message that lost a packet, and a message that needs a receive (a SEND, or
    /// a WRITE with immediate) and finds none posted. A WRITE needs no receive; its packets before
    /// the lost one may already be in the peer's memory. Later messages may arrive.
    Uc = UC, address_ds: 0,
    carries: [Nop, Send, Write, Umr]
}

impl super::declare::Connected for Uc {}
