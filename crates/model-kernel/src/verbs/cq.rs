//! Completion queues, and the channels that report their completions.

use std::sync::Arc;

use nix::errno::Errno;
use verbless_prm::{
    CqModifyField, CqResizeField, CqeSize, CreateCqIn, CreateCqOut, ModifyCqIn, Opcode,
    TimestampFormat,
};

use super::super::abi::{attr, object};
use super::super::channel::Channel;
use super::super::file::Method;
use super::super::handles::{Object, Stream};
use super::super::mailbox::{NUMBER, inbox};
use super::super::refused::{NO_REGISTERS, refused};
use super::super::uapi::{UverbsRequest, UverbsResponse, reported_events};
use super::listener::{COMPLETION_RECORD, ListenerKind};
use super::memory::{check_doorbell_record, pin_buffer};
use super::objects::{Cq, Verbs};

const FLAG_TIMESTAMPS: u32 = 1;
const FLAG_IGNORE_OVERRUN: u32 = 1 << 1;
/// `ib_uverbs_ex_create_cq_flags`.
const FLAGS: u32 = 3;
/// Flags of `mlx5_ib_create_cq`.
const PADDED: u16 = 1;
const UAR_PAGE_INDEX: u16 = 1 << 1;
const REAL_TIME: u16 = 1 << 2;
/// `IB_CQ_MODERATE`, the only attribute that can change.
const MODERATE: u32 = 1;
/// The largest period that the context's field holds, in microseconds.
const MAX_PERIOD: u16 = 0xfff;
/// Bytes of the driver's request; its minimum ends after the flags.
const DRIVER_BYTES: usize = 32;
const DRIVER_MIN_BYTES: usize = 22;
/// Bytes of `mlx5_ib_resize_cq`.
const RESIZE_BYTES: usize = 16;

/// The client's request, by either interface.
struct CqRequest {
    user_handle: u64,
    entries: u32,
    vector: u32,
    flags: u32,
    channel: Option<Arc<Channel>>,
    asynchronous: Option<Arc<Channel>>,
}

