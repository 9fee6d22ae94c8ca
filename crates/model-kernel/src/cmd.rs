//! The driver's interface to a function, and the errnos of command statuses.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::errno::Errno;
use verbless_devx::{Mapping, Protection};
use verbless_model::memory::{Interrupts, Iommu};
use verbless_prm::{CommandInput, IntoBytes, MkeyContext, Opcode};

use super::mailbox::{STATUS, SYNDROME};
use super::port::PortState;
use super::refused::refused;
use super::rules;

/// Contents of a function's PCI registers and initialization segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionRegisters {
    pub firmware: [u16; 3],
    /// PCI device ID.
    pub device_id: u16,
    /// The function belongs to the embedded CPU.
    pub embedded_cpu: bool,
}

/// The interface of a device's function to its driver.
pub(super) trait FunctionAccess: Send + Sync {
    /// Executes a command. False: the function was reset after its driver attached, and the command
    /// did not reach it.
    fn execute(&self, input: &[u8], output: &mut [u8]) -> bool;
    /// Writes a register of the BAR.
    fn mmio_write(&self, offset: u64, bytes: &[u8]);
    /// False once the device died or was reset: it executes no command of this driver.
    fn is_alive(&self) -> bool;
    /// True once the driver has released the function: it was removed or reset.
    fn is_released(&self) -> bool {
        false
    }
    /// The number of interrupt vectors.
    fn vectors(&self) -> u32;
    /// Sets the receiver of interrupts.
    fn set_interrupts(&self, interrupts: Option<Arc<dyn Interrupts>>);
    /// The contents of its PCI registers and initialization segment.
    fn registers(&self) -> FunctionRegisters;
    /// Backs a UAR page with a page of a client's file, which the client maps itself. The file must
    /// be sealed against truncation.
    fn back_uar(&self, page: u32, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno>;
    /// Backs a UAR page with the device's own memory again. If that fails, the device still reads
    /// the client's page.
    fn unback_uar(&self, page: u32) -> Result<(), Errno>;
    /// Maps a UAR page into this process.
    fn map_uar(&self, page: u32, length: usize, protection: Protection) -> Result<Mapping, Errno>;
    /// Current value of the timestamp counter.
    fn cycles(&self) -> u64;
    /// A port's state, counted from 1; `None`: the device does not have the port.
    fn port(&self, number: u32) -> Option<PortState>;
    /// MAC and addresses, as GIDs, of the netdev on an Ethernet port.
    fn network_addresses(&self) -> Option<([u8; 6], Vec<[u8; 16]>)>;
    /// Changes PD and access flags of an mkey by UMR on the driver's QP, and waits for the
    /// completion.
    fn reconfigure_key(&self, index: u32, change: &MkeyContext) -> bool;
    /// The IOMMU that maps registered memory to bus addresses.
    fn iommu(&self) -> Arc<Iommu>;
    /// The errno that a fault plan sets for this ioctl.
    fn take_ioctl_fault(&self, _ids: (u16, u16), _names: &[&str]) -> Option<Errno> {
        None
    }
    /// Looks up a GID's MAC in the neighbour table.
    fn neighbour(&self, gid: &[u8; 16]) -> Option<[u8; 6]>;
}

/// The errno for the status of a kernel command.
pub(super) fn status_to_errno(output: &[u8]) -> Result<(), Errno> {
    match STATUS.get(output) {
        0x00 => Ok(()),
        0x02 | 0x03 | 0x05 | 0x09 | 0x0a | 0x10 | 0x30 | 0x40 => Err(Errno::EINVAL),
        0x06 => Err(Errno::EBUSY),
        0x07 | 0x0f => Err(Errno::EAGAIN),
        0x08 => Err(Errno::ENOMEM),
        _ => Err(Errno::EIO),
    }
}

/// Commands that succeed on a dead device, because the objects that they destroy are gone
/// (`mlx5_internal_err_ret_value` of Linux 6.12). Other kernel commands fail with ENOLINK.
pub(super) fn succeeds_on_dead_device(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::TEARDOWN_HCA
            | Opcode::DISABLE_HCA
            | Opcode::MANAGE_PAGES
            | Opcode::DEALLOC_SF
            | Opcode::PAGE_FAULT_RESUME
            | Opcode::QUERY_ESW_FUNCTIONS
            | Opcode::DESTROY_MKEY
            | Opcode::DESTROY_EQ
            | Opcode::DESTROY_CQ
            | Opcode::DESTROY_QP
            | Opcode::DESTROY_PSV
            | Opcode::DESTROY_SRQ
            | Opcode::DESTROY_XRC_SRQ
            | Opcode::DESTROY_XRQ
            | Opcode::DESTROY_DCT
            | Opcode::DEALLOC_Q_COUNTER
            | Opcode::QP_2ERR
            | Opcode::QP_2RST
            | Opcode::DESTROY_SCHEDULING_ELEMENT
            | Opcode::DESTROY_QOS_PARA_VPORT
            | Opcode::MODIFY_NIC_VPORT_CONTEXT
            | Opcode::DEALLOC_PD
            | Opcode::DEALLOC_UAR
            | Opcode::DETACH_FROM_MCG
            | Opcode::DEALLOC_XRCD
            | Opcode::DEALLOC_TRANSPORT_DOMAIN
            | Opcode::DELETE_VXLAN_UDP_DPORT
            | Opcode::DELETE_L2_TABLE_ENTRY
            | Opcode::DESTROY_LAG
            | Opcode::DESTROY_VPORT_LAG
            | Opcode::DESTROY_TIR
            | Opcode::DESTROY_SQ
            | Opcode::DESTROY_RQ
            | Opcode::DESTROY_RMP
            | Opcode::DESTROY_TIS
            | Opcode::MODIFY_RQT
            | Opcode::DESTROY_RQT
            | Opcode::MODIFY_FLOW_TABLE
            | Opcode::SET_FLOW_TABLE_ROOT
            | Opcode::DESTROY_FLOW_TABLE
            | Opcode::DESTROY_FLOW_GROUP
            | Opcode::SET_FLOW_TABLE_ENTRY
            | Opcode::DELETE_FLOW_TABLE_ENTRY
            | Opcode::DEALLOC_FLOW_COUNTER
            | Opcode::DEALLOC_PACKET_REFORMAT_CONTEXT
            | Opcode::DEALLOC_MODIFY_HEADER_CONTEXT
            | Opcode::FPGA_DESTROY_QP
            | Opcode::DEALLOC_MEMIC
            | Opcode::DESTROY_GENERAL_OBJECT
            | Opcode::DESTROY_UCTX
            | Opcode::DESTROY_UMEM
    )
}

