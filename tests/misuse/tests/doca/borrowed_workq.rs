//! A work queue moves to another thread only while nothing borrows it.

use verbless_doca::WorkQ;

fn main() {}

pub fn sends_it_away(workq: WorkQ) {
    let handle = workq.event_handle();
    std::thread::spawn(move || workq.in_flight());
    drop(handle);
}
