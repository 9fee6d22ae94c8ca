//! What sets the transport services of QPs apart: who may have them, and which optional fields
//! their transitions take.

use verbless_prm::{OptParamMask as Opt, ServiceType};

use super::call::Call;
use crate::hca::objects::Service;
use crate::hca::refusal::Refusal;

impl Call<'_> {
    /// The transport service, if the device has it, the model knows it and the sender may use it.
    pub(super) fn service(&self, st: ServiceType) -> Result<Service, Refusal> {
        let general = self.hca().caps.general();
        let kernel = self.uid == 0;
        match st {
            ServiceType::RC if general.rc() => Ok(Service::Rc),
            ServiceType::UC if general.uc() => Ok(Service::Uc),
            ServiceType::UD if general.ud() => Ok(Service::Ud),
            // Management packets and other people's keys are the kernel's business.
            ServiceType::QP0 if kernel => Ok(Service::Qp0),
            ServiceType::QP1 if kernel => Ok(Service::Qp1),
            ServiceType::REG_UMR if kernel => Ok(Service::RegUmr),
            _ => {
                let sender = if kernel { "the kernel" } else { "a user" };
                Err(self.about(Refusal::QpService, format!("{st:?}, asked for by {sender}")))
            }
        }
    }
}

/// A transition that takes optional fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    Init2Init,
    Init2Rtr,
    Rtr2Rts,
    Rts2Rts,
    /// SQERR2RTS and SQD_RTS.
    Recover,
}

/// The optional fields that a transition takes.
pub(super) fn options(service: Service, step: Transition) -> u32 {
    let connected = service.is_connected();
    let rights = match service {
        Service::Rc => Opt::RRE.0 | Opt::RWE.0 | Opt::RAE.0,
        Service::Uc => Opt::RWE.0,
        Service::Ud | Service::Qp0 | Service::Qp1 => Opt::Q_KEY.0,
        Service::RegUmr => 0,
    };
    let path = if connected { Opt::ALT_ADDR_PATH.0 } else { 0 };
    let bond = if connected { Opt::LAG_TX_AFF.0 } else { 0 };
    let migration = if connected { Opt::PM_STATE.0 } else { 0 };
    let timer = if service.is_reliable() { Opt::RNR_TIMEOUT.0 } else { 0 };
    rights
        | match step {
            Transition::Init2Init => Opt::PKEY_INDEX.0 | Opt::PRI_PORT.0 | bond,
            Transition::Init2Rtr => Opt::PKEY_INDEX.0 | path | bond,
            Transition::Rtr2Rts | Transition::Rts2Rts => path | migration | timer,
            Transition::Recover => timer,
        }
}
