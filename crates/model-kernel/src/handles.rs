//! State of an open device file: its context, and its objects and event streams by handle.

use std::collections::BTreeMap;
use std::sync::Arc;

use nix::errno::Errno;
use verbless_model::memory::Mapped;
use verbless_prm::Opcode;

use super::abi::object;
use super::account::{Charge, Resource};
use super::channel::Channel;
use super::client::Client;
use super::clock::ClockPage;
use super::pinned::Pinned;
use super::refused::{no_descriptor, refused};
use super::rules::ObjectId;
use super::steering::{Flow, FlowMatcher};
use super::subscriptions::EventChannel;
use super::verbs::objects::Verbs;
use crate::numbers::IdAllocator;

/// The object of a handle.
#[derive(Debug)]
pub(super) enum Object {
    Pd {
        pdn: u32,
    },
    /// No command creates it: it takes only the kernel's memory, as a flow matcher does.
    Ah {
        _bytes: Charge,
    },
    Verbs(Verbs),
    Devx(DevxObject),
    Umem {
        destroy: Vec<u8>,
        _mapped: Mapped,
        _pinned: Pinned,
    },
    FlowMatcher {
        matcher: FlowMatcher,
        _bytes: Charge,
    },
    Flow(Flow),
    Uar {
        page: u32,
        /// Page number in the file's mmap space.
        mmap: u32,
        _mappings: Option<Charge>,
    },
}

impl Object {
    pub(super) fn is_queue_pair(&self) -> bool {
        match self {
            Self::Verbs(object) => object.is_queue_pair(),
            Self::Devx(object) => object.id.opcode == Opcode::CREATE_QP,
            _ => false,
        }
    }

    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::Pd { .. } => object::PD,
            Self::Ah { .. } => object::AH,
            Self::Verbs(object) => object.kind(),
            Self::Devx(_) => object::DEVX_OBJ,
            Self::Umem { .. } => object::DEVX_UMEM,
            Self::FlowMatcher { .. } => object::FLOW_MATCHER,
            Self::Flow(_) => object::FLOW,
            Self::Uar { .. } => object::UAR,
        }
    }
}

/// Approximate bytes of an entry whose object the device does not know.
const ENTRY_BYTES: usize = 256;

/// Charges the client for an object that the device does not know, with `more` bytes of its own.
pub(super) fn charge_of_object(client: &dyn Client, more: usize) -> Result<Charge, Errno> {
    client.account().charge(Resource::Bytes, ENTRY_BYTES + more).map_err(|errno| {
        refused(errno, "the client has too many objects and unread records: destroy or read some")
    })
}

/// An object created by a DevX command.
#[derive(Debug)]
pub(super) struct DevxObject {
    pub id: ObjectId,
    /// Its destroy command.
    pub destroy: Vec<u8>,
    /// Number of flow counters, for a bulk.
    pub bulk: u32,
    /// Unique among all objects of the device's files.
    pub serial: u64,
}

/// The event channel of a descriptor.
#[derive(Debug, Clone)]
pub(super) enum Stream {
    Events(Arc<EventChannel>),
    Commands(Arc<Channel>),
    Async(Arc<Channel>),
    Completions(Arc<Channel>),
}

impl Stream {
    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::Events(_) => object::DEVX_ASYNC_EVENT_FD,
            Self::Commands(_) => object::DEVX_ASYNC_CMD_FD,
            Self::Async(_) => object::ASYNC_EVENT,
            Self::Completions(_) => object::COMP_CHANNEL,
        }
    }

    pub(super) fn channel(&self) -> &Arc<Channel> {
        match self {
            Self::Events(events) => &events.channel,
            Self::Commands(channel) | Self::Async(channel) | Self::Completions(channel) => channel,
        }
    }
}

/// An object with its dependencies.
#[derive(Debug)]
pub(super) struct HandleEntry {
    /// Creation order.
    pub(super) order: u64,
    pub(super) object: Object,
    /// Handles of objects that this one uses; they must outlive it.
    uses: Vec<u32>,
    /// Number of objects that use this one.
    pub(super) users: u32,
}

