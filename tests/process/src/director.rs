//! Runs a case: starts its roles, passes messages between them, kills and injects faults as the
//! case says, and judges how each ended.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use verbless_conformance::{Lab, Outcome, Stop, ensure};

use crate::agent::Address;
use crate::case::{By, Case, Side};
use crate::channel::{Channel, Instruction, PATIENCE, Report};
use crate::files::Files;
use crate::on::On;
use crate::role::Role;

/// Time limit of a case. A case that kills a role more than 60 times gets a second for each kill.
const LIMIT: Duration = Duration::from_secs(60);

fn limit(case: &Case) -> Duration {
    let lives = case.kill.as_ref().map_or(0, |kill| kill.lives);
    LIMIT.max(Duration::from_secs(lives.into()))
}

/// A message of a role, or `None` when its channel has closed. The number is the role's life: 1,
/// and one more after each restart.
type Arrival = (Side, u32, Option<Report>);

/// Runs a case, if its needs are met.
pub(crate) fn outcome(on: &On, agent: Option<&Address>, lab: &Lab, case: &Case) -> Outcome {
    let missing = match lab.missing(&case.needs) {
        Ok(missing) => missing,
        Err(Stop(why)) => return Outcome::Failed(why),
    };
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
        return Outcome::Skipped(format!("it needs {}", missing.join(", ")));
    }
    let result = lab.fresh().and_then(|fresh| {
        let fresh = Arc::new(fresh);
        let ended = Director::start(on, agent, &fresh, case).and_then(Director::run);
        fresh.count_faults();
        ended?;
        fresh.nothing_is_left()
    });
    match result {
        Ok(()) => Outcome::Passed,
        Err(Stop(why)) => Outcome::Failed(why),
    }
}

/// Where a role runs.
enum RunsIn {
    Process(Child),
    /// A process that the agent at this address started.
    OtherSide(Address, Pid),
    Thread(Files),
}

/// A started role.
struct Running {
    runs_in: RunsIn,
    channel: Channel,
    life: u32,
    /// Whether it has reported its end.
    done: bool,
    /// Whether it was killed and not restarted.
    killed: bool,
}

struct Director<'a> {
    on: &'a On,
    agent: Option<&'a Address>,
    lab: &'a Arc<Lab>,
    case: &'a Case,
    sender: Sender<Arrival>,
    receiver: Receiver<Arrival>,
    /// A and B.
    roles: [Option<Running>; 2],
    end: Instant,
}

impl<'a> Director<'a> {
    fn start(
        on: &'a On,
        agent: Option<&'a Address>,
        lab: &'a Arc<Lab>,
        case: &'a Case,
    ) -> Result<Self, Stop> {
        let (sender, receiver) = channel();
        let end = Instant::now() + limit(case);
        let mut this = Self { on, agent, lab, case, sender, receiver, roles: [None, None], end };
        for side in Side::BOTH {
            this.roles[side as usize] = Some(this.spawn(side, 1)?);
        }
        Ok(this)
    }

