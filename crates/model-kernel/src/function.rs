//! A function of the model as its driver reaches it: commands and registers, and what a driver
//! learns by other ways.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::errno::Errno;
use verbless_devx::{Mapping, Protection};
use verbless_prm::reflect::View;
use verbless_prm::{MkeyContext, RegisterId, RoceVersion};

use verbless_model::device::{Device, Port};
use verbless_model::memory::Interrupts;
use verbless_model::{Link, Profile, Side};

use super::client::PAGE;
use super::port::{GidEntry, PortState};
use super::reach::{About, Function};

/// `ib_uverbs_gid_type` values.
const GID_IB: u32 = 0;
const GID_ROCE_V1: u32 = 1;
const GID_ROCE_V2: u32 = 2;
/// IB_PORT_CAP_MASK2_SUP.
const CAP_MASK2: u32 = 1 << 15;

/// A device of a model, and all that are on its fabric.
pub(super) struct Modelled {
    pub device: Device,
    pub fabric: Arc<[Device]>,
}

impl Function for Modelled {
    fn execute(&self, input: &[u8], output: &mut [u8]) {
        self.device.execute(input, output);
    }

    fn mmio_write(&self, offset: u64, bytes: &[u8]) {
        self.device.mmio_write(offset, bytes);
    }

    fn is_alive(&self) -> bool {
        self.device.is_alive()
    }

    fn is_removed(&self) -> bool {
        self.device.is_removed()
    }

    fn vectors(&self) -> u32 {
        self.device.profile().device().vectors
    }

    fn set_interrupts(&self, interrupts: Option<Arc<dyn Interrupts>>) {
        self.device.set_interrupts(interrupts);
    }

    fn about(&self) -> About {
        let profile = self.device.profile();
        let numbers = profile.device();
        About {
            firmware: numbers.firmware,
            device_id: numbers.device_id,
            embedded_cpu: profile.side() == Side::Dpu,
        }
    }

    fn back_uar(&self, page: u32, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        self.device.uars().back(page, file, offset)
    }

    fn unback_uar(&self, page: u32) {
        if let Err(errno) = self.device.uars().unback(page) {
            tracing::warn!(page, %errno, "a UAR page stays with the client that had it");
        }
    }

    fn map_uar(&self, page: u32, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        let uars = self.device.uars();
        Mapping::shared(uars.file(), u64::from(page) * PAGE, length, protection)
    }

    fn cycles(&self) -> u64 {
        self.device.timer()
    }

    fn port(&self, number: u32) -> Option<PortState> {
        port(&self.device, number)
    }

    fn network_addresses(&self) -> Option<([u8; 6], Vec<[u8; 16]>)> {
        let port = self.device.port(1)?;
        let ethernet = self.device.profile().link() == Link::Ethernet;
        ethernet.then(|| (mac(port.mac), addresses(&self.device, &port)))
    }

    fn reconfigure_key(&self, index: u32, change: &MkeyContext) -> bool {
        self.device.reconfigure_key(index, change)
    }

    fn fails_ioctl(&self, ids: (u16, u16), names: &[&str]) -> Option<Errno> {
        self.device.fails_ioctl(ids, names).map(Errno::from_raw)
    }

    fn neighbour(&self, gid: &[u8; 16]) -> Option<[u8; 6]> {
        let entered = self.fabric.iter().find_map(|device| {
            let addresses = device.roce_addresses();
            let entry = addresses.iter().find(|entry| entry.source_l3_address() == gid)?;
            let (high, low) = (entry.source_mac_47_32(), entry.source_mac_31_0());
            Some(mac(u64::from(high) << 32 | u64::from(low)))
        });
        // Network devices answer for their link-local addresses whether or not a program has the
        // RDMA device open, without which its GID table is empty here.
        entered
            .or_else(|| {
                let ports = self.fabric.iter().filter_map(|device| device.port(1));
                ports
                    .filter(|port| port.up && port.link_local_gid == *gid)
                    .map(|port| mac(port.mac))
                    .next()
            })
            .or_else(|| self.device.gateway(gid).map(mac))
            // Nobody asks a neighbour outside the model for its MAC; its link-local address has it.
            .or_else(|| self.device.leads_outside().then(|| mac_of_link_local(gid)).flatten())
    }
}

/// The addresses of the network device on port 1 of a device, as GIDs, in the order in which Linux
/// enters them: its link-local one, and those of networks.
fn addresses(device: &Device, first: &Port) -> Vec<[u8; 16]> {
    [first.link_local_gid].into_iter().chain(device.network_gids()).collect()
}

/// The MAC that a link-local address is made of, by the modified EUI-64 (RFC 4291, appendix A).
fn mac_of_link_local(gid: &[u8; 16]) -> Option<[u8; 6]> {
    match *gid {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
            Some([a ^ 0x02, b, c, d, e, f])
        }
        _ => None,
    }
}

