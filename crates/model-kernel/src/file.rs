//! An open device file: its ioctls and mappings, and the destruction of its objects on close.
//!
//! An ioctl runs in the kernel's order: header; each attribute in turn (read it, look its object up
//! or reserve one); the check for mandatory attributes; the method. One ioctl of a file runs at a
//! time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbless_prm::Opcode;

use nix::errno::Errno;
use verbless_devx::{Mapping, Protection};

use super::abi::{Access, Call, attr, object};
use super::account::{Charge, Resource};
use super::channel::Channel;
use super::client::Client;
use super::clock::ClockPage;
use super::handles::{FileState, HandleEntry, Object, Stream};
use super::ioctl::{Attrs, Next, Request};
use super::kernel::Kernel;
use super::pages::SystemPage;
use super::refused::refused;
use super::uapi::{ReportedEvents, UverbsRequest, reported_events};
use super::uar;

/// The result of a method.
pub(super) enum MethodResult {
    Nothing,
    /// An object, and the handles of the objects that it uses.
    Object(Object, Vec<u32>),
    Stream(Stream, OwnedFd),
}

/// The objects that a call's attributes named.
#[derive(Debug, Default)]
pub(super) struct NamedObjects {
    /// Attribute and handle of an object to create.
    new: Option<(u16, u32)>,
    /// Attribute of a descriptor to create.
    new_stream: Option<u16>,
    /// Handle of an object that the call uses.
    pub handle: Option<u32>,
    /// Handle of an object to destroy.
    destroy: Option<u32>,
    pub stream: Option<Stream>,
    /// The handles of all objects that the call uses, by attribute.
    handles: Vec<(u16, u32)>,
    streams: Vec<(u16, Stream)>,
}

/// Object ids from this bit on belong to a driver (UVERBS_ID_NS_SHIFT).
const DRIVER_NAMESPACE: u32 = 12;
/// The cost of ending a stream, in destroyed objects: the device's subscriptions are searched.
const STREAM_COST: usize = 50;

/// An open device file.
pub(super) struct File {
    pub kernel: Arc<Kernel>,
    /// The client that opened the file; the close uses it. An ioctl uses its caller.
    pub client: Arc<dyn Client>,
    /// The file from which the client maps its UAR pages, if it maps them itself.
    doorbells: Option<Arc<OwnedFd>>,
    state: Mutex<FileState>,
}

/// Whether an offset is that of the clock page.
fn maps_clock(
    state: &FileState,
    page: SystemPage,
    offset: u64,
    length: u64,
) -> Result<bool, Errno> {
    let bytes = page.bytes();
    if !offset.is_multiple_of(bytes) || !uar::is_clock(offset / bytes) {
        return Ok(false);
    }
    state.context()?;
    match length.checked_next_multiple_of(bytes) {
        Some(whole) if whole == bytes => Ok(true),
        _ => Err(refused(Errno::EINVAL, format!("{length} bytes to map: the clock has one page"))),
    }
}

/// The UAR page at an mmap offset.
fn mapped_page(
    state: &FileState,
    page: SystemPage,
    offset: u64,
    length: u64,
) -> Result<u32, Errno> {
    let (context, bytes) = (state.context()?, page.bytes());
    if !offset.is_multiple_of(bytes) {
        return Err(refused(Errno::EINVAL, format!("offset {offset:#x} is not of a page")));
    }
    let uar = uar::mapped_page(state, context, offset / bytes)?;
    match length.checked_next_multiple_of(bytes) {
        Some(whole) if whole == bytes => Ok(uar),
        _ => Err(refused(Errno::EINVAL, format!("{length} bytes to map: a UAR has one page"))),
    }
}

/// A running method.
pub(super) struct Method<'a> {
    pub file: &'a File,
    /// The calling client.
    pub client: &'a Arc<dyn Client>,
    pub state: &'a mut FileState,
    pub attrs: Attrs<'a>,
    pub named: NamedObjects,
}

impl File {
    pub(super) fn new(kernel: Arc<Kernel>, client: Arc<dyn Client>) -> Self {
        Self { kernel, client, doorbells: None, state: Mutex::default() }
    }

    /// Sets the file from which the client maps UAR pages.
    pub(super) fn with_doorbells(mut self, doorbells: Arc<OwnedFd>) -> Self {
        self.doorbells = Some(doorbells);
        self
    }

