//! The two requests of a control file, built to be sound: every address is that of a buffer of the
//! stated length, borrowed for the call.

use zerocopy::{FromBytes, IntoBytes};

use super::backend::{Errno, OpenFwctl};
use crate::abi::fwctl::{FWCTL_INFO, FWCTL_RPC, Info, Mlx5Info, Rpc};

/// FWCTL_INFO: the general part, and the part of mlx5.
pub(crate) fn fwctl_info(file: &dyn OpenFwctl) -> Result<(Info, Mlx5Info), Errno> {
    let mut data = Mlx5Info::default();
    let mut info = Info {
        size: size_of::<Info>() as u32,
        device_data_len: size_of::<Mlx5Info>() as u32,
        out_device_data: data.as_mut_bytes().as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    // SAFETY: the only address is that of `data`, with its length; nothing else uses `data` during
    // the call.
    unsafe { send(file, FWCTL_INFO, &mut info)? };
    Ok((info, data))
}

/// FWCTL_RPC: sends a command and returns the answer's length by the kernel. A length above u32
/// gives EMSGSIZE, as any above the kernel's limit.
pub(crate) fn fwctl_rpc(
    file: &dyn OpenFwctl,
    scope: u32,
    input: &[u8],
    output: &mut [u8],
) -> Result<usize, Errno> {
    let length = |bytes: usize| u32::try_from(bytes).map_err(|_| Errno::EMSGSIZE);
    let mut rpc = Rpc {
        size: size_of::<Rpc>() as u32,
        scope,
        in_len: length(input.len())?,
        out_len: length(output.len())?,
        input: input.as_ptr().expose_provenance() as u64,
        output: output.as_mut_ptr().expose_provenance() as u64,
    };
    // SAFETY: both addresses are those of slices with these lengths, borrowed until the call is
    // over, the output exclusively.
    unsafe { send(file, FWCTL_RPC, &mut rpc)? };
    Ok(rpc.out_len as usize)
}

/// # Safety
/// As [`OpenFwctl::ioctl`].
unsafe fn send<T: FromBytes + IntoBytes>(
    file: &dyn OpenFwctl,
    request: u32,
    argument: &mut T,
) -> Result<(), Errno> {
    let words = <[u64]>::mut_from_bytes(argument.as_mut_bytes()).map_err(|_| Errno::EFAULT)?;
    // SAFETY: the caller vouches for the addresses.
    unsafe { file.ioctl(request, words) }
}