/// A MAC in the low 48 bits, as bytes.
fn mac(number: u64) -> [u8; 6] {
    let [_, _, bytes @ ..] = number.to_be_bytes();
    bytes
}

/// `enum ib_mtu` of a path MTU in bytes.
fn mtu_code(bytes: u16) -> u8 {
    bytes.checked_ilog2().map_or(0, |log| log.saturating_sub(7) as u8)
}

/// Port `number` of a device, counted from 1.
fn port(device: &Device, number: u32) -> Option<PortState> {
    let port = device.port(number)?;
    let profile = device.profile();
    let numbers = profile.port();
    let ethernet = profile.link() == Link::Ethernet;
    let vport = profile.hca_vport();
    Some(PortState {
        ethernet,
        active: port.up,
        lid: if ethernet { 0 } else { port.lid },
        sm_lid: if ethernet { 0 } else { vport.sm_lid() },
        grh_required: vport.grh_required(),
        capability_mask: vport.cap_mask1(),
        capability_mask_2: match vport.cap_mask1() & CAP_MASK2 {
            0 => 0,
            _ => vport.cap_mask2(),
        },
        lmc: if ethernet { 0 } else { vport.lmc() },
        sm_sl: if ethernet { 0 } else { vport.sm_sl() },
        subnet_timeout: if ethernet { 0 } else { vport.subnet_timeout() },
        init_type_reply: if ethernet { 0 } else { vport.init_type_reply() },
        max_vls: if ethernet { 0 } else { max_vls(&profile) },
        max_mtu: mtu_code(numbers.max_mtu),
        active_mtu: mtu_code(numbers.active_mtu),
        width: numbers.active_width,
        speed: numbers.active_speed,
        gids: if ethernet { roce_gids(device) } else { ib_gids(&port) },
    })
}

/// The VLs that the register for them names, as verbs count them: code n is 2^(n - 1), and 5 is 15.
/// The register's code is the number itself.
fn max_vls(profile: &Profile) -> u8 {
    let register = profile.registers().get(&RegisterId::PVLC.0);
    let vls = register.and_then(|it| View::new(it.info, &it.bytes).get("vl_hw_cap"));
    match vls {
        Some(vls @ (1 | 2 | 4 | 8)) => vls.trailing_zeros() as u8 + 1,
        Some(15) => 5,
        _ => 0,
    }
}

/// The GIDs of an InfiniBand port.
fn ib_gids(port: &Port) -> Vec<GidEntry> {
    let entries = (0..).zip(&port.gids);
    entries.map(|(index, &gid)| GidEntry { index, gid, kind: GID_IB }).collect()
}

/// The GIDs of an Ethernet port: the entries of its address table that are in use.
fn roce_gids(device: &Device) -> Vec<GidEntry> {
    let addresses = device.roce_addresses();
    let used = (0..).zip(&addresses);
    used.filter(|(_, entry)| *entry.source_l3_address() != [0; 16])
        .map(|(index, entry)| GidEntry {
            index,
            gid: *entry.source_l3_address(),
            kind: if entry.roce_version() == RoceVersion::V2 { GID_ROCE_V2 } else { GID_ROCE_V1 },
        })
        .collect()
}

/// Port `number` as it is told of before anybody opens the device: with the GIDs that it gets when
/// it comes up.
pub(super) fn described_port(device: &Device, number: u32) -> Option<PortState> {
    let mut state = port(device, number)?;
    if let (true, [], Some(first)) = (state.ethernet, &state.gids[..], device.port(1)) {
        let entries = addresses(device, &first).into_iter();
        let entries = entries.flat_map(|gid| [(gid, GID_ROCE_V1), (gid, GID_ROCE_V2)]).zip(0..);
        state.gids = entries.map(|((gid, kind), index)| GidEntry { index, gid, kind }).collect();
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use verbless_model::{Link, Model, Profile, Uplink};

    use super::{Function as _, Modelled};

    #[test]
    fn a_neighbour_outside_is_known_by_its_link_local_address_while_there_is_an_outside() {
        let profile = Profile::load("connectx6dx").unwrap().with_link(Link::Ethernet);
        let model = Model::builder().device(profile).threaded().build();
        let device = model.device(0);
        let modelled = Modelled { device: device.clone(), fabric: [device].into() };
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&[0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
        assert_eq!(modelled.neighbour(&gid), None);
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let external = model.join_ethernet(&Uplink::Inet { local: free, remote: free }).unwrap();
        assert_eq!(modelled.neighbour(&gid), Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        // Not made of a MAC, of another network, and of IPv4.
        for at in [11, 12, 7, 0] {
            let mut other = gid;
            other[at] ^= 1;
            assert_eq!(modelled.neighbour(&other), None, "byte {at}");
        }
        // The model's own are known as before.
        let own = model.device(0).port(1).unwrap();
        assert_eq!(modelled.neighbour(&own.link_local_gid), Some(super::mac(own.mac)));
        drop(external);
        assert_eq!(modelled.neighbour(&gid), None);
    }
}
