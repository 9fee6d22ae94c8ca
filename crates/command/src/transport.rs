//! Transport objects for Ethernet frames: transport domains, and transport interfaces for sending
//! (TIS) and receiving (TIR).
//!
//! An SQ sends through a TIS. A flow rule forwards to a TIR, and a TIR to an RQ. Both belong to a
//! transport domain, within which a device can block the loopback of a sender's own frames.

use std::fmt;
use std::sync::Arc;

use verbless_devx::{Context, Error, Pd};
use verbless_prm::{
    AllocTransportDomainIn, AllocTransportDomainOut, CreateTirIn, CreateTirOut, CreateTisIn,
    CreateTisOut, ModifyTisIn, QueryTirIn, QueryTirOut, QueryTisIn, QueryTisOut, RxHashFn,
    TirContext, TirDispType, TisContext,
};

use crate::device::Device;
use crate::error::{fits, invalid};
use crate::execute;
use crate::owned::Owned;
use crate::rq::RqObject;
use verbless_prm::number::{Tirn, Tisn};

/// A transport domain. Its objects keep it alive.
pub struct TransportDomain {
    number: u32,
    owned: Owned<()>,
}

/// Attributes of a TIS.
#[derive(Debug, Clone)]
pub struct TisAttr {
    /// The domain that it belongs to.
    pub domain: Arc<TransportDomain>,
    /// Priority of the frames (IEEE 802.1p), 0 to 7.
    pub priority: u8,
    /// Protection domain; only queues of IPoIB need one.
    pub pd: Option<Pd>,
}

/// A transport interface for sending (TIS): common settings of the frames of send queues. With
/// bonded ports, new TISs and queue pairs are assigned to the egress ports in turn.
#[derive(Debug)]
pub struct TisObject {
    tisn: Tisn,
    owned: Owned<TisAttr>,
}

/// Which of a transport domain's own frames are looped back to a TIR of it; none by default.
///
/// A set bit of `self_lb_block` enables loopback, despite the field's name. The public drivers use
/// it in this way (`TIR_ALLOW_SELF_LB_UC` and `_MC` of mlx5_ib, `mlx5e_refresh_tirs`, DPDK's
/// `lpbk_mode`). The port must allow local loopback too (`disable_uc_local_lb` and
/// `disable_mc_local_lb` of the NIC vport context).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SelfLoopback {
    /// Unicast frames come back.
    pub allow_unicast: bool,
    /// Multicast frames come back.
    pub allow_multicast: bool,
}

/// The objects that a TIR keeps alive.
#[derive(Debug)]
struct TirParents {
    domain: Arc<TransportDomain>,
    rq: Arc<RqObject>,
}

/// A direct transport interface for receiving (TIR): the target of flow rules; it forwards to one
/// RQ.
#[derive(Debug)]
pub struct TirObject {
    tirn: Tirn,
    owned: Owned<TirParents>,
}

impl Device {
    /// ALLOC_TRANSPORT_DOMAIN.
    pub fn alloc_transport_domain(&self) -> Result<TransportDomain, Error> {
        let mut output = AllocTransportDomainOut::zeroed();
        let object = self.create(&AllocTransportDomainIn::new(), &mut output)?;
        Ok(TransportDomain { number: output.transport_domain(), owned: Owned::new(object, ()) })
    }

    /// CREATE_TIS.
    pub fn create_tis(&self, attr: TisAttr) -> Result<TisObject, Error> {
        if self.caps().general.log_max_tis() == 0 {
            let what = "the device sends no raw Ethernet frames (capability log_max_tis)";
            return Err(invalid("CREATE_TIS", what));
        }
        fits("CREATE_TIS", "the priority", attr.priority.into(), 3)?;
        let mut input = CreateTisIn::new();
        let context = input.ctx_mut();
        // The field's lowest bit has another meaning on InfiniBand, and is 0 on Ethernet.
        context.set_prio(attr.priority << 1).set_transport_domain(attr.domain.number);
        if let Some(pd) = &attr.pd {
            context.set_pd(pd.pdn());
        }
        match self.next_lag_port() {
            // As Linux does for a TIS without a port (`create_raw_packet_qp_tis` of mlx5_ib).
            0 => context.set_strict_lag_tx_port_affinity(self.caps().is_lag_capable()),
            port => context.set_lag_tx_port_affinity(port),
        };
        let mut output = CreateTisOut::zeroed();
        let object = self.create(&input, &mut output)?;
        Ok(TisObject { tisn: Tisn(output.tisn()), owned: Owned::new(object, attr) })
    }

