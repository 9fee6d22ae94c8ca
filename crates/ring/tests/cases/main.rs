//! Tests of the rings in one program: each that is a program of its own is linked by itself, which
//! takes longer than to run it. The one beside this directory counts
//! the allocations of its whole process.

#[path = "../support/mod.rs"]
mod support;

mod frames;
mod golden;
mod limits;
mod operations;
mod retired;
mod settled;
mod shared;
mod shown;
