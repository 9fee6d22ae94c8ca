//! `chaos kills`: kills programs, several at once, at any moment. The model must free the objects
//! of each. A peer of a killed program sees only that it stops answering; other programs see
//! nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::checkers::Checkers;
use crate::message::{EndAddress, Message};
use crate::programs::{Output, ProgramId, Programs};
use crate::random::{Random, seed};
use crate::roles::Role;
use crate::supervisor::Supervisor;

/// Maximum number of concurrent victims.
const MAX_VICTIMS: usize = 4;
/// Maximum time between the state of a victim and its kill.
const MAX_DELAY_MICROSECONDS: u64 = 20_000;
/// Kills between two checks that the checkers have completed more rounds.
const KILLS_PER_CHECK: u32 = 100;
/// How long a program may take to reach the state in which it is killed, and a peer to notice that
/// it does not answer.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum growth of the supervisor in kilobytes.
const MAX_GROWTH: u64 = 64 << 10;

/// Options of `chaos kills`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of programs to kill.
    #[arg(long, default_value_t = 1000)]
    kills: u32,
    /// Seed of the random choices; if not given, one is chosen and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// One device of the programs.
    #[arg(long, default_value = "mlx5_0")]
    device: String,
    /// The other device.
    #[arg(long, default_value = "mlx5_1")]
    peer: String,
}

/// The state in which a program is killed, in the order of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// The program was started.
    Started,
    /// The program has created all its objects.
    Ready,
    /// The program is connected, and moves data.
    Connected,
}

/// A program to kill.
struct Victim {
    connection: Option<u32>,
    moment: Moment,
    delay: Duration,
    started: Instant,
    due: Option<Instant>,
}

/// Two ends; the first is always a victim, the second may be the survivor.
struct Connection {
    ends: [ProgramId; 2],
    first: Option<EndAddress>,
    /// The second has connected.
    second: bool,
}

struct Trial {
    programs: Programs,
    devices: [String; 2],
    random: Random,
    checkers: Checkers,
    /// The peer of many programs; it is not killed.
    survivor: ProgramId,
    victims: BTreeMap<ProgramId, Victim>,
    connections: BTreeMap<u32, Connection>,
    /// Connections of the survivor with a dead peer, and since when.
    abandoned: BTreeMap<u32, Instant>,
    started: u32,
    killed: u32,
    losses: u32,
    next_connection: u32,
}

pub(crate) fn run(options: &Options) -> Result<(), Stop> {
    let seed = options.seed.unwrap_or_else(seed);
    println!("{} kills, seed {seed}", options.kills);
    let devices = [options.device.clone(), options.peer.clone()];
    let mut programs = Programs::new();
    let checkers = Checkers::start(&mut programs, &devices)?;
    let survivor = programs.start(Role::Second, &devices[1], seed, 0)?;
    let mut trial = Trial {
        programs,
        devices,
        random: Random::new(seed),
        checkers,
        survivor,
        victims: BTreeMap::new(),
        connections: BTreeMap::new(),
        abandoned: BTreeMap::new(),
        started: 0,
        killed: 0,
        losses: 0,
        next_connection: 1,
    };
    let supervisor = trial.warm_up()?;
    let start = Instant::now();
    trial.kill_all(options.kills)?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(supervisor) = &supervisor {
        supervisor.check()?;
        let growth = supervisor.growth();
        ensure!(
            growth < MAX_GROWTH,
            "the supervisor has grown by {growth} kB; the limit is {MAX_GROWTH} kB"
        );
        println!("the supervisor holds no additional descriptors; its memory grew by {growth} kB");
    }
    let Trial { mut programs, checkers, survivor, devices, killed, losses, .. } = trial;
    let rounds = checkers.rounds;
    checkers.end(&mut programs)?;
    programs.end(survivor)?;
    Checkers::start(&mut programs, &devices)?.end(&mut programs)?;
    println!(
        "{killed} killed in {seconds:.0} s, {losses} lost peers reported, {rounds} checker rounds"
    );
    Ok(())
}

impl Trial {
    /// Kills a few programs first, so that memory that grows once does not count as a leak.
    fn warm_up(&mut self) -> Result<Option<Supervisor>, Stop> {
        self.kill_all(8)?;
        (self.started, self.killed, self.losses) = (0, 0, 0);
        Ok(Supervisor::find())
    }

    fn kill_all(&mut self, kills: u32) -> Result<(), Stop> {
        let mut rounds = self.checkers.rounds;
        while self.started < kills || !self.victims.is_empty() || !self.abandoned.is_empty() {
            while self.started < kills && self.victims.len() < MAX_VICTIMS {
                self.start_more()?;
            }
            let next = self.victims.values().filter_map(|victim| victim.due).min();
            let soon = Instant::now() + Duration::from_millis(100);
            if let Some((program, output)) =
                self.programs.next_output(next.unwrap_or(soon).min(soon))
            {
                self.handle(program, output)?;
            }
            let before = self.killed;
            self.kill_due()?;
            if self.killed / KILLS_PER_CHECK > before / KILLS_PER_CHECK {
                self.checkers.check_progress(&mut rounds)?;
                println!("{} killed, {rounds} checker rounds", self.killed);
            }
            let late = self.abandoned.values().any(|since| since.elapsed() > PROGRESS_TIMEOUT);
            ensure!(!late, "a peer did not notice within 20 s that the other end was killed");
        }
        Ok(())
    }

