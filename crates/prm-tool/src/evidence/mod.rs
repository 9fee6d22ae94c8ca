//! What other descriptions say of our fields: tables of public ones ([`source`], [`table`],
//! [`compare`]), mstflint's tables of registers, and recordings of a device and of drivers.
//!
//! A description agrees with a field if it has the field's bits. Two numbers say how well a field
//! is confirmed. **Descriptions** are all that agree, without the one that the field comes from:
//! the first of its `sources`. **Lineages** are the independent ones among them: descriptions that
//! were copied from each other, or from one unpublished original, are one lineage, and the lineage
//! that the field comes from does not count. The headers of Linux, rdma-core, DPDK, UCX, FreeBSD,
//! libdpcp and iPXE are one lineage, the vendor's; so nine descriptions may be one opinion.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::description::{Description, Field, Structure};
use crate::facts::Facts;
use crate::repository::Result;
use crate::runtime::Runtime;
use crate::{adb, cards, golden, mailbox, trace};
use compare::{Compared, compare};
use divergence::Divergences;
use source::{SOURCES, Source, VENDOR, source};

pub(crate) mod compare;
pub(crate) mod divergence;
mod lua;
mod names;
pub(crate) mod source;
pub(crate) mod table;

/// The meaning of the counts and names of [`Confirmations`].
pub(crate) const LEGEND: &str = "descriptions that agree, and independent lineages among them. \
     The vendor's headers are one lineage: linux, rdma-core, dpdk, ucx, freebsd, libdpcp, ipxe, \
     ofed (a fork of linux). The others are one each: mstflint, its tables of registers; openbsd, \
     illumos, snabb, drivers that others wrote; trace, a real ConnectX-4's bring-up and \
     capability pages of a ConnectX-7; golden, WQEs and CQEs of rdma-core; mailbox, what mlx5_ib \
     writes";

/// A field of a structure.
type Key<'a> = (&'a str, &'a str);

/// Fields by structure and name, each with the name that a description has for it if it is another.
type Fields<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Option<String>>>;

/// The descriptions that confirm a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confirmations<'e> {
    /// Names of the descriptions, and the field's other name there.
    agreed: Vec<(&'static str, Option<&'e str>)>,
    lineages: usize,
    forks: usize,
}

impl<'e> Confirmations<'e> {
    /// The number of descriptions.
    pub(crate) fn descriptions(&self) -> usize {
        self.agreed.len()
    }

    /// The number of independent lineages.
    pub(crate) fn lineages(&self) -> usize {
        self.lineages
    }

    /// The number of descriptions that are no fork of the one that the field comes from.
    pub(crate) fn without_forks(&self) -> usize {
        self.agreed.len() - self.forks
    }

    /// The descriptions' names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.agreed.iter().map(|(name, _)| *name)
    }

    /// The field's other names, each with the descriptions that use it.
    pub(crate) fn aliases(&self) -> BTreeMap<&'e str, Vec<&'static str>> {
        let mut aliases: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, alias) in &self.agreed {
            if let Some(alias) = alias {
                aliases.entry(alias).or_default().push(name);
            }
        }
        aliases
    }

    /// Both counts: `7/2`.
    pub(crate) fn counts(&self) -> String {
        format!("{}/{}", self.descriptions(), self.lineages)
    }
}

/// The fields that each description agrees with, and their names there.
#[derive(Debug, Default)]
pub(crate) struct Evidence<'a> {
    agreed: BTreeMap<&'static str, Fields<'a>>,
    divergences: Divergences,
}

impl<'a> Evidence<'a> {
    /// Collects the evidence in the repository at `root`.
    pub(crate) fn gather(root: &Path, description: &'a Description) -> Result<Self> {
        let runtime = Runtime::new(description);
        let mut evidence = Self::tables(root, description)?;
        evidence.recorded("mstflint", adb::compare(description, &adb::read(root)?).same);
        let replay = trace::replay(&runtime, trace::read(root)?);
        let pages = cards::check(root, &runtime)?;
        evidence.recorded("trace", &replay.confirmed | &pages.confirmed);
        evidence.recorded("golden", golden::check(&runtime, &golden::read(root)?).confirmed);
        evidence.recorded("mailbox", mailbox::compare(&runtime, mailbox::read(root)?).confirmed);
        Ok(evidence)
    }

    /// No evidence yet, but what is known to diverge.
    pub(crate) fn with(divergences: Divergences) -> Self {
        Self { divergences, ..Self::default() }
    }

    /// Collects the public descriptions only, which have other names for fields.
    pub(crate) fn tables(root: &Path, description: &'a Description) -> Result<Self> {
        let mut evidence = Self::with(Divergences::read(root)?);
        for (name, compared) in public(root, description)? {
            evidence.public(name, compared);
        }
        Ok(evidence)
    }

