//! Shared receive queues; the device knows them as RMPs.

use nix::errno::Errno;
use verbless_prm::{CreateRmpIn, CreateRmpOut, ModifyRmpIn, Opcode, QueryRmpIn, RmpState, WqType};

use super::super::abi::{attr, object};
use super::super::cmd::command;
use super::super::file::Method;
use super::super::handles::Object;
use super::super::mailbox::{NUMBER, inbox};
use super::super::refused::refused;
use super::super::uapi::{UverbsRequest, UverbsResponse};
use super::listener::ListenerKind;
use super::memory::{check_doorbell_record, pin_buffer};
use super::objects::{Srq, Verbs};

/// `ib_srq_type`: an SRQ without an XRC domain or tags.
const BASIC: u64 = 0;
/// `ib_srq_attr_mask`.
const MAX_WR: u32 = 1;
const LIMIT: u32 = 1 << 1;
/// Bytes of `mlx5_ib_create_srq`, and of a data segment and of the segment that links entries.
const DRIVER_BYTES: usize = 32;
const SEGMENT: u32 = 16;

/// The client's request, by either interface.
struct SrqRequest {
    user_handle: u64,
    pd: u32,
    requests: u32,
    sges: u32,
    event_fd: Option<u16>,
}

impl Method<'_> {
    pub(crate) fn create_srq(&mut self) -> Result<(Object, Vec<u32>), Errno> {
        let number =
            |bytes: Vec<u8>| bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        if self.attrs.data(attr::SRQ_TYPE)? != BASIC {
            return Err(refused(
                Errno::EOPNOTSUPP,
                "SRQs of XRC or with tag matching are not modelled",
            ));
        }
        let wanted = SrqRequest {
            user_handle: self.attrs.data(attr::SRQ_USER_HANDLE)?,
            pd: self
                .handle_of(attr::SRQ_PD)
                .ok_or_else(|| refused(Errno::EINVAL, "the SRQ needs a PD"))?,
            requests: number(self.attrs.bytes(attr::SRQ_MAX_WR)?),
            sges: number(self.attrs.bytes(attr::SRQ_MAX_SGE)?),
            event_fd: Some(attr::SRQ_EVENT_FD),
        };
        let pd = wanted.pd;
        let srq = self.make_srq(wanted)?;
        let written = self
            .attrs
            .put(attr::SRQ_RESP_MAX_WR, &(srq.entries - 1).to_ne_bytes())
            .and_then(|()| self.attrs.put(attr::SRQ_RESP_MAX_SGE, &srq.sges.to_ne_bytes()));
        let (object, uses) = (Object::Verbs(Verbs::Srq(srq)), vec![pd]);
        match written {
            Ok(()) => Ok((object, uses)),
            Err(errno) => Err(self.abort(object, uses, errno)),
        }
    }

    /// CREATE_SRQ of the write interface.
    pub(crate) fn write_create_srq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        self.state.context()?;
        let pd = self.state.lookup(request.u32(16).into(), object::PD)?;
        let handle = self.state.free_handle()?;
        let srq = self.make_srq(SrqRequest {
            user_handle: request.u64(8),
            pd,
            requests: request.u32(20),
            sges: request.u32(24),
            event_fd: None,
        })?;
        let mut reply = UverbsResponse::default();
        reply.u32(handle).u32(srq.entries - 1).u32(srq.sges).u32(srq.srqn);
        let (object, uses) = (Object::Verbs(Verbs::Srq(srq)), vec![pd]);
        if let Err(errno) = self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes()) {
            return Err(self.abort(object, uses, errno));
        }
        self.state.insert_using(handle, object, uses);
        Ok(())
    }

    fn make_srq(&mut self, wanted: SrqRequest) -> Result<Srq, Errno> {
        let uid = self.state.context()?.uid;
        let kernel = &self.file.kernel;
        let caps = &kernel.caps;
        let Some(&Object::Pd { pdn }) = self.state.object(wanted.pd) else {
            return Err(Errno::EINVAL);
        };
        let max = 1u32.checked_shl(caps.log_max_srq_sz().into()).unwrap_or(0);
        let max_sges = u32::from(caps.max_wqe_sz_rq()) / SEGMENT;
        if wanted.requests >= max || wanted.sges > max_sges {
            let words = format!(
                "max_wr {} and max_sge {}: {} and {max_sges} at most",
                wanted.requests,
                wanted.sges,
                max - 1
            );
            return Err(refused(Errno::EINVAL, words));
        }
        // One entry more than requests: the last entry links to no other.
        let entries = (wanted.requests + 1).next_power_of_two();
        let stride = (SEGMENT + wanted.sges * SEGMENT).next_power_of_two().max(2 * SEGMENT);
        let driver = self.driver_request(0, DRIVER_BYTES)?;
        if driver.u32(20) != 0 || driver.u32(28) != 0 {
            let words = "reserved fields of the driver's data are not 0";
            return Err(refused(Errno::EINVAL, words));
        }
        let size = u64::from(entries) * u64::from(stride);
        let memory = pin_buffer((self.client, self.file.kernel.page), driver.u64(0), size, false)?;
        let record = check_doorbell_record(self.attrs.client, driver.u64(8))?;
        let mut input = CreateRmpIn::new();
        input.set_uid(uid);
        let rmp = input.ctx_mut();
        rmp.set_state(RmpState::RDY);
        let wq = rmp.wq_mut();
        wq.set_wq_type(WqType::LINKED_LIST).set_wq_signature(driver.u32(16) & 1 != 0);
        wq.set_log_wq_stride(stride.trailing_zeros() as u8);
        wq.set_log_wq_sz(entries.trailing_zeros() as u8).set_page_offset(memory.page_offset);
        wq.set_pd(pdn).set_dbr_addr(record);
        let mut output = CreateRmpOut::default();
        let at = (&**self.client, &*self.file.kernel);
        memory.exec(at, input.as_bytes(), output.as_bytes_mut())?;
        let srqn = output.rmpn();
        let mut destroy = inbox(Opcode::DESTROY_RMP, 0, uid, 16);
        NUMBER.set(&mut destroy, srqn);
        let asynchronous = match wanted.event_fd {
            Some(id) => self.async_file(id),
            None => self.state.default_async_file(),
        };
        kernel.listeners.add(ListenerKind::Srq, srqn, wanted.user_handle, None, asynchronous);
        let sges = wanted.sges;
        let srq = Srq { srqn, destroy, uid, entries, sges, _pinned: memory.pinned };
        if let Err(errno) = self.put_driver_response(&u64::from(srqn).to_ne_bytes()) {
            return Err(self.abort(Object::Verbs(Verbs::Srq(srq)), vec![wanted.pd], errno));
        }
        Ok(srq)
    }

    fn srq(&self, handle: u32) -> Result<&Srq, Errno> {
        let handle = self.state.lookup(handle.into(), object::SRQ)?;
        match self.state.object(handle) {
            Some(Object::Verbs(Verbs::Srq(srq))) => Ok(srq),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn modify_srq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let srq = self.srq(request.u32(0))?;
        let (mask, limit) = (request.u32(4), request.u32(12));
        // A queue cannot grow.
        if mask & MAX_WR != 0 {
            let words = "max_wr cannot change: mlx5 does not resize SRQs";
            return Err(refused(Errno::EINVAL, words));
        }
        if mask & LIMIT == 0 {
            return Ok(());
        }
        if limit >= srq.entries {
            let words = format!("srq_limit {limit} is not below the {} entries", srq.entries);
            return Err(refused(Errno::EINVAL, words));
        }
        let mut input = ModifyRmpIn::new();
        input.set_uid(srq.uid).set_rmp_state(RmpState::RDY).set_rmpn(srq.srqn);
        input.bitmask_mut().set_lwm(true);
        input.ctx_mut().set_state(RmpState::RDY).wq_mut().set_lwm(limit as u16);
        command(&*self.file.kernel.function, &input).map(drop)
    }

    pub(crate) fn query_srq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let srq = self.srq(request.u32(8))?;
        let mut input = QueryRmpIn::new();
        input.set_rmpn(srq.srqn);
        let output = command(&*self.file.kernel.function, &input)?;
        let mut reply = UverbsResponse::default();
        reply.u32(srq.entries - 1).u32(srq.sges);
        reply.u32(output.rmp_context().wq().lwm().into()).u32(0);
        self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes())
    }

    pub(crate) fn write_destroy_srq(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let handle = self.state.lookup_to_destroy(request.u32(8).into(), object::SRQ)?;
        let reported = self.file.destroy(self.state, self.client, handle)?;
        self.attrs.put_or_zero(attr::CORE_OUT, &reported.events.to_ne_bytes())
    }
}
