//! Arguments whose types or number differ from the function's.

use verbless_flexio::{Error, Function, Process};

fn types(process: &Process, add: Function<(u64, u32), u64>) -> Result<u64, Error> {
    process.call(add, (2_u64, "three"))
}

fn number(process: &Process, add: Function<(u64, u32), u64>) -> Result<u64, Error> {
    process.call(add, (2, 3, 4))
}

fn result(process: &Process, add: Function<(u64, u32), u64>) -> Result<bool, Error> {
    process.call(add, (2, 3))
}

fn main() {}
