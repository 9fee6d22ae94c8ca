//! A server and its clients in one tokio program, on one thread.
//!
//! `cargo run --example tokio_events --features tokio`
//!
//! Each connection begins with a handshake over TCP within a time limit, and has a task that serves
//! its queue pair. The task sleeps until a completion of the queue pair arrives, and tokio's thread
//! sleeps while all tasks do.

mod support;

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use verbless::prelude::*;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const CONNECTIONS: usize = 8;
const ROUNDS: u64 = 5;
/// Time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A queue pair, with the events that wake a task for its completions.
struct Connection {
    qp: Qp,
    cq: Cq,
    region: Region,
    events: AsyncCqEvents,
}

impl Connection {
    /// Connects with the program at the other end of `stream`.
    async fn new(domain: &Domain, mut stream: TcpStream) -> Result<Self> {
        let mut cq = domain.completion_queue(&CqConfig::new(32))?;
        let mut qp = domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
        let region = domain.region(4096, KeyAccess::LOCAL)?;
        // The peer may send as soon as it is connected.
        qp.post_receive(region.sge(0, 64)?, 0)?;
        let events = AsyncCqEvents::new(domain.device())?;
        events.add(&mut cq, 0)?;
        let options = ConnectOptions::default();
        domain.handshake_async(&mut qp, &mut stream, &[], &options, HANDSHAKE_TIMEOUT).await?;
        Ok(Self { qp, cq, region, events })
    }

    /// The next completion.
    async fn next(&mut self) -> Result<Completion> {
        loop {
            if let Some(done) = self.qp.poll(&mut self.cq) {
                return Ok(done?);
            }
            self.events.ready(&mut self.cq).await?;
        }
    }

    /// Waits for the next message, and makes room for another.
    async fn receive(&mut self) -> Result<String> {
        loop {
            let done = self.next().await?;
            if done.operation() == WcOpcode::Receive {
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

/// Answers every message of one client.
async fn serve(mut connection: Connection) -> Result {
    for round in 0..ROUNDS {
        let text = connection.receive().await?;
        connection.send(&text.to_uppercase(), round)?;
    }
    // The last answer has arrived once its completion has.
    loop {
        let done = connection.next().await?;
        if (done.operation(), done.cookie) == (WcOpcode::Send, ROUNDS - 1) {
            return Ok(());
        }
    }
}

/// Sends messages, and prints the answers.
async fn ask(number: usize, mut connection: Connection) -> Result {
    for round in 0..ROUNDS {
        connection.send(&format!("hello {round} of {number}"), round)?;
        println!("{}", connection.receive().await?);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn run() -> Result {
    let found = support::find("auto", "connectx6dx")?;
    println!("{}", found.description);
    let (near, far) = (Domain::new(&found.device(0)?)?, Domain::new(&found.peer()?)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::task::spawn_local(async move {
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let (stream, _) = listener.accept().await?;
            let connection = Connection::new(&far, stream).await?;
            tasks.push(tokio::task::spawn_local(serve(connection)));
        }
        for task in tasks {
            task.await??;
        }
        Result::Ok(())
    });
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        let connection = Connection::new(&near, TcpStream::connect(address).await?).await?;
        clients.push(tokio::task::spawn_local(ask(number, connection)));
    }
    for client in clients {
        client.await??;
    }
    server.await?
}

fn main() -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(run()))
}
