//! Tests of the kernel interface, in one program: linking one per file takes longer than running
//! it.

#[path = "../support/mod.rs"]
mod support;

mod discovery;
mod errors;
mod flow;
mod fwctl;
mod golden;
mod guest;
mod hostile;
mod ownership;