    /// Makes the client's mapping at `offset` the backing of a UAR page.
    pub(super) fn back(&self, page: u32, offset: u64) -> Result<(), Errno> {
        match &self.doorbells {
            Some(file) => self.kernel.function.back_uar(page, file.as_fd(), offset),
            None => Ok(()),
        }
    }

    /// Ends the client's mapping of a UAR page. If that fails, the page must not be freed: its next
    /// client would share it.
    pub(super) fn unback(&self, page: u32) -> Result<(), Errno> {
        if self.doorbells.is_none() {
            return Ok(());
        }
        self.kernel.function.unback_uar(page).inspect_err(|errno| {
            tracing::warn!(page, %errno, "a UAR page stays with the client that had it");
        })
    }

    /// Charges the mappings of a UAR page that the client maps itself: of the page, and of the
    /// device's own memory up to the next such page.
    pub(super) fn charge_mappings(&self) -> Result<Option<Charge>, Errno> {
        let charge = || {
            let charged = self.client.account().charge(Resource::Mappings, 2);
            charged.map_err(|errno| refused(errno, "no more UAR pages can be mapped: free some"))
        };
        self.doorbells.as_ref().map(|_| charge()).transpose()
    }

    /// The cost of closing the file, in destroyed objects; `None` while it answers an ioctl.
    pub(super) fn close_cost(&self) -> Option<usize> {
        let state = self.state.try_lock().ok()?;
        Some(state.objects.len() + STREAM_COST * state.streams.len())
    }

