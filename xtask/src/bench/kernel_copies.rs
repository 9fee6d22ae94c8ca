//! The rate of the kernel's copies between processes on this machine. It bounds the data path of a
//! program under `verbless-model run`, and differs between machines by more than our own work does.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::getpid;

use crate::workspace::Result;

/// Rounds; the best one counts.
const ROUNDS: u32 = 20;
const ROUND: Duration = Duration::from_millis(20);
/// Copies between two looks at the clock.
const BATCH: u32 = 16;

/// Reads and writes of `bytes` bytes per second, each by one call.
pub(super) fn per_second(bytes: usize) -> Result<f64> {
    let (mut here, there) = (vec![0_u8; bytes], vec![1_u8; bytes]);
    let remote = [RemoteIoVec { base: there.as_ptr().addr(), len: bytes }];
    let own = getpid();
    let mut best = 0_f64;
    for _ in 0..ROUNDS {
        let (begin, mut copies) = (Instant::now(), 0);
        while begin.elapsed() < ROUND {
            for _ in 0..BATCH {
                process_vm_readv(own, &mut [IoSliceMut::new(&mut here)], &remote)?;
                process_vm_writev(own, &[IoSlice::new(&here)], &remote)?;
            }
            copies += BATCH;
        }
        best = best.max(f64::from(copies) / begin.elapsed().as_secs_f64());
    }
    Ok(best)
}
