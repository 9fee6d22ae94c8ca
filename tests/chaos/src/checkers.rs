//! A pair of checkers, on the controlling process's side.

use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::message::Message;
use crate::programs::{Output, ProgramId, Programs};
use crate::roles::Role;

/// How long two checkers may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of successful rounds after which the checkers count as started.
const START_ROUNDS: u64 = 16;

/// Two programs whose traffic must never fail.
pub(crate) struct Checkers {
    ids: [ProgramId; 2],
    /// Successful rounds.
    pub(crate) rounds: u64,
}

impl Checkers {
    /// Starts them, one on each device, and waits for the first successful rounds. No other program
    /// may run.
    pub(crate) fn start(programs: &mut Programs, devices: &[String; 2]) -> Result<Self, Stop> {
        let ids = [
            programs.start(Role::CheckerFirst, &devices[0], 0, 0)?,
            programs.start(Role::CheckerSecond, &devices[1], 0, 0)?,
        ];
        let mut this = Self { ids, rounds: 0 };
        let end = Instant::now() + START_TIMEOUT;
        let mut connected = 0;
        while this.rounds < START_ROUNDS {
            let Some((program, output)) = programs.next_output(end) else {
                return Err(Stop::fail("two checkers exchanged no data within 20 s"));
            };
            match output {
                // Late output of a program that has ended.
                _ if !programs.has(program) => {}
                Output::Message(Message::Here(id, address)) => {
                    programs.send(this.other(program), Message::Peer(id, address));
                }
                Output::Message(Message::Connected(id)) => {
                    connected += 1;
                    if connected == 2 {
                        this.ids
                            .iter()
                            .for_each(|&program| programs.send(program, Message::Go(id)));
                    }
                }
                output => this.handle(programs, program, output)?,
            }
        }
        Ok(this)
    }

    fn other(&self, program: ProgramId) -> ProgramId {
        let [begins, replies] = self.ids;
        if program == begins { replies } else { begins }
    }

    /// Whether this is one of them.
    pub(crate) fn has(&self, program: ProgramId) -> bool {
        self.ids.contains(&program)
    }

    /// Handles the output of one of them.
    pub(crate) fn handle(
        &mut self,
        programs: &mut Programs,
        program: ProgramId,
        output: Output,
    ) -> Result<(), Stop> {
        match output {
            Output::Message(Message::Rounds(rounds)) => {
                self.rounds = self.rounds.max(rounds);
                Ok(())
            }
            Output::End => Err(programs.unexpected_end(program)),
            Output::Message(message) => {
                Err(Stop::fail(format!("unexpected message from a checker: {message}")))
            }
            Output::Unknown(line) => {
                Err(Stop::fail(format!("unexpected output from a checker: {line}")))
            }
        }
    }

    /// Ends them; each must report success.
    pub(crate) fn end(self, programs: &mut Programs) -> Result<(), Stop> {
        self.ids.into_iter().try_for_each(|program| programs.end(program))
    }

    /// Fails unless there were rounds since the last check.
    pub(crate) fn check_progress(&self, since: &mut u64) -> Result<(), Stop> {
        ensure!(
            self.rounds > *since,
            "the checkers completed no round since the last check (at {since})"
        );
        *since = self.rounds;
        Ok(())
    }
}