    /// CREATE_TIR: a direct TIR for one RQ.
    pub fn create_tir(
        &self,
        domain: Arc<TransportDomain>,
        rq: Arc<RqObject>,
        loopback: SelfLoopback,
    ) -> Result<TirObject, Error> {
        if self.caps().general.log_max_tir() == 0 {
            let what = "the device receives no raw Ethernet frames (capability log_max_tir)";
            return Err(invalid("CREATE_TIR", what));
        }
        let mut input = CreateTirIn::new();
        input
            .ctx_mut()
            .set_disp_type(TirDispType::DIRECT)
            .set_rx_hash_fn(RxHashFn::NONE)
            .set_inline_rqn(rq.rqn().0)
            .set_transport_domain(domain.number)
            .set_self_lb_block(
                u8::from(loopback.allow_unicast) | u8::from(loopback.allow_multicast) << 1,
            );
        let mut output = CreateTirOut::zeroed();
        let object = self.create(&input, &mut output)?;
        let parents = TirParents { domain, rq };
        Ok(TirObject { tirn: Tirn(output.tirn()), owned: Owned::new(object, parents) })
    }
}

impl TransportDomain {
    /// The domain's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// DEALLOC_TRANSPORT_DOMAIN.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}

impl fmt::Debug for TransportDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransportDomain({:#x})", self.number)
    }
}

impl TisObject {
    /// The device context in which the TIS was created.
    pub fn context(&self) -> &Context {
        self.owned.object().context()
    }

    /// The TIS's number.
    pub fn tisn(&self) -> Tisn {
        self.tisn
    }

    /// The attributes that the TIS was created with.
    pub fn attr(&self) -> &TisAttr {
        self.owned.attr()
    }

    /// MODIFY_TIS: sets the priority of the frames, 0 to 7.
    pub fn set_priority(&self, priority: u8) -> Result<(), Error> {
        fits("MODIFY_TIS", "the priority", priority.into(), 3)?;
        let mut input = ModifyTisIn::new();
        input.set_tisn(self.tisn.0);
        input.bitmask_mut().set_prio(true);
        input.ctx_mut().set_prio(priority << 1);
        execute::modify_object(self.owned.object(), &input)
    }

    /// QUERY_TIS: the current context.
    pub fn query(&self) -> Result<TisContext, Error> {
        let mut input = QueryTisIn::new();
        input.set_tisn(self.tisn.0);
        let mut output = QueryTisOut::zeroed();
        execute::query_object(self.owned.object(), &input, &mut output)?;
        Ok(*output.tis_context())
    }

    /// DESTROY_TIS.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}

impl TirObject {
    /// The TIR's number.
    pub fn tirn(&self) -> Tirn {
        self.tirn
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Arc<TransportDomain> {
        &self.owned.attr().domain
    }

    /// The receive queue that the TIR forwards to.
    pub fn rq(&self) -> &Arc<RqObject> {
        &self.owned.attr().rq
    }

    /// The DevX object, for flow rules.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// QUERY_TIR: the current context.
    pub fn query(&self) -> Result<TirContext, Error> {
        let mut input = QueryTirIn::new();
        input.set_tirn(self.tirn.0);
        let mut output = Box::new(QueryTirOut::zeroed());
        execute::query_object(self.owned.object(), &input, &mut *output)?;
        Ok(*output.tir_context())
    }

    /// DESTROY_TIR. The kernel refuses it while a flow rule forwards to it.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
