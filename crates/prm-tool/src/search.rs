//! `prm find WORDS`: the entries, fields and chapters that the words are about.
//!
//! Words in headings weigh most, then those in names, in docs and in a chapter's text. A
//! word that few documents have weighs more than one that many have. Endings are ignored: `armed`
//! finds `arm`, `keys` finds `key`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use clap::Args;

use super::book::reference::{Part, chapters, parts};
use super::description::Description;
use super::evidence::Evidence;
use super::find::{Target, each_name};

/// Options of `prm find`.
#[derive(Args)]
pub struct Options {
    /// Words, in any order: `arm cq`, `how is a CQ armed`, `mlx5_wqe_ctrl_seg`.
    #[arg(required = true)]
    words: Vec<String>,
    /// Maximum number of results.
    #[arg(long, short = 'n', default_value_t = 10)]
    limit: usize,
}

/// Words that say nothing about a subject.
const STOP: [&str; 30] = [
    "a", "an", "and", "are", "at", "be", "by", "can", "do", "does", "for", "from", "how", "in",
    "is", "it", "of", "on", "or", "that", "the", "this", "to", "what", "when", "where", "which",
    "who", "why", "with",
];

/// Weights of a word by its place.
const NAME: f64 = 8.0;
const HEADING: f64 = 10.0;
const DOC: f64 = 3.0;
const TEXT: f64 = 1.0;

/// Something that can be found.
#[derive(Debug)]
struct Document {
    /// How the result is shown: `cq_context (structure of 0x40 bytes)`, or a chapter's section.
    title: String,
    /// The first sentence.
    summary: String,
    /// Weights of its words.
    words: BTreeMap<String, f64>,
}

/// Runs the task.
pub(crate) fn run(root: &Path, options: &Options) -> crate::repository::Result {
    let description = super::check::load_sound(root)?;
    let index = Index::new(root, &description)?;
    let query = options.words.join(" ");
    let found = index.find(&query, options.limit);
    if found.is_empty() {
        return Err(format!("nothing is about `{query}`; try fewer words, or `prm list`").into());
    }
    let mut out = String::new();
    for document in found {
        let _ = writeln!(out, "{}\n    {}", document.title, document.summary);
    }
    out += "\nprm show NAME shows an entry; prm book renders all of them\n";
    super::repository::print(&out)
}

/// All documents, and in how many each word is.
struct Index {
    documents: Vec<Document>,
    frequency: BTreeMap<String, usize>,
}

impl Index {
    fn new(root: &Path, description: &Description) -> crate::repository::Result<Self> {
        let evidence = Evidence::tables(root, description)?;
        let mut documents = entries(description, &evidence);
        for (file, text) in chapters(root)? {
            documents.extend(sections(&file, &text));
        }
        let mut frequency = BTreeMap::new();
        for word in documents.iter().flat_map(|document| document.words.keys()) {
            *frequency.entry(word.clone()).or_default() += 1;
        }
        Ok(Self { documents, frequency })
    }

    /// The best documents, those with all words of the query first.
    fn find(&self, query: &str, limit: usize) -> Vec<&Document> {
        let words: BTreeSet<String> = words(query).filter(|word| !is_stop(word)).collect();
        let mut found: Vec<(usize, f64, &Document)> = Vec::new();
        for document in &self.documents {
            let (mut matches, mut score) = (0, 0.0);
            for word in &words {
                if let Some(weight) = document.words.get(word) {
                    let count = self.frequency.get(word).copied().unwrap_or(1) as f64;
                    matches += 1;
                    score += weight * (1.0 + (self.documents.len() as f64 / count).ln());
                }
            }
            if matches > 0 {
                found.push((matches, score, document));
            }
        }
        found.sort_by(|one, other| {
            other
                .0
                .cmp(&one.0)
                .then(other.1.total_cmp(&one.1))
                .then(one.2.title.cmp(&other.2.title))
        });
        let most = found.first().map_or(0, |it| it.0);
        found.retain(|it| it.0 == most);
        found.into_iter().take(limit).map(|it| it.2).collect()
    }
}

