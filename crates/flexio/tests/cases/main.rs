//! Tests of FlexIO on the model, in one program: to link one for each file takes longer than to run
//! it. Those beside this directory measure times and are alone while they do, or they are about the
//! whole process: its version of the library, its working directory, what it is told.

#[allow(dead_code, reason = "examples in the documentation use the rest")]
#[path = "../support/documented.rs"]
mod documented;
#[path = "../support/mod.rs"]
mod support;

mod core_dump;
mod cross;
mod emulated;
mod mapping;
mod numbers;
mod objects;
mod programs;
mod stepped;
mod values;
