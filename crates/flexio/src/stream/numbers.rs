//! The numbers of a process's message streams.

use std::collections::BTreeMap;

use verbless_flexio_dev::stream::table::MAX_STREAMS;

use crate::error::Error;

/// The stream numbers in use, and whether the tracer is.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    taken: [u64; 4],
    pub(crate) tracer: bool,
    /// By number of a stream or the tracer: the count of threads that still use the number's former
    /// owner, by the program's count.
    pub(crate) left: BTreeMap<u64, u64>,
}

impl Streams {
    /// Takes a free number: 0 for the default stream, else one from 1 on.
    pub(crate) fn take(&mut self, default: bool) -> Result<u8, Error> {
        let free = |id: &usize| self.taken[id / 64] >> (id % 64) & 1 == 0;
        let id = match default {
            true if free(&0) => 0,
            true => {
                return Err(Error::Failed(
                    "the process has a default stream: destroy it first, or make another one"
                        .into(),
                ));
            }
            false => (1..MAX_STREAMS).find(free).ok_or_else(|| {
                Error::Failed(format!("the process has {MAX_STREAMS} streams: destroy one first"))
            })?,
        };
        self.taken[id / 64] |= 1 << (id % 64);
        Ok(id as u8)
    }

    pub(crate) fn give_back(&mut self, id: u8) {
        self.taken[usize::from(id) / 64] &= !(1 << (id % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_numbers_are_unique_and_default_is_0() {
        let mut streams = Streams::default();
        assert_eq!(streams.take(true).unwrap(), 0);
        assert!(streams.take(true).is_err());
        let all: Vec<_> = (1..MAX_STREAMS).map(|_| streams.take(false).unwrap()).collect();
        assert_eq!(all, (1..=254).collect::<Vec<_>>());
        assert!(streams.take(false).is_err());
        streams.give_back(77);
        assert_eq!(streams.take(false).unwrap(), 77);
        streams.give_back(0);
        assert_eq!(streams.take(true).unwrap(), 0);
    }
}
