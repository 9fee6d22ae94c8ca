//! Ports and their GIDs.

use crate::abi::attr::{query_gid_entry, query_gid_table, query_port};
use crate::abi::core::{self, GidEntry, QueryPortResponse};
use crate::abi::method;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::info::{Gid, GidType, LinkLayer};
use crate::sys::Request;
use zerocopy::IntoBytes;

/// State and properties of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// All attributes in the kernel's layout.
    pub raw: QueryPortResponse,
}

impl PortAttributes {
    /// Whether the port carries traffic.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.raw.state == core::port_state::ACTIVE
    }

    /// The type of link that the port is connected to.
    #[must_use]
    pub const fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_code(self.raw.link_layer)
    }

    /// Whether every packet needs a global route header: the port's LID is shared with other
    /// virtual ports.
    #[must_use]
    pub const fn is_grh_required(&self) -> bool {
        self.raw.flags & core::GRH_REQUIRED != 0
    }

    /// MTU in force, in bytes; `None` if the code is unknown.
    #[must_use]
    pub const fn active_mtu(&self) -> Option<u32> {
        core::mtu_bytes(self.raw.active_mtu)
    }
}

/// An entry of a GID table that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidTableEntry {
    /// The GID.
    pub gid: Gid,
    /// 1-based port.
    pub port: u32,
    /// Index in the port's table.
    pub index: u32,
    /// The type of the GID.
    pub kind: GidType,
    /// Interface index of the network device that the GID belongs to, or 0.
    pub ifindex: u32,
}

impl From<GidEntry> for GidTableEntry {
    fn from(entry: GidEntry) -> Self {
        Self {
            gid: Gid(entry.gid),
            port: entry.port_num,
            index: entry.gid_index,
            kind: GidType::from_code(entry.gid_type),
            ifindex: entry.netdev_ifindex,
        }
    }
}

/// Maximum number of entries that one request can return.
const MAX_GIDS: usize = u16::MAX as usize / size_of::<GidEntry>();

impl Context {
    /// State and properties of a port; the first is 1.
    ///
    /// # Errors
    /// EINVAL when the device has no such port.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes> {
        let mut raw = QueryPortResponse::default();
        Request::new(method::QUERY_PORT)
            .input_u64(query_port::PORT_NUM, u64::from(port))
            .output_of(query_port::RESP, &mut raw)
            .send(self.device())?
            .filled(&[query_port::RESP])?;
        Ok(PortAttributes { raw })
    }

    /// The GIDs in use of all ports. An InfiniBand entry without an interface id is not in use.
    ///
    /// # Errors
    /// The errors of [`query_port`](Self::query_port), which gives the tables' lengths; EINVAL if
    /// the GIDs do not fit one request (2047 entries).
    pub fn gid_table(&self) -> Result<Vec<GidTableEntry>> {
        let mut room = 0usize;
        for port in 1..=self.attributes().driver.num_ports.clamp(1, 255) {
            room = room.saturating_add(self.query_port(port as u8)?.raw.gid_tbl_len as usize);
        }
        let mut entries = vec![GidEntry::default(); room.clamp(1, MAX_GIDS)];
        let mut count = 0u64;
        Request::new(method::QUERY_GID_TABLE)
            .input_u64(query_gid_table::ENTRY_SIZE, size_of::<GidEntry>() as u64)
            .input_u32(query_gid_table::FLAGS, 0)
            .output(query_gid_table::RESP_ENTRIES, entries.as_mut_bytes())
            .output_of(query_gid_table::RESP_NUM_ENTRIES, &mut count)
            .send(self.device())?
            .filled(&[query_gid_table::RESP_ENTRIES, query_gid_table::RESP_NUM_ENTRIES])?;
        gids(&entries, count)
    }

    /// One entry of a port's GID table.
    ///
    /// # Errors
    /// ENODATA when the entry is not in use, EINVAL when there is no such port or index.
    pub fn gid_entry(&self, port: u32, index: u32) -> Result<GidTableEntry> {
        let mut entry = GidEntry::default();
        Request::new(method::QUERY_GID_ENTRY)
            .input_u64(query_gid_entry::PORT, u64::from(port))
            .input_u64(query_gid_entry::GID_INDEX, u64::from(index))
            .input_u32(query_gid_entry::FLAGS, 0)
            .output_of(query_gid_entry::RESP_ENTRY, &mut entry)
            .send(self.device())?
            .filled(&[query_gid_entry::RESP_ENTRY])?;
        Ok(entry.into())
    }
}

/// The first `count` entries, if there are that many.
fn gids(entries: &[GidEntry], count: u64) -> Result<Vec<GidTableEntry>> {
    let used =
        usize::try_from(count).ok().and_then(|count| entries.get(..count)).ok_or_else(|| {
            let what = format_args!("{count} entries in a table of {}", entries.len());
            Error::answer(method::QUERY_GID_TABLE, what)
        })?;
    let entries = used.iter().map(|&entry| GidTableEntry::from(entry));
    let unused =
        |entry: &GidTableEntry| entry.kind == GidType::InfiniBand && entry.gid.lacks_interface_id();
    Ok(entries.filter(|entry| !unused(entry)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn grh_required_is_port_flag_0() {
        for (flags, expected) in [(0, false), (1, true), (2, false), (3, true), (!1, false)] {
            let raw = QueryPortResponse { flags, ..Default::default() };
            assert_eq!(PortAttributes { raw }.is_grh_required(), expected, "{flags:#x}");
        }
    }

    #[test]
    fn infiniband_entry_without_interface_id_is_unused() {
        let entry = |gid_index, gid_type, last| {
            let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            gid[15] = last;
            GidEntry { gid, gid_index, port_num: 1, gid_type, ..Default::default() }
        };
        let [ib, roce] = [core::gid_type::IB, core::gid_type::ROCE_V2];
        let entries = [entry(0, ib, 1), entry(1, ib, 0), entry(2, roce, 0), entry(3, ib, 2)];
        let indexes: Vec<_> = gids(&entries, 4).unwrap().iter().map(|it| it.index).collect();
        assert_eq!(indexes, [0, 2, 3]);
    }

    proptest! {
        #[test]
        fn random_gid_table_is_parsed_or_rejected(
            bytes in proptest::collection::vec(any::<u8>(), 0..320),
            count in prop_oneof![0u64..12, any::<u64>()],
        ) {
            let whole = bytes.len() / 32 * 32;
            let entries: Vec<_> = bytes[..whole]
                .chunks_exact(32)
                .map(|entry| zerocopy::FromBytes::read_from_bytes(entry).unwrap())
                .collect();
            match gids(&entries, count) {
                // Random bytes have an interface id.
                Ok(table) => prop_assert_eq!(table.len() as u64, count),
                Err(_) => prop_assert!(count > entries.len() as u64),
            }
        }
    }
}