impl Document {
    fn new(title: String, summary: &str) -> Self {
        let summary = match summary.find(['.', '\n']) {
            Some(end) => &summary[..end],
            None => summary,
        };
        let summary = summary.trim().to_owned();
        Self { title, summary, words: BTreeMap::new() }
    }

    /// Adds the words of a text, each with the largest of its weights.
    fn add(&mut self, text: &str, weight: f64) {
        for word in words(text) {
            let entry = self.words.entry(word).or_insert(0.0);
            *entry = entry.max(weight);
        }
    }
}

/// Commands, structures and enums, with the names and docs of their parts; and each field, also by
/// the names that other descriptions have for it.
fn entries(description: &Description, evidence: &Evidence<'_>) -> Vec<Document> {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    each_name(description, &mut |target, name| {
        names.entry(target.name()).or_default().push(name.to_owned());
    });
    evidence.each_alias(&mut |(structure, field), alias| {
        names.entry(format!("{structure}.{field}")).or_default().push(alias.to_owned());
    });
    let document = |target: &Target<'_>| {
        let title = format!("{} ({})", target.name(), target.kind());
        let mut document = Document::new(title, target.doc());
        document.add(target.doc(), DOC);
        document.add(&target.name(), NAME);
        for name in names.get(&target.name()).into_iter().flatten() {
            document.add(name, NAME);
        }
        document
    };
    let mut documents = Vec::new();
    for command in &description.commands {
        let mut it = document(&Target::Command(command));
        it.add(command.capability.as_deref().unwrap_or_default(), TEXT);
        command.statuses.iter().for_each(|status| it.add(&status.why, TEXT));
        command.op_mods.iter().for_each(|value| it.add(&value.doc, TEXT));
        documents.push(it);
    }
    for structure in &description.structures {
        let mut it = document(&Target::Structure(structure));
        for field in &structure.fields {
            it.add(&field.name, TEXT);
            it.add(&field.doc, TEXT);
            documents.push(document(&Target::Field(structure, field)));
        }
        documents.push(it);
    }
    for e in &description.enums {
        let mut it = document(&Target::Enum(e));
        for value in &e.values {
            it.add(&value.name, TEXT);
            it.add(&value.doc, TEXT);
            documents.push(document(&Target::Value(e, value)));
        }
        documents.push(it);
    }
    documents
}

/// The sections of a chapter: a document for each heading.
fn sections(file: &str, text: &str) -> Vec<Document> {
    let plain: String = parts(text)
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => text,
            Part::Braces(inner) => inner.split(':').next().unwrap_or_default(),
        })
        .collect();
    let (mut documents, mut chapter) = (Vec::new(), String::new());
    for line in plain.lines() {
        let heading = line.trim_start_matches('#');
        if line.starts_with('#') && heading.starts_with(' ') {
            let heading = heading.trim();
            if chapter.is_empty() {
                chapter = heading.to_owned();
            }
            let title = match heading == chapter {
                true => format!("chapter: {chapter} (prm/book/{file})"),
                false => format!("chapter: {chapter}: {heading} (prm/book/{file})"),
            };
            let mut document = Document::new(title, "");
            document.add(&chapter, HEADING / 2.0);
            document.add(heading, HEADING);
            documents.push(document);
        } else if let Some(document) = documents.last_mut() {
            document.add(line, TEXT);
            if document.summary.is_empty() && line.starts_with(char::is_alphabetic) {
                document.summary = line.to_owned();
            }
        }
    }
    documents
}

fn is_stop(word: &str) -> bool {
    STOP.iter().any(|stop| stem(stop) == word)
}

/// The words of a text in lower case, without their endings; a name with underscores is itself and
/// its parts.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let names = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    names.filter(|name| !name.is_empty()).flat_map(|name| {
        let name = name.to_lowercase();
        let whole = name.contains('_').then(|| name.clone());
        let parts: Vec<String> =
            name.split('_').filter(|part| !part.is_empty()).map(stem).collect();
        whole.into_iter().chain(parts)
    })
}

