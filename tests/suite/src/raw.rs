//! Operations that safe code does not allow: memory at unusual addresses, requests that no driver
//! would make, doorbells out of order.
#![allow(unsafe_code, reason = "cases about bad input need it; this module holds it")]

use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use verbless_command::{Device, Error, KeyAccess, QpAttr, UserMemory};
use verbless_devx::abi::core::access;
use verbless_devx::abi::request::{ATTRIBUTE_WORDS, HEADER_WORDS};
use verbless_devx::abi::{Attribute, Header, Method};
use verbless_devx::{Context, Errno, OpenDevice, PageSizes, Uar, Umem};
use verbless_prm::{CreateQpIn, PathMigrationState, RqType, ServiceType};
use verbless_queue::ring::{RecordMemory, RingMemory, SharedMemory};
use verbless_queue::uar::UarPage;
use verbless_queue::{Domain, Memory, Region};

use crate::Stop;

/// A region over the part of `whole` that begins at `offset`.
pub(crate) fn region_within(
    domain: &Domain,
    whole: &SharedMemory,
    offset: usize,
    length: usize,
    access: KeyAccess,
) -> Result<Region, Stop> {
    let part = whole.slice(offset, length)?;
    let base = NonNull::new(with_exposed_provenance_mut(part.address() as usize))
        .ok_or_else(|| Stop::fail("memory at address 0"))?;
    // SAFETY: the memory lives as long as its clone, and is reached through atomics only.
    Ok(unsafe { domain.region_from_raw(base, length, access, part) }?)
}

/// A region over `memory`, which `owner` keeps.
pub(crate) fn region_owned_by(
    domain: &Domain,
    memory: &SharedMemory,
    owner: impl std::any::Any + Send + Sync,
    access: KeyAccess,
) -> Result<Region, Stop> {
    let base = NonNull::new(with_exposed_provenance_mut(memory.address() as usize))
        .ok_or_else(|| Stop::fail("memory at address 0"))?;
    // SAFETY: the callers give the owner a clone of the memory, and it is reached through atomics
    // only.
    Ok(unsafe { domain.region_from_raw(base, memory.len(), access, owner) }?)
}

/// The page of a new UAR, which the case maps once.
pub(crate) fn uar_page(uar: &Arc<Uar>) -> Result<UarPage, Stop> {
    let (base, length) = (uar.mapping().as_ptr(), uar.mapping().len());
    // SAFETY: the mapping lives in its owner. The callers have allocated the UAR for themselves,
    // and map it only here.
    Ok(unsafe { UarPage::new(SharedMemory::from_raw(base, length, uar.clone())) }?)
}

/// Writes values into a new region that has no remote key.
pub(crate) fn fill_in_place(
    region: &mut Region,
    offset: usize,
    values: &[u32],
) -> Result<(), Error> {
    // SAFETY: no request has named the region, and no peer can.
    unsafe { region.slice_mut(offset, values.len()) }?.copy_from_slice(values);
    Ok(())
}

/// CREATE_QP of one WQEBB with the attributes of `own`, in protection domain `pdn`, which the
/// driver does not check.
pub fn create_qp_in(device: &Device, own: &QpAttr, pdn: u32) -> CreateQpIn {
    let mut input = CreateQpIn::new();
    input.set_wq_umem_id(own.rings.umem().id()).set_wq_umem_valid(true);
    input.set_wq_umem_offset(own.rings.offset());
    input
        .qpc_mut()
        .set_st(ServiceType::RC)
        .set_pm_state(PathMigrationState::MIGRATED)
        .set_ts_format(device.caps().qp_timestamps)
        .set_pd(pdn)
        .set_uar_page(own.uar.page_id())
        .set_cqn_snd(own.send_cq.cqn().0)
        .set_cqn_rcv(own.receive_cq.cqn().0)
        .set_rq_type(RqType::NONE)
        .set_dbr_umem_id(own.record.umem().id())
        .set_dbr_umem_valid(true)
        .set_dbr_addr(own.record.offset());
    input
}

