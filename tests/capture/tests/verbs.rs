//! Compares the commands of mlx5_ib for given verbs attributes with our driver's.

mod support;

use verbless_capture::compare::{Explanation, Identity, Is, Rules, Verdict, differences};
use verbless_capture::recording::Recording;
use verbless_capture::{ours, scenario, theirs};

/// Numbers that the device or the kernel chooses, by the last part of a field's path.
fn identity(field: &str) -> Option<Identity> {
    let last = field.rsplit(['.', ' ']).next().unwrap_or(field);
    Some(match last {
        "uid" => Identity::Name("uid"),
        "pd" => Identity::Name("pd"),
        "uar_page" => Identity::Name("uar"),
        "cqn" | "cqn_snd" | "cqn_rcv" => Identity::Name("cq"),
        "c_eqn_or_apu_element" => Identity::Name("eq"),
        "rmpn" | "srqn_rmpn_xrqn" => Identity::Name("srq"),
        "mkey_index" => Identity::Name("mkey"),
        "mkey_7_0" => Identity::Any,
        "start_addr" => Identity::Address,
        "qpn" if !field.starts_with("memory_key") => Identity::Name("qp"),
        _ => return None,
    })
}

const RULES: Rules = Rules {
    compared: |command| {
        let name = command.info.name;
        // Objects that mlx5_ib makes for itself carry no uid, nor do the keys that it makes for
        // others.
        let own = command.input[2..4] == [0, 0] && name != "CREATE_MKEY";
        let made = ["CREATE_CQ", "CREATE_QP", "CREATE_RMP", "CREATE_MKEY"];
        let changed = ["MODIFY_CQ", "MODIFY_RMP", "QP_2ERR", "QP_2RST"];
        !own && (made.contains(&name)
            || changed.contains(&name)
            || name.ends_with("_QP") && name.contains('2'))
    },
    identity,
};

/// A reason, one line each.
const fn reason(
    command: &'static str,
    field: &'static str,
    theirs: Is,
    ours: Is,
    why: &'static str,
) -> Explanation {
    Explanation { command, field, theirs, ours, why }
}

const MEMORY: &str = "DevX commands name memory by a UMEM and an offset; mlx5_ib lists pages and \
    DMA addresses";
const ROOM: &str = "our queue pairs have at least one WQE in either direction, even if 0 was \
    requested: see QpConfig";
const CONTEXT: &str = "set at creation, and unchanged by transitions: mlx5_ib fills the whole \
    context in each transition; UCX over DevX and this driver leave the field 0";

