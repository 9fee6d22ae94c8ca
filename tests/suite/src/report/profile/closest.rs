//! The built-in profile that is closest to a report.

use crate::profiles::PROFILES;
use crate::report::document::{DeviceFacts, Query};
use crate::report::facts::facts;
use crate::{Choice, Lab, Stop};

use super::Card;

/// What the model says with a profile: a name or a TOML file.
pub(in crate::report) fn facts_of(profile: &str, link: &str) -> Result<Vec<DeviceFacts>, Stop> {
    let choice = Choice { profile: profile.into(), link: Some(link.into()), ..Choice::default() };
    let facts = facts(&Lab::open(&choice)?);
    Ok(facts.into_iter().map(DeviceFacts::without_identity).collect())
}

/// The name of the built-in profile with the same PCI device and the fewest other values; of
/// several with equally many, the first.
pub(super) fn closest(card: &Card<'_>) -> Result<&'static str, Stop> {
    let mut ranked = Vec::new();
    for (name, _) in PROFILES {
        let facts = facts_of(name, card.link)?;
        let of = |side| facts.iter().find(|it| it.side == side);
        let known = card.known()?;
        let other = of(known.side);
        let same_device = other.is_some_and(|it| it.pci.device_id == known.pci.device_id);
        let pairs = [card.host, card.dpu].into_iter().flatten();
        let other_values: usize =
            pairs.map(|it| of(it.side).map_or(usize::MAX / 4, |other| differing(it, other))).sum();
        ranked.push((!same_device, other_values, name));
    }
    let best = ranked.into_iter().min_by_key(|&(other_device, values, _)| (other_device, values));
    best.map(|(.., name)| name).ok_or_else(|| Stop::fail("there is no built-in profile"))
}

/// The number of values in which two devices differ.
fn differing(one: &DeviceFacts, other: &DeviceFacts) -> usize {
    let pages = one.pages.iter().map(|page| {
        let found = other.pages.iter().find(|it| it.number == page.number);
        let theirs = found.map(|page| page.capabilities()).unwrap_or_default();
        let ours = page.capabilities();
        let differ = |index: usize, of: &crate::report::fields::Capability| match theirs.get(index)
        {
            Some(it) => it.current != of.current || it.maximum != of.maximum,
            None => !of.current.is_zero(),
        };
        ours.iter().enumerate().filter(|(index, of)| differ(*index, of)).count()
    });
    let ports = one.ports.iter().zip(&other.ports).filter(|(ours, theirs)| ours != theirs).count();
    let query = |it: &&Query| !other.queries.contains(it);
    pages.sum::<usize>() + ports + one.queries.iter().filter(query).count()
}
