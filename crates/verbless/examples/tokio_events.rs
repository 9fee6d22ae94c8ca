//! Completions in a tokio program: the file of [`CqEvents`] in an `AsyncFd`.
//!
//! `cargo run --example tokio_events`
//!
//! Several connections on one thread. Each has a task that serves its queue pair and sleeps until a
//! completion of it arrives; tokio sleeps when all of them do.

mod support;

use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use verbless::prelude::*;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const CONNECTIONS: usize = 8;
const ROUNDS: u64 = 5;

/// A queue pair, and what lets a task sleep until its completions arrive.
struct Connection {
    qp: Qp,
    cq: Cq,
    region: Region,
    events: CqEvents,
    /// The descriptor of `events` once more, for tokio.
    file: AsyncFd<std::os::fd::OwnedFd>,
}

impl Connection {
    fn new(domain: &Domain) -> Result<Self> {
        let mut cq = domain.completion_queue(&CqConfig::new(32))?;
        let mut qp = domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
        let region = domain.region(4096, KeyAccess::LOCAL)?;
        qp.post_receive(region.sge(0, 64)?, 0)?;
        let events = CqEvents::new(domain.device())?;
        events.add(&mut cq, 0)?;
        let file = std::os::fd::AsFd::as_fd(&events).try_clone_to_owned()?;
        // SAFETY: it is ours, and stays the same as long as the `AsyncFd` has it.
        #[allow(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?;
        Ok(Self { qp, cq, region, events, file })
    }

    /// The next completion.
    async fn next(&mut self) -> Result<Completion> {
        loop {
            if let Some(done) = self.qp.poll(&mut self.cq) {
                return Ok(done?);
            }
            let Self { cq, events, file, .. } = self;
            // Cleared before the events are read: one that comes in between is not lost.
            let readable = async || {
                file.readable().await?.clear_ready();
                Ok(())
            };
            events.ready(cq, readable).await?;
        }
    }

    /// Waits for the next message, and makes room for another.
    async fn receive(&mut self) -> Result<String> {
        loop {
            let done = self.next().await?;
            if done.operation() == Operation::Receive {
                let mut text = vec![0; done.byte_len() as usize];
                self.region.read_at(0, &mut text)?;
                self.qp.post_receive(self.region.sge(0, 64)?, 0)?;
                return Ok(String::from_utf8(text)?);
            }
        }
    }

    fn send(&mut self, text: &str, cookie: u64) -> Result {
        self.qp.post(&wr::Send::new(wr::Inline(text.as_bytes())).signaled(), cookie)?;
        Ok(())
    }
}

/// Answers every message.
async fn serve(mut connection: Connection) -> Result {
    for round in 0..ROUNDS {
        let text = connection.receive().await?;
        connection.send(&text.to_uppercase(), round)?;
    }
    // The last answer has arrived when its completion is there.
    loop {
        let done = connection.next().await?;
        if (done.operation(), done.cookie) == (Operation::Send, ROUNDS - 1) {
            return Ok(());
        }
    }
}

/// Asks, and prints the answers.
async fn ask(number: usize, mut connection: Connection) -> Result {
    for round in 0..ROUNDS {
        connection.send(&format!("hello {round} of {number}"), round)?;
        println!("{}", connection.receive().await?);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn main() -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let found = support::find("auto", "connectx6dx")?;
        println!("{}", found.say);
        let (near, far) = (Domain::new(&found.device(0)?)?, Domain::new(&found.peer()?)?);
        let options = ConnectOptions::default();
        let mut tasks = Vec::new();
        for number in 0..CONNECTIONS {
            let (mut client, mut server) = (Connection::new(&near)?, Connection::new(&far)?);
            let here = near.address(&client.qp, &options)?;
            let there = far.address(&server.qp, &options)?;
            near.connect(&mut client.qp, &there, &options)?;
            far.connect(&mut server.qp, &here, &options)?;
            tasks.push(tokio::task::spawn_local(serve(server)));
            tasks.push(tokio::task::spawn_local(ask(number, client)));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    }))
}
