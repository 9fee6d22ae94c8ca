//! Programs that are killed, several at once, at any moment of what they do: the model frees what
//! each held and goes on; who was connected to one notices nothing but its silence, and who was
//! not, nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::cast::{Actor, Cast, Said};
use crate::director::Witnesses;
use crate::message::{Message, Place};
use crate::parts::Part;
use crate::random::{Random, seed};
use crate::supervisor::Supervisor;

/// Programs to be killed that run at once.
const AT_ONCE: usize = 4;
/// The longest that one lives after the moment that it was chosen for.
const LONGEST_MICROSECONDS: u64 = 20_000;
/// After how many the witnesses must have got further.
const LOOK: u32 = 100;
/// How long a program may take to get where it is to be killed, and a peer to notice silence.
const PATIENCE: Duration = Duration::from_secs(20);
/// Kilobytes that the supervisor may grow by.
const GROWTH: u64 = 64 << 10;

/// Options of `chaos kills`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many programs are killed.
    #[arg(long, default_value_t = 1000)]
    kills: u32,
    /// What chance comes from; printed, if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// The device.
    #[arg(long, default_value = "mlx5_0")]
    device: String,
    /// The device that it talks to.
    #[arg(long, default_value = "mlx5_1")]
    peer: String,
}

/// From when on a program's days are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// It was started.
    Started,
    /// It has all its objects.
    Made,
    /// It is connected, and moves data.
    Going,
}

/// A program that is to be killed.
struct Victim {
    connection: Option<u32>,
    moment: Moment,
    delay: Duration,
    started: Instant,
    due: Option<Instant>,
}

/// Two ends, the first of which is always to be killed.
struct Connection {
    ends: [Actor; 2],
    first: Option<Place>,
    /// The second has connected.
    second: bool,
}

struct Trial {
    cast: Cast,
    devices: [String; 2],
    random: Random,
    witnesses: Witnesses,
    /// The peer of many that is not killed.
    survivor: Actor,
    victims: BTreeMap<Actor, Victim>,
    connections: BTreeMap<u32, Connection>,
    /// Connections of the survivor whose other end is dead, since when.
    mourned: BTreeMap<u32, Instant>,
    started: u32,
    killed: u32,
    silences: u32,
    next_connection: u32,
}

pub(crate) fn run(options: &Options) -> Result<(), Stop> {
    let seed = options.seed.unwrap_or_else(seed);
    println!("{} kills, seed {seed}", options.kills);
    let devices = [options.device.clone(), options.peer.clone()];
    let mut cast = Cast::new();
    let witnesses = Witnesses::start(&mut cast, &devices)?;
    let survivor = cast.start(Part::Second, &devices[1], seed, 0)?;
    let mut trial = Trial {
        cast,
        devices,
        random: Random::new(seed),
        witnesses,
        survivor,
        victims: BTreeMap::new(),
        connections: BTreeMap::new(),
        mourned: BTreeMap::new(),
        started: 0,
        killed: 0,
        silences: 0,
        next_connection: 1,
    };
    let supervisor = trial.rest()?;
    let start = Instant::now();
    trial.kill_all(options.kills)?;
    let seconds = start.elapsed().as_secs_f64();
    if let Some(supervisor) = &supervisor {
        supervisor.check()?;
        let growth = supervisor.growth();
        ensure!(growth < GROWTH, "the supervisor has grown by {growth} kB");
        println!("the supervisor has no descriptor more than before, and {growth} kB");
    }
    let Trial { mut cast, witnesses, survivor, devices, killed, silences, .. } = trial;
    let rounds = witnesses.rounds;
    witnesses.end(&mut cast)?;
    cast.end(survivor)?;
    Witnesses::start(&mut cast, &devices)?.end(&mut cast)?;
    println!(
        "{killed} killed in {seconds:.0} s, {silences} silences noticed, {rounds} rounds of \
         witnesses"
    );
    Ok(())
}

impl Trial {
    /// One connection of the survivor, and its end: from now on nothing that it holds is new.
    fn rest(&mut self) -> Result<Option<Supervisor>, Stop> {
        self.kill_all(8)?;
        (self.started, self.killed, self.silences) = (0, 0, 0);
        Ok(Supervisor::find())
    }

    fn kill_all(&mut self, kills: u32) -> Result<(), Stop> {
        let mut rounds = self.witnesses.rounds;
        while self.started < kills || !self.victims.is_empty() || !self.mourned.is_empty() {
            while self.started < kills && self.victims.len() < AT_ONCE {
                self.cast_more()?;
            }
            let next = self.victims.values().filter_map(|victim| victim.due).min();
            let soon = Instant::now() + Duration::from_millis(100);
            if let Some((actor, said)) = self.cast.hear(next.unwrap_or(soon).min(soon)) {
                self.hear(actor, said)?;
            }
            let before = self.killed;
            self.kill_those_due()?;
            if self.killed / LOOK > before / LOOK {
                self.witnesses.check_progress(&mut rounds)?;
                println!("{} killed, {rounds} rounds of witnesses", self.killed);
            }
            let late = self.mourned.values().any(|since| since.elapsed() > PATIENCE);
            ensure!(!late, "a peer does not notice that the other end is dead");
        }
        Ok(())
    }