/// Executes a client's command. EREMOTEIO: the device refused it, with the reason in the outbox.
/// ENXIO: the device is dead; the outbox is not written (Linux `cmd_exec`).
pub(super) fn cmd_do(
    function: &dyn FunctionAccess,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Errno> {
    if !function.is_alive() || !function.execute(input, output) {
        return Err(refused(Errno::ENXIO, "the device is gone"));
    }
    let status = STATUS.get(output);
    if status == 0 {
        return Ok(());
    }
    let (opcode, syndrome) = (rules::opcode(input), SYNDROME.get(output));
    let words =
        format!("the device refused {opcode:?}: status {status:#x}, syndrome {syndrome:#x}");
    Err(refused(Errno::EREMOTEIO, words))
}

/// Executes a kernel command; maps its status to an errno.
pub(super) fn cmd_exec(
    function: &dyn FunctionAccess,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Errno> {
    match cmd_do(function, input, output) {
        Err(Errno::EREMOTEIO) => {
            tracing::debug!(
                opcode = ?rules::opcode(input),
                status = format_args!("{:#x}", STATUS.get(output)),
                syndrome = format_args!("{:#x}", SYNDROME.get(output)),
                "a command of the kernel failed"
            );
            status_to_errno(output)
        }
        Err(Errno::ENXIO) if succeeds_on_dead_device(rules::opcode(input)) => Ok(()),
        Err(Errno::ENXIO) => Err(Errno::ENOLINK),
        other => other,
    }
}

/// Executes a typed kernel command.
pub(super) fn command<I: CommandInput>(
    function: &dyn FunctionAccess,
    input: &I,
) -> Result<I::Output, Errno> {
    let mut output = I::Output::default();
    cmd_exec(function, input.as_bytes(), output.as_mut_bytes())?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_status_maps_to_linux_errno() {
        for (statuses, expected) in [
            (&[0x00][..], Ok(())),
            (&[0x02, 0x03, 0x05, 0x09, 0x0a, 0x10, 0x30, 0x40], Err(Errno::EINVAL)),
            (&[0x06], Err(Errno::EBUSY)),
            (&[0x07, 0x0f], Err(Errno::EAGAIN)),
            (&[0x08], Err(Errno::ENOMEM)),
            (&[0x01, 0x04, 0x0b, 0x50, 0x51, 0xff], Err(Errno::EIO)),
        ] {
            for &status in statuses {
                let mut output = [0; 16];
                STATUS.set(&mut output, status);
                assert_eq!(status_to_errno(&output), expected, "{status:#x}");
            }
        }
    }
}
