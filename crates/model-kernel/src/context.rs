//! A user context: GET_CONTEXT and QUERY_CONTEXT of `mlx5_ib`.

use nix::errno::Errno;
use verbless_prm::{Opcode, PortType};

use super::abi::attr;
use super::client::Capability;
use super::file::{File, Method};
use super::handles::Context;
use super::kernel::Kernel;
use super::refused::refused;
use super::uar::static_offset;

/// Doorbell registers per UAR that a client may use.
pub(super) const REGISTERS_PER_UAR: u32 = 2;
/// Maximum number of registers that are allocated with a context.
const MAX_REGISTERS: u32 = 512;
/// Request flag: a DevX context.
const FLAG_DEVX: u32 = 1;
/// Library capability: it knows several UARs of 4 KiB in a page.
const LIB_4K_UARS: u32 = 1;
/// Library capability: UAR pages are allocated one by one.
const LIB_DYNAMIC_UARS: u32 = 2;
/// IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS.
const CORE_SUPPORT: u64 = 1;
/// Bytes of `mlx5_ib_alloc_ucontext_resp`.
const RESPONSE_BYTES: usize = 72;

/// The value of a client without user indexes.
const NO_USER_INDEX: u32 = 0xff_ffff;

impl Context {
    /// A context with only these pages.
    #[cfg(test)]
    pub(super) fn for_tests(static_uars: Vec<u32>) -> Self {
        let mappings = Vec::new();
        let (transport_domain, dynamic_uars) = (None, false);
        let (uid, cqe_version, uars_per_page) = (1, 1, 1);
        Self {
            uid,
            transport_domain,
            cqe_version,
            dynamic_uars,
            uars_per_page,
            static_uars,
            mappings,
        }
    }

    /// The user index of a client's QP, which the client chooses.
    pub(super) fn user_index(&self, requested: u32) -> Result<u32, Errno> {
        user_index(self.cqe_version, requested)
    }

    /// Frees the objects that were created with the context.
    pub(super) fn free(self, file: &File) {
        let kernel = &file.kernel;
        if let Some(number) = self.transport_domain {
            let _ = kernel.free(Opcode::DEALLOC_TRANSPORT_DOMAIN, self.uid, number);
        }
        let mut mappings = self.mappings.into_iter();
        for page in self.static_uars {
            let charge = mappings.next();
            if file.unback(page).is_err() {
                // The page and its mapping stay.
                std::mem::forget(charge);
                continue;
            }
            let _ = kernel.free(Opcode::DEALLOC_UAR, kernel.uar_uid(self.uid), page);
        }
        if self.uid != 0 {
            kernel.destroy_uctx(self.uid);
        }
    }
}

/// `mlx5_ib_alloc_ucontext_req_v2`, or its first version with the rest zero.
struct ContextRequest {
    registers: u32,
    low_latency: u32,
    flags: u32,
    max_cqe_version: u8,
    reserved: bool,
    /// The lower half of the capabilities, with every defined one.
    lib_caps: u32,
}

impl ContextRequest {
    fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() != 8 && bytes.len() < 16 {
            let words =
                format!("the driver's data has {} bytes, not 8, or 16 and more", bytes.len());
            return Err(refused(Errno::EINVAL, words));
        }
        let mut whole = [0; 32];
        let len = bytes.len().min(32);
        whole[..len].copy_from_slice(&bytes[..len]);
        let word = |at: usize| {
            u32::from_ne_bytes([whole[at], whole[at + 1], whole[at + 2], whole[at + 3]])
        };
        let [max_cqe_version, reserved0, ..] =
            whole[16..].first_chunk::<2>().map_or([0; 2], |x| *x);
        let reserved1 = &whole[18..20];
        Ok(Self {
            registers: word(0),
            low_latency: word(4),
            flags: word(8),
            max_cqe_version,
            reserved: word(12) != 0 || reserved0 != 0 || reserved1 != [0; 2] || word(20) != 0,
            lib_caps: word(24),
        })
    }
}

