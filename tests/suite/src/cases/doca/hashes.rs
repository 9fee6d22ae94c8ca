//! Hashes, computed in software.

use verbless_doca::sha::{Algorithm, HashDone, Sha};
use verbless_doca::{ErrorKind, Event};

use super::rig::{Rig, event, open, refusal, submit};
use crate::case::cases;
use crate::{Lab, Stop, ensure_eq, pattern};

cases!(
    "doca_sha",
    "Hashes as jobs of DOCA, computed in software.":
    digests_of_abc_match_fips_180_4,
    partial_updates_yield_digest_of_whole_message,
    sha_hardware_is_not_supported,
);

/// Hashes of "abc": FIPS 180-4's own examples, the first eight bytes.
const ABC: [(Algorithm, u64, [u8; 8]); 3] = [
    (Algorithm::Sha1, 20, [0xa9, 0x99, 0x3e, 0x36, 0x47, 0x06, 0x81, 0x6a]),
    (Algorithm::Sha256, 32, [0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea]),
    (Algorithm::Sha512, 64, [0xdd, 0xaf, 0x35, 0xa1, 0x93, 0x61, 0x7a, 0xba]),
];

fn context(rig: &mut Rig) -> Result<Sha, Stop> {
    let sha = Sha::builder(&rig.dev).start()?;
    rig.workq.add(&sha)?;
    Ok(sha)
}

fn hashed(rig: &mut Rig) -> Result<HashDone, Stop> {
    match event(&mut rig.workq)? {
        Event::Sha(done) => Ok(done),
        other => Err(Stop::fail(format!("not a hash: {other:?}"))),
    }
}

fn digests_of_abc_match_fips_180_4(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let sha = context(&mut rig)?;
    rig.fill(0, b"abc")?;
    for (algorithm, length, start) in ABC {
        let job = sha.hash(algorithm, rig.data(0, 3)?, rig.room(4096, 64)?);
        submit(&mut rig.workq, job)?;
        let done = hashed(&mut rig)?;
        let written = done.destination.map(|buffer| buffer.data_len());
        ensure_eq!(written, Some(length), format!("bytes of {algorithm:?}"));
        ensure_eq!(rig.bytes(4096, 8)?, start, format!("digest of {algorithm:?}"));
    }
    Ok(())
}

fn partial_updates_yield_digest_of_whole_message(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let sha = context(&mut rig)?;
    rig.fill(0, &pattern(1, 1000))?;
    let job = sha.hash(Algorithm::Sha256, rig.data(0, 1000)?, rig.room(4096, 32)?);
    submit(&mut rig.workq, job)?;
    hashed(&mut rig)?;
    // A part must be whole blocks (64 bytes here).
    let mut session = sha.partial(Algorithm::Sha256);
    for (at, length) in [(0, 64), (64, 640)] {
        let job = sha.update(session, rig.data(at, length)?);
        submit(&mut rig.workq, job)?;
        let back = hashed(&mut rig)?.session;
        session = back.ok_or_else(|| Stop::fail("the job did not return the session"))?;
    }
    let job = sha.finish(session, rig.data(704, 296)?, rig.room(8192, 32)?);
    submit(&mut rig.workq, job)?;
    hashed(&mut rig)?;
    ensure_eq!(rig.bytes(8192, 32)?, rig.bytes(4096, 32)?, "digest");
    Ok(())
}

fn sha_hardware_is_not_supported(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    for (algorithm, ..) in ABC {
        Sha::job_supported(&dev, algorithm)?;
    }
    ensure_eq!(refusal(Sha::hardware_supported(&dev))?, ErrorKind::NotSupported, "hardware");
    Ok(())
}
