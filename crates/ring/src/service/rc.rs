//! Reliable connected.

super::declare::service! {
    /// Reliable connected: every message arrives once and in order, or its request fails.
    Rc = RC, address_ds: 0,
    carries: [Nop, Send, Invalidate, Write, Read, Atomic, Umr, DmaMmo, Wait]
}

impl super::declare::Connected for Rc {}
