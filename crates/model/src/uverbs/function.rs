//! A function of the model as its driver reaches it: commands and registers, and what a driver learns by other ways.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::errno::Errno;
use verbless_devx::{Mapping, Protection};
use verbless_prm::reflect::View;
use verbless_prm::{MkeyContext, RegisterId, RoceVersion};

use super::client::PAGE;
use super::kernel::{Function, GidEntry, PortState};
use super::verbs::About;
use crate::engine;
use crate::hca::{self, Hca, Port};
use crate::memory::Interrupts;
use crate::profile::{Link, Side};
use crate::world::{HcaId, Shared};

/// `ib_uverbs_gid_type` values.
const GID_IB: u32 = 0;
const GID_ROCE_V1: u32 = 1;
const GID_ROCE_V2: u32 = 2;
/// IB_PORT_CAP_MASK2_SUP.
const CAP_MASK2: u32 = 1 << 15;

/// Function `id` of a model.
pub(super) struct Modelled {
    pub shared: Arc<Shared>,
    pub id: HcaId,
}

impl Modelled {
    /// Looks at the function, with no interrupts to deliver.
    fn look<R>(&self, f: impl FnOnce(&Hca) -> R) -> R {
        f(&self.shared.lock().hcas[self.id])
    }
}

impl Function for Modelled {
    fn execute(&self, input: &[u8], output: &mut [u8]) {
        self.shared.with(|world| hca::execute(world, self.id, input, output));
    }

    fn mmio_write(&self, offset: u64, bytes: &[u8]) {
        self.shared.with(|world| engine::mmio_write(world, self.id, offset, bytes));
    }

    fn is_alive(&self) -> bool {
        self.look(|hca| !hca.fatal)
    }

    fn is_removed(&self) -> bool {
        self.look(|hca| hca.removed)
    }

    fn vectors(&self) -> u32 {
        self.look(|hca| hca.profile.device().vectors)
    }

    fn set_interrupts(&self, interrupts: Option<Arc<dyn Interrupts>>) {
        self.shared.lock().hcas[self.id].interrupts = interrupts;
    }

    fn about(&self) -> About {
        self.look(|hca| {
            let numbers = hca.profile.device();
            About {
                firmware: numbers.firmware,
                device_id: numbers.device_id,
                embedded_cpu: hca.profile.side() == Side::Dpu,
            }
        })
    }

    fn back_uar(&self, page: u32, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        self.look(|hca| hca.bar.back(page, file, offset))
    }

    fn unback_uar(&self, page: u32) {
        if let Err(errno) = self.look(|hca| hca.bar.unback(page)) {
            tracing::warn!(page, %errno, "a UAR page stays with the client that had it");
        }
    }

    fn map_uar(&self, page: u32, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.look(|hca| Mapping::shared(hca.bar.file(), u64::from(page) * PAGE, length, protection))
    }

    fn cycles(&self) -> u64 {
        let mut world = self.shared.lock();
        world.clock.tick();
        world.hcas[self.id].objects.limits.ticks(world.clock.now)
    }

    fn port(&self, number: u32) -> Option<PortState> {
        self.look(|hca| port(hca, number))
    }

    fn network_address(&self) -> Option<([u8; 6], [u8; 16])> {
        self.look(|hca| {
            let port = hca.identity.ports.first()?;
            let ethernet = hca.profile.link() == Link::Ethernet;
            ethernet.then(|| (mac(port.mac), port.link_local_gid()))
        })
    }

    fn reconfigure_key(&self, index: u32, change: &MkeyContext) -> bool {
        self.shared.with(|world| hca::reconfigure_key(&mut world.hcas[self.id], index, change))
    }

    fn neighbour(&self, gid: &[u8; 16]) -> Option<[u8; 6]> {
        let world = self.shared.lock();
        world.hcas.iter().find_map(|hca| {
            let entry = hca.roce_addresses.iter().find(|entry| entry.source_l3_address() == gid)?;
            let (high, low) = (entry.source_mac_47_32(), entry.source_mac_31_0());
            Some(mac(u64::from(high) << 32 | u64::from(low)))
        })
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

/// Port `number` of a function, counted from 1.
fn port(hca: &Hca, number: u32) -> Option<PortState> {
    let port = hca.ports.get(usize::try_from(number.checked_sub(1)?).ok()?)?;
    let numbers = hca.profile.port();
    let ethernet = hca.profile.link() == Link::Ethernet;
    let vport = hca.profile.hca_vport();
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
        max_vls: if ethernet { 0 } else { max_vls(hca) },
        max_mtu: mtu_code(numbers.max_mtu),
        active_mtu: mtu_code(numbers.active_mtu),
        width: numbers.active_width,
        speed: numbers.active_speed,
        gids: if ethernet { roce_gids(hca) } else { ib_gids(port) },
    })
}

/// The VLs that the register for them names, as verbs count them: code n is 2^(n - 1), and 5 is 15. The register's code is the
/// number itself.
fn max_vls(hca: &Hca) -> u8 {
    let register = hca.profile.registers().get(&RegisterId::PVLC.0);
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
fn roce_gids(hca: &Hca) -> Vec<GidEntry> {
    let used = (0..).zip(&hca.roce_addresses);
    used.filter(|(_, entry)| *entry.source_l3_address() != [0; 16])
        .map(|(index, entry)| GidEntry {
            index,
            gid: *entry.source_l3_address(),
            kind: if entry.roce_version() == RoceVersion::V2 { GID_ROCE_V2 } else { GID_ROCE_V1 },
        })
        .collect()
}

/// Port `number` as it is told of before anybody opens the device: with the GIDs that it gets when it comes up.
pub(super) fn described_port(hca: &Hca, number: u32) -> Option<PortState> {
    let mut state = port(hca, number)?;
    if let (true, [], Some(identity)) =
        (state.ethernet, &state.gids[..], hca.identity.ports.first())
    {
        let gid = identity.link_local_gid();
        let entries = [GID_ROCE_V1, GID_ROCE_V2].into_iter().zip(0..);
        state.gids = entries.map(|(kind, index)| GidEntry { index, gid, kind }).collect();
    }
    Some(state)
}
