//! Tests of the rings, in one program: linking a program for each file takes longer than running
//! it. `allocation.rs` is a program of its own, because it counts the allocations of its process.

#[path = "../support/mod.rs"]
mod support;

mod cqe;
mod debug;
mod fence;
mod frames;
mod golden;
mod lifecycle;
mod limits;
mod operations;
mod peek_receive;
mod retired;
mod srq;
mod umr;
mod work_queue;
