//! INVOKE_WRITE: the commands of the old write(2) interface that DevX needs too: PDs and address handles.
//!
//! The others answer as a kernel that lacks the method does, once their lengths are right.

use nix::errno::Errno;

use super::abi::{attr, object};
use super::device::find_gid;
use super::file::{Method, Object};
use super::rules::op;

/// Command numbers.
mod command {
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const DEALLOC_PD: u32 = 4;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const DESTROY_AH: u32 = 8;
}
/// Bits of a command number that mean something: the number, and the flag of an extended command.
const COMMAND_BITS: u32 = 0x8000_00ff;
/// Bytes of `mlx5_ib_create_ah_resp` up to its MAC.
const AH_RESPONSE: usize = 10;

/// The request of a command, zero-extended to its structure.
struct Core(Vec<u8>);

impl Core {
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }
}

impl Method<'_> {
    pub(super) fn invoke_write(&mut self) -> Result<(), Errno> {
        let number = self.attrs.number(attr::WRITE_CMD, u32::MAX.into())? as u32;
        if number & !COMMAND_BITS != 0 {
            return Err(Errno::EINVAL);
        }
        let (request, response) = match number {
            command::QUERY_DEVICE => (8, 176),
            command::ALLOC_PD => (8, 4),
            command::DEALLOC_PD | command::DESTROY_AH => (4, 0),
            command::CREATE_AH => (56, 4),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let room = |id| self.attrs.len(id).unwrap_or(0);
        if room(attr::CORE_IN) < request || room(attr::CORE_OUT) < response {
            return Err(Errno::ENOSPC);
        }
        match number {
            command::ALLOC_PD => self.alloc_pd(request),
            command::DEALLOC_PD => {
                let handle = self.core(request)?.u32(0);
                self.destroy_by_handle(handle, object::PD)
            }
            command::CREATE_AH => self.create_ah(request),
            command::DESTROY_AH => {
                let handle = self.core(request)?.u32(0);
                self.destroy_by_handle(handle, object::AH)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }?;
        self.attrs.written(attr::UHW_OUT);
        Ok(())
    }

    /// The first `bytes` bytes of the request; what follows must be zero.
    fn core(&self, bytes: usize) -> Result<Core, Errno> {
        let mut request = self.attrs.bytes(attr::CORE_IN)?;
        if request[bytes..].iter().any(|&byte| byte != 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        request.truncate(bytes);
        Ok(Core(request))
    }

    /// Writes driver data to the client, whatever room it said it has, as the driver does.
    fn put_driver_data(&self, bytes: &[u8]) -> Result<(), Errno> {
        let address = self.attrs.data(attr::UHW_OUT).unwrap_or(0);
        self.attrs.client.write(address, bytes)
    }

    fn destroy_by_handle(&mut self, handle: u32, kind: u16) -> Result<(), Errno> {
        let handle = self.state.lookup(handle.into(), kind)?;
        self.file.destroy(self.state, handle)
    }

    fn alloc_pd(&mut self, request: usize) -> Result<(), Errno> {
        self.core(request)?;
        let uid = self.state.context()?.uid;
        let kernel = &self.file.kernel;
        let pdn = kernel.allocate(op::ALLOC_PD, uid)?;
        let handle = self.state.free_handle();
        let written = self
            .put_driver_data(&pdn.to_ne_bytes())
            .and_then(|()| self.attrs.put_or_zero(attr::CORE_OUT, &handle.to_ne_bytes()));
        if let Err(errno) = written {
            let _ = kernel.free(op::DEALLOC_PD, uid, pdn);
            return Err(errno);
        }
        self.state.insert(handle, Object::Pd { pdn, users: 0 });
        Ok(())
    }

    /// An address handle: all that a DevX client wants of it is the MAC that a RoCE path leads to.
    fn create_ah(&mut self, request: usize) -> Result<(), Errno> {
        let request = self.core(request)?;
        self.state.context()?;
        let kernel = &self.file.kernel;
        let [is_global, number] = [request.0[53], request.0[54]];
        let port = kernel.function.port(number.into()).ok_or(Errno::EINVAL)?;
        let pd = self.state.lookup(request.u32(16).into(), object::PD)?;
        if is_global != 0 {
            find_gid(kernel, &port, request.0[44].into())?;
        } else if port.ethernet {
            return Err(Errno::EINVAL);
        }
        if port.ethernet {
            let mut gid = [0; 16];
            gid.copy_from_slice(&request.0[24..40]);
            // No answer from the neighbour; a real kernel takes a second or more to give up.
            let mac = kernel.function.neighbour(&gid).ok_or(Errno::ETIMEDOUT)?;
            if self.attrs.len(attr::UHW_OUT).unwrap_or(0) < AH_RESPONSE {
                return Err(Errno::EINVAL);
            }
            let mut response = [0; AH_RESPONSE];
            response[..4].copy_from_slice(&(AH_RESPONSE as u32).to_ne_bytes());
            response[4..].copy_from_slice(&mac);
            self.put_driver_data(&response)?;
        }
        let handle = self.state.free_handle();
        self.attrs.put_or_zero(attr::CORE_OUT, &handle.to_ne_bytes())?;
        if let Some(Object::Pd { users, .. }) = self.state.object_mut(pd) {
            *users += 1;
        }
        self.state.insert(handle, Object::Ah { pd });
        Ok(())
    }
}
