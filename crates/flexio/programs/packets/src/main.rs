//! Sends Ethernet frames back with their addresses swapped: the device side of the example
//! `packets`.

#![no_std]
#![no_main]

mod reflects;

use verbless_flexio_dev::program;

program!();
