//! Compares our fields with the table of a public description.
//!
//! A description agrees with a field if its structure has a field of the same bits, whatever its
//! name: projects rename many, and the other name is an alias of ours. Fields of a structure that
//! ours contains are compared too, if the description writes them out. A field of the same name
//! and other bits is a conflict; but a plain C structure may hold a field in a wider word, or use a
//! part of it. From the first conflict of a structure on, only fields of our name agree: a gap of
//! another length moves all that follow. Where our fields overlap, the one of that name agrees.

use std::collections::{BTreeMap, BTreeSet};

use super::names::{Match, Names};
use crate::description::{Content, Description, Field, Structure};
use crate::facts::Layout;
use crate::header::is_of_bits;

/// Results of comparing one description with ours.
#[derive(Debug, Default)]
pub(crate) struct Compared<'a> {
    /// (structure, field) and the field's name there.
    pub(crate) same: BTreeMap<(&'a str, &'a str), String>,
    /// Fields of the same name at other bits.
    pub(crate) conflicts: Vec<Conflict<'a>>,
    /// Structures of ours that the description has.
    pub(crate) structures: usize,
}

impl Compared<'_> {
    /// Fields that agree by their bits only.
    pub(crate) fn renamed(&self) -> BTreeSet<String> {
        let renamed = self.same.iter().filter(|((_, field), there)| !is_named(there, field));
        renamed.map(|((structure, field), _)| format!("{structure}.{field}")).collect()
    }
}

/// A field that a description has at other bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict<'a> {
    pub(crate) structure: &'a str,
    pub(crate) field: &'a str,
    /// First bit and width in ours.
    pub(crate) ours: (u32, u32),
    /// First bit and width there.
    pub(crate) theirs: (u32, u32),
    /// The structure there.
    pub(crate) name: String,
}

impl std::fmt::Display for Conflict<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { structure, field, ours, theirs, name } = self;
        write!(
            f,
            "[{structure}] {field} is at bit {} with {} bits, but {name} has it at bit {} with {}",
            ours.0, ours.1, theirs.0, theirs.1
        )
    }
}

/// Compares all fields with the structures of a description.
pub(crate) fn compare<'a>(
    description: &'a Description,
    name: &str,
    structs: &BTreeMap<String, Layout>,
) -> Compared<'a> {
    let names = Names::new(structs.keys().map(String::as_str));
    let mut compared = Compared::default();
    for structure in &description.structures {
        let matches = names.of(name, structure);
        compared.structures += usize::from(!matches.is_empty());
        for found in matches {
            let layout = Spans::new(&structs[found.name]);
            let place = Place { found, layout: &layout, start: found.at * -8, nested: 0 };
            let mut walk = Walk { description, agreed: Vec::new(), conflicts: Vec::new() };
            walk.structure(structure, &place);
            let astray = walk.conflicts.iter().map(|it| it.ours.0.min(it.theirs.0)).min();
            let own: BTreeSet<(u32, String)> =
                walk.agreed.iter().filter(|it| it.3).map(|it| (it.1, it.2.clone())).collect();
            for (key, start, there, named) in walk.agreed {
                let by_place = astray.is_none_or(|from| start < from)
                    && !own.contains(&(start, there.clone()));
                if named || by_place {
                    compared.same.entry(key).or_insert(there);
                }
            }
            compared.conflicts.extend(walk.conflicts);
        }
    }
    // A later match of the same structure may have the field where ours is.
    let Compared { same, conflicts, .. } = &mut compared;
    conflicts.retain(|conflict| !same.contains_key(&(conflict.structure, conflict.field)));
    compared
}

/// The comparison of one of our structures with one of a description.
struct Walk<'a> {
    description: &'a Description,
    /// Field, its first bit from the start of the outermost structure, its name there, and whether
    /// that is ours.
    agreed: Vec<((&'a str, &'a str), u32, String, bool)>,
    conflicts: Vec<Conflict<'a>>,
}

