//! Tests of FlexIO on the model in one program: each that is a program of its own is linked by
//! itself, which takes longer than to run it. Those beside this directory measure times, and are
//! alone while they do, or are told what all of their process does.

#[path = "../support/mod.rs"]
mod support;

mod core_dump;
mod crash_names;
mod cross;
mod mapping;
mod numbers;
mod older_version;
mod stepped;
mod values;
