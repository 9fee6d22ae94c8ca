//! A pair of witnesses, as the one who directs the trial sees it.

use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::cast::{Actor, Cast, Said};
use crate::message::Message;
use crate::parts::Part;

/// How long two witnesses may take to begin.
const PATIENCE: Duration = Duration::from_secs(20);
/// Rounds that show that a device works.
const ENOUGH: u64 = 16;

/// Two programs that must not notice anything.
pub(crate) struct Witnesses {
    actors: [Actor; 2],
    /// Rounds that went well.
    pub(crate) rounds: u64,
}

impl Witnesses {
    /// Starts them, one on each device, and waits until rounds go well. Nobody else may talk
    /// meanwhile.
    pub(crate) fn start(cast: &mut Cast, devices: &[String; 2]) -> Result<Self, Stop> {
        let actors = [
            cast.start(Part::Begins, &devices[0], 0, 0)?,
            cast.start(Part::Hears, &devices[1], 0, 0)?,
        ];
        let mut this = Self { actors, rounds: 0 };
        let end = Instant::now() + PATIENCE;
        let mut connected = 0;
        while this.rounds < ENOUGH {
            let Some((actor, said)) = cast.hear(end) else {
                return Err(Stop::fail("two programs cannot talk to each other"));
            };
            match said {
                // The last words of one that has ended.
                _ if !cast.has(actor) => {}
                Said::Message(Message::Here(id, place)) => {
                    cast.tell(this.other(actor), Message::Peer(id, place));
                }
                Said::Message(Message::Connected(id)) => {
                    connected += 1;
                    if connected == 2 {
                        this.actors.iter().for_each(|&actor| cast.tell(actor, Message::Go(id)));
                    }
                }
                said => this.hear(cast, actor, said)?,
            }
        }
        Ok(this)
    }

    fn other(&self, actor: Actor) -> Actor {
        let [begins, hears] = self.actors;
        if actor == begins { hears } else { begins }
    }

    /// Whether this is one of them.
    pub(crate) fn has(&self, actor: Actor) -> bool {
        self.actors.contains(&actor)
    }

    /// Takes in what one of them says.
    pub(crate) fn hear(&mut self, cast: &mut Cast, actor: Actor, said: Said) -> Result<(), Stop> {
        match said {
            Said::Message(Message::Rounds(rounds)) => {
                self.rounds = self.rounds.max(rounds);
                Ok(())
            }
            Said::End => Err(cast.mourn(actor)),
            Said::Message(message) => Err(Stop::fail(format!("a witness says: {message}"))),
            Said::Odd(line) => Err(Stop::fail(format!("a witness says: {line}"))),
        }
    }

    /// Ends them, who must have noticed nothing.
    pub(crate) fn end(self, cast: &mut Cast) -> Result<(), Stop> {
        self.actors.into_iter().try_for_each(|actor| cast.end(actor))
    }

    /// Fails unless there were rounds since the last look.
    pub(crate) fn check_progress(&self, since: &mut u64) -> Result<(), Stop> {
        ensure!(self.rounds > *since, "the witnesses make no progress");
        *since = self.rounds;
        Ok(())
    }
}
