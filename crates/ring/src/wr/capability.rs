//! The capabilities that operations need, one entry each. `Caps::has`
//! (`crates/command/src/caps.rs`) reads each from the device and needs an arm for it.

/// Declares the capabilities: each with its words in messages.
macro_rules! capabilities {
    ($($(#[$attr:meta])* $name:ident = $words:literal,)*) => {
        /// Capability that an operation needs, besides queues of the service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Capability {
            $($(#[$attr])* $name,)*
        }

        impl Capability {
            /// All capabilities.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];

            /// The capability in words, and the field that reports it.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                }
            }
        }
    };
}

capabilities! {
    /// Atomics of 8 bytes on queue pairs.
    Atomics = "compare-and-swap and fetch-and-add of 8 bytes on queue pairs (capability `atomic` \
               and its page)",
    /// UMR that changes the KLMs of a key.
    Umr = "UMR that changes indirect keys (capability `umr_indirect_mkey_disabled`, 0)",
    /// UMR that sets or clears the atomic access flag of a key.
    UmrAtomic = "UMR that changes the atomic access flag of a key (capability `atomic`, and \
                 `umr_modify_atomic_disabled` 0)",
    /// Queue pairs that copy memory.
    Dma = "queue pairs that copy memory (capability `dma_mmo_qp` or `dma_mmo_sq`, and a queue \
           pair that was made for it)",
    /// Waits for data in memory.
    WaitOnData = "waits for data in memory (capability `wait_on_data`)",
    /// Checksums of frames that are sent.
    FrameChecksums = "checksums of frames that are sent (capability `csum_cap` of the Ethernet \
                      page)",
    /// VLAN tags that a WQE carries and the device inserts.
    VlanInsertion = "VLAN tags inserted by the device (capability `wqe_vlan_insert` of the \
                     Ethernet page)",
}