/// Maximum number of objects of one file. Linux charges their memory to each client; here they take
/// memory of the process that all clients share.
const MAX_OBJECTS: u32 = 1 << 20;

/// The handles of a file's objects.
#[derive(Debug)]
struct Handles(IdAllocator);

impl Default for Handles {
    fn default() -> Self {
        Self(IdAllocator::new(0, MAX_OBJECTS))
    }
}

/// A user context.
#[derive(Debug)]
pub(super) struct Context {
    /// The context's uid; 0 without DevX.
    pub uid: u16,
    pub(super) transport_domain: Option<u32>,
    pub(super) cqe_version: u8,
    /// The client allocates UAR pages individually.
    pub dynamic_uars: bool,
    /// UARs in each page, of which the client knows: 1, or as many as a page of the kernel has.
    pub uars_per_page: u32,
    /// The first UARs of the pages allocated with the context.
    pub static_uars: Vec<u32>,
    /// The charges of their mappings.
    pub mappings: Vec<Charge>,
}

/// First mmap command of individually allocated pages.
pub(super) const MMAP_OFFSETS: u64 = 9;

/// mmap offsets of individually allocated pages: command << 16 | index.
#[derive(Debug)]
pub(super) struct MmapNumbers(pub IdAllocator);

impl Default for MmapNumbers {
    fn default() -> Self {
        Self(IdAllocator::new((MMAP_OFFSETS as u32) << 16, 0x100_0000))
    }
}

/// The state of an open file.
#[derive(Debug, Default)]
pub(super) struct FileState {
    pub context: Option<Context>,
    pub(super) objects: BTreeMap<u32, HandleEntry>,
    handles: Handles,
    pub(super) streams: Vec<(u64, Stream)>,
    /// UAR page by mmap page number.
    pub mmaps: BTreeMap<u32, u32>,
    pub mmap_numbers: MmapNumbers,
    /// Offsets at which the client itself mapped UAR pages.
    pub mapped: BTreeMap<u32, u64>,
    /// The clock page, once it is mapped.
    pub(super) clock: Option<Arc<ClockPage>>,
    /// The file is closing: dependencies do not prevent destruction.
    pub(super) closing: bool,
    /// The device was removed or reset: clients can only destroy objects. After a fatal error,
    /// ioctls still reach the driver, whose commands fail (ENXIO, ENOLINK).
    pub(super) removed: bool,
    /// Counter of the creation order.
    sequence: u64,
}

impl FileState {
    /// The context. EINVAL: none exists yet; EIO: the device was removed or reset.
    pub(super) fn context(&self) -> Result<&Context, Errno> {
        self.require_device()?;
        let none = || refused(Errno::EINVAL, "the open file has no context yet (GET_CONTEXT)");
        self.context.as_ref().ok_or_else(none)
    }

    /// Refuses with EIO if the device was removed or reset.
    pub(super) fn require_device(&self) -> Result<(), Errno> {
        if self.removed { Err(refused(Errno::EIO, "the device is gone")) } else { Ok(()) }
    }

    pub(super) fn object(&self, handle: u32) -> Option<&Object> {
        self.objects.get(&handle).map(|entry| &entry.object)
    }

    pub(super) fn object_mut(&mut self, handle: u32) -> Option<&mut Object> {
        self.objects.get_mut(&handle).map(|entry| &mut entry.object)
    }

    /// The lowest free handle. ENOMEM: the file has [`MAX_OBJECTS`].
    pub(super) fn free_handle(&self) -> Result<u32, Errno> {
        let full = || refused(Errno::ENOMEM, "the open file has 2^20 objects, the limit");
        self.handles.0.lowest().ok_or_else(full)
    }

