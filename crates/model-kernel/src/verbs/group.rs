//! Multicast groups: ATTACH_MCAST and DETACH_MCAST.

use nix::errno::Errno;
use verbless_prm::{AttachToMcgIn, DetachFromMcgIn, ServiceType};
use verbless_wire::is_multicast;

use super::super::abi::object;
use super::super::cmd::command;
use super::super::file::Method;
use super::super::handles::Object;
use super::super::refused::refused;
use super::super::uapi::UverbsRequest;
use super::objects::{Verbs, VerbsQp};

/// LIDs of multicast groups.
const MULTICAST_LIDS: std::ops::Range<u16> = 0xc000..0xffff;

/// `ib_uverbs_attach_mcast`: a queue pair and a group.
struct Membership {
    gid: [u8; 16],
    handle: u32,
    lid: u16,
}

impl Method<'_> {
    fn member(&mut self, request: &UverbsRequest) -> Result<(Membership, &mut VerbsQp), Errno> {
        let of = Membership { gid: request.gid(0), handle: request.u32(16), lid: request.u16(20) };
        let handle = self.state.lookup(of.handle.into(), object::QP)?;
        match self.state.object_mut(handle) {
            Some(Object::Verbs(Verbs::Qp(qp))) => Ok((of, qp)),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn attach_multicast(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let kernel = self.file.kernel.clone();
        let ethernet = kernel.caps.port_type() == verbless_prm::PortType::ETHERNET;
        let (of, qp) = self.member(request)?;
        if qp.groups.contains(&(of.gid, of.lid)) {
            return Ok(());
        }
        let lid = ethernet || MULTICAST_LIDS.contains(&of.lid);
        if !is_multicast(&of.gid) || qp.service != ServiceType::UD || !lid {
            let gid = std::net::Ipv6Addr::from(of.gid);
            let words = format!(
                "GID {gid} and LID {:#x} with a QP of {:?}: UD QPs join groups (GID ff.. or \
                 ::ffff:224.0.0.0/4, on InfiniBand LID 0xc000 to 0xfffe)",
                of.lid, qp.service
            );
            return Err(refused(Errno::EINVAL, words));
        }
        let mut input = AttachToMcgIn::new();
        input.set_uid(qp.uid).set_qpn(qp.qpn).set_multicast_gid(&of.gid);
        command(&*kernel.function, &input)?;
        qp.groups.push((of.gid, of.lid));
        Ok(())
    }

    pub(crate) fn detach_multicast(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let kernel = self.file.kernel.clone();
        let (of, qp) = self.member(request)?;
        let at = qp.groups.iter().position(|&group| group == (of.gid, of.lid));
        let at = at.ok_or_else(|| refused(Errno::EINVAL, "the QP has not joined this group"))?;
        let mut input = DetachFromMcgIn::new();
        input.set_uid(qp.uid).set_qpn(qp.qpn).set_multicast_gid(&of.gid);
        command(&*kernel.function, &input)?;
        qp.groups.swap_remove(at);
        Ok(())
    }
}
