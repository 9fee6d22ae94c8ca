//! Unreliable connected.

super::declare::service! {
    /// Unreliable connected: messages of any length to one peer, without acknowledgement. One that
    /// is lost in part or finds no receive is gone; the next may arrive.
    Uc = UC, address_ds: 0,
    carries: [Nop, Send, Write, KeyChange]
}

impl super::declare::Connected for Uc {}
