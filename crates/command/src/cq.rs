//! Completion queues: creation, moderation and query.

use std::sync::Arc;

use verbless_devx::{Error, ErrorKind, Uar};
use verbless_prm::{
    CqContext, CqModifyField, CqPeriodMode, CqStatus, CqeSize, CreateCqIn, CreateCqOut, HcaCap,
    MiniCqeFormat, ModifyCqIn, QueryCqIn, QueryCqOut,
};

use crate::device::Device;
use crate::error::{all_of, fits, invalid, limit};
use crate::execute;
use crate::memory::{QueueMemory, memory_parts, set_record};
use crate::owned::Owned;
use verbless_prm::number::{Cqn, Eqn};

/// Attributes of a completion queue.
#[derive(Debug, Clone)]
pub struct CqAttr {
    /// The UAR page through which it is armed.
    pub uar: Arc<Uar>,
    /// Memory of the CQE ring.
    pub ring: QueueMemory,
    /// Memory of the doorbell record: 8 bytes, consumer index then arm word.
    pub record: QueueMemory,
    /// log2 of the number of CQEs.
    pub log_cqes: u8,
    /// Size of a CQE: 64 or 128 bytes.
    pub cqe_size: CqeSize,
    /// Receiver of the queue's completion events.
    pub element: CqEventTarget,
    /// Lets new CQEs overwrite unread ones instead of breaking the queue.
    pub ignore_overrun: bool,
}

/// Receiver of a CQ's completion events. The DPA needs the capability `apu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CqEventTarget {
    /// An event queue.
    Eq(Eqn),
    /// A thread of the DPA (`DpaThread::id`), which the events start.
    Thread(u32),
    /// An event queue of the DPA (`DpaEq::id`).
    DpaEq(u32),
}

impl CqEventTarget {
    /// Whether the receiver is on the DPA, its type (ext_element_type) and its number.
    fn raw(self) -> (bool, u8, u32) {
        match self {
            Self::Eq(eqn) => (false, 0, eqn.0),
            Self::Thread(thread) => (true, 0, thread),
            Self::DpaEq(eqn) => (true, 2, eqn),
        }
    }
}

/// Event moderation: the count of completions or the time before an armed queue makes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moderation {
    /// Microseconds (12 bits); 0: at once.
    pub period: u16,
    /// Completions; 0: at the first.
    pub count: u16,
}

/// Attributes that few completion queues need; the default is right for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CqOptions {
    /// The device writes every CQE to entry 0, with the owner bit of the first pass (0): its WQE
    /// counter shows the progress. The CQ overruns like others, unless the consumer index in its
    /// record follows or [`CqAttr::ignore_overrun`] is set. Only a collapsed CQ may have a single
    /// entry.
    pub collapsed: bool,
    /// Every CQE makes an event; arming is not needed.
    pub always_armed: bool,
    /// The initial event moderation.
    pub moderation: Moderation,
    /// The moderation period starts at a CQE instead of an event.
    pub period_from_cqe: bool,
    /// The device compresses bursts of receive CQEs into mini CQEs of this format (capabilities
    /// `cqe_compression`, or `cqe_compression_128` for CQEs of 128 bytes; `mini_cqe_resp_flow_tag`
    /// and `mini_cqe_resp_stride_index` for the formats with a stride index).
    pub compression: Option<MiniCqeFormat>,
}

/// The device's capabilities for event moderation.
#[derive(Debug, Clone, Copy)]
struct ModerationCaps {
    at_all: bool,
    from_cqe: bool,
    mode_changes: bool,
}

impl ModerationCaps {
    fn of(general: &HcaCap) -> Self {
        Self {
            at_all: general.cq_moderation(),
            from_cqe: general.cq_period_start_from_cqe(),
            mode_changes: general.cq_period_mode_modify(),
        }
    }

    fn check(self, attempted: &'static str) -> Result<(), Error> {
        let hint = "the device does not moderate events (capability cq_moderation is 0)";
        needs(attempted, self.at_all, hint)
    }

    fn check_from_cqe(self, attempted: &'static str) -> Result<(), Error> {
        let hint = "moderation counts its time only from events (capability \
                    cq_period_start_from_cqe is 0)";
        needs(attempted, self.from_cqe, hint)
    }

    fn check_mode_changes(self, attempted: &'static str) -> Result<(), Error> {
        let hint = "only CREATE_CQ can set the start of the moderation period: it cannot be \
                    changed later (capability cq_period_mode_modify is 0)";
        needs(attempted, self.mode_changes, hint)
    }
}

/// A completion queue on the device, without its ring, which `verbless_queue::Cq` adds.
#[derive(Debug)]
pub struct CqObject {
    cqn: Cqn,
    moderation_caps: ModerationCaps,
    owned: Owned<CqAttr>,
}