    fn lock(&self) -> MutexGuard<'_, FileState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.removed = self.kernel.is_dead() && self.kernel.is_gone();
        state
    }

    /// Answers an ioctl of the client that opened the file.
    pub(super) fn ioctl(&self, words: &mut [u64]) -> Result<(), Errno> {
        self.ioctl_of(&self.client, words)
    }

    /// Answers an ioctl of `client`. `words` holds its header and attributes, and receives new
    /// handles and output flags. The caller logs refusals.
    pub(super) fn ioctl_of(
        &self,
        client: &Arc<dyn Client>,
        words: &mut [u64],
    ) -> Result<(), Errno> {
        let request = Request::parse(words)?;
        self.take_requested_fault(&request)?;
        let mut state = self.lock();
        self.forget_closed_streams(&mut state);
        let call = request.method.call;
        // Of the driver's methods, a removed device keeps only those that destroy
        // (`uverbs_disassociate_api_pre`). The core's methods look up the context or an object, and
        // fail there.
        let drivers = (request.method.object | request.method.id) >> DRIVER_NAMESPACE != 0;
        if state.removed && drivers && call != Call::Destroy {
            return Err(refused(Errno::EIO, "the device is gone"));
        }
        let attrs = Attrs::new(request, &**client, self.kernel.release);
        let named = NamedObjects::default();
        let mut method = Method { file: self, client, state: &mut state, attrs, named };
        for index in 0..method.attrs.request.len() {
            let next = method.attrs.accept(index)?;
            method.resolve(next)?;
        }
        method.attrs.check_mandatory()?;
        if let Some(handle) = method.named.destroy {
            let kind = method.state.object(handle).map(Object::kind);
            let reported = self.destroy(method.state, client, handle)?;
            return match kind {
                Some(object::CQ) => {
                    method.attrs.put(attr::DESTROY_RESP, &reported_events(reported))
                }
                Some(object::QP | object::SRQ) => {
                    method.attrs.put(attr::DESTROY_RESP, &reported.events.to_ne_bytes())
                }
                _ => Ok(()),
            };
        }
        let made = method.call(call)?;
        method.commit(made)
    }

    /// Maps the page at an offset that an ioctl returned.
    pub(super) fn mmap(
        &self,
        offset: u64,
        length: usize,
        protection: Protection,
    ) -> Result<Mapping, Errno> {
        let mut state = self.lock();
        if maps_clock(&state, self.kernel.page, offset, length as u64)? {
            if protection != Protection::Read {
                return Err(Errno::EPERM);
            }
            let page = self.show_clock(&mut state, || ClockPage::alone(self.kernel.page))?;
            return Mapping::shared(page.file().as_fd(), 0, length, protection);
        }
        let page = mapped_page(&state, self.kernel.page, offset, length as u64)?;
        self.kernel.function.map_uar(page, length, protection)
    }

    /// The client is about to map a page itself, with these `PROT_` bits, from its doorbell file.
    /// The device reads a page at one offset only: the offset of its first mapping.
    pub(super) fn mapped_by_client(
        &self,
        offset: u64,
        length: u64,
        protection: i32,
    ) -> Result<(), Errno> {
        let mut state = self.lock();
        if maps_clock(&state, self.kernel.page, offset, length)? {
            if protection & (libc::PROT_WRITE | libc::PROT_EXEC) != 0 {
                return Err(Errno::EPERM);
            }
            let file = self.doorbells.clone().ok_or(Errno::EOPNOTSUPP)?;
            return self.show_clock(&mut state, || Ok(ClockPage::at(file, offset))).map(drop);
        }
        let page = mapped_page(&state, self.kernel.page, offset, length)?;
        let first = *state.mapped.entry(page).or_insert(offset);
        if first != offset {
            tracing::warn!(page, first, offset, "a doorbell page is mapped at two offsets");
            return Err(Errno::ENOMEM);
        }
        self.back(page, offset)
    }

    /// The file's clock page; its first mapping creates it.
    fn show_clock(
        &self,
        state: &mut FileState,
        make: impl FnOnce() -> Result<ClockPage, Errno>,
    ) -> Result<Arc<ClockPage>, Errno> {
        if let Some(page) = &state.clock {
            return Ok(page.clone());
        }
        let page = Arc::new(make()?);
        self.kernel.clock.add_page(&self.kernel, &page)?;
        state.clock = Some(page.clone());
        Ok(page)
    }

    /// Closes the file: destroys the remaining objects, in rounds while a round destroys any.
    ///
    /// The newest object is destroyed first, as in the kernel; but queue pairs come before all
    /// others. A peer of an ended program then gets a timeout instead of a remote access error.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        loop {
            let object = |(&handle, entry): (&u32, &HandleEntry)| {
                ((entry.object.is_queue_pair(), entry.order), Some(handle))
            };
            let mut order: Vec<_> = state.objects.iter().map(object).collect();
            order.extend(state.streams.iter().map(|&(order, _)| ((false, order), None)));
            if order.is_empty() {
                break;
            }
            order.sort_unstable_by_key(|&(order, _)| std::cmp::Reverse(order));
            let mut progress = false;
            for ((_, order), handle) in order {
                match handle {
                    Some(handle) => {
                        progress |= self.destroy(&mut state, &self.client, handle).is_ok();
                    }
                    None => progress |= self.end_stream(&mut state, order),
                }
            }
            if !progress {
                // As in the kernel, an object that the device refuses to destroy leaks: its pins
                // and bus addresses stay, because the device may still access its memory.
                tracing::warn!(
                    left = state.objects.len(),
                    "objects could not be destroyed when their file was closed"
                );
                std::mem::forget(std::mem::take(&mut state.objects));
            }
        }
        if let Some(context) = state.context.take() {
            context.free(self);
        }
    }

    /// Destroys an object and frees its handle; both stay when the device refuses.
    ///
    /// Returns how many of its records the client has read.
    pub(super) fn destroy(
        &self,
        state: &mut FileState,
        client: &Arc<dyn Client>,
        handle: u32,
    ) -> Result<ReportedEvents, Errno> {
        let uid = state.context.as_ref().map_or(0, |context| context.uid);
        let entry = state.objects.get(&handle).ok_or_else(|| {
            refused(Errno::ENOENT, format!("the open device has no object of handle {handle}"))
        })?;
        // After a device died, its kernel has destroyed all objects and keeps only their handles.
        if entry.users != 0 && !state.removed {
            let words = format!("handle {handle} has {} users: destroy them first", entry.users);
            return Err(refused(Errno::EBUSY, words));
        }
        let mut listener = None;
        match &entry.object {
            &Object::Pd { pdn } => self.kernel.free(Opcode::DEALLOC_PD, uid, pdn)?,
            Object::Ah { .. } | Object::FlowMatcher { .. } => {}
            &Object::Flow(flow) => self.kernel.flows.remove(&*self.kernel.function, flow)?,
            Object::Verbs(object) => {
                // No client reads the channels of a closing file, and it may be impossible to
                // search the descriptors of its process.
                let reader = (!state.closing).then_some(&**client);
                listener = object.destroy(&self.kernel, reader)?;
            }
            Object::Devx(object) => {
                let destroy = || self.kernel.exec(&object.destroy, &mut [0; 16]);
                self.kernel.subscriptions.destroy_object(object.serial, destroy)?;
            }
            Object::Umem { destroy, .. } => self.kernel.exec(destroy, &mut [0; 16])?,
            &Object::Uar { page, mmap, .. } => {
                // A real kernel waits for the page's last unmap; this one cannot see it. Another
                // client may get and map a freed page at once.
                self.unback(page).map_err(|errno| {
                    refused(errno, "the page's mapping cannot be replaced: see vm.max_map_count")
                })?;
                let _ = self.kernel.free(Opcode::DEALLOC_UAR, self.kernel.uar_uid(uid), page);
                state.mmaps.remove(&mmap);
                state.mmap_numbers.0.release(mmap);
                state.mapped.remove(&page);
            }
        }
        state.remove(handle);
        let reported = listener.map(|listener| listener.finish(&**client));
        Ok(reported.unwrap_or(ReportedEvents { completions: 0, events: 0 }))
    }

    /// Ends the stream with order number `order`.
    fn end_stream(&self, state: &mut FileState, order: u64) -> bool {
        let Some(at) = state.streams.iter().position(|&(made, _)| made == order) else {
            return false;
        };
        let (_, stream) = state.streams.swap_remove(at);
        match &stream {
            Stream::Async(channel) => self.kernel.subscriptions.async_file_gone(channel),
            Stream::Events(events) => self.kernel.subscriptions.channel_gone(&events.channel),
            Stream::Commands(_) | Stream::Completions(_) => {}
        }
        stream.channel().close();
        true
    }

    /// Ends the streams whose descriptors the client closed.
    fn forget_closed_streams(&self, state: &mut FileState) {
        let closed: Vec<u64> = state
            .streams
            .iter()
            .filter(|(_, stream)| !stream.channel().is_open())
            .map(|&(order, _)| order)
            .collect();
        if state.removed {
            return;
        }
        for order in closed {
            self.end_stream(state, order);
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.close();
    }
}

