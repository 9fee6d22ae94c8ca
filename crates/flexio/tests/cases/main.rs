//! Tests of FlexIO on the model, in one program: linking one per file takes longer than running it.
//! The tests beside this directory measure times and must run alone, or concern the whole process:
//! its FlexIO version, its working directory, its log.

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
