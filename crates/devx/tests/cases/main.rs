//! Tests of the interface to the kernel, in one program: to link one for each file takes longer
//! than to run it.

#[path = "../support/mod.rs"]
mod support;

mod control;
mod discovery;
mod errors;
mod flow;
mod golden;
mod guest;
mod hostile;
mod ownership;
