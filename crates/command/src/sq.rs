//! Raw Ethernet send queues (SQ): creation, states and query.

use std::sync::Arc;

use verbless_devx::{Error, Pd, Uar};
use verbless_prm::{
    CreateSqIn, CreateSqOut, MinWqeInlineMode, ModifySqIn, QuerySqIn, QuerySqOut, SqContext,
    SqState, TimestampFormat, WqType,
};

use crate::caps::check_timestamp_format;
use crate::cq::CqObject;
use crate::device::Device;
use crate::error::{all_of, fits, invalid, limit};
use crate::execute;
use crate::memory::{QueueMemory, memory_parts, set_wq_memory};
use crate::owned::Owned;
use crate::state::state_transitions;
use crate::transport::TisObject;
use verbless_prm::hot::WQEBB;
use verbless_prm::number::Qpn;

/// Attributes of a send queue.
#[derive(Debug, Clone)]
pub struct SqAttr {
    /// Protection domain of the keys in its WQEs.
    pub pd: Pd,
    /// The UAR page for its doorbells.
    pub uar: Arc<Uar>,
    /// Completion queue of the sends.
    pub cq: Arc<CqObject>,
    /// The TIS through which frames are sent; `None` for a queue that sends no frames
    /// ([`non_wire`](verbless_prm::SqContext::non_wire)).
    pub tis: Option<Arc<TisObject>>,
    /// Memory of the ring.
    pub ring: QueueMemory,
    /// Memory of the doorbell record: 8 bytes; the second word counts posted WQEBBs.
    pub record: QueueMemory,
    /// log2 of the number of WQEBBs (64 bytes).
    pub log_wqebbs: u8,
    /// `min_wqe_inline_mode`: the headers of a frame that its WQE must carry inline.
    pub min_inline: MinWqeInlineMode,
    /// User index (24 bits): the device writes it into `srqn_uidx` of the queue's CQEs.
    pub user_index: u32,
    /// Whether posted requests complete as flushed when the queue is in the error state.
    pub flush_in_error: bool,
    /// A WQE may hold several frames (ENHANCED_MPSW).
    pub multi_packet: bool,
    /// The clock of the CQE timestamps; every device supports the value of
    /// [`Caps::sq_timestamps`](crate::Caps::sq_timestamps).
    pub timestamps: TimestampFormat,
}

/// A send queue on the device, without its ring.
#[derive(Debug)]
pub struct SqObject {
    sqn: Qpn,
    owned: Owned<SqAttr>,
}

impl Device {
    /// CREATE_SQ: a queue in RST.
    pub fn create_sq(&self, attr: SqAttr) -> Result<SqObject, Error> {
        let caps = self.caps();
        if caps.general.log_max_sq() == 0 {
            let what = "the device has no SQ objects (capability log_max_sq is 0): only QPs have \
                        send queues";
            return Err(invalid("CREATE_SQ", what));
        }
        let most = caps.general.log_max_wq_sz();
        if attr.log_wqebbs > most {
            let what = "log2 of the WQEBBs";
            return Err(limit("CREATE_SQ", what, attr.log_wqebbs.into(), most.into()));
        }
        if attr.tis.is_none() && !caps.general.non_wire_sq() {
            let what = "an SQ without a TIS needs the capability non_wire_sq: set `tis` \
                        (non_wire_sq is 0)";
            return Err(invalid("CREATE_SQ", what));
        }
        fits("CREATE_SQ", "the user index", attr.user_index, 24)?;
        fits("CREATE_SQ", "min_wqe_inline_mode", attr.min_inline.0.into(), 3)?;
        check_timestamp_format("CREATE_SQ", attr.timestamps, caps.general.sq_ts_format())?;
        let several = caps.ethernet.as_ref().is_some_and(|it| it.enhanced_multi_pkt_send_wqe());
        if attr.multi_packet && !several {
            let what = "the device has no multi-packet WQEs (capability \
                        enhanced_multi_pkt_send_wqe is 0)";
            return Err(invalid("CREATE_SQ", what));
        }
        let parts = [
            ("protection domain", attr.pd.context()),
            ("UAR", attr.uar.context()),
            ("CQ", attr.cq.object().context()),
        ];
        let tis = attr.tis.as_ref().map(|tis| ("TIS", tis.context()));
        all_of(
            self,
            "CREATE_SQ",
            parts.into_iter().chain(memory_parts(&attr.ring, &attr.record)).chain(tis),
        )?;
        let mut input = CreateSqIn::new();
        let context = input.ctx_mut();
        context
            .set_state(SqState::RST)
            .set_flush_in_error_en(attr.flush_in_error)
            .set_allow_multi_pkt_send_wqe(attr.multi_packet)
            .set_min_wqe_inline_mode(attr.min_inline)
            .set_ts_format(attr.timestamps)
            .set_user_index(attr.user_index)
            .set_cqn(attr.cq.cqn().0);
        match &attr.tis {
            Some(tis) => context.set_tis_lst_sz(1).set_tis_num_0(tis.tisn().0),
            None => context.set_non_wire(true),
        };
        let wq = context.wq_mut();
        set_wq_memory(wq, &attr.ring, &attr.record);
        wq.set_wq_type(WqType::CYCLIC)
            .set_pd(attr.pd.pdn())
            .set_uar_page(attr.uar.page_id())
            .set_log_wq_stride(WQEBB.ilog2() as u8)
            .set_log_wq_sz(attr.log_wqebbs);
        let mut output = CreateSqOut::zeroed();
        let object = self.create(&input, &mut output)?;
        Ok(SqObject { sqn: Qpn(output.sqn()), owned: Owned::new(object, attr) })
    }
}

state_transitions! {
    SqObject, "MODIFY_SQ", "sends", "requests", ", and the next WQE has index 0";
    SqState, ModifySqIn, sqn set_sqn, set_sq_state
}

impl SqObject {
    /// The SQ's number. An SQN is a QPN in WQEs, doorbells and CQEs, so it has that type.
    pub fn sqn(&self) -> Qpn {
        self.sqn
    }

    /// The attributes that the queue was created with.
    pub fn attr(&self) -> &SqAttr {
        self.owned.attr()
    }

    /// The DevX object, for subscribing to its events.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// QUERY_SQ: the current context.
    pub fn query(&self) -> Result<SqContext, Error> {
        let mut input = QuerySqIn::new();
        input.set_sqn(self.sqn.0);
        let mut output = Box::new(QuerySqOut::zeroed());
        execute::query_object(self.owned.object(), &input, &mut *output)?;
        Ok(*output.sq_context())
    }

    /// DESTROY_SQ. On failure the queue and its memory are leaked.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
