//! RQ objects: CREATE_RQ, MODIFY_RQ, QUERY_RQ, DESTROY_RQ.

use std::sync::Arc;

use verbless_devx::{Error, Pd};
use verbless_prm::{
    CreateRqIn, CreateRqOut, MemRqType, ModifyRqIn, QueryRqIn, QueryRqOut, RqContext, RqState,
    TimestampFormat, WqType,
};

use crate::caps::check_timestamp_format;
use crate::counter::QCounter;
use crate::cq::CqObject;
use crate::device::Device;
use crate::error::{all_of, fits, invalid, limit};
use crate::execute;
use crate::memory::{QueueMemory, memory_parts, set_wq_memory};
use crate::owned::Owned;
use crate::rmp::RmpObject;
use crate::state::state_transitions;
use verbless_prm::number::Rqn;

/// Attributes of a receive queue.
#[derive(Debug, Clone)]
pub struct RqAttr {
    /// Completion queue of the receives.
    pub cq: Arc<CqObject>,
    /// The ring or RMP that holds the WQEs.
    pub wqes: RqWqes,
    /// User index (24 bits): the device writes it into `srqn_uidx` of the queue's CQEs.
    pub user_index: u32,
    /// `flush_in_error_en`: in ERR, posted receives complete as flushed. Ignored with an RMP, whose
    /// WQEs stay for other queues.
    pub flush_in_error: bool,
    /// Whether frames keep their VLAN tag (`vsd`). Otherwise the device strips it and reports it in
    /// the CQE; this needs the capability `vlan_cap`.
    pub keep_vlan: bool,
    /// The clock of the CQE timestamps; every device supports the value of
    /// [`Caps::rq_timestamps`](crate::Caps::rq_timestamps).
    pub timestamps: TimestampFormat,
    /// Q counter of the queue, which counts for example frames dropped because no receive was
    /// posted (`out_of_buffer`).
    pub counter: Option<Arc<QCounter>>,
}

/// The ring or RMP that holds the WQEs of a receive queue.
#[derive(Debug, Clone)]
pub enum RqWqes {
    /// The queue's own ring.
    Own {
        /// Protection domain of the keys in its WQEs.
        pd: Pd,
        /// Memory of the ring.
        ring: QueueMemory,
        /// Memory of the doorbell record: 8 bytes; the first word counts posted receives.
        record: QueueMemory,
        /// log2 of the number of WQEs.
        log_wqes: u8,
        /// log2 of the bytes of a WQE, 4 (one data segment) to 9.
        log_stride: u8,
    },
    /// The WQEs of an RMP, shared with other RQs.
    Rmp(Arc<RmpObject>),
}

/// A receive queue on the device, without its ring. TIRs that refer to it keep it alive.
#[derive(Debug)]
pub struct RqObject {
    rqn: Rqn,
    owned: Owned<RqAttr>,
}

impl Device {
    /// CREATE_RQ: a queue in RST.
    pub fn create_rq(&self, attr: RqAttr) -> Result<RqObject, Error> {
        let caps = self.caps();
        if caps.general.log_max_rq() == 0 {
            let what = "the device has no RQ objects (capability log_max_rq is 0): only QPs have \
                        receive queues";
            return Err(invalid("CREATE_RQ", what));
        }
        fits("CREATE_RQ", "the user index", attr.user_index, 24)?;
        check_timestamp_format("CREATE_RQ", attr.timestamps, caps.general.rq_ts_format())?;
        if !attr.keep_vlan && !caps.ethernet.as_ref().is_some_and(|page| page.vlan_cap()) {
            let what = "the device cannot strip VLAN tags (capability vlan_cap is 0): set \
                        `keep_vlan`";
            return Err(invalid("CREATE_RQ", what));
        }
        all_of(self, "CREATE_RQ", [("CQ", attr.cq.object().context())])?;
        let mut input = CreateRqIn::new();
        let context = input.ctx_mut();
        context
            .set_state(RqState::RST)
            .set_flush_in_error_en(attr.flush_in_error && matches!(attr.wqes, RqWqes::Own { .. }))
            .set_vsd(attr.keep_vlan)
            .set_ts_format(attr.timestamps)
            .set_user_index(attr.user_index)
            .set_cqn(attr.cq.cqn().0);
        if let Some(counter) = &attr.counter {
            context.set_counter_set_id(counter.number());
        }
        match &attr.wqes {
            RqWqes::Own { pd, ring, record, log_wqes, log_stride } => {
                let most = caps.general.log_max_wq_sz();
                if *log_wqes > most {
                    let what = "log2 of the receives";
                    return Err(limit("CREATE_RQ", what, (*log_wqes).into(), most.into()));
                }
                if !(4..=9).contains(log_stride) {
                    return Err(invalid("CREATE_RQ", "the receive stride must be 16 to 512 bytes"));
                }
                let parts = [("protection domain", pd.context())];
                all_of(self, "CREATE_RQ", parts.into_iter().chain(memory_parts(ring, record)))?;
                context.set_mem_rq_type(MemRqType::INLINE);
                let wq = context.wq_mut();
                set_wq_memory(wq, ring, record);
                wq.set_wq_type(WqType::CYCLIC)
                    .set_pd(pd.pdn())
                    .set_log_wq_sz(*log_wqes)
                    .set_log_wq_stride(*log_stride);
            }
            RqWqes::Rmp(rmp) => {
                all_of(self, "CREATE_RQ", [("RMP", rmp.object().context())])?;
                context.set_mem_rq_type(MemRqType::RMP).set_rmpn(rmp.rmpn().0);
            }
        }
        let mut output = CreateRqOut::zeroed();
        let object = self.create(&input, &mut output)?;
        Ok(RqObject { rqn: Rqn(output.rqn()), owned: Owned::new(object, attr) })
    }
}

state_transitions! {
    RqObject, "MODIFY_RQ", "receives", "receives", "";
    RqState, ModifyRqIn, rqn set_rqn, set_rq_state
}

impl RqObject {
    /// The RQ's number, for TIRs and CQEs.
    pub fn rqn(&self) -> Rqn {
        self.rqn
    }

    /// The attributes that the queue was created with.
    pub fn attr(&self) -> &RqAttr {
        self.owned.attr()
    }

    /// The DevX object, for subscribing to its events.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// QUERY_RQ: the current context.
    pub fn query(&self) -> Result<RqContext, Error> {
        let mut input = QueryRqIn::new();
        input.set_rqn(self.rqn.0);
        let mut output = Box::new(QueryRqOut::zeroed());
        execute::query_object(self.owned.object(), &input, &mut *output)?;
        Ok(*output.rq_context())
    }

    /// DESTROY_RQ. The device refuses it while a TIR refers to the queue; on failure the queue and
    /// its memory are leaked.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
