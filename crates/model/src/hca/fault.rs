//! Faults that are to happen at the nth occurrence of something.

/// Faults of type `T`, each of which happens once, at a future occurrence of its `S`.
#[derive(Debug)]
pub(crate) struct Countdowns<S, T> {
    all: Vec<Countdown<S, T>>,
}

#[derive(Debug)]
struct Countdown<S, T> {
    of: S,
    /// Occurrences to let pass first.
    pass: u32,
    what: T,
}

impl<S, T> Default for Countdowns<S, T> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<S, T: Copy> Countdowns<S, T> {
    /// Lets `what` happen at the `nth` occurrence from now; the first is 1.
    pub(crate) fn add(&mut self, of: S, nth: u32, what: T) {
        self.all.push(Countdown { of, pass: nth.saturating_sub(1), what });
    }

    /// The fault that happens at an occurrence of each `S` for which `is_one` holds: one at most.
    pub(crate) fn strike(&mut self, mut is_one: impl FnMut(&S) -> bool) -> Option<T> {
        let mut struck = None;
        self.all.retain_mut(|it| {
            if !is_one(&it.of) {
                return true;
            }
            if it.pass == 0 && struck.is_none() {
                struck = Some(it.what);
                return false;
            }
            it.pass = it.pass.saturating_sub(1);
            true
        });
        struck
    }

    /// Keeps only the faults for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&S) -> bool) {
        self.all.retain(|it| keep(&it.of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_happens_at_its_occurrence_once() {
        let mut faults = Countdowns::default();
        faults.add(0x400, 2, 'a');
        faults.add(0x500, 1, 'b');
        faults.add(0x400, 2, 'c');
        let mut strike = |of| faults.strike(|&it| it == of);
        let struck = [0x400, 0x500, 0x400, 0x500, 0x400, 0x400].map(&mut strike);
        assert_eq!(struck, [None, Some('b'), Some('a'), None, Some('c'), None]);
        faults.add(0x400, 1, 'd');
        faults.retain(|&it| it != 0x400);
        assert_eq!(faults.strike(|_| true), None);
    }
}
