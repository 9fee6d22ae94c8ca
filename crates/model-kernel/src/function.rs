//! A function of the model, seen by its driver: commands, registers, and facts that a driver gets
//! from other sources.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::errno::Errno;
use verbless_devx::{Mapping, Protection};
use verbless_prm::reflect::View;
use verbless_prm::{MkeyContext, RegisterId, RoceVersion};

use verbless_model::function::{Function, Port};
use verbless_model::memory::{Interrupts, Iommu};
use verbless_model::{DriverHandle, Link, Profile, Side};

use super::cmd::{FunctionAccess, FunctionRegisters};
use super::network::Network;
use super::page::PAGE;
use super::port::{GidEntry, PortState};

/// `ib_uverbs_gid_type` values.
const GID_IB: u32 = 0;
const GID_ROCE_V1: u32 = 1;
const GID_ROCE_V2: u32 = 2;
/// IB_PORT_CAP_MASK2_SUP.
const CAP_MASK2: u32 = 1 << 15;

/// A device of a model, as one driver reaches it; and all devices of its fabric.
pub(super) struct ModelFunction {
    /// For facts that do not depend on the driver.
    device: Function,
    driver: DriverHandle,
    fabric: Arc<[Function]>,
    network: Arc<Network>,
}

impl FunctionAccess for ModelFunction {
    fn execute(&self, input: &[u8], output: &mut [u8]) -> bool {
        self.driver.execute(input, output)
    }

    fn mmio_write(&self, offset: u64, bytes: &[u8]) {
        self.driver.mmio_write(offset, bytes);
    }

    fn is_alive(&self) -> bool {
        self.driver.is_alive()
    }

    fn is_released(&self) -> bool {
        self.driver.is_released()
    }

    fn vectors(&self) -> u32 {
        self.device.profile().device().vectors
    }

    fn set_interrupts(&self, interrupts: Option<Arc<dyn Interrupts>>) {
        self.driver.set_interrupts(interrupts);
    }

    fn registers(&self) -> FunctionRegisters {
        let profile = self.device.profile();
        let numbers = profile.device();
        FunctionRegisters {
            firmware: numbers.firmware,
            device_id: self.device.device_id(),
            embedded_cpu: profile.side() == Side::Dpu,
        }
    }

    fn back_uar(&self, page: u32, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        self.driver.back_uar(page, file, offset)
    }

    fn unback_uar(&self, page: u32) -> Result<(), Errno> {
        self.driver.unback_uar(page)
    }

    fn map_uar(&self, page: u32, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        Mapping::shared(self.driver.uar_file(), u64::from(page) * PAGE, length, protection)
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
        ethernet.then(|| (mac(port.mac), addresses(&self.device, &port, &self.network)))
    }

    fn reconfigure_key(&self, index: u32, change: &MkeyContext) -> bool {
        self.driver.reconfigure_key(index, change)
    }

    fn iommu(&self) -> Arc<Iommu> {
        self.device.iommu()
    }

    fn take_ioctl_fault(&self, ids: (u16, u16), names: &[&str]) -> Option<Errno> {
        self.device.take_ioctl_fault(ids, names).map(Errno::from_raw)
    }

    fn neighbour(&self, gid: &[u8; 16]) -> Option<[u8; 6]> {
        let entered = self.fabric.iter().find_map(|device| {
            let addresses = device.roce_addresses();
            let entry = addresses.iter().find(|entry| entry.source_l3_address() == gid)?;
            let (high, low) = (entry.source_mac_47_32(), entry.source_mac_31_0());
            Some(mac((u64::from(high) << 32) + u64::from(low)))
        });
        // A netdev answers ARP even if no program has the RDMA device open; the device's GID table
        // is empty then.
        entered
            .or_else(|| {
                self.fabric.iter().find_map(|device| {
                    let port = device.port(1).filter(|port| port.up)?;
                    let is_own = addresses(device, &port, &self.network).contains(gid);
                    is_own.then(|| mac(port.mac))
                })
            })
            .or_else(|| self.device.gateway(gid).map(mac))
            .or_else(|| self.network.neighbour(gid))
            // ARP does not reach neighbours outside the model; a link-local address contains its
            // MAC.
            .or_else(|| self.device.has_external_peer().then(|| mac_of_link_local(gid)).flatten())
    }
}

