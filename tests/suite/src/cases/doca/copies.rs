//! Copies of memory by the device, as jobs.

use verbless_doca::dma::Dma;
use verbless_doca::{AccessFlags, ErrorKind};

use super::rig::{BYTES, Rig, copied, failed_job, map, open, refused_job, submit};
use crate::case::cases;
use crate::need::{LARGE_COPIES, cap};
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_dma",
    "Copies of memory by the device, as jobs of DOCA.":
    copy_appends_to_destination_data [cap!(dma_mmo_qp)],
    copies_of_any_length_are_exact [cap!(dma_mmo_qp), LARGE_COPIES],
    memcpy_treats_buf_chain_as_one_range [cap!(dma_mmo_qp)],
    bufs_beyond_limits_are_returned_with_error [cap!(dma_mmo_qp)],
    mmap_of_another_device_is_rejected [cap!(dma_mmo_qp), Need::Peer],
    failed_job_leaves_other_jobs_intact [cap!(dma_mmo_qp), Need::Model],
);

fn copy_appends_to_destination_data(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    rig.fill(0, &pattern(1, 1000))?;
    let mut into = rig.room(4096, 2000)?;
    into.append(b"in front")?;
    let job = dma.memcpy(rig.data(0, 1000)?, into).user_data(5);
    submit(&mut rig.workq, job)?;
    let done = copied(&mut rig.workq)?;
    ensure_eq!((done.user_data.0, done.destination.data_len()), (5, 1008), "user data and length");
    ensure_eq!(rig.bytes(4096, 8)?, b"in front", "the earlier data");
    ensure!(rig.bytes(4104, 1000)? == pattern(1, 1000), "other bytes");
    ensure_eq!(rig.bytes(5104, 64)?, [0; 64], "after them");
    Ok(())
}

fn copies_of_any_length_are_exact(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    rig.fill(0, &pattern(2, BYTES / 2))?;
    for length in [0, 1, 63, 64, 65, 4095, 4097, 100_001, BYTES / 2] {
        let at = BYTES / 2 - length;
        rig.fill(BYTES / 2, &vec![0; BYTES / 2])?;
        let job = dma.memcpy(rig.data(0, length)?, rig.room(BYTES / 2 + at, length)?);
        submit(&mut rig.workq, job)?;
        ensure_eq!(copied(&mut rig.workq)?.destination.data_len(), length as u64, "length");
        ensure!(rig.bytes(BYTES / 2 + at, length)? == pattern(2, length), "{length} bytes");
        ensure!(rig.bytes(BYTES / 2, at)?.iter().all(|&byte| byte == 0), "in front of {length}");
    }
    Ok(())
}

fn memcpy_treats_buf_chain_as_one_range(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    rig.fill(0, &pattern(3, 6000))?;
    let mut source = rig.data(0, 1)?;
    for (at, length) in [(1, 999), (1000, 0), (1000, 5000)] {
        source.link(rig.data(at, length)?).map_err(|refused| refused.error)?;
    }
    let mut into = rig.room(0x4000, 100)?;
    for (at, length) in [(0x5000, 0), (0x6000, 2900), (0x8000, 8000)] {
        into.link(rig.room(at, length)?).map_err(|refused| refused.error)?;
    }
    submit(&mut rig.workq, dma.memcpy(source, into))?;
    let done = copied(&mut rig.workq)?;
    let lengths: Vec<u64> = done.destination.datarooms().map(|it| it.1).collect();
    ensure_eq!(lengths, [100, 0, 2900, 3000], "lengths");
    let got = [rig.bytes(0x4000, 100)?, rig.bytes(0x6000, 2900)?, rig.bytes(0x8000, 3000)?];
    ensure!(got.concat() == pattern(3, 6000), "other bytes");
    Ok(())
}

fn bufs_beyond_limits_are_returned_with_error(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let job = dma.memcpy(rig.data(0, 65)?, rig.room(4096, 64)?);
    let (kind, job) = refused_job(rig.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::InvalidValue, "a destination that is too short");
    drop(job.into_bufs());
    let max = Dma::max_list_buf_num_elem(&rig.dev)?;
    let mut chain = rig.data(0, 1)?;
    for _ in 0..max {
        chain.link(rig.data(0, 1)?).map_err(|refused| refused.error)?;
    }
    let job = dma.memcpy(chain, rig.room(4096, 4096)?);
    let (kind, job) = refused_job(rig.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::InvalidValue, "a chain that is too long");
    let (mut chain, into) = job.into_bufs();
    drop(chain.unlink());
    submit(&mut rig.workq, dma.memcpy(chain, into))?;
    copied(&mut rig.workq)?;
    ensure_eq!(rig.inventory.num_free_elements(), super::rig::BUFFERS, "free buffers");
    Ok(())
}

fn mmap_of_another_device_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let strange = map(&open(lab, lab.other_info())?, 4096, AccessFlags::LOCAL_READ_WRITE)?;
    let from = rig.inventory.buf_by_data(&strange, strange.address(), 64)?;
    let job = dma.memcpy(from, rig.room(0, 64)?);
    let (kind, _job) = refused_job(rig.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::NotPermitted, "kind of the refusal");
    Ok(())
}

fn failed_job_leaves_other_jobs_intact(lab: &Lab) -> Result<(), Stop> {
    use verbless_prm::CqeSyndrome;
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    rig.fill(0, &pattern(4, 64))?;
    lab.model()?.fail_request(0, None, 3, CqeSyndrome::LOCAL_PROTECTION);
    for number in 0..8 {
        let job = dma.memcpy(rig.data(0, 64)?, rig.room(0x1000 * (number + 1), 64)?);
        submit(&mut rig.workq, job.user_data(number as u64))?;
    }
    ensure_eq!(copied(&mut rig.workq)?.user_data.0, 0, "the first");
    ensure_eq!(copied(&mut rig.workq)?.user_data.0, 1, "the second");
    ensure_eq!(failed_job(&mut rig.workq)?, ErrorKind::NotPermitted, "the third");
    for number in 3..8u64 {
        ensure_eq!(copied(&mut rig.workq)?.user_data.0, number, "the next task");
        let at = 0x1000 * (number as usize + 1);
        ensure!(rig.bytes(at, 64)? == pattern(4, 64), "bytes of job {number}");
    }
    ensure_eq!(rig.bytes(0x3000, 64)?, [0; 64], "bytes of the job that failed");
    Ok(())
}
