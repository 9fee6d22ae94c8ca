//! Bandwidth and latency between two queue pairs, in the columns of perftest.
//!
//! ```sh
//! cargo run --release --example perf -- write_bw             # the device talks to itself
//! cargo run --release --example perf -- serve 0.0.0.0:7473   # on one machine
//! cargo run --release --example perf -- write_lat 64 SERVER:7473   # on another
//! ```
//!
//! A test is an operation (write, read, send, fetch_add, compare_swap, ud_send) with `_bw` or
//! `_lat`. Without a card, both ends are on the model, and the numbers are the model's.
//!
//! The measured loops are in `tests/perf`, which `hwtest perf` uses, too: that measures many sizes,
//! writes a report, and compares itself with the port's speed. This program only connects two ends.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use verbless::Device;
use verbless_perf::{End, Measured, Plan, Result};

/// The longest message between the two programs.
const MAX_BYTES: usize = 1 << 16;
/// How long the other program may say nothing: a measurement takes 100 s at most.
const PATIENCE: Duration = Duration::from_secs(110);
/// How long it may need to connect.
const HANDSHAKE: Duration = Duration::from_secs(10);

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let found = support::find("auto", "connectx6dx").map_err(|error| error.to_string())?;
    println!("{}", found.description);
    match arguments[..] {
        ["serve", address] => serve(&found.device(0)?, &TcpListener::bind(address)?),
        [test] => show(&plan(test, None)?, &here(&found, &plan(test, None)?)?),
        [test, bytes] => {
            let plan = plan(test, Some(bytes))?;
            show(&plan, &here(&found, &plan)?)
        }
        [test, bytes, server] => {
            let plan = plan(test, Some(bytes))?;
            show(&plan, &there(&found.device(0)?, server, &plan)?)
        }
        [] => {
            Err("usage: perf TEST [BYTES [SERVER]] | perf serve ADDRESS; a test: write_bw".into())
        }
        _ => Err("too many arguments".into()),
    }
}

fn plan(test: &str, bytes: Option<&str>) -> Result<Plan> {
    let mut plan = Plan::named(test).ok_or("no such test: write_bw, read_lat, ud_send_bw, …")?;
    if let Some(bytes) = bytes {
        plan.bytes = bytes.parse()?;
    }
    plan.check()?;
    Ok(plan)
}

fn show(plan: &Plan, measured: &Measured) -> Result {
    println!("{}\n{}", measured.header(), measured.row(plan));
    Ok(())
}

/// Measures with both ends in this program.
fn here(found: &support::Found, plan: &Plan) -> Result<Measured> {
    let mut near = End::new(&found.device(0)?, plan)?;
    let mut far = End::new(&found.peer()?, plan)?;
    let (ours, theirs) = (near.hello()?, far.hello()?);
    near.connect(&theirs)?;
    far.connect(&ours)?;
    std::thread::scope(|scope| {
        let responder = scope.spawn(|| far.respond());
        let measured = near.measure();
        responder.join().map_err(|_| "the responding end panicked")??;
        measured
    })
}

/// Measures with the other end in another program.
fn there(device: &Device, server: &str, plan: &Plan) -> Result<Measured> {
    let mut stream = TcpStream::connect(server)?;
    send(&mut stream, &plan.to_bytes())?;
    let mut end = End::new(device, plan)?;
    connect(&mut stream, &mut end)?;
    let measured = end.measure()?;
    // The other end has received everything; it keeps its queue pairs until it reads this.
    receive(&mut stream)?;
    send(&mut stream, b"end")?;
    Ok(measured)
}

/// Responds to one program after the other. A client may send anything.
fn serve(device: &Device, listener: &TcpListener) -> Result {
    println!("Serving on {}.", listener.local_addr()?);
    loop {
        let (stream, client) = listener.accept()?;
        match respond(device, stream) {
            Ok(plan) => println!("{client}: {}, {} bytes", plan.name(), plan.bytes),
            Err(error) => println!("{client}: {error}"),
        }
    }
}

fn respond(device: &Device, mut stream: TcpStream) -> Result<Plan> {
    stream.set_write_timeout(Some(HANDSHAKE))?;
    stream.set_read_timeout(Some(HANDSHAKE))?;
    let plan = Plan::from_bytes(&receive(&mut stream)?)?;
    let mut end = End::new(device, &plan)?;
    connect(&mut stream, &mut end)?;
    let arrived = end.respond()?;
    send(&mut stream, &arrived.to_be_bytes())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    receive(&mut stream)?;
    Ok(plan)
}

/// Connects to the other program's end, which does the same, and waits until that is connected.
fn connect(stream: &mut TcpStream, end: &mut End) -> Result {
    send(stream, &end.hello()?)?;
    end.connect(&receive(stream)?)?;
    send(stream, b"connected")?;
    receive(stream).map(drop)
}

/// Sends bytes with their number before them.
fn send(stream: &mut TcpStream, bytes: &[u8]) -> Result {
    let length = (bytes.len() as u32).to_be_bytes();
    Ok(stream.write_all(&[&length[..], bytes].concat())?)
}

fn receive(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_BYTES {
        return Err(format!("a message of {length} bytes: {MAX_BYTES} at most").into());
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