    /// Starts one more play: a program alone, one with the survivor, or two with each other.
    fn cast_more(&mut self) -> Result<(), Stop> {
        let play = self.random.below(4);
        let id = self.next_connection;
        self.next_connection += 1;
        match play {
            0 => {
                self.start(Part::Churn, None)?;
            }
            1 => {
                let first = self.start(Part::First, Some(id))?;
                let second = self.start(Part::Second, Some(id))?;
                self.connect(id, [first, second]);
            }
            _ => {
                let first = self.start(Part::First, Some(id))?;
                self.connect(id, [first, self.survivor]);
            }
        }
        Ok(())
    }

    fn connect(&mut self, id: u32, ends: [Actor; 2]) {
        self.connections.insert(id, Connection { ends, first: None, second: false });
    }

    fn start(&mut self, part: Part, connection: Option<u32>) -> Result<Actor, Stop> {
        let device = &self.devices[self.random.below(2) as usize];
        let seed = self.random.next();
        let actor = self.cast.start(part, device, seed, connection.unwrap_or(0))?;
        let moment =
            self.random.one_of(&[Moment::Started, Moment::Made, Moment::Going, Moment::Going]);
        let delay = Duration::from_micros(self.random.below(LONGEST_MICROSECONDS));
        let started = Instant::now();
        let victim = Victim { connection, moment, delay, started, due: None };
        self.victims.insert(actor, victim);
        self.started += 1;
        self.reached(actor, Moment::Started);
        Ok(actor)
    }

    /// Counts the days of a program if this is the moment.
    fn reached(&mut self, actor: Actor, moment: Moment) {
        if let Some(victim) = self.victims.get_mut(&actor)
            && victim.due.is_none()
            && moment >= victim.moment
        {
            victim.due = Some(Instant::now() + victim.delay);
        }
    }

    fn hear(&mut self, actor: Actor, said: Said) -> Result<(), Stop> {
        if self.witnesses.has(actor) {
            return self.witnesses.hear(&mut self.cast, actor, said);
        }
        match said {
            // It was killed before this was heard.
            _ if !self.cast.has(actor) => Ok(()),
            Said::Message(Message::Made) => {
                self.reached(actor, Moment::Going);
                Ok(())
            }
            Said::Message(Message::Here(id, place)) => self.is_here(id, actor, place),
            Said::Message(Message::Connected(id)) => {
                let ends = self.connection(id)?.ends;
                for end in ends {
                    self.cast.tell(end, Message::Go(id));
                    self.reached(end, Moment::Going);
                }
                Ok(())
            }
            Said::Message(Message::Silent(id)) => {
                let ends = self.connection(id)?.ends;
                let other = ends[usize::from(ends[0] == actor)];
                ensure!(!self.cast.has(other), "a peer is silent that was not killed");
                self.silences += 1;
                if actor == self.survivor {
                    self.mourned.remove(&id);
                    self.connections.remove(&id);
                }
                Ok(())
            }
            Said::Message(message) => Err(Stop::fail(format!("nobody asked for: {message}"))),
            Said::Odd(line) => Err(Stop::fail(format!("a program says: {line}"))),
            Said::End => Err(self.cast.mourn(actor)),
        }
    }

    fn connection(&mut self, id: u32) -> Result<&mut Connection, Stop> {
        self.connections.get_mut(&id).ok_or_else(|| Stop::fail(format!("no connection {id}")))
    }

    fn is_here(&mut self, id: u32, actor: Actor, place: Place) -> Result<(), Stop> {
        self.reached(actor, Moment::Made);
        let connection = self.connection(id)?;
        let [first, second] = connection.ends;
        if actor == first {
            connection.first = Some(place);
            self.cast.tell(second, Message::Meet(id, place));
        } else {
            connection.second = true;
            self.cast.tell(first, Message::Peer(id, place));
            if !self.cast.has(first) {
                self.cast.tell(second, Message::Go(id));
            }
        }
        Ok(())
    }

    fn kill_those_due(&mut self) -> Result<(), Stop> {
        let now = Instant::now();
        let due = |victim: &Victim| victim.due.is_some_and(|due| due <= now);
        let condemned: Vec<Actor> = self
            .victims
            .iter()
            .filter(|(_, victim)| due(victim))
            .map(|(&actor, _)| actor)
            .collect();
        for actor in condemned {
            self.cast.kill(actor)?;
            self.killed += 1;
            if let Some(id) = self.victims.remove(&actor).and_then(|victim| victim.connection) {
                self.bereave(id, actor)?;
            }
        }
        for victim in self.victims.values() {
            let late = victim.due.is_none() && victim.started.elapsed() > PATIENCE;
            ensure!(!late, "a program does not come as far as {:?}", victim.moment);
        }
        Ok(())
    }

    /// The other end of a connection has lost its peer.
    fn bereave(&mut self, id: u32, dead: Actor) -> Result<(), Stop> {
        let survivor = self.survivor;
        let connection = self.connection(id)?;
        let [first, second] = connection.ends;
        let (met, connected) = (connection.first.is_some(), connection.second);
        let other = if dead == first { second } else { first };
        if other == survivor {
            if met {
                self.mourned.insert(id, Instant::now());
            } else {
                self.connections.remove(&id);
            }
        } else {
            // It may never come further than it is.
            self.reached(other, Moment::Going);
            if !self.cast.has(other) {
                self.connections.remove(&id);
            }
        }
        if dead == first && connected {
            self.cast.tell(other, Message::Go(id));
        }
        Ok(())
    }
}
