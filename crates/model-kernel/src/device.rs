//! Ports and GID tables: QUERY_PORT, QUERY_GID_TABLE and QUERY_GID_ENTRY.

use nix::errno::Errno;

use super::abi::attr;
use super::file::Method;
use super::kernel::Kernel;
use super::port::{GidEntry, PortState};
use super::refused;
use super::uapi::UverbsRequest;

/// Bytes of `ib_uverbs_gid_entry`.
const GID_ENTRY: usize = 32;
/// CM is supported; GIDs are IP addresses.
const CAP_CM: u32 = 1 << 16;
const CAP_IP_GIDS: u32 = 1 << 26;
/// Every packet needs a global route header.
const FLAG_GRH_REQUIRED: u8 = 1;

impl Method<'_> {
    pub(super) fn query_port(&mut self) -> Result<(), Errno> {
        self.state.context()?;
        let number = self.attrs.number(attr::PORT_NUM, u8::MAX.into())? as u32;
        let kernel = &self.file.kernel;
        let response = port_response(kernel, &queried_port(kernel, number)?);
        self.attrs.put_or_zero(attr::PORT_RESP, &response)
    }

    /// QUERY_PORT of the write interface, whose response is a prefix of the ioctl's.
    pub(super) fn write_query_port(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let kernel = &self.file.kernel;
        let response = port_response(kernel, &queried_port(kernel, request.u8(8).into())?);
        self.attrs.put_or_zero(attr::CORE_OUT, &response[..40])
    }

    pub(super) fn query_gid_table(&mut self) -> Result<(), Errno> {
        self.attrs.flags(attr::GID_TABLE_FLAGS, 0)?;
        let entry_size = self.attrs.data(attr::GID_ENTRY_SIZE)?;
        let room = self.attrs.len(attr::GID_ENTRIES)? as u64;
        if entry_size == 0 || !room.is_multiple_of(entry_size) || room == 0 {
            let words = format!("entry size {entry_size} does not divide the room of {room} bytes");
            return Err(refused::refused(Errno::EINVAL, words));
        }
        self.state.context()?;
        let kernel = &self.file.kernel;
        let mut entries = Vec::new();
        for number in 1..=u32::from(kernel.caps.num_ports()) {
            let port = kernel.function.port(number).ok_or_else(|| no_port(number))?;
            entries.extend(port.gids.iter().map(|entry| gid_entry(number, entry)));
        }
        if entries.len() as u64 > room / entry_size {
            let (has, room) = (entries.len(), room / entry_size);
            let words = format!("there are {has} GIDs, and room for {room}");
            return Err(refused::refused(Errno::EINVAL, words));
        }
        let mut bytes = Vec::new();
        for entry in &entries {
            let mut entry = entry.to_vec();
            entry.resize(entry_size as usize, 0);
            bytes.extend(entry);
        }
        self.attrs.put(attr::GID_ENTRIES, &bytes)?;
        self.attrs.put(attr::GID_NUM_ENTRIES, &(entries.len() as u64).to_ne_bytes())
    }

    pub(super) fn query_gid_entry(&mut self) -> Result<(), Errno> {
        self.attrs.flags(attr::GID_FLAGS, 0)?;
        let number = self.attrs.number(attr::GID_PORT, u32::MAX.into())? as u32;
        let index = self.attrs.number(attr::GID_INDEX, u32::MAX.into())? as u32;
        self.state.context()?;
        let kernel = &self.file.kernel;
        let port = kernel.function.port(number).ok_or_else(|| no_port(number))?;
        let entry = find_gid(kernel, &port, index).map_err(|errno| match errno {
            // Programs that list a table query every index.
            Errno::ENODATA => refused::probe(errno, format!("no GID at index {index}")),
            errno => errno,
        })?;
        self.attrs.put_or_zero(attr::GID_ENTRY, &gid_entry(number, &entry))
    }
}

impl PortState {
    /// Whether the port refuses a path without a GRH (`rdma_is_grh_required`).
    pub(super) fn needs_grh(&self) -> bool {
        self.ethernet || self.grh_required
    }