    /// Starts one more test: a single program, one with the survivor, or two with each other.
    fn start_more(&mut self) -> Result<(), Stop> {
        let kind = self.random.below(4);
        let id = self.next_connection;
        self.next_connection += 1;
        match kind {
            0 => {
                self.start(Role::Churn, None)?;
            }
            1 => {
                let first = self.start(Role::First, Some(id))?;
                let second = self.start(Role::Second, Some(id))?;
                self.connect(id, [first, second]);
            }
            _ => {
                let first = self.start(Role::First, Some(id))?;
                self.connect(id, [first, self.survivor]);
            }
        }
        Ok(())
    }

    fn connect(&mut self, id: u32, ends: [ProgramId; 2]) {
        self.connections.insert(id, Connection { ends, first: None, second: false });
    }

    fn start(&mut self, role: Role, connection: Option<u32>) -> Result<ProgramId, Stop> {
        let device = &self.devices[self.random.below(2) as usize];
        let seed = self.random.next();
        let program = self.programs.start(role, device, seed, connection.unwrap_or(0))?;
        let moment = self.random.one_of(&[
            Moment::Started,
            Moment::Ready,
            Moment::Connected,
            Moment::Connected,
        ]);
        let delay = Duration::from_micros(self.random.below(MAX_DELAY_MICROSECONDS));
        let started = Instant::now();
        let victim = Victim { connection, moment, delay, started, due: None };
        self.victims.insert(program, victim);
        self.started += 1;
        self.reached(program, Moment::Started);
        Ok(program)
    }

    /// Schedules the kill of a program if this is the state chosen for it.
    fn reached(&mut self, program: ProgramId, moment: Moment) {
        if let Some(victim) = self.victims.get_mut(&program)
            && victim.due.is_none()
            && moment >= victim.moment
        {
            victim.due = Some(Instant::now() + victim.delay);
        }
    }

    fn handle(&mut self, program: ProgramId, output: Output) -> Result<(), Stop> {
        if self.checkers.has(program) {
            return self.checkers.handle(&mut self.programs, program, output);
        }
        match output {
            // The program was killed before this message was read.
            _ if !self.programs.has(program) => Ok(()),
            Output::Message(Message::Ready) => {
                self.reached(program, Moment::Connected);
                Ok(())
            }
            Output::Message(Message::Here(id, address)) => self.set_address(id, program, address),
            Output::Message(Message::Connected(id)) => {
                let ends = self.connection(id)?.ends;
                for end in ends {
                    self.programs.send(end, Message::Go(id));
                    self.reached(end, Moment::Connected);
                }
                Ok(())
            }
            Output::Message(Message::Lost(id)) => {
                let ends = self.connection(id)?.ends;
                let other = ends[usize::from(ends[0] == program)];
                ensure!(
                    !self.programs.has(other),
                    "a program reports a lost peer that was not killed"
                );
                self.losses += 1;
                if program == self.survivor {
                    self.abandoned.remove(&id);
                    self.connections.remove(&id);
                }
                Ok(())
            }
            Output::Message(message) => Err(Stop::fail(format!("unexpected message: {message}"))),
            Output::Unknown(line) => {
                Err(Stop::fail(format!("unexpected output of a program: {line}")))
            }
            Output::End => Err(self.programs.unexpected_end(program)),
        }
    }

    fn connection(&mut self, id: u32) -> Result<&mut Connection, Stop> {
        self.connections.get_mut(&id).ok_or_else(|| Stop::fail(format!("no connection {id}")))
    }

    /// Sends the address of one end to the other.
    fn set_address(
        &mut self,
        id: u32,
        program: ProgramId,
        address: EndAddress,
    ) -> Result<(), Stop> {
        self.reached(program, Moment::Ready);
        let connection = self.connection(id)?;
        let [first, second] = connection.ends;
        if program == first {
            connection.first = Some(address);
            self.programs.send(second, Message::Meet(id, address));
        } else {
            connection.second = true;
            self.programs.send(first, Message::Peer(id, address));
            if !self.programs.has(first) {
                self.programs.send(second, Message::Go(id));
            }
        }
        Ok(())
    }

    fn kill_due(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        let due = |victim: &Victim| victim.due.is_some_and(|due| due <= now);
        let chosen: Vec<ProgramId> = self
            .victims
            .iter()
            .filter(|(_, victim)| due(victim))
            .map(|(&program, _)| program)
            .collect();
        for program in chosen {
            self.programs.kill(program)?;
            self.killed += 1;
            if let Some(id) = self.victims.remove(&program).and_then(|victim| victim.connection) {
                self.peer_killed(id, program)?;
            }
        }
        for victim in self.victims.values() {
            let late = victim.due.is_none() && victim.started.elapsed() > PROGRESS_TIMEOUT;
            ensure!(!late, "a program did not reach the state {:?} within 20 s", victim.moment);
        }
        Ok(())
    }

    /// Handles a connection whose peer was killed.
    fn peer_killed(&mut self, id: u32, dead: ProgramId) -> Result<(), Stop> {
        let survivor = self.survivor;
        let connection = self.connection(id)?;
        let [first, second] = connection.ends;
        let (met, connected) = (connection.first.is_some(), connection.second);
        let other = if dead == first { second } else { first };
        if other == survivor {
            if met {
                self.abandoned.insert(id, Instant::now());
            } else {
                self.connections.remove(&id);
            }
        } else {
            // Its peer is dead, so it may never reach the state chosen for it.
            self.reached(other, Moment::Connected);
            if !self.programs.has(other) {
                self.connections.remove(&id);
            }
        }
        if dead == first && connected {
            self.programs.send(other, Message::Go(id));
        }
        Ok(())
    }
}
