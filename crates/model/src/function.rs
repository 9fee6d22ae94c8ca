//! A device as its host side reaches it: commands, registers, interrupts, memory. This is the whole
//! interface between the model and its front ends.
//!
//! A front end plays the driver's side of the bus: the modelled kernel (`verbless-model-kernel`) in
//! the process that holds the model, or for another process; or the PCI bus of a virtual machine
//! (`verbless-model-host`). It uses these methods of a device:
//! - [`attach`](Function::attach): a handle that the next reset ends, with most of the following;
//! - [`execute`](Function::execute): a whole command with its mailboxes;
//! - [`mmio_write`](Function::mmio_write) and [`trapped_write`](Function::trapped_write): stores to
//!   UAR pages; [`uars`](Function::uars): the pages themselves, to map them or to back them by a
//!   file;
//! - [`set_interrupts`](Function::set_interrupts): the receiver of interrupts;
//! - [`memory`](Function::memory): the target of DMA; [`Model::pause`] while that changes;
//! - [`profile`](Function::profile), [`capabilities`](Function::capabilities),
//!   [`port`](Function::port) and others: the facts that a driver reads from registers or reports
//!   to users.
//!
//! A user's test needs none of this: it uses the methods of [`Model`] and a backend.

use std::any::Any;
use std::sync::Arc;

use verbless_prm::{HcaCap, MkeyContext, RoceAddrLayout};

use crate::engine;
use crate::hca::{self, Hca};
use crate::locked::LockedFunctions;
use crate::memory::{GuestMemory, HostMemory, Interrupts, Iommu, UarSpace};
use crate::model::Model;
use crate::profile::{FunctionPlace, Link, Profile, Role};
use crate::shared_model::SharedModel;

/// A function of a device. Clones are handles to the same function, which exists as long as any
/// handle does.
#[derive(Clone)]
pub struct Function {
    shared: Arc<SharedModel>,
    id: usize,
}

/// The current state of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Whether the port is ACTIVE; otherwise it is DOWN.
    pub up: bool,
    /// The port's LID on InfiniBand, 0 on Ethernet.
    pub lid: u16,
    /// The GID table of an InfiniBand port; an Ethernet port's is [`Function::roce_addresses`].
    pub gids: Vec<[u8; 16]>,
    /// The port's MAC, in the low 48 bits.
    pub mac: u64,
    /// The link-local GID of the port's GUID.
    pub link_local_gid: [u8; 16],
}

/// While this guard of [`Model::pause`] exists, no device accesses memory.
pub struct Paused<'a> {
    _locked: LockedFunctions,
    _model: std::marker::PhantomData<&'a Model>,
}

impl Model {
    /// Device `device`, for a front end.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn device(&self, device: usize) -> Function {
        self.check_device(device);
        Function { shared: self.shared.clone(), id: device }
    }

    /// All devices, as handles for a front end.
    pub fn all_devices(&self) -> Vec<Function> {
        (0..self.devices()).map(|id| Function { shared: self.shared.clone(), id }).collect()
    }

    /// Stops all devices while the guard lives. Its holder must not call the model.
    pub fn pause(&self) -> Paused<'_> {
        Paused { _locked: self.shared.all(), _model: std::marker::PhantomData }
    }

    /// The one driver of this model's devices: the first call creates it, and it lives until the
    /// last handle to the model is dropped. It may hold [`Function`]s, and must hold no [`Model`].
    ///
    /// # Panics
    /// When the devices already have a driver of another type.
    pub fn driver<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let driver = self.driver.get_or_init(|| Arc::new(make())).clone();
        driver.downcast().unwrap_or_else(|_| panic!("the model's devices have another driver"))
    }
}

impl Function {
    /// The device's number in the methods of [`Model`].
    pub fn number(&self) -> usize {
        self.id
    }

    /// Reads the function; `read` must cause no interrupts.
    pub(crate) fn peek<R>(&self, read: impl FnOnce(&Hca) -> R) -> R {
        self.shared.peek(self.id, |function| read(&function.hca))
    }

    /// Executes a command with its whole input and output mailboxes.
    pub fn execute(&self, input: &[u8], output: &mut [u8]) {
        self.execute_if(|_| true, input, output);
    }

    /// Executes a command while `allowed` holds; false if it did not, and there is no answer.
    pub(crate) fn execute_if(
        &self,
        allowed: impl Fn(&Hca) -> bool,
        input: &[u8],
        output: &mut [u8],
    ) -> bool {
        let is_allowed = |locked: &LockedFunctions| allowed(&locked.functions[self.id].hca);
        let begin = |locked: &mut LockedFunctions| {
            is_allowed(locked).then(|| engine::begin(locked, self.id, input, &mut *output))
        };
        let mut next = match engine::concerns_others(input) {
            true => self.shared.with(begin),
            false => self.shared.with_function(self.id, begin),
        };
        while let Some(Some(part)) = next {
            next = self.shared.with_function(self.id, |locked| {
                is_allowed(locked).then(|| engine::resume(locked, self.id, part, input, output))
            });
        }
        next.is_some()
    }

