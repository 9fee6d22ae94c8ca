//! The QP transitions that verbs allow, with the required and optional attributes of each (the
//! table of `ib_modify_qp_is_ok`), and the opt_param_mask of the device's commands.

use verbless_prm::{Opcode, OptParamMask, ServiceType};

use super::objects::state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};

/// `ib_qp_attr_mask`.
pub(super) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CUR_STATE: u32 = 1 << 1;
    pub(crate) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(crate) const ALT_PATH: u32 = 1 << 14;
    pub(crate) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(crate) const PATH_MIG_STATE: u32 = 1 << 18;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
    pub(crate) const RATE_LIMIT: u32 = 1 << 25;
    /// The attributes that every kernel knows.
    pub(crate) const STANDARD: u32 = 0x1f_ffff;
}
use mask::{
    ACCESS_FLAGS, ALT_PATH, AV, CUR_STATE, DEST_QPN, MAX_DEST_RD_ATOMIC, MAX_QP_RD_ATOMIC,
    MIN_RNR_TIMER, PATH_MIG_STATE, PATH_MTU, PKEY_INDEX, PORT, QKEY, RETRY_CNT, RNR_RETRY, RQ_PSN,
    SQ_PSN, STATE, TIMEOUT,
};

/// The services of QPs that this kernel's verbs create.
const RC: ServiceType = ServiceType::RC;
const UC: ServiceType = ServiceType::UC;
const UD: ServiceType = ServiceType::UD;

