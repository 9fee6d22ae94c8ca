//! QUERY_DEVICE, plain and extended.

use nix::errno::Errno;
use verbless_prm::{HcaCap, QueryAdapterIn, QueryHcaVportContextIn, QueryNicVportContextIn};

use super::super::abi::attr;
use super::super::cmd::command;
use super::super::file::Method;
use super::super::kernel::Kernel;
use super::super::refused::refused;
use super::super::uapi::{UverbsRequest, UverbsResponse};

/// Bytes of the extended response.
const EXTENDED: usize = 304;
/// `ib_uverbs_device_cap_flags`.
mod flag {
    pub(super) const BAD_PKEY_CNTR: u32 = 1 << 1;
    pub(super) const BAD_QKEY_CNTR: u32 = 1 << 2;
    pub(super) const AUTO_PATH_MIG: u32 = 1 << 4;
    pub(super) const CHANGE_PHY_PORT: u32 = 1 << 5;
    pub(super) const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub(super) const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub(super) const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub(super) const MEM_WINDOW: u32 = 1 << 17;
    pub(super) const UD_IP_CSUM: u32 = 1 << 18;
    pub(super) const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
    pub(super) const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    pub(super) const PCI_WRITE_END_PADDING: u64 = 1 << 36;
}
/// The end of each field of the driver's response; the client gets the fields that fit its buffer.
const DRIVER_ENDS: [usize; 12] = [8, 16, 32, 40, 56, 60, 64, 72, 96, 100, 104, 112];

impl Method<'_> {
    pub(crate) fn query_device(&mut self, _: &UverbsRequest) -> Result<(), Errno> {
        let (base, _) = self.device_attributes()?;
        self.attrs.put_or_zero(attr::CORE_OUT, base.as_bytes())
    }

    pub(crate) fn query_device_ex(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        if request.u64(0) != 0 {
            return Err(refused(Errno::EINVAL, "comp_mask or reserved bits are not 0"));
        }
        let (mut reply, flags) = self.device_attributes()?;
        let caps = &self.file.kernel.caps;
        let room = self.attrs.len(attr::CORE_OUT).unwrap_or(0).min(EXTENDED) as u32;
        reply.u32(0).u32(room);
        // No on-demand paging.
        reply.u64(0).u32(0).u32(0).u32(0).u32(0);
        reply.u64(0x7fff_ffff_ffff_ffff).u64(caps.device_frequency_khz().into()).u64(flags);
        // No RSS, no raw packets, no tag matching.
        reply.bytes(&[0; 16]).u32(0).u32(0).bytes(&[0; 24]);
        let moderation = if caps.cq_moderation() { (0xffff, 0xfff) } else { (0, 0) };
        reply.u16(moderation.0).u16(moderation.1).u32(0);
        // No device memory.
        reply.u64(0).u32(0).u32(0);
        self.put_extended(reply.as_bytes())?;
        self.put_driver_attributes()
    }

    /// The first part of both responses, and the full flags.
    fn device_attributes(&self) -> Result<(UverbsResponse, u64), Errno> {
        self.state.context()?;
        let kernel = &self.file.kernel;
        let caps = &kernel.caps;
        let registers = kernel.function.registers();
        let [major, minor, sub_minor] = registers.firmware.map(u64::from);
        let (node_guid, image_guid) = guids(kernel)?;
        let adapter = command(&*kernel.function, &QueryAdapterIn::new())?;
        let vendor = adapter.query_adapter_struct().ieee_vendor_id();
        let log = |log: u8| 1u32.checked_shl(log.into()).unwrap_or(0);
        let all = flags(caps);
        let flags = all as u32;
        let receive_sges = u32::from(caps.max_wqe_sz_rq()) / 16;
        let send_sges = (u32::from(caps.max_wqe_sz_sq()).min(512)).saturating_sub(32) / 16;
        let (reads, qps) = (log(caps.log_max_ra_req_qp()), log(caps.log_max_qp()));
        let keys = log(caps.log_max_mkey());
        let (groups, members) = (log(caps.log_max_mcg()), caps.max_qp_mcg());
        let mut reply = UverbsResponse::default();
        reply.u64((major << 32) + (minor << 16) + sub_minor);
        reply.bytes(&node_guid.to_be_bytes()).bytes(&image_guid.to_be_bytes());
        // page_size_cap is 0 if the smallest page has no bit in it.
        let least_page = 1_u64.checked_shl(caps.log_pg_sz().into()).unwrap_or(0);
        reply.u64(u64::MAX).u64(!least_page.wrapping_sub(1));
        reply.u32(vendor).u32(registers.device_id.into()).u32(0);
        reply.u32(qps).u32(max_requests(caps.log_max_qp_sz())).u32(flags);
        reply.u32(send_sges.min(receive_sges)).u32(30);
        reply.u32(log(caps.log_max_cq())).u32(log(caps.log_max_cq_sz()).wrapping_sub(1));
        reply.u32(keys).u32(log(caps.log_max_pd()));
        reply.u32(reads).u32(0).u32(reads.wrapping_mul(qps));
        reply.u32(log(caps.log_max_ra_res_qp())).u32(0);
        reply.u32(u32::from(kernel.atomics)).u32(0).u32(0);
        reply.u32(if caps.imaicl() { keys } else { 0 }).u32(0).u32(0);
        reply.u32(groups).u32(members).u32(groups.wrapping_mul(members));
        reply.u32(i32::MAX as u32).u32(0).u32(0);
        reply.u32(log(caps.log_max_srq())).u32(log(caps.log_max_srq_sz()).wrapping_sub(1));
        reply.u32(receive_sges.saturating_sub(1));
        reply.u16(kernel.max_pkeys()).u8(caps.local_ca_ack_delay()).u8(caps.num_ports()).u32(0);
        Ok((reply, all))
    }

    /// `mlx5_ib_query_device_resp`.
    fn put_driver_attributes(&mut self) -> Result<(), Errno> {
        let Ok(room) = self.attrs.len(attr::UHW_OUT) else { return Ok(()) };
        if room == 0 {
            return Ok(());
        }
        let short = || {
            let words = format!("the driver's data has room for only {room} bytes");
            refused(Errno::EINVAL, words)
        };
        let len = DRIVER_ENDS.into_iter().rfind(|&end| end <= room).ok_or_else(short)?;
        let caps = &self.file.kernel.caps;
        let mut bytes = [0; 112];
        let mut put =
            |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        put(4, len as u32);
        if caps.cqe_compression() {
            put(32, caps.cqe_compression_max_num().into());
            put(36, if caps.mini_cqe_resp_stride_index() { 7 } else { 3 });
        }
        let mut flags = 1 << 3;
        for (bit, offered) in [
            (1, caps.cqe_compression_128()),
            (1 << 1, caps.cqe_128_always()),
            (1 << 2, caps.qp_packet_based()),
        ] {
            flags |= if offered { bit } else { 0 };
        }
        put(60, flags);
        self.attrs.put(attr::UHW_OUT, &bytes[..len])
    }
}

