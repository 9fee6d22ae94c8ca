//! Receive memory pools (RMP): receives shared by several queue pairs.

use verbless_devx::{Error, Pd};
use verbless_prm as prm;
use verbless_prm::{
    CreateRmpIn, CreateRmpOut, ModifyRmpIn, QueryRmpIn, RmpContext, RmpState, WqType,
};

use crate::device::Device;
use crate::error::{all_of, invalid, limit};
use crate::execute;
use crate::memory::{QueueMemory, memory_parts, set_wq_memory};
use crate::owned::Owned;
use verbless_prm::number::Rmpn;

/// Attributes of a receive memory pool. Each of its WQEs begins with the index of the next one,
/// which the device uses if the RMP is a list.
#[derive(Debug, Clone)]
pub struct RmpAttr {
    /// Protection domain of the keys in its WQEs.
    pub pd: Pd,
    /// Memory of the ring.
    pub ring: QueueMemory,
    /// Memory of the doorbell record: 8 bytes; the first word counts posted receives.
    pub record: QueueMemory,
    /// log2 of the number of WQEs.
    pub log_wqes: u8,
    /// log2 of the bytes of a WQE, 5 (a link and one data segment) to 9.
    pub log_stride: u8,
    /// The device uses the WQEs in ring order instead of list order.
    pub cyclic: bool,
}

/// A receive memory pool on the device, without its ring; `verbless_queue::Srq` adds the ring.
/// QPs and RQs that use it keep it alive.
#[derive(Debug)]
pub struct RmpObject {
    rmpn: Rmpn,
    owned: Owned<RmpAttr>,
}

impl Device {
    /// CREATE_RMP. No QP or RQ uses the RMP yet.
    pub fn create_rmp(&self, attr: RmpAttr) -> Result<RmpObject, Error> {
        let general = &self.caps().general;
        if general.log_max_rmp() == 0 {
            return Err(invalid(
                "CREATE_RMP",
                "the device has no RMPs (capability log_max_rmp is 0)",
            ));
        }
        // Verbs makes an RMP for an SRQ, so this is the limit that mlx5_ib reports as max_srq_wr.
        // RQs and SQs have log_max_wq_sz.
        let most = general.log_max_srq_sz();
        if attr.log_wqes > most {
            let what = "log2 of the receives";
            return Err(limit("CREATE_RMP", what, attr.log_wqes.into(), most.into()));
        }
        if !(5..=9).contains(&attr.log_stride) {
            return Err(invalid("CREATE_RMP", "the receive stride must be 32 to 512 bytes"));
        }
        let parts = [("protection domain", attr.pd.context())];
        all_of(
            self,
            "CREATE_RMP",
            parts.into_iter().chain(memory_parts(&attr.ring, &attr.record)),
        )?;
        let mut input = CreateRmpIn::new();
        let context = input.ctx_mut();
        context.set_state(RmpState::RDY);
        let wq = context.wq_mut();
        set_wq_memory(wq, &attr.ring, &attr.record);
        wq.set_wq_type(if attr.cyclic { WqType::CYCLIC } else { WqType::LINKED_LIST })
            .set_pd(attr.pd.pdn())
            .set_log_wq_sz(attr.log_wqes)
            .set_log_wq_stride(attr.log_stride);
        let mut output = CreateRmpOut::zeroed();
        let object = self.create(&input, &mut output)?;
        Ok(RmpObject { rmpn: Rmpn(output.rmpn()), owned: Owned::new(object, attr) })
    }
}

impl RmpObject {
    /// The RMP's number, for queue contexts.
    pub fn rmpn(&self) -> Rmpn {
        self.rmpn
    }

    /// The attributes that the RMP was created with.
    pub fn attr(&self) -> &RmpAttr {
        self.owned.attr()
    }

    /// The DevX object, for subscribing to its events.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// MODIFY_RMP: requests one event when fewer than `limit` receives are left; 0 requests none.
    pub fn arm_limit(&self, limit: u16) -> Result<(), Error> {
        let mut input = ModifyRmpIn::new();
        input.set_rmpn(self.rmpn.0).set_rmp_state(RmpState::RDY);
        input.bitmask_mut().set_lwm(true);
        let context = input.ctx_mut();
        context.set_state(RmpState::RDY);
        context.wq_mut().set_lwm(limit);
        execute::modify_object(self.owned.object(), &input)
    }

    /// QUERY_RMP: the current context.
    pub fn query(&self) -> Result<RmpContext, Error> {
        let mut input = QueryRmpIn::new();
        input.set_rmpn(self.rmpn.0);
        let mut output = Box::new(prm::QueryRmpOut::zeroed());
        execute::query_object(self.owned.object(), &input, &mut *output)?;
        Ok(*output.rmp_context())
    }

    /// DESTROY_RMP. On failure the RMP and its memory are leaked.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
