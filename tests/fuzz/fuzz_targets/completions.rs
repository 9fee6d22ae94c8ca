//! The driver's completion queues against a device that writes arbitrary bytes into them.
#![no_main]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use verbless_command::{Device, KeyAccess};
use verbless_devx::Backend;
use verbless_fuzz::machine::profile;
use verbless_model::memory::{Fault, HostMemory, ProcessMemory};
use verbless_model::{Link, Model};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::{Read, Send, Write, WriteImm};
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig};

/// Maximum requests in a queue, and bytes of a region.
const DEPTH: u32 = 8;
const BYTES: usize = 256;
/// Bytes of a CQE in front of its last byte, which the device writes last.
const BODY: usize = 63;

#[derive(Arbitrary, Debug)]
enum CompletionStep {
    Write {
        length: u8,
        signaled: bool,
    },
    WriteImm(u8),
    Read(u8),
    Send(u8),
    Receive(u8),
    Run,
    Poll {
        from: bool,
        many: bool,
    },
    /// Changes some bytes of each of the next CQEs.
    Spoil(Vec<[(u8, u8); 2]>),
    /// The last byte of the next CQEs.
    Owner(Vec<u8>),
}

/// Memory that corrupts the CQEs that the device writes.
#[derive(Default)]
struct Corrupt {
    bodies: Mutex<Vec<[(u8, u8); 2]>>,
    owners: Mutex<Vec<u8>>,
}

fn next<T>(of: &Mutex<Vec<T>>) -> Option<T> {
    of.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

impl HostMemory for Corrupt {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        ProcessMemory.read(address, into)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let mut bytes = from.to_vec();
        if from.len() == BODY
            && let Some(changes) = next(&self.bodies)
        {
            for (at, value) in changes {
                bytes[usize::from(at) % BODY] ^= value;
            }
        }
        ProcessMemory.write(address, &bytes)
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        ProcessMemory.load32(address)
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        ProcessMemory.store32(address, value)
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        ProcessMemory.store8(address, value ^ next(&self.owners).unwrap_or(0))
    }

    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        ProcessMemory.compare_exchange64(address, expected, new)
    }

    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        ProcessMemory.copy_to(address, target, target_address, length)
    }

    fn direct(&self, address: u64, length: u64) -> Option<NonNull<u8>> {
        ProcessMemory.direct(address, length)
    }
}

/// Posting and polling return values or errors, whatever the device does.
fn run(input: &mut Unstructured<'_>) -> Option<()> {
    let corrupt = Arc::new(Corrupt::default());
    let device = profile(Link::Infiniband).clone();
    let model = Model::builder().device(device).memory(corrupt.clone()).stepped().build();
    let backend = InProcess::of(&model);
    let info = backend.enumerate().ok()?.pop()?;
    let domain = Domain::new(&Device::open(&backend, &info).ok()?).ok()?;
    let config = QpConfig::new(DEPTH, DEPTH);
    let mut here_cq =
        domain.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>())).ok()?;
    let mut there_cq =
        domain.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>())).ok()?;
    let mut here = domain.queue_pair(&config, &here_cq, &here_cq).ok()?;
    let mut there = domain.queue_pair(&config, &there_cq, &there_cq).ok()?;
    // The same numbers in every run.
    let options = ConnectOptions { psn: Some(0), ..Default::default() };
    domain.connect(&mut here, &domain.address(&there, &options).ok()?, &options).ok()?;
    domain.connect(&mut there, &domain.address(&here, &options).ok()?, &options).ok()?;
    let region = domain.region(BYTES, KeyAccess::ALL).ok()?;
    let remote = region.remote(0, 0).ok()?;
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let sge = |length: u8| region.sge(0, length.into()).ok();
        match input.arbitrary().ok()? {
            CompletionStep::Write { length, signaled: true } => {
                let _ = here.post(&Write::new(sge(length)?, remote).signaled(), 1);
            }
            CompletionStep::Write { length, signaled: false } => {
                let _ = here.post(&Write::new(sge(length)?, remote), 2);
            }
            CompletionStep::WriteImm(length) => {
                let _ = here.post(&WriteImm::new(sge(length)?, remote, 7).signaled(), 3);
            }
            CompletionStep::Read(length) => {
                let _ = here.post(&Read::new(sge(length)?, remote).signaled(), 4);
            }
            CompletionStep::Send(length) => {
                let _ = here.post(&Send::new(sge(length)?).signaled(), 5);
            }
            CompletionStep::Receive(length) => {
                let _ = there.post_receive(sge(length)?, 6);
            }
            CompletionStep::Run => {
                for _ in 0..256 {
                    if !model.step() {
                        break;
                    }
                }
            }
            CompletionStep::Poll { from, many } => {
                let (qp, cq) =
                    if from { (&mut here, &mut here_cq) } else { (&mut there, &mut there_cq) };
                let mut completions: [_; 4] = std::array::from_fn(|_| None);
                if many {
                    qp.poll_into(cq, &mut completions);
                } else {
                    completions[0] = qp.poll(cq);
                }
                for completion in completions.into_iter().flatten().flatten() {
                    let _ = (completion.byte_len(), completion.immediate());
                    let _ = (completion.invalidated(), cq.inline_data().len());
                }
            }
            CompletionStep::Spoil(bodies) => {
                *corrupt.bodies.lock().unwrap_or_else(PoisonError::into_inner) = bodies;
            }
            CompletionStep::Owner(owners) => {
                *corrupt.owners.lock().unwrap_or_else(PoisonError::into_inner) = owners;
            }
        }
    }
    Some(())
}

fuzz_target!(|data: &[u8]| {
    run(&mut Unstructured::new(data));
});
