//! Rules of QP types for commands: which uids may create them, and which optional fields their
//! transitions accept.

use verbless_prm::{HcaCap, OptParamMask as Opt, ServiceType};

use super::call::Call;
use crate::hca::qp_type::{QpType, Users};
use crate::hca::refusal::Refusal;

impl Call<'_> {
    /// The QP type, if the device has it, the model implements it and the sender may use it.
    pub(super) fn qp_type(&self, st: ServiceType) -> Result<&'static QpType, Refusal> {
        let kernel = self.uid == 0;
        let may = |qp_type: &&QpType| match qp_type.users {
            Users::Capability(has) => has(self.hca().caps.general()),
            Users::Kernel => kernel,
        };
        (self.hca().qp_types)(st).filter(may).ok_or_else(|| {
            let sender = if kernel { "the kernel" } else { "a user" };
            self.with_detail(Refusal::TransportService, format!("{st:?}, requested by {sender}"))
        })
    }
}

/// A transition with optional fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    Init2Init,
    Init2Rtr,
    Rtr2Rts,
    Rts2Rts,
    /// SQERR2RTS and SQD_RTS.
    Recover,
}

/// The optional fields of a transition. INIT2RTR may set the bond port only with
/// `init2_lag_tx_port_affinity` (Linux `__mlx5_ib_modify_qp`).
pub(super) fn options(qp_type: &QpType, step: Transition, general: &HcaCap) -> u32 {
    let of_connected = |field: Opt| if qp_type.connected { field.0 } else { 0 };
    let path = of_connected(Opt::ALT_ADDR_PATH);
    let bond = if general.init2_lag_tx_port_affinity() { of_connected(Opt::LAG_TX_AFF) } else { 0 };
    let migration = of_connected(Opt::PM_STATE);
    let timer = if qp_type.reliable { Opt::RNR_TIMEOUT.0 } else { 0 };
    qp_type.access_opts
        | match step {
            Transition::Init2Init => Opt::PKEY_INDEX.0 | Opt::PRI_PORT.0 | bond,
            Transition::Init2Rtr => Opt::PKEY_INDEX.0 | path | bond,
            Transition::Rtr2Rts | Transition::Rts2Rts => path | migration | timer,
            Transition::Recover => timer,
        }
}