impl Method<'_> {
    pub(super) fn get_context(&mut self) -> Result<(), Errno> {
        let vectors = self.file.kernel.completion_vectors();
        self.attrs.put_if_present(attr::NUM_COMP_VECTORS, &vectors.to_ne_bytes())?;
        self.attrs.put_if_present(attr::CORE_SUPPORT, &CORE_SUPPORT.to_ne_bytes())?;
        self.state.require_device()?;
        if self.state.context.is_some() {
            return Err(refused(Errno::EINVAL, "the open file has a context already"));
        }
        // The driver clears `ib_active` when it reports the fatal error (Linux
        // `mlx5_ib_alloc_ucontext`).
        if self.file.kernel.is_dead() {
            return Err(refused(Errno::EAGAIN, "the device is in a fatal error"));
        }
        let bytes = match self.attrs.prefix(attr::UHW_IN, 32) {
            Err(Errno::ENOENT) => Vec::new(),
            other => other?,
        };
        let request = ContextRequest::parse(&bytes)?;
        let context = self.new_context(request)?;
        let response = response(&self.file.kernel, &context);
        let written = self.write_response(response);
        if let Err(errno) = written {
            context.free(self.file);
            return Err(errno);
        }
        self.state.context = Some(context);
        Ok(())
    }

    fn write_response(&mut self, mut response: [u8; RESPONSE_BYTES]) -> Result<(), Errno> {
        let len = match self.attrs.len(attr::UHW_OUT) {
            Ok(room) => room.min(RESPONSE_BYTES),
            Err(_) => return Ok(()),
        };
        response[40..44].copy_from_slice(&(len as u32).to_ne_bytes());
        self.attrs.put(attr::UHW_OUT, &response[..len])
    }

    fn new_context(&mut self, request: ContextRequest) -> Result<Context, Errno> {
        let kernel = &self.file.kernel;
        if request.flags & !FLAG_DEVX != 0 || request.reserved {
            let words = format!(
                "flags {:#x} have more than DEVX (0x1), or reserved fields are not 0",
                request.flags
            );
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let uars_per_page = match kernel.caps.uar_4k() && request.lib_caps & LIB_4K_UARS != 0 {
            true => kernel.page.uars(),
            false => 1,
        };
        let registers = request.registers;
        let registers = registers.wrapping_next_multiple(uars_per_page * REGISTERS_PER_UAR);
        if request.low_latency > registers.wrapping_sub(1) {
            let words = format!(
                "num_low_latency_bfregs is {}: it must be below total_num_bfregs, {registers}",
                request.low_latency
            );
            return Err(refused(Errno::EINVAL, words));
        }
        let mut context = Context {
            uid: 0,
            transport_domain: None,
            cqe_version: kernel.caps.cqe_version().min(request.max_cqe_version),
            dynamic_uars: request.lib_caps & LIB_DYNAMIC_UARS != 0,
            uars_per_page,
            static_uars: Vec::new(),
            mappings: Vec::new(),
        };
        if request.flags & FLAG_DEVX != 0 {
            context.uid = self.create_devx_context()?;
        }
        match self.fill_context(&mut context, registers) {
            Ok(()) => Ok(context),
            Err(errno) => {
                context.free(self.file);
                Err(errno)
            }
        }
    }

    /// A DevX context with the privileges that both the client and the device have.
    fn create_devx_context(&self) -> Result<u16, Errno> {
        const RAW_TX: u32 = 1;
        const INTERNAL_DEV_RES: u32 = 2;
        let kernel = &self.file.kernel;
        if kernel.caps.log_max_uctx() == 0 {
            let words = "the device has no DevX contexts (log_max_uctx is 0)";
            return Err(refused(Errno::EINVAL, words));
        }
        let mut cap = 0;
        if self.attrs.client.capable(Capability::NetRaw) {
            cap |= kernel.caps.uctx_cap() & RAW_TX;
        }
        if self.attrs.client.capable(Capability::SysRawio) {
            cap |= kernel.caps.uctx_cap() & INTERNAL_DEV_RES;
        }
        kernel.create_uctx(cap)
    }

    fn fill_context(&self, context: &mut Context, registers: u32) -> Result<(), Errno> {
        let kernel = &self.file.kernel;
        if !context.dynamic_uars {
            if registers == 0 {
                return Err(refused(Errno::EINVAL, "total_num_bfregs is 0"));
            }
            if registers > MAX_REGISTERS {
                let words = format!("total_num_bfregs is {registers}; at most {MAX_REGISTERS}");
                return Err(refused(Errno::ENOMEM, words));
            }
            let each = context.uars_per_page * REGISTERS_PER_UAR;
            for index in 0..(registers / each) as usize {
                context.mappings.extend(self.file.charge_mappings()?);
                let page = kernel.allocate(Opcode::ALLOC_UAR, kernel.uar_uid(context.uid))?;
                context.static_uars.push(page);
                self.file.back(page, static_offset(index, kernel.page))?;
            }
        }
        if kernel.caps.log_max_transport_domain() != 0 {
            let number = kernel.allocate(Opcode::ALLOC_TRANSPORT_DOMAIN, context.uid)?;
            context.transport_domain = Some(number);
        }
        Ok(())
    }

    pub(super) fn query_context(&mut self) -> Result<(), Errno> {
        let mut response = response(&self.file.kernel, self.state.context()?);
        let len = self.attrs.len(attr::CONTEXT_RESP)?.min(RESPONSE_BYTES) as u32;
        response[40..44].copy_from_slice(&len.to_ne_bytes());
        let vectors = self.file.kernel.completion_vectors();
        self.attrs.put_if_present(attr::NUM_COMP_VECTORS, &vectors.to_ne_bytes())?;
        self.attrs.put_if_present(attr::CORE_SUPPORT, &CORE_SUPPORT.to_ne_bytes())?;
        self.attrs.put_or_zero(attr::CONTEXT_RESP, &response)
    }
}

