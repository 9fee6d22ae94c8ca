//! Tests of the interface to the kernel in one program: each that is a program of its own is linked
//! by itself, which takes longer than to run it.

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