/// Tries to register a range that no device may be given. If it is registered after all, it is
/// deregistered at once.
pub(crate) fn register_forbidden_range(
    context: &Context,
    address: u64,
    length: u64,
    access: u32,
    pages: PageSizes,
) -> Result<(), Error> {
    // SAFETY: the device cannot reach a UMEM before a command names it, and none does.
    let umem = unsafe { context.umem_reg(address, length, access, pages) }?;
    Ok(umem.destroy()?)
}

/// Memory that may only be read, and its address.
pub(crate) fn read_only(bytes: usize) -> Result<(Mmap, u64), Stop> {
    let map = MmapMut::map_anon(bytes)?.make_read_only()?;
    let address = map.as_ptr().expose_provenance() as u64;
    Ok((map, address))
}

/// The distance in pages between two pages that are touched one after the other.
const STRIDE: usize = 257;

/// Fresh memory in which neighbouring pages are rarely neighbours in physical memory: they are
/// small, and first touched in strides. The number of pages is no multiple of 257.
pub(crate) fn scattered(bytes: usize) -> Result<Memory, Stop> {
    let mut map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
    map.advise(Advice::DontFork)?;
    // A kernel without huge pages returns EINVAL; its pages are small in any case.
    let _ = map.advise(Advice::NoHugePage);
    let page = verbless_devx::page_size();
    let pages = bytes / page;
    for turn in 0..pages {
        map[turn * STRIDE % pages * page] = 1;
    }
    let base = NonNull::new(map.as_mut_ptr()).ok_or_else(|| Stop::fail("memory at address 0"))?;
    // SAFETY: the mapping lives in its owner, is readable and writable, is not shared by fork, and
    // no reference into it is left.
    Ok(unsafe { Memory::from_raw(base, bytes, map) })
}

/// Registered memory that both we and the device may write, for queues that a case builds itself.
#[derive(Clone)]
pub(crate) struct RegisteredMemory {
    pub(crate) memory: SharedMemory,
    pub(crate) umem: Arc<UserMemory>,
}

impl RegisteredMemory {
    /// Memory that begins a page of the kernel, in pages of 4 KiB if the kernel allows that.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        let page = device.page_size();
        let room = SharedMemory::zeroed(bytes + page - SharedMemory::PAGE);
        let first = room.address().wrapping_neg() as usize & (page - 1);
        let memory = room.slice(first, bytes).expect("the room has a page more than the memory");
        Self::of(device, &memory, PageSizes::Bitmap(1 << 12))
    }

    /// Registers memory in pages of these sizes.
    pub(crate) fn of(
        device: &Device,
        memory: &SharedMemory,
        pages: PageSizes,
    ) -> Result<Self, Error> {
        let (address, length) = (memory.address(), memory.len() as u64);
        let flags = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
        // SAFETY: `UserMemory` keeps the memory until it is deregistered, and it is reached through
        // atomics only.
        let umem = unsafe { device.umem_reg(address, length, flags, pages) }?;
        let umem = Arc::new(UserMemory::new(umem, address, length, memory.clone()));
        Ok(Self { memory: memory.clone(), umem })
    }

    /// A part of the memory for a queue. The case writes there instead of the device, on the thread
    /// that uses the queue.
    pub(crate) fn ring(&self, at: usize, length: usize) -> Result<RingMemory, Stop> {
        let part = self.memory.slice(at, length)?;
        // SAFETY: a case has one thread, and makes one queue over each part.
        Ok(unsafe { RingMemory::new(part) })
    }

    /// The doorbell record at byte `at`.
    pub(crate) fn record(&self, at: usize) -> Result<RecordMemory, Stop> {
        Ok(RecordMemory::new(self.ring(at, 8)?)?)
    }
}

/// A page and its registration, which no object owns. The page is never freed, whatever becomes of
/// the registration.
pub(crate) fn bare_umem(context: &Context) -> Result<(SharedMemory, Umem), Error> {
    let memory = SharedMemory::zeroed(SharedMemory::PAGE);
    std::mem::forget(memory.clone());
    let (address, length) = (memory.address(), memory.len() as u64);
    // SAFETY: the memory stays for good, and is reached through atomics only.
    let umem = unsafe { context.umem_reg(address, length, access::LOCAL_WRITE, PageSizes::Any) }?;
    Ok((memory, umem))
}

