//! Unreliable datagram.

super::declare::service! {
    /// Unreliable datagram: messages of one packet, to any queue pair of this service.
    Ud = UD, address_ds: 3,
    carries: [Nop, Datagram]
}
