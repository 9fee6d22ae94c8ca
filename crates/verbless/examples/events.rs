//! Sleeps until messages arrive, instead of polling for them.
//!
//! `cargo run --example events`
//!
//! A thread sends a message from time to time from one device to another; the receiver's thread
//! sleeps in between. [`CqEvents`] arms the completion queue and is the file that it sleeps on.

mod support;

use std::time::{Duration, Instant};

use verbless::prelude::*;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MESSAGES: u64 = 10;
const MAX_MESSAGE_BYTES: usize = 256;

fn main() -> Result {
    let found = support::find("auto", "connectx6dx").map_err(|error| error.to_string())?;
    println!("{}", found.description);
    let (near, far) = (Domain::new(&found.device(0)?)?, Domain::new(&found.peer()?)?);
    let mut near_cq = near.completion_queue(&CqConfig::new(64))?;
    let mut far_cq = far.completion_queue(&CqConfig::new(64))?;
    let mut sender = near.queue_pair(&QpConfig::new(16, 1), &near_cq, &near_cq)?;
    let mut receiver = far.queue_pair(&QpConfig::new(1, 16), &far_cq, &far_cq)?;

    // Receives come first: the peer may send as soon as both are connected.
    let region = far.region(16 * MAX_MESSAGE_BYTES, KeyAccess::LOCAL)?;
    for slot in 0..16 {
        receiver.post_receive(
            region.sge(slot as usize * MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)?,
            slot,
        )?;
    }
    let options = ConnectOptions::default();
    let (here, there) = (near.address(&sender, &options)?, far.address(&receiver, &options)?);
    near.connect(&mut sender, &there, &options)?;
    far.connect(&mut receiver, &here, &options)?;

    let mut events = CqEvents::new(far.device())?;
    events.add(&mut far_cq, 0)?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || -> Result {
            for number in 0..MESSAGES {
                std::thread::sleep(Duration::from_millis(100));
                let text = format!("message {number}");
                sender.post(&wr::Send::new(wr::Inline(text.as_bytes())).signaled(), number)?;
                let done = near_cq.poll_within(Duration::from_secs(10))?;
                sender.complete(done.ok_or("the message was not acknowledged")?)?;
            }
            Ok(())
        });
        let begin = Instant::now();
        let mut received = 0;
        while received < MESSAGES {
            // True: there are completions. False: ten seconds have passed without one.
            if !events.wait_for(&mut far_cq, Some(Duration::from_secs(10)))? {
                return Err("no message within 10 s".into());
            }
            while let Some(done) = receiver.poll(&mut far_cq) {
                let done = done?;
                let mut text = vec![0; done.byte_len() as usize];
                let slot = done.cookie as usize * MAX_MESSAGE_BYTES;
                region.read_at(slot, &mut text)?;
                receiver.post_receive(region.sge(slot, MAX_MESSAGE_BYTES)?, done.cookie)?;
                println!("{:>5.0?}: {}", begin.elapsed(), String::from_utf8_lossy(&text));
                received += 1;
            }
        }
        sending.join().map_err(|_| "the sender panicked")?
    })
}