    /// A store by the driver to the UAR pages; `offset` counts from the first page.
    pub fn mmio_write(&self, offset: u64, bytes: &[u8]) {
        self.mmio_write_if(|_| true, offset, bytes);
    }

    pub(crate) fn mmio_write_if(&self, allowed: impl Fn(&Hca) -> bool, offset: u64, bytes: &[u8]) {
        self.shared.with_function(self.id, |locked| {
            if allowed(&locked.functions[self.id].hca) {
                engine::mmio_write(locked, self.id, offset, bytes);
            }
        });
    }

    /// A user's store to trapped UAR pages. Unlike [`mmio_write`](Self::mmio_write) it may be part
    /// of a WQE copied by BlueFlame.
    pub fn trapped_write(&self, offset: u64, bytes: &[u8]) {
        self.shared.with_function(self.id, |locked| {
            engine::trapped_write(locked, self.id, offset, bytes);
        });
    }

    /// Function-level reset, or a reset of its firmware: undoes everything that commands did, and
    /// revives a function that died ([`Model::kill`]), unless it was removed ([`Model::remove`]). A
    /// driver that receives its interrupts learns of the reset by [`Interrupts::fatal`], and
    /// recognises it by [`Function::resets`].
    pub fn reset(&self) {
        let interrupts = self.shared.with_function(self.id, |locked| {
            engine::reset(locked, self.id);
            let hca = &mut locked.functions[self.id].hca;
            hca.revive();
            hca.resets += 1;
            hca.interrupts.clone()
        });
        if let Some(interrupts) = interrupts {
            interrupts.fatal();
        }
    }

    /// How often the function was [reset](Function::reset). A driver that started the function
    /// before the last reset has lost everything that it made there.
    pub fn resets(&self) -> u64 {
        self.peek(|hca| hca.resets)
    }

    /// Disables the function as its driver does: undoes everything that commands did. A dead
    /// function stays dead.
    pub fn disable(&self) {
        self.shared.with_function(self.id, |locked| engine::reset(locked, self.id));
    }

    /// Whether a forced or fast TEARDOWN_HCA has stopped the function's bus accesses: it answers no
    /// command until a driver starts it again.
    pub fn is_closed(&self) -> bool {
        self.peek(|hca| hca.closed)
    }

    /// Sets the receiver of interrupts.
    pub fn set_interrupts(&self, interrupts: Option<Arc<dyn Interrupts>>) {
        self.set_interrupts_if(|_| true, interrupts);
    }

    pub(crate) fn set_interrupts_if(
        &self,
        allowed: impl Fn(&Hca) -> bool,
        interrupts: Option<Arc<dyn Interrupts>>,
    ) {
        self.shared.peek(self.id, |function| {
            if allowed(&function.hca) {
                function.hca.interrupts = interrupts;
            }
        });
    }

    /// Whether an event queue subscribes to events of this type.
    pub fn takes_event(&self, kind: u8) -> bool {
        self.peek(|hca| hca.objects.takes_event(kind))
    }

    /// Reports an event in every event queue that subscribes to its type; `data` is bytes 0x20 to
    /// 0x3c of the entry.
    pub fn report_event(&self, kind: u8, data: [u8; 28]) {
        self.shared.with_function(self.id, |locked| engine::event(locked, self.id, kind, data));
    }

    /// Sets another PD and other access flags of mkey `index`, as UMR on a queue of the driver's
    /// does. False: no such key exists, or the device cannot change it.
    pub fn reconfigure_key(&self, index: u32, change: &MkeyContext) -> bool {
        self.reconfigure_key_if(|_| true, index, change)
    }

    pub(crate) fn reconfigure_key_if(
        &self,
        allowed: impl Fn(&Hca) -> bool,
        index: u32,
        change: &MkeyContext,
    ) -> bool {
        self.shared.with_function(self.id, |locked| {
            let hca = &mut locked.functions[self.id].hca;
            allowed(hca) && hca::reconfigure_key(hca, index, change)
        })
    }

    /// Whether an ioctl of a client to the driver is to fail, and its errno. `ids` are its object
    /// and method ids, `names` its names in [`NAMES`](crate::ioctl::NAMES). Call this once for each
    /// ioctl, before the ioctl has any effect.
    pub fn take_ioctl_fault(&self, ids: (u16, u16), names: &[&str]) -> Option<i32> {
        self.shared
            .peek(self.id, |function| function.hca.ioctl_faults.hit(|ioctl| ioctl.is(ids, names)))
    }

    /// The UAR pages.
    pub fn uars(&self) -> Arc<UarSpace> {
        self.peek(|hca| hca.bar.clone())
    }

    /// The memory for the function's DMA.
    pub fn memory(&self) -> Arc<dyn HostMemory> {
        self.peek(|hca| hca.memory.clone())
    }

    /// The IOMMU of the function, by which a driver may map registered memory.
    pub fn iommu(&self) -> Arc<Iommu> {
        self.peek(|hca| hca.iommu.clone())
    }

