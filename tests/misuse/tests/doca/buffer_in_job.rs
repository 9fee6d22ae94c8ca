//! A job owns its buffers until it is retrieved.

use verbless_doca::dma::Dma;
use verbless_doca::{Buf, WorkQ};

fn main() {}

pub fn writes_while_the_device_copies(workq: &mut WorkQ, dma: &Dma, from: Buf, mut to: Buf) {
    workq.submit(dma.memcpy(from, to)).unwrap();
    to.append(b"too late").unwrap();
}
