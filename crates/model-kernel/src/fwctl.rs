//! The control file of a function, `/dev/fwctl/fwctlN`: passes the firmware commands that uverbs
//! refuse, as Linux's `drivers/fwctl/{main,mlx5/main}.c` does.

use std::sync::Arc;

use nix::errno::Errno;
use verbless_devx::abi::fwctl::{
    DEVICE_TYPE_MLX5, FWCTL_INFO, FWCTL_RPC, Info, MAILBOX_BYTES, Mlx5Info, Rpc, scope,
};
use verbless_prm::{Opcode, UctxCap};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::client::{Capability, Client};
use super::kernel::Kernel;
use super::mailbox::{OP_MOD, UID};
use super::refused::refused;
use super::rules;

/// Bytes of a structure's tail that one read checks.
const CHUNK: usize = 4096;
/// Maximum bytes of a structure, or of the room for driver data. Linux allows up to 4 GiB, the
/// range of the field, and scans them on the caller's time; here, other clients wait meanwhile.
const MAX_BYTES: usize = *MAILBOX_BYTES.end();

fn bounded(what: &str, bytes: usize) -> Result<(), Errno> {
    match bytes {
        0..=MAX_BYTES => Ok(()),
        _ => Err(refused(
            Errno::E2BIG,
            format!("{what} has {bytes} bytes; the limit is {MAX_BYTES}"),
        )),
    }
}

/// An open control file.
pub(super) struct Fwctl {
    kernel: Arc<Kernel>,
    /// The user context of the open file.
    uid: u16,
    caps: u32,
}

/// Whether a function with these capabilities has a control file (`is_fwctl_supported` of mlx5's
/// `core/dev.c`).
pub(super) const fn is_offered(uctx_cap: u32, sub_function: bool) -> bool {
    uctx_cap != 0 && !sub_function
}

impl Fwctl {
    /// Opens the file and creates its user context.
    pub(super) fn open(kernel: Arc<Kernel>) -> Result<Self, Errno> {
        let caps = kernel.caps.uctx_cap() & UctxCap::TOOLS_RESOURCES.0;
        let uid = kernel.create_uctx(caps)?;
        Ok(Self { kernel, uid, caps })
    }

    /// Executes an ioctl of a client, whose structure is at `argument`.
    pub(super) fn ioctl(
        &self,
        client: &dyn Client,
        request: u32,
        argument: u64,
    ) -> Result<(), Errno> {
        match request {
            FWCTL_INFO => self.call(client, argument, Self::info),
            FWCTL_RPC => self.call(client, argument, Self::rpc),
            _ => {
                let words = format!(
                    "fwctl has no ioctl {request:#x}: it has FWCTL_INFO ({FWCTL_INFO:#x}) and \
                     FWCTL_RPC ({FWCTL_RPC:#x})"
                );
                Err(refused(Errno::ENOTTY, words))
            }
        }
    }

    /// Reads a request's structure, executes it, and writes the structure back.
    fn call<T: FromBytes + IntoBytes + Immutable + Default>(
        &self,
        client: &dyn Client,
        address: u64,
        answer: impl FnOnce(&Self, &dyn Client, &mut T) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut size = [0; 4];
        client.read(address, &mut size)?;
        let (size, own) = (u32::from_ne_bytes(size) as usize, size_of::<T>());
        if size < own {
            let words = format!("the structure has {size} bytes, fewer than {own}");
            return Err(refused(Errno::EINVAL, words));
        }
        bounded("the structure", size)?;
        require_zeros(client, address, own, size)?;
        let mut structure = T::default();
        client.read(address, structure.as_mut_bytes())?;
        if self.kernel.function.is_released() {
            let words = "the device was removed or reset: close the file";
            return Err(refused(Errno::ENODEV, words));
        }
        answer(self, client, &mut structure)?;
        client.write(address, structure.as_bytes())
    }