/// A word without a plural, a participle's ending, or an `e` at its end.
fn stem(word: &str) -> String {
    let word = match word.strip_suffix('s') {
        Some(rest) if rest.len() >= 2 && !rest.ends_with('s') => rest,
        _ => word,
    };
    let ended = ["ing", "ed"].iter().find_map(|end| word.strip_suffix(end));
    let word = ended.filter(|rest| rest.len() >= 3).unwrap_or(word);
    word.strip_suffix('e').filter(|rest| rest.len() >= 3).unwrap_or(word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::root;

    #[test]
    fn endings_are_ignored() {
        for (one, other) in [
            ("armed", "arm"),
            ("keys", "key"),
            ("crossing", "cross"),
            ("passes", "pass"),
            ("gates", "gate"),
        ] {
            assert_eq!(stem(one), stem(other));
        }
        for word in ["ds", "bits", "red", "ring", "use"] {
            assert!(stem(word).len() >= 2, "{word}");
        }
        let found: Vec<String> = words("CQ_arm: the CQEs").collect();
        assert_eq!(found, ["cq_arm", "cq", "arm", "the", "cqe"]);
    }

    const RTR_ON_ROCE: &str = "chapter: RC on RoCE and InfiniBand: What RC on RoCE needs at RTR (";
    const SRQ_WQE: &str = "chapter: Receive queues that are shared: SRQ, RMP, XRQ: An SRQ's WQE (";
    const FLOW_TABLES: &str = "chapter: Raw Ethernet: Flow tables: levels and priorities (";
    const GATES_OF_DC: &str = "chapter: Dynamically connected transport: DC: What gates DC (";
    const PAGES_AT_START: &str = "chapter: Pages: how firmware gets and returns memory: How \
                                  firmware gets pages at start (";

    /// The questions of a reader, and an entry or chapter that one search must show near the top.
    #[test]
    fn readers_questions_are_answered_by_one_search() {
        let description = crate::check::load_sound(&root()).unwrap();
        let index = Index::new(&root(), &description).unwrap();
        for (query, answer) in [
            ("mlx5_ifc_cqc_bits", "cq_context ("),
            ("mlx5_wqe_ctrl_seg", "ctrl_segment ("),
            ("arm", "ARM_RQ ("),
            ("srq next wqe", "srq_next_segment ("),
            ("umr control", "umr_ctrl_segment ("),
            ("create completion queue", "CREATE_CQ ("),
            ("manage pages", "MANAGE_PAGES ("),
            // A name of illumos's.
            ("mlcqe_up_cfi_vid", "cqe.vlan_info ("),
            ("rnr syndrome", "cqe_syndrome.RNR_RETRY_EXCEEDED ("),
        ] {
            let found: Vec<&str> =
                index.find(query, 5).iter().map(|it| it.title.as_str()).collect();
            assert!(found.iter().any(|title| title.starts_with(answer)), "{query}: {found:#?}");
        }
        for (query, answer) in [
            ("how a CQ is armed", "chapter: The life of a CQ: How a CQ is armed ("),
            ("an SRQ's WQE", SRQ_WQE),
            ("what RC on RoCE needs at RTR", RTR_ON_ROCE),
            ("flow tables", FLOW_TABLES),
            ("a crossing key", "chapter: Memory keys: A crossing key ("),
            ("what DevX passes", "chapter: DevX: what passes, uid, umem: What DevX passes ("),
            ("what a syndrome means", "chapter: Errors: What a syndrome means ("),
            ("UMR", "chapter: Memory keys: UMR: changing a key"),
            ("what gates DC", GATES_OF_DC),
            ("a raw Ethernet CQE", "chapter: Raw Ethernet: A raw Ethernet CQE ("),
            ("how firmware gets pages", PAGES_AT_START),
            ("the order of bring-up", "chapter: How a function comes up: The order of bring-up ("),
        ] {
            let found: Vec<&str> =
                index.find(query, 3).iter().map(|it| it.title.as_str()).collect();
            assert!(found.iter().any(|title| title.starts_with(answer)), "{query}: {found:#?}");
        }
        assert!(index.find("zzzzqqqq", 5).is_empty());
    }
}
