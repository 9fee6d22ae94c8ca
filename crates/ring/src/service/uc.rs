//! Unreliable connected.

super::declare::service! {
    /// Unreliable connected: messages of any length to one peer, without acknowledgement. A message
    /// is dropped if a part of it is lost or no receive is posted; later ones may arrive.
    Uc = UC, address_ds: 0,
    carries: [Nop, Send, Write, KeyChange]
}

impl super::declare::Connected for Uc {}
