//! QPs that go to RESET or are dropped while their completions wait for a poll: no other QP may get
//! these completions.

use std::sync::atomic::{AtomicBool, Ordering};

use verbless_command::{CqeSize, KeyAccess};
use verbless_devx::EventChannel;
use verbless_queue::cq::Notify;
use verbless_queue::qp::ReceiveSide;
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{
    ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Qpn, Rc, Region, SrqConfig,
};

use crate::case::cases;
use crate::need::SRQ;
use crate::{Lab, Need, Stop, TIMEOUT, ensure, ensure_eq, quiet, until};

cases!(
    "retired",
    "QPs that go to RESET or are dropped while their completions wait for a poll.":
    reset_qp_gets_no_old_completions,
    stale_doorbells_run_nothing_after_reset,
    reused_qpn_gets_no_old_send_completions [Need::NumberReuse],
    reused_qpn_gets_no_old_receive_completions [Need::NumberReuse],
    other_qps_keep_their_completions,
    cq_full_of_retired_cqes_keeps_working,
    srq_regains_receives_of_retired_qp [SRQ],
    concurrent_poll_sees_only_live_qps,
);

/// A PD, CQ, event channel and region for loopback QPs.
struct Rig {
    domain: Domain,
    cq: Cq,
    channel: EventChannel,
    region: Region,
}

impl Rig {
    fn new(lab: &Lab, cqe_size: CqeSize) -> Result<Self, Stop> {
        let device = lab.device()?;
        let domain = Domain::new(&device)?;
        // As many CQEs as the largest case has outstanding.
        let config = CqConfig { cqe_size, overcommit: true, ..CqConfig::new(16) };
        let cq = domain.completion_queue(&config)?;
        let channel = device.event_channel(true)?;
        cq.subscribe(&channel, 0)?;
        let region = domain.region(4096, KeyAccess::ALL)?;
        Ok(Self { domain, cq, channel, region })
    }

    fn queue_pair(&self) -> Result<Qp, Stop> {
        let mut qp = self.domain.queue_pair(&QpConfig::new(16, 16), &self.cq, &self.cq)?;
        self.connect(&mut qp)?;
        Ok(qp)
    }

    fn connect<R: ReceiveSide>(&self, qp: &mut Qp<Rc, R>) -> Result<(), Stop> {
        let options = ConnectOptions::default();
        let address = self.domain.address(qp, &options)?;
        Ok(self.domain.connect(qp, &address, &options)?)
    }

    /// Creates QPs until one has QPN `number`, which was freed before.
    fn queue_pair_of(&self, number: Qpn) -> Result<Qp, Stop> {
        let mut others = Vec::new();
        for _ in 0..64 {
            let mut qp = self.domain.queue_pair(&QpConfig::new(16, 16), &self.cq, &self.cq)?;
            if qp.qpn() == number {
                self.connect(&mut qp)?;
                return Ok(qp);
            }
            others.push(qp);
        }
        Err(Stop::fail(format!("none of the next 64 queue pairs has the number {number}")))
    }

    /// Runs `act`, which causes one CQE, and waits until it is in the CQ, without polling.
    fn complete(&mut self, act: impl FnOnce(&Region) -> Result<(), Stop>) -> Result<(), Stop> {
        self.cq.arm(Notify::Next);
        act(&self.region)?;
        ensure!(self.channel.wait(Some(TIMEOUT))?, "no completion event");
        self.channel.read()?;
        self.cq.event_received();
        Ok(())
    }

    /// Posts a WRITE and leaves its CQE in the CQ.
    fn write<R: ReceiveSide>(&mut self, qp: &mut Qp<Rc, R>, cookie: u64) -> Result<(), Stop> {
        self.complete(|region| {
            let to = region.remote(0, 0)?;
            qp.post(&Write::new(Inline(b"before"), to).signaled(), cookie)?;
            Ok(())
        })
    }

    /// Checks that requests of a fresh QP complete only after the doorbell.
    fn check_first_requests(&mut self, qp: &mut Qp) -> Result<(), Stop> {
        self.region.write_at(0, &[0; 8])?;
        let to = self.region.remote(0, 0)?;
        let mut batch = qp.batch();
        for cookie in 100..103 {
            batch.post(&Write::new(Inline(b"after"), to).signaled(), cookie)?;
        }
        // The batch rings no doorbell.
        batch.hold();
        quiet("a request completed that has not run", || qp.poll(&mut self.cq))?;
        qp.post(&Nop::new().signaled(), 103)?;
        for cookie in 100..104 {
            let done = until("a completion", || qp.poll(&mut self.cq))??;
            ensure_eq!(done.cookie, cookie, "cookie");
            let mut found = [0; 5];
            self.region.read_at(0, &mut found)?;
            ensure_eq!(&found, b"after", "the written bytes");
        }
        quiet("an unexpected completion", || self.cq.poll())
    }
}

