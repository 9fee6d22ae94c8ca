//! The parts that a program can play.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use verbless_command::Device;
use verbless_conformance::{Endpoint, Stop};
use verbless_devx::{Backend, Kernel};
use verbless_queue::QpConfig;

use crate::liar;
use crate::message::{Ear, Heard, Message, say};
use crate::random::Random;
use crate::stream::Stream;
use crate::witness::Witness;

/// Which part, and on which device.
#[derive(clap::Args)]
pub(crate) struct Options {
    part: Part,
    device: String,
    seed: u64,
    /// The connection that it is the first end of.
    connection: u32,
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Makes objects and destroys them, in two threads.
    Churn,
    /// Is the first end of a connection.
    First,
    /// Is the second end of as many connections as it is told of.
    Second,
    /// Rounds with another witness, who is `Hears`.
    Begins,
    /// The other witness.
    Hears,
    /// Lies.
    Liar,
}

impl Part {
    /// As the command line has it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Stop> {
    let ear = Ear::new();
    if options.part == Part::Liar {
        return liar::run(&options.device, &ear, options.seed);
    }
    let random = Random::new(options.seed);
    let device = open(&options.device)?;
    match options.part {
        Part::Churn => churn(&device, &ear),
        Part::First => first(&device, &ear, random, options.connection),
        Part::Second => second(&device, &ear, random),
        Part::Begins | Part::Hears => {
            witness(&device, &ear, options.part == Part::Begins, options.connection)
        }
        Part::Liar => Ok(()),
    }
}

/// Opens a device by its name, through the kernel.
pub(crate) fn open(name: &str) -> Result<Device, Stop> {
    let kernel = Kernel::new();
    let devices = kernel.enumerate()?;
    let info = devices.iter().find(|info| info.name == name);
    Ok(Device::open(&kernel, info.ok_or_else(|| Stop::fail(format!("no device {name}")))?)?)
}

/// Whether there is nobody left to play for.
fn over(ear: &Ear) -> bool {
    matches!(ear.listen(), Heard::End)
}

fn churn(device: &Device, ear: &Ear) -> Result<(), Stop> {
    let once = || Endpoint::new(device.clone(), &QpConfig::new(16, 16), 64 << 10).map(drop);
    once()?;
    say(Message::Made)?;
    let again = device.clone();
    std::thread::spawn(move || {
        while Endpoint::new(again.clone(), &QpConfig::new(4, 4), 4 << 10).is_ok() {}
    });
    while !over(ear) {
        once()?;
    }
    Ok(())
}

fn first(device: &Device, ear: &Ear, random: Random, id: u32) -> Result<(), Stop> {
    let mut stream = Stream::new(device, random)?;
    say(Message::Here(id, stream.place()?))?;
    let Some(Message::Peer(_, place)) = ear.wait() else { return Ok(()) };
    stream.connect(&place)?;
    say(Message::Connected(id))?;
    let Some(Message::Go(_)) = ear.wait() else { return Ok(()) };
    while !over(ear) {
        if stream.turn()? {
            say(Message::Silent(id))?;
            let _ = ear.wait();
            break;
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn second(device: &Device, ear: &Ear, mut random: Random) -> Result<(), Stop> {
    // With whether it has begun.
    let mut streams = BTreeMap::new();
    loop {
        match ear.listen() {
            Heard::Message(Message::Meet(id, place)) => {
                let mut stream = Stream::new(device, Random::new(random.next()))?;
                stream.connect(&place)?;
                say(Message::Here(id, stream.place()?))?;
                streams.insert(id, (stream, false));
            }
            Heard::Message(Message::Go(id)) => {
                if let Some((_, begun)) = streams.get_mut(&id) {
                    *begun = true;
                }
            }
            Heard::Message(_) | Heard::Nothing => {}
            Heard::End => return Ok(()),
        }
        let mut silent = Vec::new();
        for (id, (stream, _)) in streams.iter_mut().filter(|(_, (_, begun))| *begun) {
            if stream.turn()? {
                silent.push(*id);
            }
        }
        for id in silent {
            streams.remove(&id);
            say(Message::Silent(id))?;
        }
        match streams.is_empty() {
            true => std::thread::sleep(Duration::from_micros(200)),
            false => std::thread::yield_now(),
        }
    }
}

fn witness(device: &Device, ear: &Ear, begins: bool, id: u32) -> Result<(), Stop> {
    let mut witness = Witness::new(device, begins)?;
    say(Message::Here(id, witness.place()?))?;
    let Some(Message::Peer(_, place)) = ear.wait() else { return Ok(()) };
    witness.connect(&place)?;
    say(Message::Connected(id))?;
    let Some(Message::Go(_)) = ear.wait() else { return Ok(()) };
    witness.rounds(ear)
}