impl Device {
    /// CREATE_CQ. Every CQE of the ring must be invalid (opcode 0xf) before.
    pub fn create_cq(&self, attr: CqAttr) -> Result<CqObject, Error> {
        self.create_cq_with(attr, &CqOptions::default())
    }

    /// CREATE_CQ with the attributes that few CQs need.
    pub fn create_cq_with(&self, attr: CqAttr, options: &CqOptions) -> Result<CqObject, Error> {
        let most = self.caps().log_max_cqes;
        if attr.log_cqes > most {
            return Err(limit("CREATE_CQ", "log2 of the CQEs", attr.log_cqes.into(), most.into()));
        }
        if attr.log_cqes == 0 && !options.collapsed {
            let hint = "a CQ of a single CQE must be collapsed (CqOptions::collapsed); others have \
                        two at least";
            return Err(invalid("CREATE_CQ", hint));
        }
        if !matches!(attr.cqe_size, CqeSize::BYTES_64 | CqeSize::BYTES_128) {
            let hint = "the CQE size is neither CqeSize::BYTES_64 nor CqeSize::BYTES_128";
            return Err(invalid("CREATE_CQ", hint));
        }
        if attr.ignore_overrun && !self.caps().general.cq_oi() {
            let hint =
                "the device does not support CQs that ignore an overrun (capability cq_oi is 0)";
            return Err(invalid("CREATE_CQ", hint));
        }
        if attr.element.raw().0 && !self.caps().general.apu() {
            let hint = "this device has no DPA (capability apu is 0): a CQ cannot target one";
            return Err(invalid("CREATE_CQ", hint));
        }
        let moderation_caps = ModerationCaps::of(&self.caps().general);
        period("CREATE_CQ", options.moderation.period)?;
        if options.moderation != Moderation::default() {
            moderation_caps.check("CREATE_CQ")?;
        }
        if options.period_from_cqe {
            moderation_caps.check_from_cqe("CREATE_CQ")?;
        }
        if let Some(format) = options.compression {
            self.check_compression(format, attr.cqe_size)?;
        }
        let parts = [("UAR", attr.uar.context())];
        all_of(self, "CREATE_CQ", parts.into_iter().chain(memory_parts(&attr.ring, &attr.record)))?;
        let mut input = CreateCqIn::new();
        input.set_cq_umem_valid(true);
        emit_ring(&attr, &mut input);
        let context = input.cq_context_mut();
        context
            .set_cc(options.collapsed)
            .set_always_armed_cq(options.always_armed)
            .set_cq_period(options.moderation.period)
            .set_cq_max_count(options.moderation.count);
        if options.period_from_cqe {
            context.set_cq_period_mode(CqPeriodMode::START_FROM_CQE);
        }
        if let Some(format) = options.compression {
            context.set_cqe_comp_en(true).set_mini_cqe_res_format(format);
        }
        let mut output = CreateCqOut::zeroed();
        let object = self.create(&input, &mut output)?;
        Ok(CqObject { cqn: Cqn(output.cqn()), moderation_caps, owned: Owned::new(object, attr) })
    }
}

impl Device {
    /// Refuses compression that the device does not support (Linux `create_cq_user` of mlx5_ib;
    /// DPDK for the flow tag).
    fn check_compression(&self, format: MiniCqeFormat, size: CqeSize) -> Result<(), Error> {
        let general = &self.caps().general;
        fits("CREATE_CQ", "the format of mini CQEs", format.0.into(), 2)?;
        let (compresses, hint) = match size {
            CqeSize::BYTES_128 => (
                general.cqe_compression_128(),
                "the device does not compress CQEs of 128 bytes (capability cqe_compression_128 \
                 is 0)",
            ),
            _ => (
                general.cqe_compression(),
                "the device does not compress CQEs (capability cqe_compression is 0)",
            ),
        };
        needs("CREATE_CQ", compresses, hint)?;
        match format {
            MiniCqeFormat::FLOW_TAG_STRIDE_INDEX => needs(
                "CREATE_CQ",
                general.mini_cqe_resp_flow_tag(),
                "mini CQEs do not carry the flow tag (capability mini_cqe_resp_flow_tag is 0)",
            ),
            MiniCqeFormat::CHECKSUM_STRIDE_INDEX => needs(
                "CREATE_CQ",
                general.mini_cqe_resp_stride_index(),
                "mini CQEs do not carry the stride index beside the checksum (capability \
                 mini_cqe_resp_stride_index is 0)",
            ),
            _ => Ok(()),
        }
    }
}

fn needs(attempted: &'static str, has: bool, hint: &'static str) -> Result<(), Error> {
    if has { Ok(()) } else { Err(invalid(attempted, hint)) }
}

fn period(attempted: &'static str, period: u16) -> Result<(), Error> {
    match period {
        0..=0xfff => Ok(()),
        _ => Err(limit(attempted, "the period in µs", period.into(), 0xfff)),
    }
}

