//! Only a started context makes jobs.

use verbless_doca::dma::Dma;
use verbless_doca::{Buf, Dev, WorkQ};

fn main() {}

pub fn submits_before_the_start(workq: &mut WorkQ, dev: &Dev, from: Buf, to: Buf) {
    let dma = Dma::builder(dev);
    workq.submit(dma.memcpy(from, to)).unwrap();
}
