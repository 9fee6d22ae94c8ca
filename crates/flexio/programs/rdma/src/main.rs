//! Answers each message of a host by an RDMA write: the device side of the example `rdma`.

#![no_std]
#![no_main]

mod answers;

use verbless_flexio_dev::program;

program!();