trait WrappingMultiple {
    fn wrapping_next_multiple(self, of: u32) -> u32;
}

impl WrappingMultiple for u32 {
    /// The next multiple of a power of two, as the kernel's ALIGN wraps.
    fn wrapping_next_multiple(self, of: u32) -> u32 {
        self.wrapping_add(of - 1) & !(of - 1)
    }
}

/// `mlx5_ib_alloc_ucontext_resp` without its length. It does not offer the core clock page, which
/// is not modelled.
fn response(kernel: &Kernel, context: &Context) -> [u8; RESPONSE_BYTES] {
    const DUMP_FILL_MKEY: u32 = 1 << 1;
    const ECE: u32 = 1 << 2;
    const SQD2RTS: u32 = 1 << 3;
    const REAL_TIME_TIMESTAMPS: u32 = 1 << 4;
    const MKEY_UPDATE_TAG: u32 = 1 << 5;
    /// QUERY_DEVICE and CREATE_AH take driver data.
    const DRIVER_DATA: u8 = 3;
    const CACHE_LINE: u32 = 64;
    let caps = &kernel.caps;
    let real_time = |format: u32| format == 1 || format == 2;
    let mut mask = MKEY_UPDATE_TAG;
    for (flag, offered) in [
        (DUMP_FILL_MKEY, caps.dump_fill_mkey()),
        (ECE, caps.ece_support()),
        (SQD2RTS, caps.drain_sigerr()),
        (
            REAL_TIME_TIMESTAMPS,
            real_time(caps.sq_ts_format().0.into())
                && real_time(caps.rq_ts_format().0.into())
                && real_time(kernel.roce_timestamps),
        ),
    ] {
        mask |= if offered { flag } else { 0 };
    }
    mask &= kernel.release.context_flags();
    let pages = context.static_uars.len() as u32;
    // One more than the device's value; 0 means not required.
    let min_inline = match (caps.port_type() == PortType::ETHERNET, kernel.inline_mode) {
        (false, _) => 0,
        (true, 0) => 2,
        (true, _) => 1,
    };
    let mut bytes = [0; RESPONSE_BYTES];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(0, 1 << caps.log_max_qp());
    put(4, if kernel.has_write_combining() { 1 << caps.log_bf_reg_size() } else { 0 });
    put(8, pages * context.uars_per_page * REGISTERS_PER_UAR);
    put(12, CACHE_LINE);
    put(16, u32::from(caps.max_wqe_sz_sq()) | u32::from(caps.max_wqe_sz_rq()) << 16);
    // A profile may have any number in these eight bits.
    let entries = |log: u8| 1_u32.checked_shl(log.into()).unwrap_or(0);
    put(20, entries(caps.log_max_qp_sz()));
    put(24, entries(caps.log_max_qp_sz()));
    put(28, entries(caps.log_max_srq_sz()));
    put(32, u32::from(caps.num_ports()));
    put(36, mask);
    let clock_info = u8::from(caps.device_frequency_khz() != 0);
    put(44, u32::from_ne_bytes([context.cqe_version, DRIVER_DATA, min_inline, clock_info]));
    put(56, 12);
    put(60, if caps.uar_4k() { caps.num_of_uars_per_page() } else { 1 });
    put(64, 0);
    put(68, kernel.dump_fill_mkey);
    bytes
}

/// Checks a client's user index.
fn user_index(cqe_version: u8, requested: u32) -> Result<u32, Errno> {
    if cqe_version == 0 {
        return Ok(NO_USER_INDEX);
    }
    if requested >= NO_USER_INDEX {
        let words = format!("uidx is {requested:#x}: it must be below {NO_USER_INDEX:#x}");
        return Err(refused(Errno::EINVAL, words));
    }
    Ok(requested)
}