    /// Removes every range of a guest's memory within the `length` bytes from `address` from the
    /// devices of this model; none of them accesses memory meanwhile. A guest's memory belongs to
    /// devices of one model.
    pub fn unmap(&self, memory: &GuestMemory, address: u64, length: u64) {
        self.shared.with(|locked| memory.unmap(&locked.dma_stopped(), address, length));
    }

    /// Allows or forbids the function's access to a guest's memory, as bus mastering in its PCI
    /// command register does; no function of this model accesses memory meanwhile. Without bus
    /// mastering, each access is a fault, like one to absent memory.
    pub fn set_bus_master(&self, memory: &GuestMemory, on: bool) {
        self.shared.with(|locked| memory.cut_off(&locked.dma_stopped(), !on));
    }

    /// The profile, for the function's link layer and side.
    pub fn profile(&self) -> Arc<Profile> {
        self.peek(|hca| hca.profile.clone())
    }

    /// The general capabilities in force.
    pub fn capabilities(&self) -> HcaCap {
        self.peek(|hca| *hca.caps.general())
    }

    /// Entries of a port's GID table, empty ones included.
    pub fn gid_table_length(&self) -> u32 {
        self.peek(|hca| match hca.profile.link() {
            Link::Infiniband => hca.caps.gids(),
            Link::Ethernet => hca.roce_addresses.len() as u32,
        })
    }

    /// Entries of an InfiniBand port's P_Key table.
    pub fn pkey_table_length(&self) -> u32 {
        self.peek(|hca| hca.caps.pkeys())
    }

    /// False after the function died: its health counter has stopped, and it answers no command.
    pub fn is_alive(&self) -> bool {
        self.peek(|hca| !hca.fatal)
    }

    /// True after the function was removed ([`Model::remove`]).
    pub fn is_removed(&self) -> bool {
        self.peek(|hca| hca.removed)
    }

    /// The node GUID.
    pub fn node_guid(&self) -> u64 {
        self.peek(|hca| hca.identity.node_guid)
    }

    /// The system image GUID, which all functions of a device share.
    pub fn system_image_guid(&self) -> u64 {
        self.peek(|hca| hca.identity.system_image_guid)
    }

    /// The function's side, role and numbers on its card.
    pub fn on_card(&self) -> FunctionPlace {
        self.peek(|hca| hca.on_card.clone())
    }

    /// The PCI device id: a VF has another than its parent.
    pub fn device_id(&self) -> u16 {
        self.peek(|hca| {
            let numbers = hca.profile.device();
            let of_vf = numbers.vf_device_id.filter(|_| hca.on_card.role == Role::Vf);
            of_vf.unwrap_or(numbers.device_id)
        })
    }

    /// The VUID, as QUERY_VUID returns it.
    pub fn vuid(&self) -> String {
        let bytes = self.peek(|hca| hca.identity.vuid());
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    /// Port `number`, counted from 1; `None`: no such port exists.
    pub fn port(&self, number: u32) -> Option<Port> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.peek(|hca| {
            let (state, identity) = (hca.ports.get(index)?, hca.identity.ports.get(index)?);
            Some(Port {
                up: state.up,
                lid: state.lid,
                gids: state.gids.clone(),
                mac: identity.mac,
                link_local_gid: identity.link_local_gid(),
            })
        })
    }

    /// The table of RoCE addresses; unused entries are all 0. Empty on InfiniBand.
    pub fn roce_addresses(&self) -> Vec<RoceAddrLayout> {
        self.peek(|hca| hca.roce_addresses.clone())
    }

    /// Whether a socket outside the model is joined to the Ethernet switch, by
    /// [`Model::join_ethernet`](crate::Model::join_ethernet).
    pub fn has_external_peer(&self) -> bool {
        self.shared.common.fabric.lock().has_neighbours()
    }

    /// The GIDs of the addresses that [`Model::join_roce`](crate::Model::join_roce) gave the
    /// network device of port 1.
    pub fn network_gids(&self) -> Vec<[u8; 16]> {
        let fabric = self.shared.common.fabric.lock();
        fabric.gateways(self.id).map(|gateway| gateway.local).collect()
    }

    /// The MAC, in the low 48 bits, of the router to a host outside the model;
    /// [`Model::join_roce`](crate::Model::join_roce) joined this device with that host.
    pub fn gateway(&self, gid: &[u8; 16]) -> Option<u64> {
        let fabric = self.shared.common.fabric.lock();
        let mut gateways = fabric.gateways(self.id);
        let [a, b, c, d, e, f] = gateways.find(|gateway| gateway.peers.contains(gid))?.mac.0;
        Some(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    /// Nanoseconds since the model began, by its own clock.
    pub fn now(&self) -> u64 {
        self.shared.clock().now
    }

    /// The current value of the device's timer, the source of timestamps.
    pub fn timer(&self) -> u64 {
        let now = self.now();
        self.peek(|hca| hca.objects.limits.ticks(now))
    }
}
