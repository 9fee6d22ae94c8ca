//! Runs a case: starts its roles, passes messages between them, kills and injects faults as the
//! case says, and judges how each ended.

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::case::{By, Case, Side};
use super::channel::{Channel, Instruction, PATIENCE, Report};
use super::files::Files;
use super::frame;
use super::process::Program;
use super::remote::{Ended, Peer};
use super::role::Role;
use crate::failed_commands::FailedCommands;
use crate::report::plain;
use crate::{Lab, Outcome, Row, Stop, ensure};

/// Time limit of a case. A case that kills a role more than 60 times gets a second for each kill.
const LIMIT: Duration = Duration::from_secs(60);

fn limit(case: &Case) -> Duration {
    let lives = case.kill.as_ref().map_or(0, |kill| kill.lives);
    LIMIT.max(Duration::from_secs(lives.into()))
}

/// Messages that wait for the director: a role that sends more waits, with a limit.
const WAITING: usize = 64;

/// A message of a role, or `None` when its channel has closed. The number is the role's life: 1,
/// and one more after each restart.
type Arrival = (Side, u32, Option<Report>);

/// Runs a case, if its needs are met; its result, with the commands that were refused to the role
/// that failed. `program` plays a role in a process of its own; `peer` is the machine of the second
/// role, if it is another one.
pub fn row(program: &Program, peer: Option<&Peer>, lab: &Lab, case: &Case) -> Row {
    let begun = Instant::now();
    let failed = FailedCommands::default();
    let outcome = outcome(program, peer, lab, case, &failed);
    let seconds = begun.elapsed().as_secs_f64();
    let failed_commands = match &outcome {
        Outcome::Failed(_) => failed.list(),
        _ => Vec::new(),
    };
    Row { case: case.id(), outcome, seconds, failed_commands, kernel_log: Vec::new() }
}

fn outcome(
    program: &Program,
    peer: Option<&Peer>,
    lab: &Lab,
    case: &Case,
    failed: &FailedCommands,
) -> Outcome {
    match missing(peer, lab, case) {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => return Outcome::Skipped(missing),
        Err(Stop(why)) => return Outcome::Failed(why),
    }
    let result = lab.fresh().and_then(|fresh| {
        let fresh = Arc::new(fresh);
        let director = Director::start(program, peer, &fresh, case);
        let ended = director.and_then(|director| director.run(failed));
        fresh.count_faults();
        ended?;
        fresh.nothing_is_left()
    });
    match result {
        Ok(()) => Outcome::Passed,
        Err(Stop(why)) => Outcome::Failed(why),
    }
}

/// Why a case cannot run, if so.
fn missing(peer: Option<&Peer>, lab: &Lab, case: &Case) -> Result<String, Stop> {
    let missing = lab.missing(&case.needs)?;
    if !missing.is_empty() {
        let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
        return Ok(format!("it needs {}", missing.join(", ")));
    }
    Ok(match peer.map(|peer| peer.missing(&case.id())).transpose()? {
        Some(missing) if !missing.is_empty() => format!("at the peer it needs {missing}"),
        _ => String::new(),
    })
}

/// Where a role runs.
enum RunsIn {
    Process(Child),
    OtherMachine,
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
    program: &'a Program,
    peer: Option<&'a Peer>,
    lab: &'a Arc<Lab>,
    case: &'a Case,
    sender: SyncSender<Arrival>,
    receiver: Receiver<Arrival>,
    /// A and B.
    roles: [Option<Running>; 2],
    end: Instant,
}

impl<'a> Director<'a> {
    fn start(
        program: &'a Program,
        peer: Option<&'a Peer>,
        lab: &'a Arc<Lab>,
        case: &'a Case,
    ) -> Result<Self, Stop> {
        let (sender, receiver) = sync_channel(WAITING);
        let end = Instant::now() + limit(case);
        let mut this =
            Self { program, peer, lab, case, sender, receiver, roles: [None, None], end };
        for side in Side::BOTH {
            this.roles[side as usize] = Some(this.spawn(side, 1)?);
        }
        Ok(this)
    }

    /// Starts a role and a thread that listens to it.
    fn spawn(&self, side: Side, life: u32) -> Result<Running, Stop> {
        let (mut ours, theirs) = UnixStream::pair()?;
        for end in [&ours, &theirs] {
            end.set_write_timeout(Some(frame::LIMIT))?;
        }
        let runs_in = match (self.lab.is_private(), self.peer) {
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
            (false, Some(peer)) if side == Side::B => {
                ours = peer.start(&self.case.id(), life)?;
                RunsIn::OtherMachine
            }
            (false, _) => {
                RunsIn::Process(self.program.start(&self.case.id(), side, life, theirs)?)
            }
        };
        let channel = Channel::new(ours, None)?;
        let (mut reports, sender) = (channel.clone()?, self.sender.clone());
        std::thread::spawn(move || {
            while let Ok(report) = reports.receive_report() {
                if sender.send((side, life, Some(report))).is_err() {
                    return;
                }
            }
            let _ = sender.send((side, life, None));
        });
        Ok(Running { runs_in, channel, life, done: false, killed: false })
    }

