//! Programs that play a part: started, listened to, and ended one way or the other.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::message::Message;
use crate::parts::Part;

/// How long a program may take to end once it is told to.
const PATIENCE: Duration = Duration::from_secs(20);

/// Who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Actor(u32);

/// What is heard of a program.
#[derive(Debug)]
pub(crate) enum Said {
    Message(Message),
    /// Something that is no message.
    Odd(String),
    /// It says no more.
    End,
}

/// Becomes another program of the cast, with the same standard input and output; the error is why
/// not.
pub(crate) fn again(part: Part, device: &str, seed: u64) -> std::io::Error {
    match std::env::current_exe() {
        Ok(program) => Command::new(program)
            .args(["part", &part.name(), device, &seed.to_string(), "0"])
            .exec(),
        Err(error) => error,
    }
}

/// All programs that run.
pub(crate) struct Cast {
    running: BTreeMap<Actor, (Part, Child)>,
    next: u32,
    sender: Sender<(Actor, Said)>,
    receiver: Receiver<(Actor, Said)>,
}

impl Cast {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { running: BTreeMap::new(), next: 0, sender, receiver }
    }

    /// Starts a program.
    pub(crate) fn start(
        &mut self,
        part: Part,
        device: &str,
        seed: u64,
        connection: u32,
    ) -> Result<Actor, Stop> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["part", &part.name(), device, &seed.to_string(), &connection.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let actor = Actor(self.next);
        self.next += 1;
        let output = child.stdout.take().ok_or_else(|| Stop::fail("no pipe"))?;
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let said = Message::parse(&line).map_or(Said::Odd(line), Said::Message);
                // Nobody listens any more when the trial is over.
                let _ = sender.send((actor, said));
            }
            let _ = sender.send((actor, Said::End));
        });
        self.running.insert(actor, (part, child));
        Ok(actor)
    }

    /// What is heard next, if something is until then.
    pub(crate) fn hear(&self, until: Instant) -> Option<(Actor, Said)> {
        self.receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// Tells a program something. One that is dead does not hear it.
    pub(crate) fn tell(&mut self, actor: Actor, message: Message) {
        let input = self.running.get_mut(&actor).and_then(|(_, child)| child.stdin.as_mut());
        if let Some(input) = input {
            let _ = writeln!(input, "{message}");
        }
    }

    /// Whether the program runs, as far as is known.
    pub(crate) fn has(&self, actor: Actor) -> bool {
        self.running.contains_key(&actor)
    }

    /// Kills a program.
    pub(crate) fn kill(&mut self, actor: Actor) -> Result<(), Stop> {
        let Some((part, mut child)) = self.running.remove(&actor) else { return Ok(()) };
        child.kill()?;
        let status = child.wait()?;
        let killed = status.signal() == Some(libc::SIGKILL);
        ensure!(killed, "{part:?} had ended by itself: {status}");
        Ok(())
    }

    /// A program ended though nobody told it to; says what is known of that.
    pub(crate) fn mourn(&mut self, actor: Actor) -> Stop {
        let Some((part, mut child)) = self.running.remove(&actor) else {
            return Stop::fail("a program ended");
        };
        match child.wait() {
            Ok(status) => Stop::fail(format!("{part:?} ended by itself: {status}")),
            Err(error) => error.into(),
        }
    }

    /// Asks a program to end, and waits until it has.
    pub(crate) fn end(&mut self, actor: Actor) -> Result<(), Stop> {
        let Some((part, mut child)) = self.running.remove(&actor) else { return Ok(()) };
        drop(child.stdin.take());
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait()? {
                ensure!(status.success(), "{part:?}: {status}");
                return Ok(());
            }
            if Instant::now() > end {
                child.kill()?;
                child.wait()?;
                return Err(Stop::fail(format!("{part:?} does not end")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        for (_, child) in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