#[rustfmt::skip]
const REASONS: &[Explanation] = &[
    // Addresses.
    reason("CREATE_*", "pas", Is::Set, Is::Just(0), MEMORY),
    reason("CREATE_*", "klm_pas_mtt", Is::Set, Is::Just(0), MEMORY),
    reason("CREATE_*", "*_umem_valid", Is::Just(0), Is::Just(1), MEMORY),
    reason("CREATE_*", "*_umem_id", Is::Just(0), Is::Any, MEMORY),
    reason("CREATE_*", "*_umem_offset", Is::Just(0), Is::Set, MEMORY),
    reason("CREATE_*", "*.dbr_addr", Is::Set, Is::Any, MEMORY),
    reason("CREATE_*", "*page_*", Is::Set, Is::Just(0), MEMORY),
    reason("MODIFY_CQ", "cq_umem_valid", Is::Just(0), Is::Just(1),
        "DevX requires it in every MODIFY_CQ, whether or not the ring changes"),

    // Completion queues.
    reason("CREATE_CQ", "cq_context.log_cq_size", Is::Just(9), Is::Just(8),
        "libmlx5 adds an entry for the CQE that ends a resize; our queues are not resized"),

    // Queue pairs.
    reason("CREATE_QP", "qpc.log_sq_size", Is::Set, Is::Any,
        "libmlx5 reserves 192 bytes per send, for a memory window bind; these queue pairs bind \
         none"),
    reason("CREATE_QP", "qpc.cs_res", Is::Just(1), Is::Just(0),
        "libmlx5 enables 32 bytes of inline data in receive CQEs, and copies them out when it \
         polls; our poll copies nothing"),
    reason("CREATE_QP", "qpc.cs_req", Is::Just(0x11), Is::Just(0),
        "the same for READ responses, which libmlx5 enables with sq_sig_all"),
    reason("CREATE_QP", "qpc.srqn_rmpn_xrqn", Is::Set, Is::Just(0),
        "mlx5_ib names its own SRQ in each QP; rq_type shows that it is unused"),
    reason("CREATE_QP", "qpc.xrcd", Is::Set, Is::Just(0),
        "mlx5_ib names its own XRC domain in each QP; only XRC services use it"),
    reason("CREATE_QP", "qpc.no_sq", Is::Just(1), Is::Just(0), ROOM),
    reason("CREATE_QP", "qpc.rq_type", Is::Just(3), Is::Just(0), ROOM),
    reason("CREATE_QP", "qpc.log_rq_size", Is::Just(0), Is::Set, ROOM),

    reason("CREATE_RMP", "ctx.wq.log_wq_pg_sz", Is::Set, Is::Just(0), MEMORY),
    reason("CREATE_RMP", "ctx.wq.log_wq_sz", Is::Set, Is::Set,
        "libmlx5 doubles the list, to hold receives whose memory is paged in on demand; our \
         memory is pinned"),

    // Transitions.
    reason("*", "qpc.pd", Is::Set, Is::Just(0), CONTEXT),
    reason("*", "qpc.cqn_snd", Is::Set, Is::Just(0), CONTEXT),
    reason("*", "qpc.cqn_rcv", Is::Set, Is::Just(0), CONTEXT),
    reason("RST2INIT_QP", "qpc.dbr_addr", Is::Set, Is::Just(0), CONTEXT),
    reason("*", "qpc.log_ack_req_freq", Is::Just(8), Is::Just(0),
        "the requester's ACK frequency: nothing is sent before RTS, where this driver and UCX \
         set it"),
    reason("RST2INIT_QP", "qpc.counter_set_id", Is::Set, Is::Just(0),
        "mlx5_ib uses the kernel's own Q counter set"),
    reason("RST2INIT_QP", "qpc.rre", Is::Just(0), Is::Just(1),
        "mlx5_ib sets the READ and atomic flags with max_dest_rd_atomic, in INIT2RTR; we set \
         them here and in INIT2RTR, before the first request can arrive"),
    reason("RST2INIT_QP", "qpc.rae", Is::Just(0), Is::Just(1), "as rre"),
    reason("RST2INIT_QP", "qpc.atomic_mode", Is::Just(0), Is::Just(1), "as rre"),
    reason("R*", "qpc.mtu", Is::Just(5), Is::Just(0),
        "mlx5_ib sets the limit of datagrams in every transition; we set it in INIT2RTR, before \
         the first one can arrive"),
    reason("R*", "qpc.log_msg_max", Is::Just(12), Is::Just(0), "as mtu"),

    // Keys.
    reason("CREATE_MKEY", "uid", Is::Just(0), Is::Set,
        "mlx5_ib creates mkeys with the kernel's uid; DevX stamps ours"),
    reason("CREATE_MKEY", "memory_key_mkey_entry.umr_en", Is::Just(1), Is::Just(0),
        "mlx5_ib changes its cached mkeys by UMR; ours never change, and the device refuses a \
         UMR of one"),
    reason("CREATE_MKEY", "*translations_octword_*", Is::Set, Is::Just(1),
        "mlx5_ib counts the pages that it lists; a UMEM has its own count"),
];

#[test]
fn verbs_command_differences_are_explained() {
    let mut verdict = Verdict::new(REASONS);
    for recording in Recording::all().expect("recordings") {
        let here = support::in_process_like(&recording.name);
        for (name, _) in scenario::cases() {
            let theirs = recording.section(theirs::SIDE, name).expect("libmlx5 ran the case");
            let ours = here
                .iter()
                .find(|section| section.side == ours::SIDE && section.case == name)
                .expect("we did it");
            let case = format!("{}, {name}", recording.name);
            verdict.record(&case, differences(theirs, ours, &RULES), REASONS);
        }
    }
    let problems = verdict.problems(REASONS);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
