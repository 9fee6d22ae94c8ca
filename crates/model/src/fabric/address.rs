//! The destination of a frame: the addresses at its start, and the addresses that a vport accepts.

use verbless_prm::{Grh, Lrh, LrhNextHeader};

use crate::profile::Link;
use verbless_wire::Mac;

/// The first LID of multicast groups.
pub(crate) const FIRST_MULTICAST_LID: u16 = 0xc000;
/// The LID of the other end of the link; no switch forwards it.
const PERMISSIVE_LID: u16 = 0xffff;

/// The destination of a frame, as the fabric reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// One port, or every port in promiscuous mode.
    Mac(Mac),
    /// All ports of an Ethernet fabric.
    EthernetGroup,
    /// One LID, and the destination GID if the packet has a GRH.
    Lid(u16, Option<[u8; 16]>),
    /// All ports of an InfiniBand fabric.
    InfinibandGroup,
}

impl Destination {
    /// The destination of a frame; `None` if the frame is too short, or its LID is reserved.
    pub(super) fn of(link: Link, frame: &[u8]) -> Option<Self> {
        match link {
            // A frame has its addresses and its type.
            Link::Ethernet if frame.len() < 14 => None,
            Link::Ethernet => {
                let mac = Mac(*frame.first_chunk()?);
                Some(if mac.is_group() { Self::EthernetGroup } else { Self::Mac(mac) })
            }
            Link::Infiniband => {
                let lrh = Lrh::from_prefix(frame)?;
                match lrh.destination_lid() {
                    0 | PERMISSIVE_LID => None,
                    FIRST_MULTICAST_LID.. => Some(Self::InfinibandGroup),
                    lid if lrh.link_next_header() == LrhNextHeader::IBA_GLOBAL => {
                        let grh = Grh::from_prefix(&frame[Lrh::BYTES..])?;
                        Some(Self::Lid(lid, Some(*grh.destination_gid())))
                    }
                    lid => Some(Self::Lid(lid, None)),
                }
            }
        }
    }

    pub(super) fn is_group(self) -> bool {
        matches!(self, Self::EthernetGroup | Self::InfinibandGroup)
    }
}

/// The source MAC of a frame.
pub(super) fn source_mac(frame: &[u8]) -> Option<Mac> {
    frame.get(6..)?.first_chunk().map(|bytes| Mac(*bytes))
}

/// The addresses that a vport accepts. Multicast and broadcast frames go to every vport; the
/// receiver checks the groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Ethernet: its unicast addresses.
    pub macs: Vec<Mac>,
    /// Ethernet: whether the port takes frames for other addresses (promiscuous mode).
    pub promiscuous: bool,
    /// InfiniBand: the LID of its port; 0: none.
    pub lid: u16,
    /// InfiniBand: its GIDs.
    pub gids: Vec<[u8; 16]>,
    /// InfiniBand: whether it shares its LID, so that it takes only packets whose GRH names one of
    /// its GIDs.
    pub grh_required: bool,
}

impl Addresses {
    /// Whether a unicast frame has an address of this vport.
    pub(super) fn name(&self, destination: Destination) -> bool {
        match destination {
            Destination::Mac(mac) => self.macs.contains(&mac),
            Destination::Lid(lid, gid) => {
                let named = match gid {
                    Some(gid) => !self.grh_required || self.gids.contains(&gid),
                    None => !self.grh_required,
                };
                self.lid == lid && named
            }
            Destination::EthernetGroup | Destination::InfinibandGroup => false,
        }
    }

    /// Whether a frame that reaches the card reaches this vport.
    pub(super) fn take(&self, destination: Destination) -> bool {
        destination.is_group()
            || self.name(destination)
            || self.promiscuous && matches!(destination, Destination::Mac(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(lid: u16, next: LrhNextHeader) -> Vec<u8> {
        let mut lrh = Lrh::zeroed();
        lrh.set_destination_lid(lid).set_link_next_header(next);
        let mut grh = Grh::zeroed();
        grh.set_destination_gid(&[7; 16]);
        [lrh.as_bytes().as_slice(), grh.as_bytes()].concat()
    }

    fn infiniband(lid: u16, next: LrhNextHeader) -> Option<Destination> {
        Destination::of(Link::Infiniband, &packet(lid, next))
    }

    #[test]
    fn ib_packet_goes_to_lid_gid_or_group() {
        let (local, global) = (LrhNextHeader::IBA_LOCAL, LrhNextHeader::IBA_GLOBAL);
        assert_eq!(infiniband(0xbfff, local), Some(Destination::Lid(0xbfff, None)));
        assert_eq!(infiniband(1, global), Some(Destination::Lid(1, Some([7; 16]))));
        assert_eq!(infiniband(0xc000, global), Some(Destination::InfinibandGroup));
        assert_eq!(infiniband(0xfffe, local), Some(Destination::InfinibandGroup));
        assert_eq!(infiniband(0, local), None);
        assert_eq!(infiniband(0xffff, local), None, "the permissive LID is not forwarded");
        let cut = packet(1, global);
        assert_eq!(Destination::of(Link::Infiniband, &cut[..47]), None);
        assert_eq!(Destination::of(Link::Infiniband, &cut[..7]), None);
    }

    #[test]
    fn ethernet_destination_is_mac_or_group() {
        let of = |mac: [u8; 6], length| {
            let mut frame = vec![0; length];
            frame[..6].copy_from_slice(&mac);
            Destination::of(Link::Ethernet, &frame)
        };
        assert_eq!(of([2; 6], 14), Some(Destination::Mac(Mac([2; 6]))));
        assert_eq!(of([1, 0, 0x5e, 0, 0, 1], 60), Some(Destination::EthernetGroup));
        assert_eq!(of([0xff; 6], 60), Some(Destination::EthernetGroup));
        assert_eq!(of([2; 6], 13), None);
        assert_eq!(source_mac(&[3; 12]), Some(Mac([3; 6])));
        assert_eq!(source_mac(&[3; 11]), None);
    }

    #[test]
    fn vport_with_shared_lid_is_chosen_by_gid() {
        let alone = Addresses { lid: 5, ..Addresses::default() };
        let shared = Addresses { gids: vec![[7; 16]], grh_required: true, ..alone.clone() };
        for (gid, by_lid, by_gid) in
            [(None, true, false), (Some([7; 16]), true, true), (Some([8; 16]), true, false)]
        {
            let destination = Destination::Lid(5, gid);
            assert_eq!((alone.take(destination), shared.take(destination)), (by_lid, by_gid));
            assert!(
                !alone.take(Destination::Lid(6, gid)) && !shared.take(Destination::Lid(6, gid))
            );
        }
        assert!(shared.take(Destination::InfinibandGroup));
    }

    #[test]
    fn promiscuous_vport_takes_frames_of_others() {
        let (own, other) = (Destination::Mac(Mac([2; 6])), Destination::Mac(Mac([4; 6])));
        let mut vport = Addresses { macs: vec![Mac([2; 6])], ..Addresses::default() };
        assert!(vport.take(own) && !vport.take(other) && vport.take(Destination::EthernetGroup));
        vport.promiscuous = true;
        assert!(vport.take(own) && vport.take(other));
        assert!(vport.name(own) && !vport.name(other));
    }
}
