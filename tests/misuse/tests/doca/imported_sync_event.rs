//! A handle made from an export cannot be configured, and must be started.

use verbless_doca::sync_event::{Location, SyncEvent};
use verbless_doca::{Dev, Memory};

fn main() {}

pub fn configures_it(descriptor: &[u8], dev: &Dev, memory: Memory) {
    let event = SyncEvent::create_from_export(descriptor, dev).unwrap();
    let event = event.publisher_add_location(Location::Cpu).unwrap();
    event.memory(memory);
}

pub fn uses_it_before_its_start(descriptor: &[u8], dev: &Dev) {
    let event = SyncEvent::create_from_export(descriptor, dev).unwrap();
    event.get().unwrap();
}
