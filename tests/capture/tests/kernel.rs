//! The commands that reach the device from our driver through a real kernel, compared with those
//! through the model's own kernel in this process.

mod support;

use verbless_capture::compare::{Explanation, Identity, Is, Rules, Verdict, differences};
use verbless_capture::recording::Recording;
use verbless_capture::{ours, scenario};

/// Numbers that the device or the kernel chooses, by the last part of a field's path.
fn identity(field: &str) -> Option<Identity> {
    let last = field.rsplit(['.', ' ']).next().unwrap_or(field);
    Some(match last {
        "uid" => Identity::Name("uid"),
        "pd" => Identity::Name("pd"),
        "transport_domain" => Identity::Name("td"),
        "uar" | "uar_page" => Identity::Name("uar"),
        "umem_id" | "dbr_umem_id" | "cq_umem_id" | "wq_umem_id" | "mkey_umem_id" => {
            Identity::Name("umem")
        }
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
    // Queries and registers differ by driver; other tests check their results.
    compared: |command| {
        let name = command.info.name;
        !name.starts_with("QUERY") && !name.starts_with("ACCESS_REGISTER")
    },
    identity,
};

#[rustfmt::skip]
const REASONS: &[Explanation] = &[
    reason("CREATE_UMEM", "umem.log_page_size", Is::Any, Is::Any, CONTIGUOUS),
    reason("CREATE_UMEM", "umem.num_of_mtt", Is::Any, Is::Any, CONTIGUOUS),
    reason("CREATE_UMEM", "mtt", Is::Any, Is::Any, CONTIGUOUS),
];

const CONTIGUOUS: &str = "the model maps a process's memory as an IOMMU does, contiguously, so \
    that its UMEMs have larger pages than those of a real kernel";

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

#[test]
fn model_kernel_commands_match_recordings() {
    let mut verdict = Verdict::new(REASONS);
    for recording in Recording::all().expect("recordings") {
        let here = support::in_process_like(&recording.name);
        for (name, _) in scenario::cases() {
            let there = recording.section(ours::SIDE, name).expect("the other driver ran the case");
            let here =
                here.iter().find(|section| section.case == name).expect("our driver ran the case");
            let case = format!("{}, {name}", recording.name);
            verdict.record(&case, differences(there, here, &RULES), REASONS);
        }
    }
    let problems = verdict.problems(REASONS);
    assert!(
        problems.is_empty(),
        "{}\nif the driver sends something else since it was recorded: cargo xtask capture",
        problems.join("\n")
    );
}
