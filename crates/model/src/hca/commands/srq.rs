//! Receive queues that several QPs share: XRC SRQs and RMPs; and XRC domains.
//!
//! Both kinds share one range of numbers, since a QP names either in the same field.

use verbless_prm::{
    AllocXrcdIn, AllocXrcdOut, ArmXrcSrqIn, ArmXrcSrqOut, CreateRmpIn, CreateRmpOut,
    CreateXrcSrqIn, CreateXrcSrqOut, DestroyRmpIn, DestroyRmpOut, DestroyXrcSrqIn,
    DestroyXrcSrqOut, ModifyRmpIn, ModifyRmpOut, QueryRmpIn, QueryRmpOut, QueryXrcSrqIn,
    QueryXrcSrqOut, RmpContext, RmpState, SrqState, WqType, XrcSrqContext,
};

use super::call::{Call, Outcome};
use super::umem::{self, BufferSpec};
use super::wq::{WqMemory, WqSpec};
use crate::hca::objects::{Srq, SrqContext};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;

/// Fields of the context that CREATE_XRC_SRQ accepts, or that the device writes.
const KNOWN_XRC_SRQ: [&str; 13] = [
    "state",
    "log_xrc_srq_size",
    "log_rq_stride",
    "xrcd",
    "page_offset",
    "cqn",
    "log_page_size",
    "user_index",
    "pd",
    "lwm",
    "wqe_cnt",
    "db_record_addr_h",
    "db_record_addr_l",
];

/// Known fields of CREATE_RMP.
const KNOWN_RMP: [&str; 3] = ["state", "basic_cyclic_rcv_wqe", "wq"];

/// log2 of the unit of log_rq_stride in bytes.
const LOG_STRIDE_UNIT: u32 = 4;

/// The queue that a command describes, of either kind.
struct SrqSpec {
    pd: u32,
    log_size: u32,
    /// log2 of the stride in bytes.
    log_stride: u32,
    /// The device uses WQEs in ring order.
    cyclic: bool,
    wq: WqSpec,
    limit: u16,
    cqn: Option<u32>,
    xrcd: Option<u32>,
    context: SrqContext,
}

impl Call<'_> {
    /// An XRC SRQ of the sender.
    fn xrc_srq(&mut self, number: u32) -> Result<(&mut Srq, XrcSrqContext), Refusal> {
        self.find(kind::Srq, number)?;
        match self.hca_mut().objects.srqs.get_mut(&number) {
            Some(queue) => match &queue.context {
                SrqContext::XrcSrq(context) => {
                    let context = *context;
                    Ok((queue, context))
                }
                SrqContext::Rmp(_) => Err(Refusal::NoSuchSrq),
            },
            None => Err(Refusal::NoSuchSrq),
        }
    }

    /// An RMP of the sender.
    fn rmp(&mut self, number: u32) -> Result<(&mut Srq, RmpContext), Refusal> {
        self.find(kind::Srq, number)?;
        match self.hca_mut().objects.srqs.get_mut(&number) {
            Some(queue) => match &queue.context {
                SrqContext::Rmp(context) => {
                    let context = **context;
                    Ok((queue, context))
                }
                SrqContext::XrcSrq(_) => Err(Refusal::NoSuchSrq),
            },
            None => Err(Refusal::NoSuchSrq),
        }
    }

    fn make_srq(&mut self, wanted: SrqSpec) -> Result<u32, Refusal> {
        let general = self.hca().caps.general();
        let log_max = general.log_max_srq().max(general.log_max_rmp());
        self.check_count(self.hca().objects.srqs.len(), log_max)?;
        if wanted.log_size > u32::from(general.log_max_srq_sz()) {
            return Err(Refusal::QpSize);
        }
        // A WQE begins with the index of the next one.
        if wanted.log_stride < LOG_STRIDE_UNIT
            || 1 << wanted.log_stride > u32::from(general.max_wqe_sz_rq())
        {
            return Err(Refusal::QpStride);
        }
        self.find(kind::Pd, wanted.pd)?;
        if let Some(xrcd) = wanted.xrcd {
            self.find(kind::Xrcd, xrcd)?;
        }
        if let Some(cqn) = wanted.cqn {
            self.find(kind::Cq, cqn)?;
        }
        let length = 1 << (wanted.log_size + wanted.log_stride);
        let WqMemory { ring, record, umems } =
            self.wq_memory(&wanted.wq, length, 1 << LOG_STRIDE_UNIT)?;
        let queue = Srq {
            uid: self.uid,
            pd: wanted.pd,
            memory: ring,
            record,
            log_size: wanted.log_size,
            log_stride: wanted.log_stride,
            cyclic: wanted.cyclic,
            head: 0,
            consumed: 0,
            limit: wanted.limit,
            cqn: wanted.cqn,
            xrcd: wanted.xrcd,
            umems,
            context: wanted.context,
        };
        self.make(kind::Srq, queue)
    }
}

/// ALLOC_XRCD.
pub(in crate::hca) fn alloc_xrcd(
    call: &mut Call<'_>,
    _: &AllocXrcdIn,
    output: &mut AllocXrcdOut,
) -> Outcome {
    let general = call.hca().caps.general();
    if !general.xrc() {
        return Err(Refusal::Unsupported);
    }
    call.check_count(call.hca().objects.xrcds.len(), general.log_max_xrcd())?;
    output.set_xrcd(call.make(kind::Xrcd, call.uid)?);
    Ok(())
}

