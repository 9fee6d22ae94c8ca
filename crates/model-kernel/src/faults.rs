//! Fails ioctls on request: of a fault plan or of `Model::fail_ioctl`.

use nix::errno::Errno;

use super::abi::{Call, attr};
use super::file::File;
use super::ioctl::Request;
use super::refused::refused;
use super::write;

impl File {
    /// Fails an ioctl if a fault was requested for it.
    pub(super) fn take_requested_fault(&self, request: &Request<'_>) -> Result<(), Errno> {
        let method = request.method;
        let attributes = (0..request.len()).map(|index| request.raw(index));
        let command = attributes
            .filter(|it| method.call == Call::InvokeWrite && it.id == attr::WRITE_CMD)
            .find_map(|it| write::name(it.data));
        let names: Vec<&str> = [method.name].into_iter().chain(command).collect();
        match self.kernel.function.take_ioctl_fault((method.object, method.id), &names) {
            Some(errno) => Err(refused(errno, "a fault plan or Model::fail_ioctl requested it")),
            None => Ok(()),
        }
    }
}