fn reset_qp_gets_no_old_completions(lab: &Lab) -> Result<(), Stop> {
    for cqe_size in [CqeSize::BYTES_64, CqeSize::BYTES_128] {
        let mut rig = Rig::new(lab, cqe_size)?;
        let mut qp = rig.queue_pair()?;
        // Six rounds of WQEs exceed the SQ, so each round starts at another index.
        for round in 0..6 {
            for cookie in 0..3 {
                rig.write(&mut qp, cookie)?;
            }
            if round % 2 == 1 {
                // Flushes leave error CQEs.
                rig.complete(|region| {
                    qp.post_receive(region.sge(0, 8)?, 0)?;
                    Ok(qp.to_error()?)
                })?;
            }
            qp.reset()?;
            rig.connect(&mut qp)?;
            rig.check_first_requests(&mut qp)?;
        }
    }
    Ok(())
}

/// The device may flush a request before it sees its doorbell, which then arrives after the reset.
fn stale_doorbells_run_nothing_after_reset(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab, CqeSize::BYTES_64)?;
    let mut qp = rig.queue_pair()?;
    for round in 0..100 {
        qp.to_error()?;
        for cookie in 0..4 {
            qp.post(&Nop::new().signaled(), cookie)?;
        }
        qp.reset()?;
        rig.connect(&mut qp)?;
        qp.post(&Nop::new().signaled(), 100 + round)?;
        let done = until("a completion", || qp.poll(&mut rig.cq))??;
        ensure_eq!(done.cookie, 100 + round, "cookie");
        ensure!(rig.cq.poll().is_none(), "a request posted before the reset completed");
    }
    quiet("a request posted before the reset completed", || rig.cq.poll())
}

fn reused_qpn_gets_no_old_send_completions(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab, CqeSize::BYTES_64)?;
    let mut qp = rig.queue_pair()?;
    for _ in 0..6 {
        for cookie in 0..3 {
            rig.write(&mut qp, cookie)?;
        }
        let number = qp.qpn();
        drop(qp);
        qp = rig.queue_pair_of(number)?;
        rig.check_first_requests(&mut qp)?;
    }
    Ok(())
}

fn reused_qpn_gets_no_old_receive_completions(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab, CqeSize::BYTES_64)?;
    let mut qp = rig.queue_pair()?;
    for _ in 0..3 {
        for cookie in 0..3 {
            rig.complete(|region| {
                qp.post_receive(region.sge(0, 64)?, cookie)?;
                qp.post(&Send::new(Inline(b"before")), 0)?;
                Ok(())
            })?;
        }
        let number = qp.qpn();
        drop(qp);
        qp = rig.queue_pair_of(number)?;
        qp.post_receive(rig.region.sge(0, 64)?, 100)?;
        quiet("a message arrived that was never sent", || qp.poll(&mut rig.cq))?;
        qp.post(&Send::new(Inline(b"after")), 0)?;
        let done = until("a completion", || qp.poll(&mut rig.cq))??;
        ensure_eq!((done.cookie, done.byte_len()), (100, 5), "cookie and bytes");
    }
    Ok(())
}

fn other_qps_keep_their_completions(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab, CqeSize::BYTES_64)?;
    let (mut stays, mut goes, mut drops) =
        (rig.queue_pair()?, rig.queue_pair()?, rig.queue_pair()?);
    for cookie in 0..3 {
        rig.write(&mut goes, 50)?;
        rig.write(&mut stays, cookie)?;
        rig.write(&mut drops, 60)?;
    }
    goes.reset()?;
    drop(drops);
    for cookie in 0..3 {
        let cqe = rig.cq.poll().ok_or_else(|| Stop::fail("a completion is missing"))?;
        ensure_eq!(cqe.qpn(), stays.qpn(), "QP number");
        ensure_eq!(stays.complete(cqe)?.cookie, cookie, "cookie");
    }
    ensure!(rig.cq.poll().is_none(), "a completion of a retired QP");
    Ok(())
}