    /// Adds a public description.
    pub(crate) fn public(&mut self, name: &'static str, compared: Compared<'a>) {
        let fields = self.agreed.entry(name).or_default();
        for ((structure, field), there) in compared.same {
            let alias = (!compare::is_named(&there, field)).then_some(there);
            if alias.is_some() && self.divergences.why(name, structure, field).is_some() {
                continue; // the same bits, but they mean something else there
            }
            let alias = alias.filter(|alias| !lua::is_unnamed(alias));
            fields.entry(structure).or_default().insert(field, alias);
        }
    }

    /// Adds a recording.
    pub(crate) fn recorded(&mut self, name: &'static str, fields: BTreeSet<Key<'a>>) {
        let agreed = self.agreed.entry(name).or_default();
        for (structure, field) in fields {
            agreed.entry(structure).or_default().insert(field, None);
        }
    }

    /// The evidence that confirms a field.
    pub(crate) fn of(&self, structure: &Structure, field: &Field) -> Confirmations<'_> {
        let sources = field.sources.as_ref().unwrap_or(&structure.sources);
        let own = sources.first().map_or("", |it| it.split(':').next().unwrap_or_default());
        // libmlx5's bytes say nothing of what only rdma-core's source says.
        let only = |name: &str| sources.iter().all(|source| source.starts_with(name));
        let excluded = |name: &str| name == own || (name == "golden" && only("rdma-core"));
        let mut confirmations = Confirmations::default();
        let mut lineages = BTreeSet::new();
        for (&name, fields) in self.agreed.iter().filter(|(name, _)| !excluded(name)) {
            let fields = fields.get(structure.name.as_str());
            let Some(alias) = fields.and_then(|it| it.get(field.name.as_str())) else { continue };
            confirmations.agreed.push((name, alias.as_deref()));
            let fork = source(name).is_some_and(|it| it.fork_of == Some(own));
            confirmations.forks += usize::from(fork);
            lineages.insert(lineage(name, structure));
        }
        lineages.remove(lineage(own, structure));
        confirmations.lineages = lineages.len();
        confirmations
    }

    /// Descriptions that have a field of this name at other bits, and why ours stays.
    pub(crate) fn divergences(&self, structure: &str, field: &str) -> Vec<(&'static str, &str)> {
        let names = SOURCES.iter().map(|source| source.name).chain(["mstflint"]);
        names
            .filter_map(|name| Some((name, self.divergences.why(name, structure, field)?)))
            .collect()
    }

    /// The fields that a description calls so, and ours by another name.
    pub(crate) fn called(&self, name: &str) -> BTreeSet<Key<'a>> {
        let name = name.to_lowercase();
        let mut found = BTreeSet::new();
        self.each_alias(&mut |key, alias| {
            if last(alias).to_lowercase() == name {
                found.insert(key);
            }
        });
        found
    }

    /// Calls `f` for every field and each of its other names.
    pub(crate) fn each_alias(&self, f: &mut dyn FnMut(Key<'a>, &str)) {
        for (structure, fields) in self.agreed.values().flatten() {
            for (field, alias) in fields {
                if let Some(alias) = alias {
                    f((structure, field), last(alias));
                }
            }
        }
    }

    /// The number of fields that a description agrees with.
    pub(crate) fn agreements(&self, name: &str) -> usize {
        self.agreed.get(name).map_or(0, |fields| fields.values().map(BTreeMap::len).sum())
    }
}

/// A name without those of the structures around it.
fn last(alias: &str) -> &str {
    alias.rsplit('.').next().unwrap_or(alias)
}

/// The lineage of what a description says of a structure; a recording is its own.
fn lineage<'n>(name: &'n str, structure: &Structure) -> &'n str {
    match source(name) {
        // OpenBSD's capability page has FreeBSD's names, and its misplaced imaicl.
        Some(Source { name: "openbsd", .. }) if structure.name == "hca_cap" => VENDOR,
        Some(source) => source.lineage,
        None => name,
    }
}

/// Compares our fields with each public description.
pub(crate) fn public<'a>(
    root: &Path,
    description: &'a Description,
) -> Result<Vec<(&'static str, Compared<'a>)>> {
    let mut all = Vec::new();
    for source in SOURCES {
        let mut structs = table::read(root, source)?.structs;
        if source.name == "linux" {
            // The facts that prm import works on are Linux's main header.
            structs.extend(Facts::read(&root.join(crate::import::FACTS))?.structs);
            structs.values_mut().for_each(table::drop_gaps);
        }
        all.push((source.name, compare(description, source.name, &structs)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
