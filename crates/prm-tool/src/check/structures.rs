//! Rules for structures: fields are inside the structure and do not overlap, gaps are named, words
//! consist of whole fields, and no structure contains itself.

use std::collections::BTreeMap;

use super::Check;
use crate::at::At;
use crate::description::{Content, Field, Structure, Word, gaps};
use crate::generate::{hot, missing_feature};
use crate::names::{TAKEN, is_snake};

impl Check<'_> {
    pub(super) fn structure(&mut self, structure: &Structure) {
        let file = &structure.file;
        self.entry(file, &structure.name, &structure.doc, &structure.sources);
        let bits = structure.bytes.saturating_mul(8);
        let mut methods: BTreeMap<String, &str> = BTreeMap::new();
        for field in &structure.fields {
            let location = format!("[{}] {}", structure.name, field.name);
            self.field(structure, field, &location);
            let name = &field.name;
            for method in [name.clone(), format!("set_{name}"), format!("{name}_mut")] {
                if let Some(other) = methods.insert(method.clone(), name) {
                    let message = format!("its accessor `{method}` clashes with one of `{other}`");
                    self.error(file, location.clone(), message);
                }
            }
            if field.span().end() > bits {
                let message = format!(
                    "ends at byte 0x{:x}, but the structure has 0x{:x} bytes",
                    field.span().end().div_ceil(8),
                    structure.bytes
                );
                self.error(file, location.clone(), message);
            }
            if field.tail && field.start < bits {
                let message = format!(
                    "is a tail, but begins before byte 0x{:x}, the structure's end",
                    structure.bytes
                );
                self.error(file, location, message);
            }
        }
        self.overlaps(structure);
        self.gaps(structure);
        if !structure.hot && !structure.words.is_empty() {
            let message = "has words, but is not hot; add hot = true";
            self.error(file, format!("[{}]", structure.name), message);
        }
        for word in &structure.words {
            self.word(structure, word);
        }
        if structure.hot {
            for field in hot::fields_without_member(structure) {
                let location = format!("[{}] {}", structure.name, field.name);
                let message = "is neither in a word nor a whole number; add a word around it";
                self.error(&structure.file, location, message);
            }
        }
    }

    /// Checks that a word of a hot structure is aligned and consists of whole number fields.
    fn word(&mut self, structure: &Structure, word: &Word) {
        let (file, span) = (&structure.file, word.span);
        let location = format!("[{}] words: {}", structure.name, word.name);
        if !is_snake(&word.name) {
            self.error(file, location.clone(), "names are lower case letters, digits and _");
        }
        if ![8, 16, 32, 64].contains(&span.width) || !span.start.is_multiple_of(span.width) {
            let message = "is not an aligned word of 1, 2, 4 or 8 bytes";
            self.error(file, location.clone(), message);
        }
        if span.end() > structure.bytes.saturating_mul(8) {
            self.error(file, location.clone(), "ends after the structure");
        }
        if word.fields(structure).next().is_none() {
            self.error(file, location.clone(), "holds no field");
        }
        for field in &structure.fields {
            let of = field.span();
            let number = matches!(field.content, Content::Number | Content::Enum(_));
            let touches = of.start < span.end() && span.start < of.end();
            if touches && !(word.holds(field) && number && !field.array) {
                let message = format!("`{}` is not a whole number in it", field.name);
                self.error(file, location.clone(), message);
            }
        }
        let mut fields: Vec<&Field> = word.fields(structure).collect();
        fields.sort_by_key(|field| field.start);
        for pair in fields.windows(2).filter(|pair| pair[0].span().end() > pair[1].start) {
            let (one, other) = (&pair[0].name, &pair[1].name);
            let message = format!("`{one}` and `{other}` overlap; name the fields of each view");
            self.error(file, location.clone(), message);
        }
        if let Some(of) = &word.of {
            let shape = |structure: &Structure, word: &Word| -> Vec<(String, u32, u32)> {
                let fields = word.fields(structure);
                fields.map(|f| (f.name.clone(), f.start - word.span.start, f.width)).collect()
            };
            let other = self.description.structure(of);
            let same = other.and_then(|other| {
                let defined = other.words.iter().find(|other| other.name == word.name)?;
                Some(shape(other, defined) == shape(structure, word) && defined.of.is_none())
            });
            if same != Some(true) {
                let message = format!("[{of}] has no such word with the same fields");
                self.error(file, location.clone(), message);
            }
        }
        for name in word.only.iter().flatten() {
            if fields.iter().all(|field| field.name != *name) {
                self.error(file, location.clone(), format!("`{name}` is not a field in it"));
            }
        }
    }

    fn field(&mut self, structure: &Structure, field: &Field, location: &str) {
        let file = &structure.file;
        if !is_snake(&field.name) {
            self.error(file, location.into(), "names are lower case letters, digits and _");
        }
        if TAKEN.contains(&field.name.as_str()) {
            self.error(file, location.into(), "every view has a method of that name; rename it");
        }
        if field.doc.trim().is_empty() {
            self.harmless(file, location.into(), "has no doc; describe it");
        }
        self.doc(file, location, &field.name, &field.doc);
        if field.sources.as_ref().is_some_and(Vec::is_empty) {
            self.harmless(
                file,
                location.into(),
                "has an empty list of sources; name one, or leave it out",
            );
        }
        match &field.content {
            Content::Number => {}
            Content::Enum(name) => match self.description.enumeration(name) {
                None => {
                    let message = format!("there is no enum [{name}]{}", self.near(name));
                    self.harmless(file, location.into(), &message);
                }
                Some(e) => {
                    let largest = e.values.iter().map(|v| v.value).max().unwrap_or(0);
                    if field.width > e.bits || (field.width < 64 && largest >> field.width != 0) {
                        let message = format!(
                            "has {} bits, but enum [{name}] has {} and values up to {largest}",
                            field.width, e.bits
                        );
                        self.error(file, location.into(), message);
                    }
                }
            },
            Content::Struct(name) => {
                if self.description.structure(name).is_none() {
                    let message = format!("there is no structure [{name}]{}", self.near(name));
                    self.error(file, location.into(), message);
                } else if !field.start.is_multiple_of(8) {
                    self.error(file, location.into(), "a structure must begin at a whole byte");
                }
            }
            Content::Bytes => {
                if !field.start.is_multiple_of(8) || !field.width.is_multiple_of(8) {
                    let message = "has more than 64 bits, but not whole bytes; split it";
                    self.error(file, location.into(), message);
                }
            }
        }
        let home = match &field.content {
            Content::Enum(name) => self.description.enumeration(name).map(|e| &e.file),
            Content::Struct(name) => self.description.structure(name).map(|it| &it.file),
            Content::Number | Content::Bytes => None,
        };
        if let Some(feature) = home.and_then(|home| missing_feature(file, home)) {
            let message = format!(
                "refers to a table that only the feature {feature} compiles; move the table, or \
                 let the field's family need {feature}"
            );
            self.error(file, location.into(), message);
        }
        if let Some(sources) = &field.sources
            && sources.iter().any(|source| source.trim().is_empty())
        {
            self.harmless(file, location.into(), "has an empty source");
        }
    }

    fn overlaps(&mut self, structure: &Structure) {
        let mut fields: Vec<&Field> = structure.fields.iter().collect();
        if !fields.is_sorted_by_key(|f| f.start) {
            let (before, after) = fields
                .windows(2)
                .find(|pair| pair[0].start > pair[1].start)
                .map(|pair| (pair[1], pair[0]))
                .expect("the fields are not sorted");
            let message = format!("fields must be in memory order; put it before `{}`", after.name);
            self.error(&structure.file, format!("[{}] {}", structure.name, before.name), message);
        }
        fields.sort_by_key(|f| f.span());
        for (i, field) in fields.iter().enumerate() {
            for other in fields[i + 1..].iter().take_while(|o| o.start < field.span().end()) {
                if !field.overlay && !other.overlay {
                    let message = format!(
                        "overlaps `{}` at {}; if intended, set overlay = true on one of them",
                        field.name,
                        field.position()
                    );
                    self.error(
                        &structure.file,
                        format!("[{}] {}", structure.name, other.name),
                        message,
                    );
                }
            }
        }
    }

    fn gaps(&mut self, structure: &Structure) {
        let location = format!("[{}]", structure.name);
        let bits = structure.bytes * 8;
        let reserved: Vec<_> = structure.reserved.iter().map(|gap| gap.span()).collect();
        for (i, span) in reserved.iter().enumerate() {
            let written = structure.reserved[i];
            if span.end() > bits {
                let message =
                    format!("reserved {written} is beyond its 0x{:x} bytes", structure.bytes);
                self.error(&structure.file, location.clone(), message);
            }
            let field = structure
                .fields
                .iter()
                .find(|field| field.span().start < span.end() && span.start < field.span().end());
            if let Some(field) = field {
                let message = format!("reserved {written} overlaps field `{}`", field.name);
                self.error(&structure.file, location.clone(), message);
            }
            if reserved[..i].iter().any(|o| o.start < span.end() && span.start < o.end()) {
                let message = format!("reserved {written} is named twice");
                self.error(&structure.file, location.clone(), message);
            }
        }
        let fields = structure.fields.iter().map(Field::span);
        let unnamed = gaps(bits, fields.chain(reserved.iter().copied()));
        if !unnamed.is_empty() {
            let gaps: Vec<String> =
                unnamed.into_iter().flat_map(At::of_gap).map(|p| format!("\"{p}\"")).collect();
            let message = format!("has unnamed gaps; add to reserved: {}", gaps.join(", "));
            self.error(&structure.file, location, message);
        }
    }

    /// Checks that no structure contains itself.
    pub(super) fn recursion(&mut self) {
        for structure in &self.description.structures {
            let mut inside = vec![structure.name.as_str()];
            let mut seen = Vec::new();
            while let Some(name) = inside.pop() {
                for field in self.description.structure(name).iter().flat_map(|s| &s.fields) {
                    let Content::Struct(nested) = &field.content else { continue };
                    if *nested == structure.name {
                        let message =
                            format!("contains itself, through `{}` of [{name}]", field.name);
                        self.error(&structure.file, format!("[{}]", structure.name), message);
                        return;
                    }
                    if !seen.contains(&nested.as_str()) {
                        seen.push(nested);
                        inside.push(nested);
                    }
                }
            }
        }
    }
}
