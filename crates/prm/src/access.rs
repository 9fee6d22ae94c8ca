//! Access rights to registered memory.

/// Remote access that a queue pair permits. A service without READs and atomics ignores those
/// rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteAccess {
    /// RDMA READ.
    pub read: bool,
    /// RDMA WRITE.
    pub write: bool,
    /// Atomics, if the device supports them; otherwise no peer gets the right.
    pub atomic: bool,
}

impl RemoteAccess {
    /// All rights.
    pub const ALL: Self = Self { read: true, write: true, atomic: true };
}

/// Access rights of a memory key. Local reads are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyAccess {
    /// The local device may write (receives, READ responses, atomic results).
    pub local_write: bool,
    /// Rights of peers; writes and atomics need `local_write`.
    pub remote: RemoteAccess,
    /// PCI reads and writes through the key may be reordered, if the device supports it
    /// (capabilities `relaxed_ordering_read`, `relaxed_ordering_write` and
    /// `mkc_order_read_after_write`). A device with `mkc_order_write_after_write_ro_only` has only
    /// such keys.
    pub relaxed_ordering: bool,
    /// Crossing keys of other functions may refer to this key (`crossed_side_mkey`; capability
    /// `crossing_vhca_mkey`). UMR cannot change this.
    pub crossing: bool,
}

impl KeyAccess {
    /// The local device may read.
    pub const LOCAL_READ: Self = Self {
        local_write: false,
        remote: RemoteAccess { read: false, write: false, atomic: false },
        relaxed_ordering: false,
        crossing: false,
    };
    /// The local device may read and write.
    pub const LOCAL: Self = Self { local_write: true, ..Self::LOCAL_READ };
    /// The local device may read and write, peers may READ and WRITE: all rights but atomics, which
    /// an indirect key allows only over whole operands.
    pub const READ_WRITE: Self =
        Self { remote: RemoteAccess { atomic: false, ..RemoteAccess::ALL }, ..Self::LOCAL };
    /// All local and remote rights.
    pub const ALL: Self = Self { remote: RemoteAccess::ALL, ..Self::LOCAL };
}
