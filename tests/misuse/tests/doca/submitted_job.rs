//! A job is submitted once, and a session of a hash has one part at a time.

use verbless_doca::dma::Memcpy;
use verbless_doca::sha::{Partial, Sha};
use verbless_doca::{Buf, WorkQ};

fn main() {}

pub fn submits_twice(workq: &mut WorkQ, job: Memcpy) {
    workq.submit(job).unwrap();
    workq.submit(job).unwrap();
}

pub fn hashes_two_parts_at_once(sha: &Sha, session: Partial, first: Buf, second: Buf) {
    let _first = sha.update(session, first);
    let _second = sha.update(session, second);
}
