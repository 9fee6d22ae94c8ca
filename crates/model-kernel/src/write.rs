//! INVOKE_WRITE: the commands of the old write(2) interface, which libraries send by ioctl.
//!
//! A command that is not listed answers as a kernel that lacks the method does.

use verbless_prm::Opcode;
use verbless_wire::multicast_mac;

use nix::errno::Errno;

use super::abi::{attr, object};
use super::device::find_gid;
use super::file::Method;
use super::handles::{Object, charge_of_object};
use super::kernel::Kernel;
use super::port::PortState;
use super::refused::{probe, refused};
use super::uapi::UverbsRequest;
use super::{unmodelled, verbs};

/// Bit of a command number: the extended form.
pub(super) const EXTENDED: u32 = 1 << 31;
/// Valid bits of a command number: the number, and the extended flag.
const COMMAND_BITS: u32 = EXTENDED | 0xff;
/// Bytes of `mlx5_ib_create_ah_resp` up to its MAC.
const AH_RESPONSE: usize = 10;

/// A command of the old interface.
pub(super) struct Command {
    /// Name in `ib_user_verbs.h`, without the common prefix.
    pub name: &'static str,
    pub number: u32,
    /// Bytes of the request's structure, which a plain command must have.
    pub request: usize,
    /// Bytes of room that the response needs.
    pub response: usize,
    /// Whether the context is checked before the request is read.
    pub in_context: bool,
    pub run: fn(&mut Method<'_>, &UverbsRequest) -> Result<(), Errno>,
}

pub(super) const fn plain(
    name: &'static str,
    number: u32,
    request: usize,
    response: usize,
    run: fn(&mut Method<'_>, &UverbsRequest) -> Result<(), Errno>,
) -> Command {
    Command { name, number, request, response, in_context: false, run }
}

/// A command of the extended form. Linux requires no minimum size of its request and response
/// (`uapi_create_write`): a short request is padded with zeros, and the response is truncated.
pub(super) const fn extended(
    name: &'static str,
    number: u32,
    request: usize,
    run: fn(&mut Method<'_>, &UverbsRequest) -> Result<(), Errno>,
) -> Command {
    plain(name, EXTENDED | number, request, 0, run)
}

/// A command that checks the context before it reads its request.
pub(super) const fn in_context(command: Command) -> Command {
    Command { in_context: true, ..command }
}

static COMMANDS: &[Command] = &[
    in_context(plain("QUERY_PORT", 2, 16, 40, |method, core| method.write_query_port(core))),
    plain("ALLOC_PD", 3, 8, 4, |method, _| method.alloc_pd()),
    plain("DEALLOC_PD", 4, 4, 0, |method, core| method.destroy_by_handle(core.u32(0), object::PD)),
    plain("CREATE_AH", 5, 56, 4, |method, core| method.create_ah(core)),
    plain("DESTROY_AH", 8, 4, 0, |method, core| method.destroy_by_handle(core.u32(0), object::AH)),
];

/// Every command that this kernel has.
fn commands() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().chain(verbs::COMMANDS)
}

/// The name of a command, for the log.
pub(super) fn name(number: u64) -> Option<&'static str> {
    let command = commands().find(|command| u64::from(command.number) == number)?;
    Some(command.name)
}

impl Method<'_> {
    pub(super) fn invoke_write(&mut self) -> Result<(), Errno> {
        let number = self.attrs.number(attr::WRITE_CMD, u32::MAX.into())? as u32;
        if number & !COMMAND_BITS != 0 {
            let words = format!("there is no write command {number:#x}");
            return Err(refused(Errno::EINVAL, words));
        }
        let command = commands().find(|command| command.number == number);
        let command = command.ok_or_else(|| unmodelled::command(number))?;
        if number & EXTENDED == 0 {
            self.check_sizes(command)?;
        }
        if command.in_context {
            self.state.context()?;
        }
        let core = self.core(command.request)?;
        (command.run)(self, &core)?;
        self.attrs.written(attr::UHW_OUT);
        Ok(())
    }

    fn check_sizes(&self, command: &Command) -> Result<(), Errno> {
        if !self.attrs.has(attr::CORE_IN) && !self.attrs.has(attr::CORE_OUT) {
            // libibverbs, `has_ioctl_write`: ENOSPC tells it that ioctls carry these commands.
            return Err(probe(Errno::ENOSPC, "without a request and room for a response"));
        }
        let room = |id| self.attrs.len(id).unwrap_or(0);
        let (request, response) = (room(attr::CORE_IN), room(attr::CORE_OUT));
        if request < command.request || response < command.response {
            let words = format!(
                "the request has {request} bytes and room for {response} of the response; it needs \
                 {} and {}",
                command.request, command.response
            );
            return Err(refused(Errno::ENOSPC, words));
        }
        Ok(())
    }