fn cq_full_of_retired_cqes_keeps_working(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab, CqeSize::BYTES_64)?;
    for _ in 0..5 {
        let mut qp = rig.queue_pair()?;
        for cookie in 0..16 {
            rig.write(&mut qp, cookie)?;
        }
        drop(qp);
        ensure!(rig.cq.poll().is_none(), "a completion of a retired QP");
    }
    Ok(())
}

fn srq_regains_receives_of_retired_qp(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab, CqeSize::BYTES_64)?;
    let mut receives = rig.domain.srq(&SrqConfig::new(7))?;
    let config = QpConfig::new(16, 0);
    for round in 0..6 {
        let pair = || -> Result<_, Stop> {
            let mut qp = rig.domain.queue_pair_with_srq(&config, &rig.cq, &rig.cq, &receives)?;
            rig.connect(&mut qp)?;
            Ok(qp)
        };
        let (mut goes, mut stays) = (pair()?, pair()?);
        for cookie in 0..7 {
            receives.post(rig.region.sge(0, 64)?, cookie)?;
        }
        for _ in 0..3 {
            for qp in [&mut goes, &mut stays] {
                rig.complete(|_| {
                    qp.post(&Send::new(Inline(b"taken")), 0)?;
                    Ok(())
                })?;
            }
        }
        match round % 2 {
            0 => drop(goes),
            _ => goes.reset()?,
        }
        ensure_eq!(receives.free(), 3, "receives that are free");
        for cookie in [0, 2, 4] {
            // `take_returned` gives cookies in WQE order, not in posting order: check only that the
            // cookie is one of the retired QP's.
            let back = receives.take_returned();
            ensure!(back.is_some_and(|it| it % 2 == 0), "{cookie}: {back:?} was returned");
        }
        for cookie in [1, 3, 5] {
            let cqe = rig.cq.poll().ok_or_else(|| Stop::fail("a completion is missing"))?;
            ensure_eq!(receives.complete(cqe)?.cookie, cookie, "cookie");
        }
        ensure!(rig.cq.poll().is_none(), "a completion of a retired QP");
        // One is still posted: the next message consumes it, for the next round.
        stays.post(&Send::new(Inline(b"last")), 0)?;
        let cqe = until("a completion", || rig.cq.poll())?;
        ensure_eq!(receives.complete(cqe)?.cookie, 6, "cookie");
        ensure_eq!(receives.free(), 7, "receives that are free");
    }
    Ok(())
}

fn concurrent_poll_sees_only_live_qps(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    // Room for all, however late the thread polls.
    let config = CqConfig { overcommit: true, ..CqConfig::new(128) };
    let mut cq = domain.completion_queue(&config)?;
    let config = QpConfig::new(16, 16);
    // The thread owns the CQ, so sends complete in another one.
    let sends = domain.completion_queue(&CqConfig::new(4096))?;
    let options = ConnectOptions::default();
    let make = |cq: &Cq| -> Result<Qp, Stop> {
        let mut qp = domain.queue_pair(&config, cq, &sends)?;
        let address = domain.address(&qp, &options)?;
        domain.connect(&mut qp, &address, &options)?;
        Ok(qp)
    };
    let mut stays = make(&cq)?;
    let qpn = stays.qpn();
    let mut go = (0..20).map(|_| make(&cq)).collect::<Result<Vec<_>, _>>()?;
    let done = AtomicBool::new(false);
    let (sent, polled) = std::thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let mut polled = 0u64;
            let mut last = false;
            while !last {
                last = done.load(Ordering::Acquire);
                while let Some(cqe) = cq.poll() {
                    polled += u64::from(cqe.qpn() == qpn);
                }
                std::thread::yield_now();
            }
            polled
        });
        let mut send = || -> Result<u64, Stop> {
            let mut sent = 0;
            while let Some(mut qp) = go.pop() {
                for _ in 0..3 {
                    qp.post(&Nop::new().signaled(), 0)?;
                }
                // The remaining QP is not polled, so its ring fills.
                if sent < 10 {
                    stays.post(&Nop::new().signaled(), sent)?;
                    sent += 1;
                }
                drop(qp);
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            Ok(sent)
        };
        let sent = send();
        done.store(true, Ordering::Release);
        (sent, poller.join())
    });
    let polled = polled.map_err(|_| Stop::fail("the polling thread panicked"))?;
    ensure_eq!(polled, sent?, "completions of the remaining QP");
    Ok(())
}