    /// The next sequence number.
    pub(super) fn tick(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn insert(&mut self, handle: u32, object: Object) {
        self.insert_using(handle, object, Vec::new());
    }

    /// Inserts an object with the handles that it uses.
    pub(super) fn insert_using(&mut self, handle: u32, object: Object, uses: Vec<u32>) {
        for used in &uses {
            if let Some(entry) = self.objects.get_mut(used) {
                entry.users += 1;
            }
        }
        let order = self.tick();
        self.handles.0.allocate_this(handle);
        self.objects.insert(handle, HandleEntry { order, object, uses, users: 0 });
    }

    /// The handles of the objects that an object uses.
    pub(super) fn uses(&self, handle: u32) -> &[u32] {
        self.objects.get(&handle).map_or(&[], |entry| &entry.uses)
    }

    /// Replaces the handles that an object uses.
    pub(super) fn replace_uses(&mut self, handle: u32, uses: Vec<u32>) {
        for used in &uses {
            if let Some(entry) = self.objects.get_mut(used) {
                entry.users += 1;
            }
        }
        let Some(entry) = self.objects.get_mut(&handle) else { return };
        for used in std::mem::replace(&mut entry.uses, uses) {
            if let Some(entry) = self.objects.get_mut(&used) {
                entry.users -= 1;
            }
        }
    }

    pub(super) fn remove(&mut self, handle: u32) {
        let Some(removed) = self.objects.remove(&handle) else { return };
        self.handles.0.release(handle);
        for used in removed.uses {
            if let Some(entry) = self.objects.get_mut(&used) {
                entry.users -= 1;
            }
        }
    }

    /// The first async event file, which gets the events of objects without one.
    pub(super) fn default_async_file(&self) -> Option<Arc<Channel>> {
        self.streams.iter().find_map(|(_, stream)| match stream {
            Stream::Async(channel) => Some(channel.clone()),
            _ => None,
        })
    }

    /// Finds an object by a client's handle. EIO: it exists, but the device is gone.
    pub(super) fn lookup(&self, data: u64, kind: u16) -> Result<u32, Errno> {
        let handle = self.lookup_to_destroy(data, kind)?;
        self.require_device().map(|()| handle)
    }

    /// Finds an object to destroy; the device may be gone.
    pub(super) fn lookup_to_destroy(&self, data: u64, kind: u16) -> Result<u32, Errno> {
        let handle = match i64::try_from(data) {
            Ok(id) => u32::try_from(id).map_err(|_| {
                refused(Errno::ENOENT, format!("{id:#x} is no handle: they have 32 bits"))
            })?,
            Err(_) => {
                return Err(refused(Errno::EINVAL, format!("{data:#x} is no handle")));
            }
        };
        let object = self.object(handle).ok_or_else(|| {
            refused(Errno::ENOENT, format!("the open device has no object of handle {handle}"))
        })?;
        if kind == super::abi::ANY_OBJECT || object.kind() == kind {
            Ok(handle)
        } else {
            let found = object.kind();
            let words = format!("handle {handle} is an object of type {found}, not {kind}");
            Err(refused(Errno::EINVAL, words))
        }
    }

    pub(super) fn lookup_stream(
        &self,
        client: &dyn Client,
        data: u64,
        kind: u16,
    ) -> Result<Stream, Errno> {
        let fd = i32::try_from(data as i64)
            .map_err(|_| refused(Errno::EINVAL, format!("{data:#x} is no descriptor")))?;
        let file = client.identify(fd).map_err(|errno| no_descriptor(errno, fd))?;
        let stream = self
            .streams
            .iter()
            .map(|(_, stream)| stream)
            .find(|stream| stream.channel().file == file && stream.kind() == kind)
            .cloned()
            .ok_or_else(|| {
                let words = format!("descriptor {fd} is no event file of this device and type");
                refused(Errno::EBADF, words)
            })?;
        self.require_device().map(|()| stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_handle_is_lowest_and_bounded() {
        let mut state = FileState::default();
        for pdn in 0..MAX_OBJECTS {
            let handle = state.free_handle().unwrap();
            assert_eq!(handle, pdn);
            if pdn % 1000 == 0 {
                assert_eq!(state.free_handle(), Ok(handle), "the handle is still free");
            }
            state.insert(handle, Object::Pd { pdn });
        }
        assert_eq!(state.free_handle(), Err(Errno::ENOMEM));
        for handle in [7000, 70, 700] {
            state.remove(handle);
        }
        for handle in [70, 700, 7000] {
            assert_eq!(state.free_handle(), Ok(handle));
            state.insert(handle, Object::Pd { pdn: 1 });
        }
        assert_eq!(state.free_handle(), Err(Errno::ENOMEM));
    }
}
