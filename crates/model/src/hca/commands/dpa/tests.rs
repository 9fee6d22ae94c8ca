//! What the fields of commands of the DPA may say.

use super::*;

#[test]
fn a_runner_is_bound_to_any_unit_to_one_or_to_a_group_and_any_has_no_number() {
    assert_eq!(affinity(DpaAffinity::NONE, 0), Ok(Affinity::Any));
    assert_eq!(affinity(DpaAffinity::STRICT, 0), Ok(Affinity::Unit(0)));
    assert_eq!(affinity(DpaAffinity::STRICT, 7), Ok(Affinity::Unit(7)));
    assert_eq!(affinity(DpaAffinity::GROUP, 7), Ok(Affinity::Group(7)));
    assert_eq!(affinity(DpaAffinity::NONE, 1), Err(Refusal::DpaUnit));
    assert_eq!(affinity(DpaAffinity(15), 0), Err(Refusal::DpaUnit));
}

#[test]
fn a_runner_begins_at_an_even_address_that_is_not_0() {
    assert_eq!(entry(2), Ok(2));
    assert_eq!(entry(u64::MAX - 1), Ok(u64::MAX - 1));
    for odd in [0, 1, 3, u64::MAX] {
        assert_eq!(entry(odd), Err(Refusal::DpaEntry), "{odd:#x}");
    }
}
