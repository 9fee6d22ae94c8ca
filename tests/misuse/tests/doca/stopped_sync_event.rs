//! A stopped sync event can only be destroyed.

use verbless_doca::sync_event::SyncEvent;

fn main() {}

pub fn sets_it_when_it_is_stopped(event: SyncEvent) {
    let stopped = event.stop();
    event.update_set(1).unwrap();
    stopped.start().unwrap();
}
