//! The valid values of fields of DPA commands.

use super::*;

#[test]
fn affinity_none_takes_no_unit_number() {
    assert_eq!(affinity(DpaAffinity::NONE, 0), Ok(Affinity::Any));
    assert_eq!(affinity(DpaAffinity::STRICT, 0), Ok(Affinity::Unit(0)));
    assert_eq!(affinity(DpaAffinity::STRICT, 7), Ok(Affinity::Unit(7)));
    assert_eq!(affinity(DpaAffinity::GROUP, 7), Ok(Affinity::Group(7)));
    assert_eq!(affinity(DpaAffinity::NONE, 1), Err(Refusal::DpaUnit));
    assert_eq!(affinity(DpaAffinity(15), 0), Err(Refusal::DpaUnit));
}

#[test]
fn entry_must_be_even_and_nonzero() {
    assert_eq!(entry(2), Ok(2));
    assert_eq!(entry(u64::MAX - 1), Ok(u64::MAX - 1));
    for odd in [0, 1, 3, u64::MAX] {
        assert_eq!(entry(odd), Err(Refusal::DpaEntry), "{odd:#x}");
    }
}