/// Rings the doorbell at 0x800 of a page with any word, in memory byte order.
pub(crate) fn ring(uar: &Uar, word: u64) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    // SAFETY: the page is mapped while `uar` lives, and 0x800 is a doorbell of 8 bytes in it.
    unsafe { uar.mapping().as_ptr().add(0x800).cast::<u64>().write_volatile(word) };
}

/// 8 bytes of a UAR page at `offset`, as a model's page holds them.
pub(crate) fn peek(uar: &Uar, offset: usize) -> u64 {
    assert!(offset.is_multiple_of(8) && offset < 4096, "{offset:#x} is not in the page");
    // SAFETY: the page is mapped while `uar` lives, and the offset is within it and aligned.
    unsafe { uar.mapping().as_ptr().add(offset).cast::<u64>().read_volatile() }
}

/// An attribute of a request that no driver would make.
pub(crate) struct RawAttribute<'a> {
    pub(crate) id: u16,
    pub(crate) flags: u16,
    pub(crate) payload: Payload<'a>,
}

/// The content of an attribute.
pub(crate) enum Payload<'a> {
    /// A small number as the data, with a length.
    Number(u16, u16),
    /// Bytes to be read: inside the attribute if there are at most 8.
    Input(&'a [u8]),
    /// Bytes to be written.
    Output(&'a mut [u8]),
    /// This number of bytes at an address without memory.
    Nowhere(u16),
}

/// The words of a request: header and attributes.
pub(crate) fn words(method: Method, attributes: &mut [RawAttribute<'_>]) -> Vec<u64> {
    let mut words = vec![0; HEADER_WORDS + ATTRIBUTE_WORDS * attributes.len()];
    let (head, tail) = words.split_at_mut(HEADER_WORDS);
    head.copy_from_slice(&Header::new(method, attributes.len() as u16).words());
    for (raw, words) in attributes.iter_mut().zip(tail.chunks_exact_mut(ATTRIBUTE_WORDS)) {
        let (len, data) = match &mut raw.payload {
            Payload::Number(len, number) => (*len, u64::from(*number)),
            Payload::Input(bytes) if bytes.len() <= 8 => {
                let mut inline = [0; 8];
                inline[..bytes.len()].copy_from_slice(bytes);
                (bytes.len() as u16, u64::from_ne_bytes(inline))
            }
            Payload::Input(bytes) => {
                (bytes.len() as u16, bytes.as_ptr().expose_provenance() as u64)
            }
            Payload::Output(bytes) => {
                (bytes.len() as u16, bytes.as_mut_ptr().expose_provenance() as u64)
            }
            Payload::Nowhere(len) => (*len, 0x10),
        };
        let attribute =
            Attribute { attr_id: raw.id, len, flags: raw.flags, elem_id: 0, reserved: 0, data };
        let attribute: [u64; ATTRIBUTE_WORDS] = zerocopy::transmute!(attribute);
        words.copy_from_slice(&attribute);
    }
    words
}

/// Sends a request; `spoil` changes its words before.
pub(crate) fn request(
    device: &dyn OpenDevice,
    method: Method,
    attributes: &mut [RawAttribute<'_>],
    spoil: impl FnOnce(&mut [u64]),
) -> Result<(), Errno> {
    let mut words = words(method, attributes);
    spoil(&mut words);
    // SAFETY: each pointer leads to bytes that an attribute borrows until here, or is a 16-bit
    // number, which is below the lowest address that can be mapped; `spoil` changes only the
    // header.
    unsafe { device.ioctl(&mut words) }
}

/// Takes CAP_IPC_LOCK, which lifts the memlock limit, from this thread.
pub(crate) fn respect_memlock() -> Result<(), Stop> {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0];
    // Effective, permitted and inheritable bits, low words and then high ones.
    let mut bits = [0u32; 6];
    // SAFETY: both arrays have the layout that version 3 of the call asks for.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), bits.as_mut_ptr()) };
    bits[0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), bits.as_ptr()) };
    if got == 0 && set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}