    fn info(&self, client: &dyn Client, info: &mut Info) -> Result<(), Errno> {
        if info.flags != 0 {
            let words = format!("flags {:#x}: FWCTL_INFO has none, they must be 0", info.flags);
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let mut written = 0;
        if info.device_data_len != 0 {
            let data = Mlx5Info { uid: self.uid.into(), uctx_caps: self.caps };
            written = size_of_val(&data);
            let room = info.device_data_len as usize;
            bounded("the room for the driver's data", room)?;
            let length = written.min(room);
            client.write(info.out_device_data, &data.as_bytes()[..length])?;
            clear(client, info.out_device_data, length, room)?;
        }
        info.out_device_type = DEVICE_TYPE_MLX5;
        info.device_data_len = written as u32;
        Ok(())
    }

    fn rpc(&self, client: &dyn Client, rpc: &mut Rpc) -> Result<(), Errno> {
        let [in_len, out_len] = [rpc.in_len, rpc.out_len].map(|length| length as usize);
        let (least, most) = (*MAILBOX_BYTES.start(), *MAILBOX_BYTES.end());
        if in_len > most || out_len > most {
            return Err(lengths(rpc, &format!("longer than {most}")));
        }
        match rpc.scope {
            scope::CONFIGURATION | scope::DEBUG_READ_ONLY | scope::DEBUG_WRITE => {}
            scope::DEBUG_WRITE_FULL if client.capable(Capability::SysRawio) => {}
            scope::DEBUG_WRITE_FULL => {
                return Err(refused(Errno::EPERM, "DEBUG_WRITE_FULL needs CAP_SYS_RAWIO"));
            }
            other => {
                let words = format!("there is no scope {other}: scopes are 0 to 3");
                return Err(refused(Errno::EOPNOTSUPP, words));
            }
        }
        let mut input = vec![0; in_len];
        client.read(rpc.input, &mut input)?;
        if in_len < least || out_len < least {
            return Err(lengths(rpc, &format!("shorter than {least}")));
        }
        let opcode = rules::opcode(&input);
        let op_mod = OP_MOD.get(&input) as u16;
        if !is_passed(opcode, op_mod, rpc.scope) {
            let mut others = rpc.scope + 1..=scope::DEBUG_WRITE_FULL;
            let remedy = match others.find(|&other| is_passed(opcode, op_mod, other)) {
                Some(least) => format!("it needs scope {least} or higher"),
                None => "no scope passes it".to_owned(),
            };
            let words =
                format!("{opcode:?} is not passed through fwctl in scope {}: {remedy}", rpc.scope);
            return Err(refused(Errno::EBADMSG, words));
        }
        UID.set(&mut input, self.uid.into());
        let mut output = vec![0; out_len];
        match self.kernel.run(&input, &mut output) {
            // The outbox carries the device's refusal.
            Ok(()) | Err(Errno::EREMOTEIO) => client.write(rpc.output, &output),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for Fwctl {
    fn drop(&mut self) {
        self.kernel.destroy_uctx(self.uid);
    }
}

/// Refuses mailboxes of bad lengths.
fn lengths(rpc: &Rpc, why: &str) -> Errno {
    let Rpc { in_len, out_len, .. } = rpc;
    let words = format!("an inbox of {in_len} and an outbox of {out_len} bytes: one is {why}");
    refused(Errno::EMSGSIZE, words)
}

/// Checks the tail of a structure longer than ours: it must be 0 (`copy_struct_from_user`).
fn require_zeros(client: &dyn Client, at: u64, from: usize, to: usize) -> Result<(), Errno> {
    let mut buffer = [0; CHUNK];
    for offset in (from..to).step_by(CHUNK) {
        let part = &mut buffer[..CHUNK.min(to - offset)];
        client.read(at.checked_add(offset as u64).ok_or(Errno::EFAULT)?, part)?;
        if part.iter().any(|&byte| byte != 0) {
            return Err(refused(Errno::E2BIG, "the structure has fields that are not known here"));
        }
    }
    Ok(())
}

/// Zeroes the room after the output.
fn clear(client: &dyn Client, at: u64, from: usize, to: usize) -> Result<(), Errno> {
    for offset in (from..to).step_by(CHUNK) {
        let at = at.checked_add(offset as u64).ok_or(Errno::EFAULT)?;
        client.write(at, &[0; CHUNK][..CHUNK.min(to - offset)])?;
    }
    Ok(())
}

/// Opcodes that fwctl passes and prm does not describe.
mod opcode {
    use verbless_prm::Opcode;

    pub(super) const QUERY_DRIVER_VERSION: Opcode = Opcode(0x10c);
    pub(super) const QUERY_OTHER_HCA_CAP: Opcode = Opcode(0x10e);
    pub(super) const QUERY_RDB: Opcode = Opcode(0x512);
    pub(super) const QUERY_PSV: Opcode = Opcode(0x602);
    pub(super) const QUERY_DC_CNAK_TRACE: Opcode = Opcode(0x716);
    pub(super) const QUERY_NVMF_BACKEND_CONTROLLER: Opcode = Opcode(0x722);
    pub(super) const QUERY_NVMF_NAMESPACE_CONTEXT: Opcode = Opcode(0x728);
    pub(super) const QUERY_BURST_SIZE: Opcode = Opcode(0x813);
    pub(super) const QUERY_DIAGNOSTIC_PARAMS: Opcode = Opcode(0x819);
    pub(super) const SET_DIAGNOSTIC_PARAMS: Opcode = Opcode(0x820);
    pub(super) const QUERY_DIAGNOSTIC_COUNTERS: Opcode = Opcode(0x821);
    pub(super) const QUERY_DELAY_DROP_PARAMS: Opcode = Opcode(0x911);
    pub(super) const QUERY_AFU: Opcode = Opcode(0x971);
    pub(super) const QUERY_CAPI_PEC: Opcode = Opcode(0x981);
    pub(super) const QUERY_UCTX: Opcode = Opcode(0xa05);
    pub(super) const QUERY_UMEM: Opcode = Opcode(0xa09);
    pub(super) const QUERY_NVMF_CC_RESPONSE: Opcode = Opcode(0xb02);
    pub(super) const QUERY_EMULATED_FUNCTIONS_INFO: Opcode = Opcode(0xb03);
    pub(super) const QUERY_REGEXP_PARAMS: Opcode = Opcode(0xb05);
    pub(super) const QUERY_REGEXP_REGISTER: Opcode = Opcode(0xb07);
    pub(super) const USER_QUERY_XRQ_DC_PARAMS_ENTRY: Opcode = Opcode(0xb08);
    pub(super) const USER_QUERY_XRQ_ERROR_PARAMS: Opcode = Opcode(0xb0a);
    pub(super) const QUERY_EMULATION_DEVICE_EQ_MSIX_MAPPING: Opcode = Opcode(0xb0f);
    pub(super) const QUERY_MATCH_SAMPLE_INFO: Opcode = Opcode(0xb13);
    pub(super) const QUERY_CRYPTO_STATE: Opcode = Opcode(0xb14);
    pub(super) const QUERY_DPA_PARTITION: Opcode = Opcode(0xb28);
    pub(super) const QUERY_DPA_PARTITIONS: Opcode = Opcode(0xb2a);
    pub(super) const POSTPONE_CONNECTED_QP_TIMEOUT: Opcode = Opcode(0xb2e);
    pub(super) const QUERY_EMULATED_RESOURCES_INFO: Opcode = Opcode(0xb2f);
    pub(super) const QUERY_RSV_RESOURCES: Opcode = Opcode(0x8000);
    pub(super) const QUERY_MTT: Opcode = Opcode(0x8001);
    pub(super) const QUERY_SCHED_QUEUE: Opcode = Opcode(0x8006);
}

/// Commands that are passed in any scope.
const ALWAYS: &[Opcode] = &[
    opcode::POSTPONE_CONNECTED_QP_TIMEOUT,
    Opcode::QUERY_ADAPTER,
    Opcode::QUERY_ESW_FUNCTIONS,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_HCA_VPORT_CONTEXT,
    opcode::QUERY_OTHER_HCA_CAP,
    Opcode::QUERY_ROCE_ADDRESS,
    Opcode::QUERY_VUID,
    Opcode::SET_HCA_CAP,
];

/// Commands that only read: passed from DEBUG_READ_ONLY on.
const READ_ONLY: &[Opcode] = &[
    Opcode::FPGA_QUERY_QP_COUNTERS,
    Opcode::FPGA_QUERY_QP,
    Opcode::NOP,
    opcode::QUERY_AFU,
    opcode::QUERY_BURST_SIZE,
    opcode::QUERY_CAPI_PEC,
    Opcode::QUERY_CONG_PARAMS,
    Opcode::QUERY_CONG_STATISTICS,
    Opcode::QUERY_CONG_STATUS,
    Opcode::QUERY_CQ,
    opcode::QUERY_CRYPTO_STATE,
    opcode::QUERY_DC_CNAK_TRACE,
    Opcode::QUERY_DCT,
    opcode::QUERY_DELAY_DROP_PARAMS,
    opcode::QUERY_DIAGNOSTIC_COUNTERS,
    opcode::QUERY_DIAGNOSTIC_PARAMS,
    opcode::QUERY_DPA_PARTITION,
    opcode::QUERY_DPA_PARTITIONS,
    opcode::QUERY_DRIVER_VERSION,
    opcode::QUERY_EMULATED_FUNCTIONS_INFO,
    opcode::QUERY_EMULATED_RESOURCES_INFO,
    opcode::QUERY_EMULATION_DEVICE_EQ_MSIX_MAPPING,
    Opcode::QUERY_EQ,
    Opcode::QUERY_ESW_VPORT_CONTEXT,
    Opcode::QUERY_FLOW_COUNTER,
    Opcode::QUERY_FLOW_GROUP,
    Opcode::QUERY_FLOW_TABLE_ENTRY,
    Opcode::QUERY_FLOW_TABLE,
    Opcode::QUERY_GENERAL_OBJECT,
    Opcode::QUERY_HCA_VPORT_GID,
    Opcode::QUERY_HCA_VPORT_PKEY,
    Opcode::QUERY_ISSI,
    Opcode::QUERY_L2_TABLE_ENTRY,
    Opcode::QUERY_LAG,
    Opcode::QUERY_MAD_DEMUX,
    opcode::QUERY_MATCH_SAMPLE_INFO,
    Opcode::QUERY_MKEY,
    Opcode::QUERY_MODIFY_HEADER_CONTEXT,
    opcode::QUERY_MTT,
    Opcode::QUERY_NIC_VPORT_CONTEXT,
    opcode::QUERY_NVMF_BACKEND_CONTROLLER,
    opcode::QUERY_NVMF_CC_RESPONSE,
    opcode::QUERY_NVMF_NAMESPACE_CONTEXT,
    Opcode::QUERY_PACKET_REFORMAT_CONTEXT,
    Opcode::QUERY_PAGES,
    opcode::QUERY_PSV,
    Opcode::QUERY_Q_COUNTER,
    Opcode::QUERY_QP,
    Opcode::QUERY_RATE_LIMIT,
    opcode::QUERY_RDB,
    opcode::QUERY_REGEXP_PARAMS,
    opcode::QUERY_REGEXP_REGISTER,
    Opcode::QUERY_RMP,
    Opcode::QUERY_RQ,
    Opcode::QUERY_RQT,
    opcode::QUERY_RSV_RESOURCES,
    opcode::QUERY_SCHED_QUEUE,
    Opcode::QUERY_SCHEDULING_ELEMENT,
    Opcode::QUERY_SF_PARTITION,
    Opcode::QUERY_SPECIAL_CONTEXTS,
    Opcode::QUERY_SQ,
    Opcode::QUERY_SRQ,
    Opcode::QUERY_TIR,
    Opcode::QUERY_TIS,
    opcode::QUERY_UCTX,
    opcode::QUERY_UMEM,
    Opcode::QUERY_VHCA_MIGRATION_STATE,
    Opcode::QUERY_VHCA_STATE,
    Opcode::QUERY_VNIC_ENV,
    Opcode::QUERY_VPORT_COUNTER,
    Opcode::QUERY_VPORT_STATE,
    Opcode::QUERY_WOL_ROL,
    Opcode::QUERY_XRC_SRQ,
    Opcode::QUERY_XRQ_DC_PARAMS_ENTRY,
    Opcode::QUERY_XRQ_ERROR_PARAMS,
    Opcode::QUERY_XRQ,
    opcode::USER_QUERY_XRQ_DC_PARAMS_ENTRY,
    opcode::USER_QUERY_XRQ_ERROR_PARAMS,
];

/// Whether a command is passed in a scope (`mlx5ctl_validate_rpc`, which passes a write of a
/// register in every scope, and a read only from DEBUG_READ_ONLY on).
fn is_passed(command: Opcode, op_mod: u16, in_scope: u32) -> bool {
    const WRITE: u16 = 0;
    match command {
        Opcode::ACCESS_REGISTER | Opcode::ACCESS_REGISTER_USER => {
            op_mod == WRITE || in_scope >= scope::DEBUG_READ_ONLY
        }
        opcode::SET_DIAGNOSTIC_PARAMS => in_scope >= scope::DEBUG_WRITE,
        other => {
            ALWAYS.contains(&other)
                || READ_ONLY.contains(&other) && in_scope >= scope::DEBUG_READ_ONLY
        }
    }
}