/// CREATE_XRC_SRQ.
pub(in crate::hca) fn create_xrc_srq(
    call: &mut Call<'_>,
    input: &CreateXrcSrqIn,
    output: &mut CreateXrcSrqOut,
) -> Outcome {
    let mut context = *input.xrc_srq_context_entry();
    call.check_known_fields(&context, &KNOWN_XRC_SRQ)?;
    // The published layout has no field for the record's UMEM.
    if input.xrc_srq_umem_valid() {
        return Err(Refusal::Unsupported);
    }
    context.set_state(SrqState::GOOD);
    let record =
        u64::from(context.db_record_addr_h()) << 32 | u64::from(context.db_record_addr_l()) << 2;
    let number = call.make_srq(SrqSpec {
        pd: context.pd(),
        log_size: context.log_xrc_srq_size().into(),
        log_stride: u32::from(context.log_rq_stride()) + LOG_STRIDE_UNIT,
        cyclic: false,
        wq: WqSpec {
            buffer: BufferSpec {
                umem: None,
                log_page_size: context.log_page_size(),
                page_offset: context.page_offset(),
                page_offset_bits: umem::CONTEXT_OFFSET_BITS,
            },
            record_umem: None,
            record,
        },
        limit: context.lwm(),
        cqn: Some(context.cqn()),
        xrcd: Some(context.xrcd()),
        context: SrqContext::XrcSrq(context),
    })?;
    output.set_xrc_srqn(number);
    Ok(())
}

/// CREATE_RMP.
pub(in crate::hca) fn create_rmp(
    call: &mut Call<'_>,
    input: &CreateRmpIn,
    output: &mut CreateRmpOut,
) -> Outcome {
    let mut context = *input.ctx();
    let wq = context.wq();
    // Linux leaves the state of a new RMP 0 in user queues, and sets RDY in its own.
    call.check_known_fields(&context, &KNOWN_RMP)?;
    call.only_wq(wq, "lwm")?;
    let cyclic = match wq.wq_type() {
        WqType::LINKED_LIST => false,
        WqType::CYCLIC => true,
        _ => return Err(Refusal::Unsupported),
    };
    // Such WQEs have no next segment, which holds the links of a list.
    let without_next_segment = context.basic_cyclic_rcv_wqe();
    if without_next_segment && !(cyclic && call.hca().caps.general().basic_cyclic_rcv_wqe()) {
        return Err(Refusal::Unsupported);
    }
    let wanted = SrqSpec {
        pd: wq.pd(),
        log_size: wq.log_wq_sz().into(),
        log_stride: wq.log_wq_stride().into(),
        cyclic,
        wq: wq.into(),
        limit: wq.lwm(),
        cqn: None,
        xrcd: None,
        context: SrqContext::Rmp(Box::new({
            context.set_state(RmpState::RDY);
            context
        })),
    };
    output.set_rmpn(call.make_srq(wanted)?);
    Ok(())
}

/// QUERY_XRC_SRQ.
pub(in crate::hca) fn query_xrc_srq(
    call: &mut Call<'_>,
    input: &QueryXrcSrqIn,
    output: &mut QueryXrcSrqOut,
) -> Outcome {
    let (queue, mut context) = call.xrc_srq(input.xrc_srqn())?;
    context.set_lwm(queue.limit);
    *output.xrc_srq_context_entry_mut() = context;
    Ok(())
}

/// QUERY_RMP.
pub(in crate::hca) fn query_rmp(
    call: &mut Call<'_>,
    input: &QueryRmpIn,
    output: &mut QueryRmpOut,
) -> Outcome {
    let (queue, mut context) = call.rmp(input.rmpn())?;
    context.wq_mut().set_lwm(queue.limit);
    *output.rmp_context_mut() = context;
    Ok(())
}

/// ARM_XRC_SRQ: requests one event when fewer WQEs than the limit are left.
pub(in crate::hca) fn arm_xrc_srq(
    call: &mut Call<'_>,
    input: &ArmXrcSrqIn,
    _: &mut ArmXrcSrqOut,
) -> Outcome {
    let (queue, _) = call.xrc_srq(input.xrc_srqn())?;
    set_limit(queue, input.lwm())
}

/// MODIFY_RMP: arms the limit event.
pub(in crate::hca) fn modify_rmp(
    call: &mut Call<'_>,
    input: &ModifyRmpIn,
    _: &mut ModifyRmpOut,
) -> Outcome {
    let (queue, context) = call.rmp(input.rmpn())?;
    let state = context.state();
    if state != input.rmp_state() || state != input.ctx().state() {
        return Err(Refusal::SrqState);
    }
    if input.bitmask().lwm() { set_limit(queue, input.ctx().wq().lwm()) } else { Ok(()) }
}

fn set_limit(queue: &mut Srq, limit: u16) -> Outcome {
    if u32::from(limit) > 1 << queue.log_size {
        return Err(Refusal::SrqLimit);
    }
    queue.limit = limit;
    Ok(())
}

/// DESTROY_XRC_SRQ.
pub(in crate::hca) fn destroy_xrc_srq(
    call: &mut Call<'_>,
    input: &DestroyXrcSrqIn,
    _: &mut DestroyXrcSrqOut,
) -> Outcome {
    call.xrc_srq(input.xrc_srqn())?;
    call.destroy(kind::Srq, input.xrc_srqn())
}

/// DESTROY_RMP.
pub(in crate::hca) fn destroy_rmp(
    call: &mut Call<'_>,
    input: &DestroyRmpIn,
    _: &mut DestroyRmpOut,
) -> Outcome {
    call.rmp(input.rmpn())?;
    call.destroy(kind::Srq, input.rmpn())
}
