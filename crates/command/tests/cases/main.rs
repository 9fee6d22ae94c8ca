//! Tests of the commands, in one program: linking one per file takes longer than running it.

#[path = "../support/mod.rs"]
mod support;

mod alias;
mod dpa;
mod frames;
mod golden;
mod limits;
mod memory;
mod model;
mod objects;
mod parts;
mod registers;
mod sent;
mod shown;
