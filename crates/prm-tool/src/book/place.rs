//! The page and anchor of each entry, field and value.

use std::collections::{BTreeMap, BTreeSet};

use crate::description::{Description, Structure};
use crate::find::Target;

/// Paths of pages, relative to a page in a folder of the site.
pub(super) struct Places {
    hrefs: BTreeMap<String, String>,
    /// Structures that are described on the page of their only command.
    inline: BTreeSet<String>,
}

impl Places {
    pub(super) fn new(description: &Description) -> Self {
        let mut places = Self { hrefs: BTreeMap::new(), inline: BTreeSet::new() };
        for command in &description.commands {
            let href = format!("../commands/{}.html", command.name);
            for name in [&command.input, &command.output] {
                let users = description.commands.iter();
                let users = users.filter(|it| it.input == *name || it.output == *name);
                if users.count() == 1 {
                    places.inline.insert(name.clone());
                    places.hrefs.insert(name.clone(), format!("{href}#{name}"));
                }
            }
            places.hrefs.insert(command.name.to_uppercase(), href);
        }
        for structure in &description.structures {
            let folder = folder(structure);
            let href = format!("../{folder}/{}.html", structure.name);
            let href = places.hrefs.entry(structure.name.clone()).or_insert(href).clone();
            let page = href.split('#').next().unwrap_or_default().to_owned();
            for field in &structure.fields {
                let name = format!("{}.{}", structure.name, field.name);
                places.hrefs.insert(name.clone(), format!("{page}#{name}"));
            }
        }
        for e in &description.enums {
            let page = format!("../enums/{}.html", e.name);
            for value in &e.values {
                let command =
                    (e.name == "opcode").then(|| places.hrefs.get(&value.name).cloned()).flatten();
                let href = command.unwrap_or_else(|| format!("{page}#{}", value.name));
                places.hrefs.insert(format!("{}.{}", e.name, value.name), href);
            }
            places.hrefs.insert(e.name.clone(), page);
        }
        places
    }

    /// The path of the entry, field or value of this name, as [`Target::name`] writes it.
    pub(super) fn href(&self, name: &str) -> Option<&str> {
        self.hrefs.get(name).map(String::as_str)
    }

    /// The path of a target.
    pub(super) fn of(&self, target: &Target<'_>) -> &str {
        self.href(&target.name()).unwrap_or_default()
    }

    /// Whether the structure is described on its command's page.
    pub(super) fn is_inline(&self, structure: &Structure) -> bool {
        self.inline.contains(&structure.name)
    }
}

/// The folder of a structure's page.
pub(super) fn folder(structure: &Structure) -> &'static str {
    if structure.name.ends_with("_reg") { "registers" } else { "structures" }
}