    /// Starts a role and a thread that listens to it.
    fn spawn(&self, side: Side, life: u32) -> Result<Running, Stop> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let runs_in = match (self.lab.is_private(), self.agent) {
            (true, _) => {
                let (lab, act) = (self.lab.clone(), self.case.act(side));
                let channel = Channel::new(theirs, Some(PATIENCE))?;
                let files = Files::default();
                let its_files = files.clone();
                std::thread::Builder::new().name(format!("role {side:?}")).spawn(move || {
                    // A director that does not listen has given up on this role.
                    let _ = Role::new(&lab, side, life, channel, its_files).play(act);
                })?;
                RunsIn::Thread(files)
            }
            (false, Some(agent)) if side == Side::B => {
                let (process, stream) = crate::agent::role(agent, &self.case.name, life)?;
                ours = stream;
                RunsIn::OtherSide(agent.clone(), process)
            }
            (false, _) => RunsIn::Process(self.process(side, life, theirs)?),
        };
        let channel = Channel::new(ours, None)?;
        let (mut reports, sender) = (channel.clone()?, self.sender.clone());
        std::thread::spawn(move || {
            while let Ok(report) = reports.receive_report() {
                let _ = sender.send((side, life, Some(report)));
            }
            let _ = sender.send((side, life, None));
        });
        Ok(Running { runs_in, channel, life, done: false, killed: false })
    }

    /// Starts this program as a role.
    fn process(&self, side: Side, life: u32, director: UnixStream) -> Result<Child, Stop> {
        let On { device, peer, .. } = self.on;
        let side = match side {
            Side::A => "a",
            Side::B => "b",
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--device", device, "--peer", peer]);
        command.args(["role", &self.case.name, side, &life.to_string()]);
        Ok(command.stdin(Stdio::from(OwnedFd::from(director))).spawn()?)
    }

    fn role(&mut self, side: Side) -> Result<&mut Running, Stop> {
        let role = self.roles[side as usize].as_mut();
        role.ok_or_else(|| Stop::fail(format!("role {side:?} was never started")))
    }

    /// Runs until both roles have ended.
    fn run(mut self) -> Result<(), Stop> {
        while !self.roles.iter().flatten().all(|role| role.done || role.killed) {
            let left = self.end.saturating_duration_since(Instant::now());
            let (side, life, report) = self.receiver.recv_timeout(left).map_err(|_| {
                Stop::fail(format!("hung: it has not ended after {} s", limit(self.case).as_secs()))
            })?;
            if self.role(side)?.life != life {
                // A late message of a life that has ended.
                continue;
            }
            match report {
                Some(report) => self.take(side, report)?,
                None => self.ended(side)?,
            }
        }
        if let Some(kill) = &self.case.kill {
            let role = self.role(kill.side)?;
            let deaths = role.life - u32::from(!role.killed);
            ensure!(deaths == kill.lives, "role {:?} was killed {deaths} times", kill.side);
        }
        for side in Side::BOTH {
            if let RunsIn::Process(child) = &mut self.role(side)?.runs_in {
                let status = child.wait()?;
                let killed = self.role(side)?.killed;
                ensure!(killed || status.success(), "role {side:?} ended with {status}");
            }
        }
        Ok(())
    }

    fn take(&mut self, side: Side, report: Report) -> Result<(), Stop> {
        match report {
            // A role that has ended or was killed does not receive it.
            Report::Message(bytes) => {
                let _ =
                    self.role(side.other())?.channel.send_instruction(&Instruction::Message(bytes));
                Ok(())
            }
            Report::Point(name) => self.at(side, &name),
            Report::Restart => {
                let other = side.other();
                let life = self.role(other)?.life + 1;
                ensure!(
                    self.role(other)?.killed,
                    "role {other:?} is restarted, but was not killed"
                );
                self.roles[other as usize] = Some(self.spawn(other, life)?);
                Ok(())
            }
            Report::Done(Ok(())) => {
                self.role(side)?.done = true;
                Ok(())
            }
            Report::Done(Err(why)) => Err(Stop::fail(format!("role {side:?}: {why}"))),
        }
    }

    /// Handles a role that waits at a point.
    fn at(&mut self, side: Side, name: &str) -> Result<(), Stop> {
        let case = self.case;
        for fault in case.faults.iter().filter(|fault| fault.point == name) {
            (fault.happen)(self.lab.model()?);
        }
        let kill = case.kill.as_ref().filter(|kill| kill.side == side && kill.point == name);
        let role = self.role(side)?;
        match kill.filter(|kill| role.life <= kill.lives).map(|kill| kill.by) {
            None => role.channel.send_instruction(&Instruction::Go),
            Some(By::Itself) => role.channel.send_instruction(&Instruction::Die),
            Some(By::Director) => match &mut role.runs_in {
                RunsIn::Process(child) => Ok(child.kill()?),
                RunsIn::OtherSide(agent, process) => crate::agent::kill(agent, *process),
                RunsIn::Thread(files) => {
                    files.close();
                    role.channel.shut_down()
                }
            },
        }
    }

    /// Handles the end of a role's messages: the case killed it, or something is wrong.
    fn ended(&mut self, side: Side) -> Result<(), Stop> {
        let planned = self.case.kill.as_ref().is_some_and(|kill| kill.side == side);
        let role = self.role(side)?;
        if role.done {
            return Ok(());
        }
        match &mut role.runs_in {
            RunsIn::Process(child) => {
                let status = child.wait()?;
                let killed = planned && by_sigkill(status);
                ensure!(killed, "role {side:?} ended by itself: {status}");
            }
            RunsIn::OtherSide(_, process) => {
                ensure!(planned, "role {side:?} (process {process}) ended by itself");
            }
            RunsIn::Thread(files) => {
                ensure!(planned && files.are_closed(), "role {side:?} panicked");
            }
        }
        role.killed = true;
        // A role that has ended need not know.
        let _ = self.role(side.other())?.channel.send_instruction(&Instruction::PeerGone);
        Ok(())
    }
}

fn by_sigkill(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::SIGKILL as i32)
}

/// Kills all roles: no role outlives its case.
impl Drop for Director<'_> {
    fn drop(&mut self) {
        for role in self.roles.iter_mut().flatten() {
            match &mut role.runs_in {
                RunsIn::Process(child) => {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                // The agent waits for it. A role that has succeeded needs no kill.
                RunsIn::OtherSide(agent, process) if !role.done => {
                    let _ = crate::agent::kill(agent, *process);
                }
                RunsIn::OtherSide(..) | RunsIn::Thread(_) => {}
            }
        }
    }
}
