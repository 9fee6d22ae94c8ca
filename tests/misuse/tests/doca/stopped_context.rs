//! A stopped context is a builder, to be configured again.

use verbless_doca::dma::Dma;
use verbless_doca::{Dev, WorkQ};

fn main() {}

pub fn adds_after_the_stop(workq: &mut WorkQ, dma: Dma) -> Dev {
    let _builder = dma.stop().unwrap();
    workq.add(&dma).unwrap();
    dma.dev().clone()
}