impl Method<'_> {
    /// Creates a completion channel; the response holds its descriptor.
    pub(crate) fn create_comp_channel(&mut self, _: &UverbsRequest) -> Result<(), Errno> {
        self.state.context()?;
        let (channel, fd) = Channel::new(COMPLETION_RECORD)?;
        let number = self.install_stream(Stream::Completions(channel), fd)?;
        self.attrs.put_or_zero(attr::CORE_OUT, &number.to_ne_bytes())
    }

    pub(crate) fn create_cq(&mut self) -> Result<Object, Errno> {
        let number =
            |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        let vector = number(self.attrs.bytes(attr::CQ_VECTOR)?);
        let entries = number(self.attrs.bytes(attr::CQ_CQE)?);
        let wanted = CqRequest {
            user_handle: self.attrs.data(attr::CQ_USER_HANDLE)?,
            entries,
            vector,
            flags: self.attrs.flags(attr::CQ_FLAGS, FLAGS)?,
            channel: self.stream_of(attr::CQ_CHANNEL).map(|stream| stream.channel().clone()),
            asynchronous: self.async_file(attr::CQ_EVENT_FD),
        };
        let (cq, entries) = self.make_cq(wanted)?;
        let object = Object::Verbs(Verbs::Cq(cq));
        match self.attrs.put(attr::CQ_RESP_CQE, &(entries - 1).to_ne_bytes()) {
            Ok(()) => Ok(object),
            Err(errno) => Err(self.abort(object, Vec::new(), errno)),
        }
    }

    /// CREATE_CQ of the write interface.
    pub(crate) fn write_create_cq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        self.state.context()?;
        let channel = match request.u32(24) as i32 {
            none if none < 0 => None,
            fd => {
                let stream =
                    self.state.lookup_stream(self.attrs.client, fd as u64, object::COMP_CHANNEL)?;
                Some(stream.channel().clone())
            }
        };
        let handle = self.state.free_handle()?;
        let (cq, entries) = self.make_cq(CqRequest {
            user_handle: request.u64(8),
            entries: request.u32(16),
            vector: request.u32(20),
            flags: 0,
            channel,
            asynchronous: self.state.default_async_file(),
        })?;
        let mut reply = UverbsResponse::default();
        reply.u32(handle).u32(entries - 1);
        let object = Object::Verbs(Verbs::Cq(cq));
        if let Err(errno) = self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes()) {
            return Err(self.abort(object, Vec::new(), errno));
        }
        self.state.insert(handle, object);
        Ok(())
    }

    /// Creates a CQ; returns it and its number of entries.
    fn make_cq(&mut self, wanted: CqRequest) -> Result<(Cq, u32), Errno> {
        let context = self.state.context()?;
        let kernel = &self.file.kernel;
        let caps = &kernel.caps;
        let eqn = u16::try_from(wanted.vector).ok().and_then(|it| kernel.completion_queue(it));
        let eqn = eqn.ok_or_else(|| {
            let words = format!("the device has no completion vector {}", wanted.vector);
            refused(Errno::EINVAL, words)
        })?;
        let max = 1u32.checked_shl(caps.log_max_cq_sz().into()).unwrap_or(0);
        let entries = wanted
            .entries
            .checked_add(1)
            .and_then(u32::checked_next_power_of_two)
            .filter(|&entries| wanted.entries as i32 >= 0 && entries <= max)
            .ok_or_else(|| {
                let words =
                    format!("cqe {} is above the device's limit of {}", wanted.entries, max - 1);
                refused(Errno::EINVAL, words)
            })?;
        let driver = self.driver_request(DRIVER_MIN_BYTES, DRIVER_BYTES)?;
        let (cqe_bytes, flags) = (driver.u32(16), driver.u16(22));
        if flags & !(PADDED | UAR_PAGE_INDEX | REAL_TIME) != 0
            || ![64, 128].contains(&cqe_bytes)
            || driver.u16(26) != 0
            || driver.u32(28) != 0
        {
            let words = format!(
                "CQEs of {cqe_bytes} bytes, flags {flags:#x}: the driver takes 64 or 128 bytes, \
                 flags within 0x7, and reserved fields of 0"
            );
            return Err(refused(Errno::EINVAL, words));
        }
        let size = u64::from(entries) * u64::from(cqe_bytes);
        let memory = pin_buffer((self.client, self.file.kernel.page), driver.u64(0), size, true)?;
        let record = check_doorbell_record(self.attrs.client, driver.u64(8))?;
        let uar_page = if flags & UAR_PAGE_INDEX != 0 {
            driver.u16(24).into()
        } else {
            // In a context without static UAR pages, the request must name a UAR page.
            let none = || refused(Errno::EINVAL, NO_REGISTERS);
            *context.static_uars.first().ok_or_else(none)?
        };
        let offered = match cqe_bytes {
            128 => caps.cqe_compression_128(),
            _ => caps.cqe_compression(),
        };
        if driver.u8(20) == 1 && !offered {
            let words =
                format!("the device compresses no CQEs of {cqe_bytes} bytes (cqe_compression)");
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let padded = flags & PADDED != 0;
        if padded && (cqe_bytes != 128 || !caps.cqe_128_always()) {
            let words = "padded CQEs take 128 bytes each, and the capability cqe_128_always";
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let uid = context.uid;
        let mut input = CreateCqIn::new();
        input.set_uid(uid);
        let cqc = input.cq_context_mut();
        cqc.set_cqe_sz(cqe_size(cqe_bytes, padded));
        cqc.set_log_cq_size(entries.trailing_zeros() as u8).set_uar_page(uar_page);
        cqc.set_c_eqn_or_apu_element(eqn).set_dbr_addr(record).set_page_offset(memory.page_offset);
        cqc.set_oi(wanted.flags & FLAG_IGNORE_OVERRUN != 0).set_cqe_comp_en(driver.u8(20) == 1);
        let real_time = flags & REAL_TIME != 0;
        if real_time {
            cqc.set_cq_timestamp_format(TimestampFormat::REAL_TIME);
        }
        let mut output = CreateCqOut::default();
        let at = (&**self.client, &*self.file.kernel);
        memory.exec(at, input.as_bytes(), output.as_bytes_mut())?;
        let cqn = output.cqn();
        let mut destroy = inbox(Opcode::DESTROY_CQ, 0, uid, 16);
        NUMBER.set(&mut destroy, cqn);
        let timestamps = wanted.flags & FLAG_TIMESTAMPS != 0;
        let pinned = memory.pinned;
        let cq = Cq { cqn, destroy, cqe_bytes, real_time, timestamps, padded, entries, pinned };
        kernel.listeners.add(
            ListenerKind::Cq,
            cqn,
            wanted.user_handle,
            wanted.channel,
            wanted.asynchronous,
        );
        if let Err(errno) = self.put_driver_response(&cqn.to_ne_bytes()) {
            return Err(self.abort(Object::Verbs(Verbs::Cq(cq)), Vec::new(), errno));
        }
        Ok((cq, entries))
    }

    /// Sets the event moderation: completions and microseconds.
    pub(crate) fn modify_cq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let (given, count, period) = (request.u32(4), request.u16(8), request.u16(10));
        if given == 0 || request.u32(12) != 0 {
            return Err(refused(Errno::EINVAL, "attr_mask is 0, or a reserved field is not"));
        }
        if given > MODERATE {
            let words = format!("attr_mask {given:#x} has more than moderation ({MODERATE:#x})");
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let handle = self.state.lookup(request.u32(0).into(), object::CQ)?;
        let Some(Object::Verbs(Verbs::Cq(cq))) = self.state.object(handle) else {
            return Err(Errno::ENOENT);
        };
        let kernel = &self.file.kernel;
        if !kernel.caps.cq_moderation() {
            let words = "the device moderates no CQs (cq_moderation)";
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        if period > MAX_PERIOD {
            let words = format!("cq_period {period} us is above the longest, {MAX_PERIOD}");
            return Err(refused(Errno::EINVAL, words));
        }
        let mut input = ModifyCqIn::new();
        input.set_uid(self.state.context()?.uid).set_cqn(cq.cqn);
        input.set_modify_field_select(CqModifyField::PERIOD.0 | CqModifyField::MAX_COUNT.0);
        input.cq_context_mut().set_cq_period(period).set_cq_max_count(count);
        kernel.exec(input.as_bytes(), &mut [0; 16])
    }

    /// Moves a CQ to another buffer. On return the old buffer ends with the RESIZE CQE and belongs
    /// to the client again.
    pub(crate) fn resize_cq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let wanted = request.u32(12);
        let handle = self.state.lookup(request.u32(8).into(), object::CQ)?;
        let Some(Object::Verbs(Verbs::Cq(cq))) = self.state.object(handle) else {
            return Err(Errno::ENOENT);
        };
        let kernel = &self.file.kernel;
        if !kernel.caps.cq_resize() {
            return Err(refused(Errno::ENOSYS, "the device resizes no CQs (cq_resize)"));
        }
        let max = 1u32.checked_shl(kernel.caps.log_max_cq_sz().into()).unwrap_or(0);
        let entries = wanted
            .checked_add(1)
            .and_then(u32::checked_next_power_of_two)
            .filter(|&entries| wanted != 0 && entries <= max)
            .ok_or_else(|| {
                let words = format!("cqe {wanted} is not from 1 to {}", max - 1);
                refused(Errno::EINVAL, words)
            })?;
        if entries != cq.entries {
            let driver = self.driver_request(RESIZE_BYTES, RESIZE_BYTES)?;
            let cqe_bytes = u32::from(driver.u16(8));
            if driver.u16(10) != 0 || driver.u32(12) != 0 {
                let words = "reserved fields of the driver's data are not 0";
                return Err(refused(Errno::EINVAL, words));
            }
            let size = u64::from(entries) * u64::from(cqe_bytes);
            let memory =
                pin_buffer((self.client, self.file.kernel.page), driver.u64(0), size, true)?;
            let mut input = ModifyCqIn::new();
            input.set_op_mod(ModifyCqIn::RESIZE).set_uid(self.state.context()?.uid);
            input.set_cqn(cq.cqn).set_modify_field_select(
                CqResizeField::LOG_CQ_SIZE.0
                    | CqResizeField::PAGE_OFFSET.0
                    | CqResizeField::LOG_PAGE_SIZE.0,
            );
            let cqc = input.cq_context_mut();
            cqc.set_cqe_sz(cqe_size(cqe_bytes, cq.padded)).set_page_offset(memory.page_offset);
            cqc.set_log_cq_size(entries.trailing_zeros() as u8);
            let at = (&**self.client, &*self.file.kernel);
            memory.exec(at, input.as_bytes(), &mut [0; 16])?;
            let Some(Object::Verbs(Verbs::Cq(cq))) = self.state.object_mut(handle) else {
                return Err(Errno::ENOENT);
            };
            (cq.entries, cq.pinned) = (entries, memory.pinned);
        }
        let mut reply = UverbsResponse::default();
        reply.u32(entries - 1).u32(0);
        self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes())
    }

    pub(crate) fn write_destroy_cq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let handle = self.state.lookup_to_destroy(request.u32(8).into(), object::CQ)?;
        let reported = self.file.destroy(self.state, self.client, handle)?;
        self.attrs.put_or_zero(attr::CORE_OUT, &reported_events(reported))
    }
}

/// The encoded CQE size.
fn cqe_size(bytes: u32, padded: bool) -> CqeSize {
    match (bytes, padded) {
        (128, false) => CqeSize::BYTES_128,
        (128, true) => CqeSize::BYTES_128_PADDED,
        _ => CqeSize::BYTES_64,
    }
}