/// A structure of ours somewhere in a structure of a description.
#[derive(Clone, Copy)]
struct Place<'p> {
    found: Match<'p>,
    layout: &'p Spans<'p>,
    /// First bit of ours there.
    start: i32,
    /// Levels of our structures around it.
    nested: u32,
}

/// The fields of a structure by their bits and by their name.
struct Spans<'t> {
    by_span: BTreeMap<(i32, u32), Vec<&'t str>>,
    by_name: BTreeMap<String, (i32, u32)>,
    bits: u32,
}

impl<'t> Spans<'t> {
    fn new(layout: &'t Layout) -> Self {
        let (by_span, by_name) = (BTreeMap::new(), BTreeMap::new());
        let mut this = Self { by_span, by_name, bits: layout.bits };
        for (name, &(start, width)) in &layout.fields {
            let start = start.cast_signed();
            this.by_span.entry((start, width)).or_default().push(name);
            this.by_name.insert(name.to_lowercase(), (start, width));
        }
        this
    }
}

impl<'a> Walk<'a> {
    fn structure(&mut self, structure: &'a Structure, place: &Place<'_>) {
        for field in &structure.fields {
            self.field(structure, field, place);
            if let Content::Struct(inner) = &field.content
                && let Some(inner) = self.description.structure(inner)
                && place.nested < 3
            {
                let start = place.start + field.start.cast_signed();
                self.structure(inner, &Place { start, nested: place.nested + 1, ..*place });
            }
        }
    }

    fn field(&mut self, structure: &'a Structure, field: &'a Field, place: &Place<'_>) {
        let Place { found, layout, .. } = place;
        let (start, width) = (place.start + field.start.cast_signed(), field.span().width);
        let from_start = start + found.at * 8;
        let key = (structure.name.as_str(), field.name.as_str());
        let mut agree = |name: &str, named| {
            self.agreed.push((key, from_start.max(0).cast_unsigned(), name.to_owned(), named));
        };
        let there = layout.by_span.get(&(start, width)).map_or(&[][..], Vec::as_slice);
        let names = [field.name.as_str(), field.linux.as_deref().unwrap_or(&field.name)];
        if let Some(name) = there.iter().find(|name| names.iter().any(|it| is_named(name, it))) {
            return agree(name, true);
        }
        if let Some(name) = there.first().filter(|_| found.whole) {
            agree(name, false);
        }
        let named = names.iter().find_map(|name| layout.by_name.get(&name.to_lowercase()));
        let Some(&(at, bits)) = named.filter(|_| found.whole && place.nested == 0) else { return };
        let contains = |one: (i32, u32), other: (i32, u32)| {
            one.0 <= other.0 && other.0 + other.1.cast_signed() <= one.0 + one.1.cast_signed()
        };
        let wider = contains((start, width), (at, bits)) || contains((at, bits), (start, width));
        // The last structure of another version may be longer or shorter.
        let nested = matches!(field.content, Content::Struct(_)) || field.tail;
        let last = field.tail || field.span().end() == structure.bytes * 8;
        let ends = bits == 0 || at + bits.cast_signed() == layout.bits.cast_signed();
        if nested && at == start && (last || ends) {
            agree(&field.name, true);
        } else if is_of_bits(found.name) || !wider {
            self.conflicts.push(Conflict {
                structure: key.0,
                field: key.1,
                ours: (field.start, width),
                theirs: ((at - place.start).max(0).cast_unsigned(), bits),
                name: found.name.to_owned(),
            });
        }
    }
}

/// Whether a field has our name there, perhaps with a prefix of its structure.
pub(super) fn is_named(theirs: &str, ours: &str) -> bool {
    let (theirs, ours) = (theirs.to_lowercase(), ours.to_lowercase());
    theirs == ours || theirs.strip_suffix(&ours).is_some_and(|prefix| prefix.ends_with(['_', '.']))
}
