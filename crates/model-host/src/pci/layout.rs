//! The parts of BAR 0: the initialisation segment, trapped UAR pages, mapped UAR pages.

use std::ops::Range;

use verbless_model::Profile;
use verbless_model::memory::UAR_PAGE;

/// The parts of a function's BAR 0.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Bytes of the BAR.
    pub bytes: u64,
    /// Offset of the UAR pages in the BAR; the initialisation segment is before them.
    pub doorbells: u64,
    /// The range that the client may map.
    pub mapped: Option<Range<u64>>,
}

impl Layout {
    /// The layout for a profile; `trap`: the client may map no page.
    pub(super) fn new(profile: &Profile, trap: bool) -> Self {
        let (first, pages) = (profile.first(), profile.device().uar_pages);
        let bytes = u64::from(pages) * UAR_PAGE;
        let mapped = u64::from(first.user_uar) * UAR_PAGE..bytes;
        Self {
            bytes,
            doorbells: u64::from(first.uar) * UAR_PAGE,
            mapped: (!trap).then_some(mapped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_leaves_bar_unmapped() {
        let profile = Profile::load("bluefield3").unwrap();
        assert_eq!(Layout::new(&profile, false).mapped, Some(4 << 20..32 << 20));
        assert_eq!(Layout::new(&profile, true).mapped, None);
    }
}
