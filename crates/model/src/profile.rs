//! Device profiles: every number that the device answers, as TOML.

/// What a port is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// An InfiniBand fabric: LIDs, P_Keys.
    Infiniband,
    /// Ethernet: RoCE, MACs and GIDs.
    Ethernet,
}

/// A kind of device, with all its capability values.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The profile's name, such as `connectx6dx`.
    pub name: String,
    /// What its ports are connected to.
    pub link: Link,
}