fn emit_ring(attr: &CqAttr, input: &mut CreateCqIn) {
    let (apu, element_type, element) = attr.element.raw();
    input.set_cq_umem_id(attr.ring.umem().id()).set_cq_umem_offset(attr.ring.offset());
    input
        .cq_context_mut()
        .set_cqe_sz(attr.cqe_size)
        .set_oi(attr.ignore_overrun)
        .set_log_cq_size(attr.log_cqes)
        .set_uar_page(attr.uar.page_id())
        .set_apu_cq(apu)
        .set_ext_element_type(element_type)
        .set_c_eqn_or_apu_element(element);
    set_record!(input.cq_context_mut(), attr.record);
}

impl CqObject {
    /// The CQ's number, for queue contexts and doorbells.
    pub fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// The attributes that the queue was created with.
    pub fn attr(&self) -> &CqAttr {
        self.owned.attr()
    }

    /// The DevX object, for subscribing to its events.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// MODIFY_CQ: sets the event moderation.
    ///
    /// # Errors
    /// The device does not moderate events; the period does not fit its field.
    pub fn set_moderation(&self, moderation: Moderation) -> Result<(), Error> {
        let fields = CqModifyField::PERIOD.0 | CqModifyField::MAX_COUNT.0;
        self.modify_moderation(moderation, CqPeriodMode::START_FROM_EQE, fields)
    }

    /// MODIFY_CQ: sets the event moderation, and whether its period starts at a CQE instead of an
    /// EQE.
    ///
    /// # Errors
    /// As [`CqObject::set_moderation`]; the device cannot change the start, or has no start at a
    /// CQE.
    pub fn set_moderation_from(&self, moderation: Moderation, cqe: bool) -> Result<(), Error> {
        self.moderation_caps.check_mode_changes("MODIFY_CQ")?;
        if cqe {
            self.moderation_caps.check_from_cqe("MODIFY_CQ")?;
        }
        let mode = if cqe { CqPeriodMode::START_FROM_CQE } else { CqPeriodMode::START_FROM_EQE };
        let fields = CqModifyField::PERIOD.0 | CqModifyField::MAX_COUNT.0;
        self.modify_moderation(moderation, mode, fields | CqModifyField::PERIOD_MODE.0)
    }

    fn modify_moderation(
        &self,
        moderation: Moderation,
        mode: CqPeriodMode,
        fields: u32,
    ) -> Result<(), Error> {
        period("MODIFY_CQ", moderation.period)?;
        self.moderation_caps.check("MODIFY_CQ")?;
        let mut input = ModifyCqIn::new();
        input.set_cqn(self.cqn.0);
        input.set_modify_field_select(fields);
        input
            .cq_context_mut()
            .set_cq_period(moderation.period)
            .set_cq_max_count(moderation.count)
            .set_cq_period_mode(mode);
        execute::modify_object(self.owned.object(), &input)
    }

    /// QUERY_CQ: the event moderation, and whether its period starts at a CQE instead of an EQE.
    pub fn moderation(&self) -> Result<(Moderation, bool), Error> {
        let context = self.query()?;
        let moderation = Moderation { period: context.cq_period(), count: context.cq_max_count() };
        Ok((moderation, context.cq_period_mode() == CqPeriodMode::START_FROM_CQE))
    }

    /// QUERY_CQ: the current context.
    pub fn query(&self) -> Result<CqContext, Error> {
        let mut input = QueryCqIn::new();
        input.set_cqn(self.cqn.0);
        let mut output = QueryCqOut::zeroed();
        execute::query_object(self.owned.object(), &input, &mut output)?;
        Ok(*output.cq_context())
    }

    /// QUERY_CQ: fails if the device writes no more CQEs here.
    ///
    /// # Errors
    /// [`ErrorKind::QueueFailed`]: the queue overran, or a CQE could not be written. The device
    /// refuses QUERY_CQ.
    pub fn check(&self) -> Result<(), Error> {
        match self.query()?.status() {
            CqStatus::OK => Ok(()),
            status => Err(self.failed(status)),
        }
    }

    fn failed(&self, status: CqStatus) -> Error {
        let entries = 1_u64 << self.attr().log_cqes;
        let hint = match status {
            CqStatus::OVERFLOW => format!(
                "it overran: a CQE found all {entries} entries unread, and the device writes no \
                 more; make it with an entry for each request that its queues hold, or poll it \
                 before more requests are posted"
            ),
            CqStatus::WRITE_FAIL => {
                "the device could not write a CQE to its memory: destroy it and make it again"
                    .into()
            }
            CqStatus(other) => format!("its status is {other:#x}: destroy it and make it again"),
        };
        Error::new(ErrorKind::QueueFailed, format!("waiting for CQ {}", self.cqn), hint)
    }

    /// DESTROY_CQ. On failure the queue and its memory are leaked.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