    /// The capabilities of a port in verbs' flags.
    pub fn flags(&self) -> u32 {
        if self.ethernet { CAP_CM | CAP_IP_GIDS } else { self.capability_mask }
    }
}

/// An entry of a port's GID table: EINVAL past its end, ENODATA if the entry is empty.
pub(super) fn find_gid(kernel: &Kernel, port: &PortState, index: u32) -> Result<GidEntry, Errno> {
    let length = table_len(kernel, port);
    if index >= length {
        let words = format!("GID index {index} is past the table's {length} entries");
        return Err(refused::refused(Errno::EINVAL, words));
    }
    let none = || refused::refused(Errno::ENODATA, format!("no GID at index {index}"));
    port.gids.iter().find(|entry| entry.index == index).copied().ok_or_else(none)
}

/// A port's state from the device's commands. ENOLINK: the device is dead.
fn queried_port(kernel: &Kernel, number: u32) -> Result<PortState, Errno> {
    let port = kernel.function.port(number).ok_or_else(|| no_port(number))?;
    if !kernel.function.is_alive() {
        return Err(refused::refused(Errno::ENOLINK, "the device is dead"));
    }
    Ok(port)
}

/// The errno for a port that does not exist.
pub(super) fn no_port(number: u32) -> Errno {
    refused::refused(Errno::EINVAL, format!("there is no port {number}"))
}

/// Entries of a port's GID table.
fn table_len(kernel: &Kernel, port: &PortState) -> u32 {
    if port.ethernet {
        return kernel.roce_table;
    }
    match kernel.caps.gid_table_size().0 {
        log @ 0..=4 => 8 << log,
        _ => 0,
    }
}

fn gid_entry(port: u32, entry: &GidEntry) -> [u8; GID_ENTRY] {
    let mut bytes = [0; GID_ENTRY];
    bytes[..16].copy_from_slice(&entry.gid);
    bytes[16..20].copy_from_slice(&entry.index.to_ne_bytes());
    bytes[20..24].copy_from_slice(&port.to_ne_bytes());
    bytes[24..28].copy_from_slice(&entry.kind.to_ne_bytes());
    bytes
}

/// `ib_uverbs_query_port_resp_ex`.
fn port_response(kernel: &Kernel, port: &PortState) -> [u8; 48] {
    const ACTIVE: u8 = 4;
    const DOWN: u8 = 1;
    const LINK_UP: u8 = 5;
    const DISABLED: u8 = 3;
    let caps = &kernel.caps;
    let pkeys = kernel.pkeys();
    let flags = port.flags();
    let mut bytes = [0; 48];
    bytes[0..4].copy_from_slice(&flags.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(1u32 << caps.log_max_msg()).to_ne_bytes());
    bytes[16..20].copy_from_slice(&table_len(kernel, port).to_ne_bytes());
    bytes[20..22].copy_from_slice(&pkeys.to_ne_bytes());
    bytes[22..24].copy_from_slice(&port.lid.to_ne_bytes());
    bytes[24..26].copy_from_slice(&port.sm_lid.to_ne_bytes());
    bytes[26] = if port.active { ACTIVE } else { DOWN };
    bytes[27] = port.max_mtu;
    bytes[28] = port.active_mtu;
    bytes[29] = port.lmc;
    bytes[30] = port.max_vls;
    bytes[31] = port.sm_sl;
    bytes[32] = port.subnet_timeout;
    bytes[33] = port.init_type_reply;
    bytes[34] = port.width;
    bytes[35] = port.speed.min(128) as u8;
    bytes[36] = if port.active { LINK_UP } else { DISABLED };
    bytes[37] = if port.ethernet { 2 } else { 1 };
    bytes[38] = if port.needs_grh() { FLAG_GRH_REQUIRED } else { 0 };
    bytes[40..42].copy_from_slice(&(port.capability_mask_2 as u16).to_ne_bytes());
    bytes[44..48].copy_from_slice(&u32::from(port.speed).to_ne_bytes());
    bytes
}
