//! A type for each kind of number and key, so two of them cannot be swapped.

use core::fmt;

/// Makes a newtype of a number that prints in hexadecimal.
macro_rules! number {
    ($(#[$attr:meta])* $name:ident($ty:ty)) => {
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $ty);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number! {
    /// Local key: names registered memory in a local work request. mkey index in bits 31:8, variant
    /// in 7:0.
    Lkey(u32)
}
number! {
    /// Remote key: names memory of the peer. Same layout as an [`Lkey`], of another device.
    Rkey(u32)
}
number! {
    /// Number of a queue pair or send queue, 24 bits.
    Qpn(u32)
}
number! {
    /// Number of a completion queue, 24 bits.
    Cqn(u32)
}
number! {
    /// Queue key (Q_Key): a datagram must carry that of its receiver.
    QKey(u32)
}
number! {
    /// Number of a receive memory pool, 24 bits.
    Rmpn(u32)
}
number! {
    /// Number of a receive queue of Ethernet frames, 24 bits.
    Rqn(u32)
}
number! {
    /// Number of a transport interface for sending (TIS), 24 bits.
    Tisn(u32)
}
number! {
    /// Number of a transport interface for receiving (TIR), 24 bits.
    Tirn(u32)
}
number! {
    /// Number of an event queue.
    Eqn(u32)
}
