//! Moving payload: from one list of SGEs to another.

use super::keys::Sge;
use crate::memory::Spaces;

/// Which end of a transfer a fault was at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    Source,
    Target,
}

/// Copies everything in `source` (inline ones lie in `wqe`) to the start of `target`, which is at
/// least as long.
pub(crate) fn transfer(
    spaces: &Spaces,
    source: &[Sge],
    wqe: &[u8],
    target: &[Sge],
) -> Result<(), TransferEnd> {
    let mut targets = target.iter();
    let mut into = targets.next().copied();
    let mut written = 0;
    for sge in source {
        let mut read = 0;
        while read < sge.length() {
            let Some(current) = into else { return Err(TransferEnd::Target) };
            let here = (sge.length() - read).min(current.length() - written);
            if here > 0 {
                copy(spaces, (*sge, read), wqe, (current, written), here)?;
            }
            read += here;
            written += here;
            if written == current.length() {
                into = targets.next().copied();
                written = 0;
            }
        }
    }
    Ok(())
}

/// Copies between two SGEs, from an offset in each on.
fn copy(
    spaces: &Spaces,
    (source, read): (Sge, u64),
    wqe: &[u8],
    (target, written): (Sge, u64),
    length: u64,
) -> Result<(), TransferEnd> {
    // The null key discards writes.
    let Sge::Memory { space, address: target, .. } = target else { return Ok(()) };
    let to = spaces.get(space);
    let target = target.checked_add(written).ok_or(TransferEnd::Target)?;
    match source {
        Sge::Memory { space, address, .. } => {
            let address = address.checked_add(read).ok_or(TransferEnd::Source)?;
            spaces.get(space).copy_to(address, to, target, length).map_err(|fault| {
                if (address..address.saturating_add(length)).contains(&fault.address) {
                    TransferEnd::Source
                } else {
                    TransferEnd::Target
                }
            })
        }
        Sge::Inline { at, .. } => {
            let at = at + read as usize;
            let bytes = wqe.get(at..at + length as usize).ok_or(TransferEnd::Source)?;
            to.write(target, bytes).map_err(|_| TransferEnd::Target)
        }
        Sge::Null { .. } => {
            const ZEROS: [u8; 256] = [0; 256];
            let mut done = 0;
            while done < length {
                let here = (length - done).min(ZEROS.len() as u64);
                to.write(target + done, &ZEROS[..here as usize])
                    .map_err(|_| TransferEnd::Target)?;
                done += here;
            }
            Ok(())
        }
    }
}

/// Copies `source` into `bytes`, as many as there are.
pub(crate) fn gather(
    spaces: &Spaces,
    source: &[Sge],
    wqe: &[u8],
    bytes: &mut [u8],
) -> Result<(), TransferEnd> {
    let mut done = 0;
    for sge in source {
        let here = (bytes.len() - done).min(sge.length() as usize);
        let into = &mut bytes[done..done + here];
        match *sge {
            Sge::Memory { space, address, .. } => {
                spaces.get(space).read(address, into).map_err(|_| TransferEnd::Source)?;
            }
            Sge::Inline { at, .. } => {
                into.copy_from_slice(wqe.get(at..at + here).ok_or(TransferEnd::Source)?);
            }
            Sge::Null { .. } => into.fill(0),
        }
        done += here;
    }
    Ok(())
}

/// Copies `bytes` to the start of `target`.
pub(crate) fn scatter(spaces: &Spaces, target: &[Sge], bytes: &[u8]) -> Result<(), TransferEnd> {
    transfer(spaces, &[Sge::Inline { at: 0, length: bytes.len() as u64 }], bytes, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Space, in_process};

    const HERE: Space = Space::of(0);

    fn at(bytes: &[u8]) -> u64 {
        bytes.as_ptr() as u64
    }

    #[test]
    fn transfer_copies_between_sges_of_different_lengths() {
        let memory = in_process();
        let spaces: Spaces = [memory.clone()].into_iter().collect();
        let source: Vec<u8> = (1..=20).collect();
        let wqe = [0xee, 77, 78, 79];
        let target = [0u8; 40];
        let from = [
            Sge::Memory { space: HERE, address: at(&source), length: 7 },
            Sge::Inline { at: 1, length: 3 },
            Sge::Null { length: 2 },
            Sge::Memory { space: HERE, address: at(&source) + 7, length: 13 },
        ];
        let to = [
            Sge::Memory { space: HERE, address: at(&target), length: 5 },
            Sge::Null { length: 1 },
            Sge::Memory { space: HERE, address: at(&target) + 10, length: 30 },
        ];
        transfer(&spaces, &from, &wqe, &to).unwrap();
        let mut seen = [0; 40];
        memory.read(at(&target), &mut seen).unwrap();
        assert_eq!(seen[..10], [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]);
        assert_eq!(
            seen[10..32],
            [7, 77, 78, 79, 0, 0, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 0, 0, 0]
        );
        let mut gathered = [0xa5; 14];
        gather(&spaces, &from, &wqe, &mut gathered).unwrap();
        assert_eq!(gathered, [1, 2, 3, 4, 5, 6, 7, 77, 78, 79, 0, 0, 8, 9]);
    }

    #[test]
    fn fault_names_source_or_target_end() {
        let memory = in_process();
        let spaces: Spaces = [memory.clone()].into_iter().collect();
        let good = [0u8; 8];
        let good = Sge::Memory { space: HERE, address: at(&good), length: 8 };
        let bad = Sge::Memory { space: HERE, address: 16, length: 8 };
        assert_eq!(transfer(&spaces, &[bad], &[], &[good]), Err(TransferEnd::Source));
        assert_eq!(transfer(&spaces, &[good], &[], &[]), Err(TransferEnd::Target));
        assert_eq!(gather(&spaces, &[bad], &[], &mut [0; 4]), Err(TransferEnd::Source));
        assert_eq!(scatter(&spaces, &[bad], &[1]), Err(TransferEnd::Target));
    }
}
