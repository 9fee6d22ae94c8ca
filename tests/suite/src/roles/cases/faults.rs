//! One of two programs is killed while the other has a fault: lost messages, late completions,
//! failing commands, or a wait for a message of the dead program.
//!
//! Losses and delays are the model's own faults: only the model in this process takes requests for
//! them. Refused commands and missing receives work everywhere.

use std::time::Duration;

use verbless_model::{Fault, Model};
use verbless_prm::{self as prm, CommandStatus};
use verbless_queue::wr::{Inline, Send, Write};
use verbless_queue::{ConnectOptions, ErrorKind, WcStatus};

use super::kills::{POINTS, outlives, survives, victim, works_alone};
use super::link::{connect, endpoint, impatient, is_silent};
use crate::roles::case::{Act, By, Case, Side};
use crate::roles::role::Role;
use crate::{Stop, create_qp_in, ensure, ensure_eq, failed};

/// A name for the peer, the fault of its device, and its function.
type PeerFault = (&'static str, fn(&Model), Act);

const FAULTS: [PeerFault; 3] = [
    ("despite_lost_messages", |model| model.inject(0, Fault::LoseMessage, 0, 2), survives),
    (
        "despite_late_completions",
        |model| model.inject(0, Fault::DelayCompletion(Duration::from_millis(5)), 0, 20),
        survives,
    ),
    (
        "despite_failed_command",
        |model| {
            model.fail_command(
                0,
                verbless_prm::Opcode(prm::QP_2RST.opcode),
                1,
                CommandStatus::NO_RES,
                1,
            )
        },
        survives_a_failed_command,
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (point, when) in POINTS {
        for (though, happen, act) in FAULTS {
            let name = format!("peer_survives_program_killed_{when}_{though}");
            let case = Case::new(&name, act, victim).kill(Side::B, point, By::Director);
            cases.push(case.fault(point, happen));
        }
    }
    cases.push(
        Case::new(
            "message_without_receive_of_killed_program_fails",
            waits_for_a_receive,
            owes_a_receive,
        )
        .kill(Side::B, "owing", By::Director),
    );
    cases.push(
        Case::new("program_with_refused_commands_outlives_its_peer", is_refused, connects).kill(
            Side::B,
            "connected",
            By::Itself,
        ),
    );
    cases
}

/// The command that resets a queue pair fails once; the next one succeeds.
fn survives_a_failed_command(role: &mut Role) -> Result<(), Stop> {
    let mut end = outlives(role)?;
    let status = end.qp.reset().err().and_then(|error| error.status());
    ensure_eq!(status, Some(CommandStatus::NO_RES.0), "status of the command that fails");
    works_alone(&mut end)
}

/// Retries forever while there is no receive.
fn patient_with_receives() -> ConnectOptions {
    ConnectOptions { rnr_retry: 7, ..impatient() }
}

fn waits_for_a_receive(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &patient_with_receives())?;
    // A WRITE needs no receive: the peer's device answers.
    end.perform(&Write::new(Inline(b"there"), there).signaled())?;
    end.qp.post(&Send::new(Inline(b"no room")).signaled(), 5)?;
    role.send(b"sent")?;
    role.until_peer_is_gone()?;
    ensure_eq!(failed(end.sent()?, WcStatus::TransportRetryExceeded)?, 5, "cookie of the SEND");
    works_alone(&mut end)
}

fn owes_a_receive(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &patient_with_receives())?;
    ensure_eq!(role.message()?, b"sent", "message");
    role.point("owing")
}

fn connects(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    ensure_eq!(role.message()?, b"refused", "message");
    role.point("connected")
}

/// Requests queue pairs that the device must refuse, before and after its peer's death.
fn is_refused(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &impatient())?;
    let foreign = role.device()?.alloc_pd()?;
    // The driver itself would refuse this domain.
    let create = create_qp_in(&end.device, end.qp.object().attr(), foreign.pdn());
    for round in 0..100 {
        match end.device.obj_create(create.as_bytes(), &mut [0; 16]) {
            Ok(_) => return Err(Stop::fail("a QP is in a PD of another context")),
            Err(error) => ensure_eq!(error.kind(), ErrorKind::Command, "kind of the refusal"),
        }
        if round == 10 {
            role.send(b"refused")?;
        }
    }
    role.until_peer_is_gone()?;
    is_silent(&mut end, there)?;
    ensure!(end.device.nop().is_ok(), "the device takes no commands any more");
    works_alone(&mut end)
}