/// The command of a transition, and its required and optional attributes; `None`: no such
/// transition exists.
fn transition(service: ServiceType, from: u8, to: u8) -> Option<(Opcode, u32, u32)> {
    let init = match service {
        UD => PKEY_INDEX | PORT | QKEY,
        RC | UC => PKEY_INDEX | PORT | ACCESS_FLAGS,
        _ => return None,
    };
    let running = match service {
        UD => CUR_STATE | QKEY,
        UC => CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE,
        _ => CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER,
    };
    Some(match (from, to) {
        (_, RESET) => (Opcode::QP_2RST, 0, 0),
        (RESET, ERR) => return None,
        (_, ERR) => (Opcode::QP_2ERR, 0, 0),
        (RESET, INIT) => (Opcode::RST2INIT_QP, init, 0),
        (INIT, INIT) => (Opcode::INIT2INIT_QP, 0, init),
        (INIT, RTR) => {
            let path = AV | PATH_MTU | DEST_QPN | RQ_PSN;
            match service {
                UD => (Opcode::INIT2RTR_QP, 0, PKEY_INDEX | QKEY),
                UC => (Opcode::INIT2RTR_QP, path, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
                _ => (
                    Opcode::INIT2RTR_QP,
                    path | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                    ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
                ),
            }
        }
        (RTR, RTS) => {
            let required = match service {
                RC => TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
                _ => SQ_PSN,
            };
            (Opcode::RTR2RTS_QP, required, running)
        }
        (RTS, RTS) => (Opcode::RTS2RTS_QP, 0, running),
        (SQD, RTS) => (Opcode::SQD_RTS_QP, 0, running),
        (SQE, RTS) => match service {
            UD => (Opcode::SQERR2RTS_QP, 0, CUR_STATE | QKEY),
            UC => (Opcode::SQERR2RTS_QP, 0, CUR_STATE | ACCESS_FLAGS),
            _ => return None,
        },
        _ => return None,
    })
}

/// The command of a transition that verbs allow with exactly these attributes.
pub(super) fn command(service: ServiceType, from: u8, to: u8, attributes: u32) -> Option<Opcode> {
    if attributes & CUR_STATE != 0 && ![RTR, RTS, SQD, SQE].contains(&from) {
        return None;
    }
    let (command, required, optional) = transition(service, from, to)?;
    let complete = attributes & required == required;
    let known = attributes & !(required | optional | STATE) == 0;
    (complete && known).then_some(command)
}

/// The reason why verbs refuse a transition.
pub(super) fn refusal(service: ServiceType, from: u8, to: u8, attributes: u32) -> String {
    const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    let name = |state: u8| STATES.get(usize::from(state)).copied().unwrap_or("an unknown state");
    let change_name = format!("{} to {}", name(from), name(to));
    if attributes & CUR_STATE != 0 && ![RTR, RTS, SQD, SQE].contains(&from) {
        return format!("cur_qp_state {} may not be given: only RTR, RTS, SQD, SQE", name(from));
    }
    let Some((_, required, optional)) = transition(service, from, to) else {
        return format!("a QP of service {service:?} has no transition from {change_name}");
    };
    let missing = required & !attributes;
    let (problem, bits) = match attributes & !(required | optional | STATE) {
        _ if missing != 0 => ("needs", missing),
        excess => ("does not take", excess),
    };
    format!("{change_name} {problem} {} in attr_mask", names(bits))
}

/// The names of the attributes in a mask.
fn names(bits: u32) -> String {
    const NAMES: [(u32, &str); 20] = [
        (CUR_STATE, "IBV_QP_CUR_STATE"),
        (1 << 2, "IB_QP_EN_SQD_ASYNC_NOTIFY"),
        (ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
        (PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
        (PORT, "IBV_QP_PORT"),
        (QKEY, "IBV_QP_QKEY"),
        (AV, "IBV_QP_AV"),
        (PATH_MTU, "IBV_QP_PATH_MTU"),
        (TIMEOUT, "IBV_QP_TIMEOUT"),
        (RETRY_CNT, "IBV_QP_RETRY_CNT"),
        (RNR_RETRY, "IBV_QP_RNR_RETRY"),
        (RQ_PSN, "IBV_QP_RQ_PSN"),
        (MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
        (ALT_PATH, "IBV_QP_ALT_PATH"),
        (MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
        (SQ_PSN, "IBV_QP_SQ_PSN"),
        (MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"),
        (1 << 19, "IBV_QP_CAP"),
        (DEST_QPN, "IBV_QP_DEST_QPN"),
    ];
    let set = NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name);
    let known: u32 = NAMES.iter().fold(0, |all, (bit, _)| all | bit);
    let rest = bits & !known;
    let rest = (rest != 0).then(|| format!("{rest:#x}"));
    set.map(str::to_string).chain(rest).collect::<Vec<_>>().join(" | ")
}

/// The opt_param_mask bits of the optional fields that the attributes set.
pub(super) fn opt_param_mask(service: ServiceType, from: u8, to: u8, attributes: u32) -> u32 {
    type Opt = OptParamMask;
    let access = match service {
        RC => Opt::RRE.0 | Opt::RAE.0 | Opt::RWE.0,
        UC => Opt::RWE.0,
        _ => 0,
    };
    let rnr = if service == RC { Opt::RNR_TIMEOUT.0 } else { 0 };
    let alt_path = if service == UD { 0 } else { Opt::ALT_ADDR_PATH.0 };
    let migration = if service == UD { 0 } else { Opt::PM_STATE.0 };
    let qkey = if service == UD { Opt::Q_KEY.0 } else { 0 };
    let accepted = match (from, to) {
        (INIT, INIT) => access | qkey | Opt::PKEY_INDEX.0 | Opt::PRI_PORT.0,
        (INIT, RTR) => access | qkey | alt_path | Opt::PKEY_INDEX.0,
        (RTR | RTS, RTS) => access | qkey | alt_path | migration | rnr,
        (SQE | SQD, RTS) => access | qkey | rnr,
        _ => 0,
    };
    let pairs = [
        (ACCESS_FLAGS, Opt::RRE.0 | Opt::RAE.0 | Opt::RWE.0),
        (PKEY_INDEX, Opt::PKEY_INDEX.0),
        (PORT, Opt::PRI_PORT.0),
        (QKEY, Opt::Q_KEY.0),
        (ALT_PATH, Opt::ALT_ADDR_PATH.0),
        (MIN_RNR_TIMER, Opt::RNR_TIMEOUT.0),
        (MAX_DEST_RD_ATOMIC, Opt::RWE.0 | Opt::RRE.0 | Opt::RAE.0),
        (PATH_MIG_STATE, Opt::PM_STATE.0),
    ];
    let set = pairs.iter().filter(|(attribute, _)| attributes & attribute != 0);
    union(set.map(|&(_, option)| option)) & accepted
}

/// The bits set in any of the masks.
fn union(masks: impl Iterator<Item = u32>) -> u32 {
    masks.fold(0, |all, mask| all | mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT_RC: u32 = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;

    #[test]
    fn access_flags_map_to_opt_params_of_service() {
        let (rre, rae, rwe) = (OptParamMask::RRE.0, OptParamMask::RAE.0, OptParamMask::RWE.0);
        for (from, to) in [(INIT, INIT), (INIT, RTR), (RTR, RTS), (RTS, RTS), (SQD, RTS)] {
            let of = |service| opt_param_mask(service, from, to, ACCESS_FLAGS);
            assert_eq!(of(RC), rre | rae | rwe, "RC, {from} to {to}");
            assert_eq!(of(UC), rwe, "UC, {from} to {to}");
            assert_eq!(of(UD), 0, "UD, {from} to {to}");
        }
        assert_eq!(opt_param_mask(RC, RTS, SQD, ACCESS_FLAGS), 0);
    }

    #[test]
    fn transition_requires_exact_attributes() {
        let rc = RC;
        assert_eq!(command(rc, RESET, INIT, INIT_RC), Some(Opcode::RST2INIT_QP));
        assert_eq!(command(rc, RESET, INIT, INIT_RC & !PORT), None);
        assert_eq!(command(rc, RESET, INIT, INIT_RC | QKEY), None);
        assert_eq!(
            command(UD, RESET, INIT, STATE | PKEY_INDEX | PORT | QKEY),
            Some(Opcode::RST2INIT_QP)
        );
        assert_eq!(command(rc, RESET, RTR, STATE), None);
        assert_eq!(command(rc, RESET, ERR, STATE), None);
        assert_eq!(command(rc, RTS, ERR, STATE), Some(Opcode::QP_2ERR));
        assert_eq!(command(rc, ERR, RESET, STATE), Some(Opcode::QP_2RST));
        assert_eq!(command(rc, SQE, RTS, STATE | CUR_STATE), None);
        assert_eq!(command(UC, SQE, RTS, STATE | CUR_STATE), Some(Opcode::SQERR2RTS_QP));
        assert_eq!(command(rc, INIT, INIT, CUR_STATE), None, "cur_qp_state cannot be INIT");
    }

    #[test]
    fn rejected_transition_names_attributes() {
        for (service, from, to, attributes, expected) in [
            (RC, RESET, RTR, STATE, "has no transition from RESET to RTR"),
            (RC, RESET, INIT, INIT_RC & !PORT, "RESET to INIT needs IBV_QP_PORT in attr_mask"),
            (RC, RESET, INIT, INIT_RC | QKEY, "RESET to INIT does not take IBV_QP_QKEY"),
            (RC, RESET, INIT, INIT_RC | 1 << 30, "does not take 0x40000000 in attr_mask"),
            (RC, INIT, INIT, CUR_STATE, "cur_qp_state INIT may not be given"),
        ] {
            assert_eq!(command(service, from, to, attributes), None);
            let words = refusal(service, from, to, attributes);
            assert!(words.contains(expected), "{words}");
        }
    }

    #[test]
    fn opt_param_mask_covers_optional_attributes() {
        let all = OptParamMask::RRE.0 | OptParamMask::RAE.0 | OptParamMask::RWE.0;
        assert_eq!(opt_param_mask(RC, RESET, INIT, INIT_RC), 0);
        assert_eq!(opt_param_mask(RC, INIT, RTR, MAX_DEST_RD_ATOMIC | AV), all);
        assert_eq!(opt_param_mask(UC, INIT, RTR, ACCESS_FLAGS), OptParamMask::RWE.0);
        assert_eq!(opt_param_mask(UD, RTR, RTS, QKEY | SQ_PSN), OptParamMask::Q_KEY.0);
    }

    /// Every transition: services, states, command, required and optional attributes.
    #[test]
    fn transition_table_matches_services_and_states() {
        const OWN: u32 = PKEY_INDEX | PORT | ACCESS_FLAGS;
        const PATH: u32 = AV | PATH_MTU | DEST_QPN | RQ_PSN;
        const RUNNING: u32 = CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE;
        let changes: &[(ServiceType, u8, u8, Opcode, u32, u32)] = &[
            (RC, RESET, INIT, Opcode::RST2INIT_QP, OWN, 0),
            (UC, RESET, INIT, Opcode::RST2INIT_QP, OWN, 0),
            (UD, RESET, INIT, Opcode::RST2INIT_QP, PKEY_INDEX | PORT | QKEY, 0),
            (RC, INIT, INIT, Opcode::INIT2INIT_QP, 0, OWN),
            (UC, INIT, INIT, Opcode::INIT2INIT_QP, 0, OWN),
            (UD, INIT, INIT, Opcode::INIT2INIT_QP, 0, PKEY_INDEX | PORT | QKEY),
            (
                RC,
                INIT,
                RTR,
                Opcode::INIT2RTR_QP,
                PATH | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
            ),
            (UC, INIT, RTR, Opcode::INIT2RTR_QP, PATH, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX),
            (UD, INIT, RTR, Opcode::INIT2RTR_QP, 0, PKEY_INDEX | QKEY),
            (
                RC,
                RTR,
                RTS,
                Opcode::RTR2RTS_QP,
                TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
                RUNNING | MIN_RNR_TIMER,
            ),
            (UC, RTR, RTS, Opcode::RTR2RTS_QP, SQ_PSN, RUNNING),
            (UD, RTR, RTS, Opcode::RTR2RTS_QP, SQ_PSN, CUR_STATE | QKEY),
            (RC, RTS, RTS, Opcode::RTS2RTS_QP, 0, RUNNING | MIN_RNR_TIMER),
            (UC, RTS, RTS, Opcode::RTS2RTS_QP, 0, RUNNING),
            (UD, RTS, RTS, Opcode::RTS2RTS_QP, 0, CUR_STATE | QKEY),
            (RC, SQD, RTS, Opcode::SQD_RTS_QP, 0, RUNNING | MIN_RNR_TIMER),
            (UC, SQD, RTS, Opcode::SQD_RTS_QP, 0, RUNNING),
            (UD, SQD, RTS, Opcode::SQD_RTS_QP, 0, CUR_STATE | QKEY),
            (UC, SQE, RTS, Opcode::SQERR2RTS_QP, 0, CUR_STATE | ACCESS_FLAGS),
            (UD, SQE, RTS, Opcode::SQERR2RTS_QP, 0, CUR_STATE | QKEY),
        ];
        for service in [RC, UC, UD] {
            for (from, to) in (0..=ERR).flat_map(|from| (0..=ERR).map(move |to| (from, to))) {
                let it = changes.iter().find(|it| (it.0, it.1, it.2) == (service, from, to));
                let (expected, required, optional) = match (from, to) {
                    (_, RESET) => (Some(Opcode::QP_2RST), 0, 0),
                    (RESET, ERR) => (None, 0, 0),
                    (_, ERR) => (Some(Opcode::QP_2ERR), 0, 0),
                    _ => it.map_or((None, 0, 0), |it| (Some(it.3), it.4, it.5)),
                };
                let change = format!("{service:?}, {from} to {to}");
                assert_eq!(command(service, from, to, STATE | required), expected, "{change}");
                for bit in (1..21).map(|bit| 1 << bit) {
                    let toggled = command(service, from, to, (STATE | required) ^ bit);
                    let may = optional & bit != 0;
                    assert_eq!(toggled, expected.filter(|_| may), "{change}, {bit:#x}");
                }
            }
        }
        assert_eq!(command(ServiceType(9), RESET, INIT, STATE), None);
    }

    #[test]
    fn attribute_sets_its_opt_param_bit() {
        type Opt = OptParamMask;
        let access = Opt::RRE.0 | Opt::RAE.0 | Opt::RWE.0;
        let own = |service| match service {
            RC => access,
            UC => Opt::RWE.0,
            _ => 0,
        };
        let of = |service, datagram: u32, connected: u32, reliable: u32| match service {
            UD => datagram,
            RC => connected | reliable,
            _ => connected,
        };
        let everything = STATE
            | ACCESS_FLAGS
            | PKEY_INDEX
            | PORT
            | QKEY
            | ALT_PATH
            | MIN_RNR_TIMER
            | MAX_DEST_RD_ATOMIC
            | PATH_MIG_STATE;
        for service in [RC, UC, UD] {
            let (pkey, port) = (Opt::PKEY_INDEX.0, Opt::PRI_PORT.0);
            let alternate = of(service, 0, Opt::ALT_ADDR_PATH.0, 0);
            let qkey = of(service, Opt::Q_KEY.0, 0, 0);
            let rnr = of(service, 0, 0, Opt::RNR_TIMEOUT.0);
            let migration = of(service, 0, Opt::PM_STATE.0, 0);
            let taken = own(service) | qkey;
            let running = taken | alternate | migration | rnr;
            for (from, to, expected) in [
                (RESET, INIT, 0),
                (INIT, INIT, taken | pkey | port),
                (INIT, RTR, taken | pkey | alternate),
                (RTR, RTS, running),
                (RTS, RTS, running),
                (SQE, RTS, taken | rnr),
                (SQD, RTS, taken | rnr),
            ] {
                assert_eq!(
                    opt_param_mask(service, from, to, everything),
                    expected,
                    "{service:?} {from}"
                );
                assert_eq!(opt_param_mask(service, from, to, STATE), 0, "{service:?} {from}");
            }
            for (attribute, field) in [
                (ACCESS_FLAGS, own(service)),
                (MAX_DEST_RD_ATOMIC, own(service)),
                (QKEY, qkey),
                (ALT_PATH, alternate),
                (MIN_RNR_TIMER, rnr),
                (PATH_MIG_STATE, migration),
            ] {
                assert_eq!(opt_param_mask(service, RTS, RTS, attribute), field, "{service:?}");
            }
        }
    }
}
