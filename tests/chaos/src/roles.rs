//! The roles of a program.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use verbless_command::Device;
use verbless_conformance::{Endpoint, Stop};
use verbless_devx::{Backend, Kernel};
use verbless_queue::QpConfig;

use crate::checker::Checker;
use crate::hostile_client;
use crate::message::{Inbox, Message, Received, send};
use crate::random::Random;
use crate::stream::Stream;

/// A role, and its device.
#[derive(clap::Args)]
pub(crate) struct Options {
    role: Role,
    device: String,
    seed: u64,
    /// The connection whose first end it is.
    connection: u32,
}

/// The role of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Makes objects and destroys them, in two threads.
    Churn,
    /// Is the first end of a connection.
    First,
    /// Is the second end of each connection that the controlling process announces.
    Second,
    /// The first of two checkers, which starts each round.
    CheckerFirst,
    /// The second of two checkers.
    CheckerSecond,
    /// Makes malformed and malicious calls.
    Hostile,
}

impl Role {
    /// The role's name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Stop> {
    let inbox = Inbox::new();
    if options.role == Role::Hostile {
        return hostile_client::run(&options.device, &inbox, options.seed);
    }
    let random = Random::new(options.seed);
    let device = open(&options.device)?;
    match options.role {
        Role::Churn => churn(&device, &inbox),
        Role::First => first(&device, &inbox, random, options.connection),
        Role::Second => second(&device, &inbox, random),
        Role::CheckerFirst | Role::CheckerSecond => {
            checker(&device, &inbox, options.role == Role::CheckerFirst, options.connection)
        }
        Role::Hostile => Ok(()),
    }
}

/// Opens a device by its name, through the kernel.
pub(crate) fn open(name: &str) -> Result<Device, Stop> {
    let kernel = Kernel::new();
    let devices = kernel.enumerate()?;
    let info = devices.iter().find(|info| info.name == name);
    Ok(Device::open(&kernel, info.ok_or_else(|| Stop::fail(format!("no device {name}")))?)?)
}

/// Whether the controlling process has asked this one to end.
fn over(inbox: &Inbox) -> bool {
    matches!(inbox.listen(), Received::End)
}

fn churn(device: &Device, inbox: &Inbox) -> Result<(), Stop> {
    let once = || Endpoint::new(device.clone(), &QpConfig::new(16, 16), 64 << 10).map(drop);
    once()?;
    send(Message::Ready)?;
    let again = device.clone();
    std::thread::spawn(move || {
        while Endpoint::new(again.clone(), &QpConfig::new(4, 4), 4 << 10).is_ok() {}
    });
    while !over(inbox) {
        once()?;
    }
    Ok(())
}

fn first(device: &Device, inbox: &Inbox, random: Random, id: u32) -> Result<(), Stop> {
    let mut stream = Stream::new(device, random)?;
    send(Message::Here(id, stream.address()?))?;
    let Some(Message::Peer(_, address)) = inbox.wait() else { return Ok(()) };
    stream.connect(&address)?;
    send(Message::Connected(id))?;
    let Some(Message::Go(_)) = inbox.wait() else { return Ok(()) };
    while !over(inbox) {
        if stream.turn()? {
            send(Message::Lost(id))?;
            let _ = inbox.wait();
            break;
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn second(device: &Device, inbox: &Inbox, mut random: Random) -> Result<(), Stop> {
    // Each stream, and whether it has begun.
    let mut streams = BTreeMap::new();
    loop {
        match inbox.listen() {
            Received::Message(Message::Meet(id, address)) => {
                let mut stream = Stream::new(device, Random::new(random.next()))?;
                stream.connect(&address)?;
                send(Message::Here(id, stream.address()?))?;
                streams.insert(id, (stream, false));
            }
            Received::Message(Message::Go(id)) => {
                if let Some((_, begun)) = streams.get_mut(&id) {
                    *begun = true;
                }
            }
            Received::Message(_) | Received::Nothing => {}
            Received::End => return Ok(()),
        }
        let mut silent = Vec::new();
        for (id, (stream, _)) in streams.iter_mut().filter(|(_, (_, begun))| *begun) {
            if stream.turn()? {
                silent.push(*id);
            }
        }
        for id in silent {
            streams.remove(&id);
            send(Message::Lost(id))?;
        }
        match streams.is_empty() {
            true => std::thread::sleep(Duration::from_micros(200)),
            false => std::thread::yield_now(),
        }
    }
}

fn checker(device: &Device, inbox: &Inbox, begins: bool, id: u32) -> Result<(), Stop> {
    let mut checker = Checker::new(device, begins)?;
    send(Message::Here(id, checker.address()?))?;
    let Some(Message::Peer(_, address)) = inbox.wait() else { return Ok(()) };
    checker.connect(&address)?;
    send(Message::Connected(id))?;
    let Some(Message::Go(_)) = inbox.wait() else { return Ok(()) };
    checker.rounds(inbox)
}