    /// The machine of a role that is not here.
    fn peer(&self) -> Result<&'a Peer, Stop> {
        self.peer.ok_or_else(|| Stop::fail("there is no other machine"))
    }

    fn role(&mut self, side: Side) -> Result<&mut Running, Stop> {
        let role = self.roles[side as usize].as_mut();
        role.ok_or_else(|| Stop::fail(format!("role {side:?} was never started")))
    }

    /// Runs until both roles have ended; `failed` gets the commands that were refused to the role
    /// that ended with an error.
    fn run(mut self, failed: &FailedCommands) -> Result<(), Stop> {
        while !self.roles.iter().flatten().all(|role| role.done || role.killed) {
            let left = self.end.saturating_duration_since(Instant::now());
            // A peer that sends without end always has a message here: time is checked first.
            let next = (!left.is_zero()).then(|| self.receiver.recv_timeout(left).ok()).flatten();
            let (side, life, report) = next.ok_or_else(|| {
                Stop::fail(format!("hung: it has not ended after {} s", limit(self.case).as_secs()))
            })?;
            if self.role(side)?.life != life {
                // A late message of a life that has ended.
                continue;
            }
            match report {
                // It comes right before the error of the same role, which ends the case.
                Some(Report::Refused(command)) => failed.add(command),
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
            let role = self.role(side)?;
            let killed = role.killed;
            match &mut role.runs_in {
                RunsIn::Process(child) => {
                    let status = child.wait()?;
                    ensure!(killed || status.success(), "role {side:?} ended with {status}");
                }
                RunsIn::OtherMachine => {
                    let ended = self.peer()?.settle()?;
                    ensure!(killed || ended == Ended::Success, "role {side:?} ended: {ended:?}");
                }
                RunsIn::Thread(_) => {}
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
            Report::Refused(_) => Ok(()),
            Report::Done(Ok(())) => {
                self.role(side)?.done = true;
                Ok(())
            }
            Report::Done(Err(why)) => Err(Stop::fail(format!("role {side:?}: {}", plain(&why)))),
        }
    }

    /// Handles a role that waits at a point.
    fn at(&mut self, side: Side, name: &str) -> Result<(), Stop> {
        let (case, peer) = (self.case, self.peer);
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
                RunsIn::OtherMachine => peer.map_or(Ok(()), Peer::kill),
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
        let peer = self.peer;
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
            RunsIn::OtherMachine => {
                let ended = peer.map_or(Ok(Ended::Success), Peer::settle)?;
                let killed = planned && ended == Ended::Killed;
                ensure!(killed, "role {side:?} at the peer ended by itself: {ended:?}");
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
                // A role that has succeeded needs no kill.
                RunsIn::OtherMachine if !role.done && !role.killed => {
                    let _ = self.peer.map(Peer::kill);
                }
                RunsIn::OtherMachine | RunsIn::Thread(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use verbless_prm::CreateCqIn;

    use super::*;
    use crate::Choice;
    use crate::roles::cases;

    /// Asks for a CQ whose events no EQ gets.
    fn is_refused(role: &mut Role<'_>) -> Result<(), Stop> {
        let device = role.device()?;
        let mut input = CreateCqIn::new();
        input.cq_context_mut().set_c_eqn_or_apu_element(0xfe);
        let created = device.obj_create(input.as_bytes(), &mut [0; 16]);
        created.map(drop).map_err(|error| Stop::fail(error.to_string()))
    }

    fn waits(role: &mut Role<'_>) -> Result<(), Stop> {
        role.message().map(drop)
    }

    #[test]
    fn row_has_the_commands_that_were_refused_to_the_failed_role() {
        let lab = Lab::open(&Choice::default()).unwrap_or_else(|Stop(why)| panic!("{why}"));
        let program = Program::this(["no such test"]).expect("this program");
        let row = row(&program, None, &lab, &Case::new("refused", waits, is_refused));
        assert!(matches!(&row.outcome, Outcome::Failed(why) if why.contains("role B")), "{row:?}");
        let [command] = &row.failed_commands[..] else { panic!("{row:?}") };
        assert!(command.describe().starts_with("CREATE_CQ (opcode 0x400)"), "{row:?}");
    }

    #[test]
    fn messages_without_end_do_not_outlast_the_limit() {
        let lab = Lab::open(&Choice::default()).unwrap_or_else(|Stop(why)| panic!("{why}"));
        let lab = Arc::new(lab);
        let program = Program::this(["no such test"]).expect("this program");
        let id = "exchange::programs_connect_by_address_bytes_and_exchange_data";
        let case = cases::find(id).expect("the id is that of a case");
        let (sender, receiver) = sync_channel(WAITING);
        let role = || {
            let (ours, _) = UnixStream::pair().expect("a pair of sockets");
            let channel = Channel::new(ours, None).unwrap_or_else(|Stop(why)| panic!("{why}"));
            let runs_in = RunsIn::Thread(Files::default());
            Some(Running { runs_in, channel, life: 1, done: false, killed: false })
        };
        for side in Side::BOTH {
            sender.send((side, 1, Some(Report::Done(Ok(()))))).expect("room");
        }
        let (roles, end) = ([role(), role()], Instant::now());
        let (lab, case, program) = (&lab, &case, &program);
        let director = Director { program, peer: None, lab, case, sender, receiver, roles, end };
        let Err(Stop(why)) = director.run(&FailedCommands::default()) else {
            panic!("the time is over")
        };
        assert!(why.starts_with("hung: "), "{why}");
    }
}
