//! Tests of the rings, in one program: to link one for each file takes longer than to run it. The
//! one beside this directory counts the allocations of its whole process.

#[path = "../support/mod.rs"]
mod support;

mod frames;
mod golden;
mod lifecycle;
mod limits;
mod operations;
mod retired;
mod settled;
mod shown;
mod srq;
