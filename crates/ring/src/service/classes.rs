//! The classes of requests: a service carries all requests of a class, or none.

/// Declares the classes: a value and a type each.
macro_rules! classes {
    ($($(#[$attr:meta])* $name:ident,)*) => {
        /// A class of requests: a service carries all of them, or none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class {
            $($(#[$attr])* $name,)*
        }

        /// The classes as types, for [`Carries`](crate::service::Carries).
        pub mod class {
            $(
                $(#[$attr])*
                #[derive(Clone, Copy, Debug)]
                pub struct $name;
            )*
        }
    };
}

classes! {
    /// Requests that send nothing.
    Nop,
    /// Messages to the peer's next receive.
    Send,
    /// Messages that invalidate a key of the peer.
    Invalidate,
    /// Writes to memory of the peer.
    Write,
    /// Reads of memory of the peer.
    Read,
    /// Atomics on memory of the peer.
    Atomic,
    /// UMR: changes and invalidations of mkeys of this device.
    Umr,
    /// Copies of memory within the device.
    DmaMmo,
    /// Waits for data in memory of the device's host.
    Wait,
    /// Messages that carry their destination.
    Datagram,
    /// Complete Ethernet frames.
    EthSend,
}