impl ModelFunction {
    /// Attaches to a device.
    pub(super) fn new(
        device: Function,
        fabric: Arc<[Function]>,
        network: Arc<Network>,
    ) -> Result<Self, Errno> {
        let attached = device.attach();
        let driver =
            attached.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
        Ok(Self { device, driver, fabric, network })
    }
}

/// The addresses of the netdev on port 1, as GIDs, in Linux's order: link-local, networks, added
/// ones.
fn addresses(device: &Function, first: &Port, network: &Network) -> Vec<[u8; 16]> {
    if !network.is_here(device.number()) {
        return Vec::new();
    }
    let of_networks = [first.link_local_gid].into_iter().chain(device.network_gids());
    of_networks.chain(network.addresses(device.number())).collect()
}

/// The MAC in a link-local address: modified EUI-64 (RFC 4291, appendix A).
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
fn port(device: &Function, number: u32) -> Option<PortState> {
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

/// The verbs code of the port's VLs: code n is 2^(n - 1), and 5 is 15. PVLC holds the number
/// itself.
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

/// The GIDs of an Ethernet port: used entries of its RoCE address table.
fn roce_gids(device: &Function) -> Vec<GidEntry> {
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

/// The state of port `number` before a client opens the device, with the GIDs that bring-up enters.
pub(super) fn described_port(
    device: &Function,
    number: u32,
    network: &Network,
) -> Option<PortState> {
    let mut state = port(device, number)?;
    if let (true, [], Some(first)) = (state.ethernet, &state.gids[..], device.port(1)) {
        let gids = addresses(device, &first, network).into_iter();
        let entries = gids.flat_map(|gid| [(gid, GID_ROCE_V1), (gid, GID_ROCE_V2)]).zip(0..);
        let entry = |((gid, kind), index)| GidEntry { index, gid, kind };
        state.gids = entries.map(entry).collect();
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, UdpSocket};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use verbless_model::memory::Interrupts;
    use verbless_model::{Link, Model, Profile, Uplink};
    use verbless_prm::{EnableHcaIn, RoceL3Type, RoceVersion};
    use verbless_wire::gid_of;

    use super::{FunctionAccess as _, ModelFunction, PAGE};
    use crate::{InProcess, Neighbour};

    #[test]
    fn link_local_gid_gives_mac_while_uplink_exists() {
        let profile = Profile::load("connectx6dx").unwrap().with_link(Link::Ethernet);
        let model = Model::builder().device(profile).threaded().build();
        let device = model.device(0);
        let (fabric, network) = ([device.clone()].into(), Arc::default());
        let modelled = ModelFunction::new(device, fabric, network).unwrap();
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&[0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
        assert_eq!(modelled.neighbour(&gid), None);
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let external = model.join_ethernet(&Uplink::Inet { local: free, remote: free }).unwrap();
        assert_eq!(modelled.neighbour(&gid), Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        // No EUI-64, another prefix, IPv4.
        for at in [11, 12, 7, 0] {
            let mut other = gid;
            other[at] ^= 1;
            assert_eq!(modelled.neighbour(&other), None, "byte {at}");
        }
        // Neighbours in the model still resolve.
        let own = model.device(0).port(1).unwrap();
        assert_eq!(modelled.neighbour(&own.link_local_gid), Some(super::mac(own.mac)));
        drop(external);
        assert_eq!(modelled.neighbour(&gid), None);
    }

    #[test]
    fn driver_attached_before_reset_cannot_act() {
        struct Receiver;
        impl Interrupts for Receiver {
            fn raise(&self, _: u32) {}
        }
        let model = Model::builder().device(Profile::load("connectx6dx").unwrap()).build();
        let device = model.device(0);
        let attach =
            || ModelFunction::new(device.clone(), [device.clone()].into(), Arc::default()).unwrap();
        let earlier = attach();
        assert!(earlier.is_alive() && !earlier.is_released());
        device.reset();
        let later = attach();
        assert!(!earlier.is_alive() && earlier.is_released());
        assert!(later.is_alive() && !later.is_released());
        let (enable, mut output) = (EnableHcaIn::new(), [0; 16]);
        assert!(!earlier.execute(enable.as_bytes(), &mut output), "without a look at is_alive");
        assert!(later.execute(enable.as_bytes(), &mut output) && output[0] == 0);
        let receiver: Arc<dyn Interrupts> = Arc::new(Receiver);
        later.set_interrupts(Some(receiver.clone()));
        earlier.set_interrupts(None);
        assert_eq!(Arc::strong_count(&receiver), 2, "the device has it still");
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"page-of-a-later-client", flags).unwrap();
        nix::unistd::ftruncate(&file, PAGE as i64).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        later.back_uar(1, file.as_fd(), 0).unwrap();
        earlier.unback_uar(1).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("memfd:page-of-a-later-client"), "{maps}");
    }

    #[test]
    fn ip_address_makes_two_gids_and_a_neighbour() {
        let card = Profile::load("connectx6dx").unwrap().with_link(Link::Ethernet);
        let model = Model::builder().device(card.clone()).device(card).stepped().build();
        let backend = InProcess::of(&model);
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        backend.add_address(1, address).unwrap();
        let gid = gid_of(address);
        let gids: Vec<_> = backend.port(1, 1).unwrap().gids;
        let kinds: Vec<_> = gids.iter().map(|it| (it.index, it.gid == gid, it.kind)).collect();
        assert_eq!(kinds, [(0, false, 1), (1, false, 2), (2, true, 1), (3, true, 2)]);
        // The result is the same before and after the neighbour is opened, which fills its GID
        // table.
        let neighbour = || backend.lease(0).unwrap().kernel.function.neighbour(&gid);
        let own = super::mac(model.device(1).port(1).unwrap().mac);
        assert_eq!(neighbour(), Some(own));
        let other = backend.lease(1).unwrap();
        assert_eq!(neighbour(), Some(own));
        assert_eq!(backend.port(1, 1).unwrap().gids, gids);
        let layers: Vec<_> = model.device(1).roce_addresses()[..4]
            .iter()
            .map(|it| (it.roce_version(), it.roce_l3_type()))
            .collect();
        let [v4, v6] = [RoceL3Type::IPV4, RoceL3Type::IPV6];
        let [v1, v2] = [RoceVersion::V1, RoceVersion::V2];
        assert_eq!(layers, [(v1, v4), (v2, v6), (v1, v4), (v2, v4)]);
        drop(other);
    }

    #[test]
    fn added_neighbour_resolves_gid_to_mac() {
        let card = Profile::load("connectx6dx").unwrap().with_link(Link::Ethernet);
        let model = Model::builder().device(card).stepped().build();
        let backend = InProcess::of(&model);
        let address: IpAddr = "192.0.2.9".parse().unwrap();
        let mac = || backend.lease(0).unwrap().kernel.function.neighbour(&gid_of(address));
        assert_eq!(mac(), None);
        backend.add_neighbour(&Neighbour { address, mac: [2, 3, 4, 5, 6, 7] });
        assert_eq!(mac(), Some([2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn bad_address_is_rejected_with_reason() {
        let profile = |link| Profile::load("connectx6dx").unwrap().with_link(link);
        let (ethernet, infiniband) = (profile(Link::Ethernet), profile(Link::Infiniband));
        let model = Model::builder().device(ethernet).device(infiniband).stepped().build();
        let backend = InProcess::of(&model);
        let add = |device, address: &str| {
            let added = backend.add_address(device, address.parse().unwrap());
            added.map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        assert_eq!(add(0, "192.0.2.1"), "");
        for (device, address, why) in [
            (2, "192.0.2.2", "there are 2, from 0"),
            (1, "192.0.2.2", "InfiniBand"),
            (0, "224.0.0.1", "no address of a host"),
            (0, "::", "no address of a host"),
            (0, "192.0.2.1", "it has this address"),
        ] {
            assert!(add(device, address).contains(why), "{address}: {}", add(device, address));
        }
        let lease = backend.lease(0).unwrap();
        assert!(add(0, "192.0.2.2").contains("it is open"));
        drop(lease);
        let full = (2..=255).map(|last| add(0, &format!("192.0.2.{last}")));
        assert!(full.collect::<String>().contains("entries is full"));
    }
}