    /// The first `bytes` bytes of the request, padded with zeros; the rest must be zero.
    fn core(&self, bytes: usize) -> Result<UverbsRequest, Errno> {
        let mut request = match self.attrs.bytes(attr::CORE_IN) {
            Err(Errno::ENOENT) => Vec::new(),
            other => other?,
        };
        if request.iter().skip(bytes).any(|&byte| byte != 0) {
            let words = format!("the request has nonzero bytes after the {bytes} known ones");
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        request.resize(bytes, 0);
        Ok(UverbsRequest(request))
    }

    /// Writes an extended command's response to `attr::CORE_OUT`, if given.
    pub(super) fn put_extended(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if self.attrs.has(attr::CORE_OUT) {
            self.attrs.put_or_zero(attr::CORE_OUT, bytes)
        } else {
            Ok(())
        }
    }

    /// Writes driver data to the client and ignores the stated length, as the driver does.
    fn put_driver_data(&self, bytes: &[u8]) -> Result<(), Errno> {
        let address = self.attrs.data(attr::UHW_OUT).unwrap_or(0);
        self.attrs.client.write(address, bytes)
    }

    pub(super) fn destroy_by_handle(&mut self, handle: u32, kind: u16) -> Result<(), Errno> {
        let handle = self.state.lookup_to_destroy(handle.into(), kind)?;
        self.file.destroy(self.state, self.client, handle).map(drop)
    }

    fn alloc_pd(&mut self) -> Result<(), Errno> {
        let uid = self.state.context()?.uid;
        let kernel = &self.file.kernel;
        let handle = self.state.free_handle()?;
        let pdn = kernel.allocate(Opcode::ALLOC_PD, uid)?;
        let written = self
            .put_driver_data(&pdn.to_ne_bytes())
            .and_then(|()| self.attrs.put_or_zero(attr::CORE_OUT, &handle.to_ne_bytes()));
        if let Err(errno) = written {
            let _ = kernel.free(Opcode::DEALLOC_PD, uid, pdn);
            return Err(errno);
        }
        self.state.insert(handle, Object::Pd { pdn });
        Ok(())
    }

    /// The data of a PD for a process that shares the file and imports it.
    pub(super) fn query_pd(&mut self) -> Result<(), Errno> {
        let no_pd = || refused(Errno::EINVAL, "the request names no PD");
        let handle = self.named.handle.ok_or_else(no_pd)?;
        let Some(&Object::Pd { pdn }) = self.state.object(handle) else {
            return Err(no_pd());
        };
        self.attrs.put(attr::QUERY_PD_NUMBER, &pdn.to_ne_bytes())
    }

    /// An address handle: a DevX client needs only the MAC of a RoCE path.
    fn create_ah(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        self.state.context()?;
        let kernel = &self.file.kernel;
        let [is_global, number] = [request.u8(53), request.u8(54)];
        let port = kernel.function.port(number.into()).ok_or_else(|| {
            refused(Errno::EINVAL, format!("ah_attr.port_num {number}: there is no such port"))
        })?;
        let pd = self.state.lookup(request.u32(16).into(), object::PD)?;
        if is_global != 0 {
            find_gid(kernel, &port, request.u8(44).into())?;
        } else if port.needs_grh() {
            return Err(no_grh(&port));
        }
        if port.ethernet {
            let mac = destination_mac(kernel, &request.gid(24))?;
            let room = self.attrs.len(attr::UHW_OUT).unwrap_or(0);
            if room < AH_RESPONSE {
                let words =
                    format!("the driver's data has room for {room} bytes, not {AH_RESPONSE}");
                return Err(refused(Errno::EINVAL, words));
            }
            let mut response = [0; AH_RESPONSE];
            response[..4].copy_from_slice(&(AH_RESPONSE as u32).to_ne_bytes());
            response[4..].copy_from_slice(&mac);
            self.put_driver_data(&response)?;
        }
        check_rate(request.u8(52))?;
        let ah = Object::Ah { _bytes: charge_of_object(&**self.client, 0)? };
        let handle = self.state.free_handle()?;
        self.attrs.put_or_zero(attr::CORE_OUT, &handle.to_ne_bytes())?;
        self.state.insert_using(handle, ah, vec![pd]);
        Ok(())
    }
}

/// Refuses a static rate (`ib_rate`) that does not exist, as `mlx5r_ib_rate`: 0 is no limit, and 2
/// to 23 are 2.5 to 800 Gb/s.
pub(super) fn check_rate(rate: u8) -> Result<(), Errno> {
    match rate {
        0 | 2..=23 => Ok(()),
        other => {
            let words = format!("static_rate {other} does not exist: 0, or 2 to 23");
            Err(refused(Errno::EINVAL, words))
        }
    }
}

/// The errno for a path without a GRH from a port that needs one.
pub(super) fn no_grh(port: &PortState) -> Errno {
    let why = match port.ethernet {
        true => "a path of RoCE needs a GRH",
        false => "this port requires a GRH in every packet (grh_required), as it shares its LID",
    };
    let words = format!(
        "ah_attr.is_global is 0: {why}; set is_global to 1, grh.dgid to the peer's GID and \
         grh.sgid_index"
    );
    refused(Errno::EINVAL, words)
}

/// The MAC of a GID on RoCE, as `ib_resolve_eth_dmac` finds it: a multicast GID determines it,
/// another is looked up as a neighbour.
pub(super) fn destination_mac(kernel: &Kernel, gid: &[u8; 16]) -> Result<[u8; 6], Errno> {
    // Without a neighbour, Linux gives up after a second or more.
    multicast_mac(gid).or_else(|| kernel.function.neighbour(gid)).ok_or_else(|| {
        let gid = std::net::Ipv6Addr::from(*gid);
        refused(Errno::ETIMEDOUT, format!("no neighbour has GID {gid}: its MAC is not known"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use verbless_model::ioctl::NAMES;

    use super::super::abi;
    use super::commands;

    #[test]
    fn faults_name_every_ioctl_and_every_command() {
        let methods = abi::methods().map(|method| method.name);
        let known: BTreeSet<_> = methods.chain(commands().map(|it| it.name)).collect();
        assert_eq!(known, NAMES.iter().copied().collect());
    }
}
