//! Raw Ethernet.

super::declare::service! {
    /// Raw Ethernet: whole frames, from a send queue that has no receive queue beside it. What
    /// arrives is in the queue where the receiver's flow rules lead
    /// ([`FrameReceiver`](crate::FrameReceiver)).
    Eth = RAW_ETHERTYPE, address_ds: 0,
    carries: [Nop, Frame]
}