/// `ib_uverbs_device_cap_flags` of a device with these capabilities.
pub fn flags(caps: &HcaCap) -> u64 {
    let mut flags = flag::CHANGE_PHY_PORT
        | flag::PORT_ACTIVE_EVENT
        | flag::SYS_IMAGE_GUID
        | flag::RC_RNR_NAK_GEN;
    for (bit, offered) in [
        (flag::BAD_PKEY_CNTR, caps.pkv()),
        (flag::BAD_QKEY_CNTR, caps.qkv()),
        (flag::AUTO_PATH_MIG, caps.apm()),
        (flag::MEM_WINDOW | flag::MEM_WINDOW_TYPE_2B, caps.imaicl()),
        (flag::MEM_MGT_EXTENSIONS, !caps.umr_modify_entity_size_disabled()),
        (flag::UD_IP_CSUM, caps.ipoib_basic_offloads()),
    ] {
        flags |= if offered { bit } else { 0 };
    }
    u64::from(flags) | if caps.end_pad() { flag::PCI_WRITE_END_PADDING } else { 0 }
}

/// The node GUID and the system image GUID, from the vport context of the port's link layer.
fn guids(kernel: &Kernel) -> Result<(u64, u64), Errno> {
    if kernel.caps.port_type() == verbless_prm::PortType::ETHERNET {
        let out = command(&*kernel.function, &QueryNicVportContextIn::new())?;
        let context = out.nic_vport_context();
        Ok((context.node_guid(), context.system_image_guid()))
    } else {
        let mut input = QueryHcaVportContextIn::new();
        input.set_port_num(1);
        let out = command(&*kernel.function, &input)?;
        let context = out.hca_vport_context();
        Ok((context.node_guid(), context.system_image_guid()))
    }
}

/// Largest number of send requests of one SGE in a QP: the largest overhead (Linux's UMR requests)
/// and one data segment take four WQEBBs.
fn max_requests(log_wqebbs: u8) -> u32 {
    1u32.checked_shl(log_wqebbs.into()).unwrap_or(0) / 4
}
