//! Raw Ethernet.

super::declare::service! {
    /// Raw Ethernet: whole frames, from a send queue without a receive queue. The receiver's flow
    /// rules steer frames to its queue ([`RawRq`](crate::RawRq)).
    Eth = RAW_ETHERTYPE, address_ds: 0,
    carries: [Nop, EthSend]
}
