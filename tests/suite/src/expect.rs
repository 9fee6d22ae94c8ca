//! The skips that are expected in each environment: `expected-skips.toml`. Cases are skipped by
//! their needs, so the list states which skips are right; a skip that it does not explain fails the
//! run, and so does an entry that explains none.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::{Lab, Need, Stop};

/// The list, compiled into the program.
const LIST: &str = include_str!("../expected-skips.toml");

/// The features that an environment lacks.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Environment {
    /// An environment whose entries belong to this one too.
    like: Option<String>,
    /// Needs that are missing there.
    #[serde(default)]
    lacks: BTreeSet<String>,
    /// Needs that depend on the machine.
    #[serde(default)]
    perhaps: BTreeSet<String>,
}

/// The environments that the list knows.
pub fn environments() -> Result<Vec<String>, Stop> {
    Ok(list()?.into_iter().map(|(name, _)| name).collect())
}

fn list() -> Result<Vec<(String, Environment)>, Stop> {
    let table: toml::Table = LIST.parse()?;
    let read = |(name, entry): (String, toml::Value)| Ok::<_, Stop>((name, entry.try_into()?));
    let listed: Vec<(String, Environment)> =
        table.into_iter().map(read).collect::<Result<_, Stop>>()?;
    listed.iter().map(|(name, own)| Ok((name.clone(), own.with_base(&listed)?))).collect()
}

/// Compares the skips in this lab with the list's entry for `environment`: one line for each
/// unexpected skip or unused entry. The cases are given by name and needs.
pub fn unexpected_skips<'a>(
    lab: &Lab,
    environment: &str,
    cases: impl IntoIterator<Item = (String, &'a [Need])>,
) -> Result<Vec<String>, Stop> {
    let expected = list()?.into_iter().find(|(name, _)| name == environment);
    let (_, expected) = expected.ok_or_else(|| {
        let known = environments().unwrap_or_default().join(", ");
        Stop::fail(format!(
            "expected-skips.toml has no environment {environment:?}; it has {known}"
        ))
    })?;
    let (mut needed, mut lacking) = (BTreeSet::new(), BTreeSet::new());
    let mut lines = Vec::new();
    for (case, needs) in cases {
        needed.extend(needs.iter().map(ToString::to_string));
        for need in lab.missing(needs)? {
            if lacking.insert(need.to_string()) && !expected.explains(&need.to_string()) {
                lines.push(format!(
                    "{case} is skipped: it lacks {need}, which {environment:?} is not expected \
                     to lack"
                ));
            }
        }
    }
    lines.extend(expected.mistakes(environment, &needed, &lacking));
    Ok(lines)
}

impl Environment {
    /// Merges the entries of the environment named by `like`. A need that is in `lacks` is dropped
    /// from `perhaps`.
    fn with_base(&self, listed: &[(String, Self)]) -> Result<Self, Stop> {
        let mut whole = self.clone();
        if let Some(like) = &self.like {
            let base = listed.iter().find(|(name, base)| name == like && base.like.is_none());
            let (_, base) =
                base.ok_or_else(|| Stop::fail(format!("there is no environment {like:?}")))?;
            whole.lacks.extend(base.lacks.iter().cloned());
            whole.perhaps.extend(base.perhaps.iter().cloned());
            whole.perhaps.retain(|need| !whole.lacks.contains(need));
        }
        Ok(whole)
    }

    fn explains(&self, need: &str) -> bool {
        self.lacks.contains(need) || self.perhaps.contains(need)
    }

    /// Entries that explain no skip: the feature is there, or no case needs it.
    fn mistakes(
        &self,
        environment: &str,
        needed: &BTreeSet<String>,
        lacking: &BTreeSet<String>,
    ) -> Vec<String> {
        let stale = self.lacks.difference(lacking).map(|need| {
            format!("{environment:?} is expected to lack {need}, but no case is skipped for it")
        });
        let unknown = self
            .perhaps
            .difference(needed)
            .map(|need| format!("{environment:?} may lack {need}, but no case needs it"));
        stale.chain(unknown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_expected_skip_is_a_need_of_some_case() {
        let needs: BTreeSet<_> =
            crate::cases().flat_map(|case| &case.needs).map(ToString::to_string).collect();
        let suites = |(name, _): &(String, Environment)| !name.starts_with("process ");
        for (environment, entry) in
            list().expect("the list is well-formed").into_iter().filter(suites)
        {
            for need in entry.lacks.union(&entry.perhaps) {
                assert!(needs.contains(need), "{environment}: no case needs {need}");
            }
        }
    }

    #[test]
    fn entry_without_matching_skip_is_stale() {
        let entry = Environment { like: None, lacks: set(&["a bond"]), perhaps: set(&["a limit"]) };
        assert!(entry.explains("a bond") && entry.explains("a limit"));
        assert!(!entry.explains("a peer"));
        let needed = set(&["a bond", "a limit"]);
        assert!(entry.mistakes("here", &needed, &set(&["a bond"])).is_empty());
        let stale = entry.mistakes("here", &needed, &set(&[]));
        assert!(stale.len() == 1 && stale[0].contains("lack a bond"), "{stale:?}");
        let unknown = entry.mistakes("here", &set(&["a bond"]), &set(&["a bond"]));
        assert!(unknown.len() == 1 && unknown[0].contains("a limit"), "{unknown:?}");
    }

    #[test]
    fn card_lacks_what_every_card_lacks() {
        let listed = list().expect("the list is well-formed");
        let of = |name: &str| listed.iter().find(|(it, _)| it == name).expect(name).1.clone();
        for card in ["connectx5", "connectx6dx", "connectx7", "bluefield2", "bluefield3"] {
            let (card, all) = (of(card), of("hardware"));
            assert!(card.lacks.is_superset(&all.lacks) && !all.lacks.is_empty());
            assert!(card.lacks.is_disjoint(&card.perhaps));
            assert!(all.perhaps.iter().all(|need| card.explains(need)));
        }
        assert!(of("connectx5").lacks.contains("hca_cap.apu"));
        let lost = Environment { like: Some("nothing".into()), ..Environment::default() };
        assert!(lost.with_base(&listed).is_err_and(|Stop(why)| why.contains("\"nothing\"")));
    }

    #[test]
    fn unexplained_skip_is_reported_with_its_need() {
        let choice = crate::Choice { link: Some("infiniband".into()), ..crate::Choice::default() };
        let lab = Lab::open(&choice).expect("the model");
        let needs = || crate::cases().map(|case| (case.id(), &case.needs[..]));
        // On InfiniBand, compared with the entry of an Ethernet port.
        let said =
            unexpected_skips(&lab, "model ethernet", needs()).expect("the environment is known");
        assert!(said.iter().any(|line| line.contains("an Ethernet port")), "{said:?}");
        let known = unexpected_skips(&lab, "nowhere", needs());
        assert!(known.is_err_and(|Stop(why)| why.contains("model ethernet")));
    }
}
