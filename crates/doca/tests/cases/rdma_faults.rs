//! Two instances of RDMA with repeated device failures: each job comes back once, and both recover.

use std::time::{Duration, Instant};

use verbless_doca::context::Retrieve;
use verbless_doca::rdma::{RdmaBuilder, RdmaJob, RdmaState};
use verbless_doca::{ErrorKind, Event};
use verbless_model::{Model, QueueKind};
use verbless_prm::{CqeSyndrome, Opcode};

use crate::support::rdma::{End, all, ends_of, opened};

const ROUNDS: usize = if cfg!(debug_assertions) { 300 } else { 1000 };
/// Bytes of each job.
const LENGTH: u64 = 64;

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Injects a fault, or none. Returns whether it fails a command.
fn disturb(model: &Model, random: &mut Random) -> bool {
    let (device, nth) = (random.below(2) as usize, 1 + random.below(6) as u32);
    match random.below(6) {
        0 | 1 => {
            let of_requests = [
                CqeSyndrome::LOCAL_PROTECTION,
                CqeSyndrome::REMOTE_ACCESS,
                CqeSyndrome::REMOTE_OPERATION,
                CqeSyndrome::TRANSPORT_RETRY_EXCEEDED,
                CqeSyndrome::RNR_RETRY_EXCEEDED,
            ];
            let syndrome = of_requests[random.below(of_requests.len() as u64) as usize];
            model.fail_request(device, None, nth, syndrome);
            false
        }
        2 => {
            model.fail_queue_later(device, QueueKind::Qp, None, nth);
            false
        }
        3 => {
            let of_states =
                [Opcode::CREATE_QP, Opcode::RST2INIT_QP, Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP];
            let opcode = of_states[random.below(4) as usize];
            model.fail_command(device, opcode, 1, verbless_prm::CommandStatus(0x3), 0x1234);
            true
        }
        _ => false,
    }
}

/// Any job but a receive.
fn job(end: &End, random: &mut Random) -> RdmaJob {
    let at = LENGTH * random.below(16);
    let (here, there) = (end.data(at, LENGTH), end.remote(4096 + at, LENGTH));
    let word = || (end.remote(16384, 8).unwrap(), end.data(2048, 8).unwrap());
    match random.below(7) {
        0 => end.rdma().send(here),
        1 => end.rdma().send_imm(here, 7),
        2 => end.rdma().write(here, there),
        3 => end.rdma().write_imm(here, there, 7),
        4 => end.rdma().read(there, here),
        5 => {
            let (word, old) = word();
            end.rdma().fetch_and_add(word, old, 1)
        }
        _ => {
            let (word, old) = word();
            end.rdma().compare_and_swap(word, old, 1, 2)
        }
    }
}

/// The jobs of one end in a round.
#[derive(Default)]
struct Jobs {
    submitted: u64,
    /// By user data: whether the job came back.
    back: Vec<bool>,
    failed: u64,
}

impl Jobs {
    /// Submits, unless the instance is in ERROR already.
    fn submit(&mut self, end: &mut End, job: RdmaJob) {
        match end.workq.submit(job.user_data(self.submitted)) {
            Ok(()) => {
                self.submitted += 1;
                self.back.push(false);
            }
            Err(refused) => {
                assert_eq!(refused.error.kind(), ErrorKind::BadState, "{}", refused.error);
                assert_eq!(end.rdma().state(), RdmaState::Error);
            }
        }
    }

    /// Retrieves the ended jobs.
    fn retrieve(&mut self, end: &mut End) {
        loop {
            let event = match end.workq.progress_retrieve() {
                Ok(event) => event,
                Err(Retrieve::IoFailed(event)) => {
                    self.failed += 1;
                    assert_eq!(end.rdma().state(), RdmaState::Error);
                    event
                }
                Err(Retrieve::Again) => return,
                Err(other) => panic!("{other}"),
            };
            let Event::Rdma(done) = event else { panic!("{event:?}") };
            let back = &mut self.back[done.user_data.0 as usize];
            assert!(!*back, "job {} came back twice", done.user_data.0);
            *back = true;
        }
    }
}

/// Stops, starts and connects both, until no command fails.
fn recover(ends: &mut [End; 2]) -> usize {
    let mut refusals = 0;
    loop {
        for end in &mut *ends {
            let mut stopped = end.rdma.take().unwrap().stop().unwrap();
            end.rdma = loop {
                match stopped.start() {
                    Ok(rdma) => break Some(rdma),
                    Err(refused) => {
                        refusals += 1;
                        stopped = refused.given;
                    }
                }
            };
        }
        let [a, b] = &*ends;
        let connected = || {
            let (of_a, of_b) = (a.rdma().export()?, b.rdma().export()?);
            a.rdma().connect(of_b)?;
            b.rdma().connect(of_a)
        };
        match connected() {
            Ok(()) => return refusals,
            Err(_) => refusals += 1,
        }
        assert!(refusals < 10, "the faults are over, and it is still refused");
    }
}

#[test]
fn random_faults_return_each_job_once_and_recover() {
    let (model, backend) = crate::support::disturbable("bluefield3");
    let quick = |builder: RdmaBuilder| builder.ack_timeout(8).retry_count(2);
    let mut ends = ends_of(opened(&backend), quick, all(), 1 << 16);
    let mut random = Random(0x5eed_0000_0001);
    recover(&mut ends);
    let held = [0, 1].map(|device| model.counts(device));
    let (mut failures, mut refusals, mut commands) = (0, 0, 0);
    for round in 0..ROUNDS {
        commands += usize::from(disturb(&model, &mut random));
        let mut jobs = [Jobs::default(), Jobs::default()];
        // At most as many messages as receives: no message waits for one.
        let (receives, others) = (8, random.below(9));
        for (end, jobs) in ends.iter_mut().zip(&mut jobs) {
            for _ in 0..receives {
                let receive = end.rdma().receive(end.room(8192, LENGTH));
                jobs.submit(end, receive);
            }
        }
        for _ in 0..others {
            for (end, jobs) in ends.iter_mut().zip(&mut jobs) {
                let other = job(end, &mut random);
                jobs.submit(end, other);
            }
        }
        // Jobs other than receives end by themselves.
        let deadline = Instant::now() + Duration::from_secs(60);
        while jobs.iter().any(|jobs| !jobs.back.iter().skip(receives).all(|&back| back)) {
            for (end, jobs) in ends.iter_mut().zip(&mut jobs) {
                jobs.retrieve(end);
            }
            assert!(Instant::now() < deadline, "round {round}: a job does not end");
        }
        for (end, jobs) in ends.iter_mut().zip(&mut jobs) {
            let End { workq, rdma, .. } = end;
            workq.abort(rdma.as_ref().unwrap()).unwrap();
            while end.workq.in_flight() > 0 {
                jobs.retrieve(end);
                assert!(Instant::now() < deadline, "round {round}: a receive does not end");
            }
            assert!(jobs.back.iter().all(|&back| back), "round {round}");
            assert_eq!(end.inventory.num_free_elements(), 256, "round {round}");
            failures += jobs.failed;
        }
        refusals += recover(&mut ends);
    }
    assert!(failures > ROUNDS as u64, "{failures} jobs failed");
    assert!(refusals > 0 && refusals <= commands, "{refusals} of {commands} were noticed");
    for device in [0, 1] {
        assert_eq!(model.counts(device), held[device], "objects of device {device}");
    }
}