impl Method<'_> {
    /// Finds or reserves the object that an attribute names.
    fn resolve(&mut self, next: Next) -> Result<(), Errno> {
        let Next::Resolve { id, object, access, fd, data } = next else { return Ok(()) };
        match (access, fd) {
            (Access::New, fd) => {
                self.state.context()?;
                if fd {
                    self.named.new_stream = Some(id);
                } else {
                    let handle = self.state.free_handle()?;
                    self.named.new = Some((id, handle));
                    self.attrs.put_handle(id, handle.into());
                }
            }
            (Access::Read, true) => {
                let stream = self.state.lookup_stream(self.attrs.client, data, object)?;
                self.named.streams.push((id, stream.clone()));
                self.named.stream = Some(stream);
            }
            (Access::Read, false) => {
                let handle = self.state.lookup(data, object)?;
                self.named.handles.push((id, handle));
                self.named.handle = Some(handle);
            }
            (Access::Destroy, _) => {
                self.named.destroy = Some(self.state.lookup_to_destroy(data, object)?);
            }
        }
        Ok(())
    }

    /// The stream that a mandatory attribute named.
    pub(super) fn stream(&self) -> Result<Stream, Errno> {
        let none = || refused(Errno::EBADF, "the request names no event file");
        self.named.stream.clone().ok_or_else(none)
    }

    /// The handle that an attribute named.
    pub(super) fn handle_of(&self, id: u16) -> Option<u32> {
        self.named.handles.iter().find(|named| named.0 == id).map(|named| named.1)
    }

    /// The stream that an attribute named.
    pub(super) fn stream_of(&self, id: u16) -> Option<Stream> {
        self.named.streams.iter().find(|named| named.0 == id).map(|named| named.1.clone())
    }

    /// The async event file that an attribute named, or the file's first.
    pub(super) fn async_file(&self, id: u16) -> Option<Arc<Channel>> {
        let named = self.stream_of(id).map(|stream| stream.channel().clone());
        named.or_else(|| self.state.default_async_file())
    }

    /// The driver's part of a request: at least `least` bytes, padded with zeros to `bytes`. A
    /// longer tail must be zero.
    pub(super) fn driver_request(
        &self,
        least: usize,
        bytes: usize,
    ) -> Result<UverbsRequest, Errno> {
        let mut request = match self.attrs.bytes(attr::UHW_IN) {
            Err(Errno::ENOENT) => Vec::new(),
            other => other?,
        };
        if request.len() < least {
            let has = request.len();
            let words = format!("the driver's data has {has} bytes; at least {least} are needed");
            return Err(refused(Errno::EINVAL, words));
        }
        if request.iter().skip(bytes).any(|&byte| byte != 0) {
            let words = format!("the driver's data has nonzero bytes after the {bytes} known ones");
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        request.resize(bytes, 0);
        Ok(UverbsRequest(request))
    }

    /// Writes the driver's part of a response, cut to the client's room.
    pub(super) fn put_driver_response(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        match self.attrs.put(attr::UHW_OUT, bytes) {
            Err(Errno::ENOENT) => Err(Errno::EFAULT),
            other => other,
        }
    }

    fn call(&mut self, call: Call) -> Result<MethodResult, Errno> {
        let nothing = |()| MethodResult::Nothing;
        let alone = |object| MethodResult::Object(object, Vec::new());
        match call {
            Call::InvokeWrite => self.invoke_write().map(nothing),
            Call::QueryPort => self.query_port().map(nothing),
            Call::GetContext => self.get_context().map(nothing),
            Call::QueryContext => self.query_context().map(nothing),
            Call::PdQuery => self.query_pd().map(nothing),
            Call::QueryGidTable => self.query_gid_table().map(nothing),
            Call::QueryGidEntry => self.query_gid_entry().map(nothing),
            Call::Other => self.other().map(nothing),
            Call::QueryUar => self.query_uar().map(nothing),
            Call::QueryEqn => self.query_eqn().map(nothing),
            Call::Subscribe => self.subscribe().map(nothing),
            Call::Verbs(call) => self.verbs(call),
            Call::ObjCreate => self.obj_create().map(alone),
            Call::ObjModify => self.obj_modify().map(nothing),
            Call::ObjQuery => self.obj_query().map(nothing),
            Call::ObjAsyncQuery => self.obj_async_query().map(nothing),
            Call::UmemReg => self.umem_reg().map(alone),
            Call::UarAlloc => self.uar_alloc().map(alone),
            Call::FlowMatcherCreate => self.flow_matcher_create().map(alone),
            Call::FlowCreate => {
                self.create_flow().map(|(flow, uses)| MethodResult::Object(flow, uses))
            }
            Call::AsyncEventAlloc => self.async_event_alloc(),
            Call::CommandFdAlloc => self.command_fd_alloc(),
            Call::EventFdAlloc => self.event_fd_alloc(),
            Call::Destroy => Err(refused(Errno::EINVAL, "the request names nothing to destroy")),
        }
    }

    /// Destroys a new object whose creation fails with `errno`, and returns `errno`. If the device
    /// refuses, the object keeps a handle and its pins; the close of the file tries again (Linux
    /// `rdma_alloc_abort_uobject`).
    pub(super) fn abort(&mut self, object: Object, uses: Vec<u32>, errno: Errno) -> Errno {
        // The method has checked that a handle is free.
        if let Ok(handle) = self.state.free_handle() {
            self.state.insert_using(handle, object, uses);
            let _ = self.file.destroy(self.state, self.client, handle);
        }
        errno
    }

    /// Hands the result of a method to the client.
    fn commit(mut self, made: MethodResult) -> Result<(), Errno> {
        match (made, self.named.new, self.named.new_stream) {
            (MethodResult::Object(object, uses), Some((_, handle)), _) => {
                self.state.insert_using(handle, object, uses);
            }
            (MethodResult::Stream(stream, fd), _, Some(id)) => {
                let number = self.install_stream(stream, fd)?;
                self.attrs.put_handle(id, number as u64);
            }
            _ => {}
        }
        Ok(())
    }

    /// Registers a stream and gives its descriptor to the client; returns the client's descriptor
    /// number.
    pub(super) fn install_stream(&mut self, stream: Stream, fd: OwnedFd) -> Result<i32, Errno> {
        let claim = self.attrs.client.claim().map_err(|errno| {
            refused(errno, "the process has no descriptor left for the client: raise `ulimit -n`")
        })?;
        stream.channel().keep(claim);
        let subscriptions = &self.file.kernel.subscriptions;
        match &stream {
            Stream::Async(channel) => subscriptions.add_async_file(channel.clone()),
            _ => subscriptions.add_channel(stream.channel(), &self.file.client),
        }
        let order = self.state.tick();
        self.state.streams.push((order, stream));
        self.attrs.client.install(fd).inspect_err(|_| {
            self.file.end_stream(self.state, order);
        })
    }
}
