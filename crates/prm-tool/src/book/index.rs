//! Indexes of the book: every name, by its first letter, and every number that messages show.

use std::collections::{BTreeMap, BTreeSet};

use super::html::{Table, escape, link};
use super::page::Book;
use crate::description::Description;
use crate::find::{Target, each_name};

/// Pages of an index: file name, title, Markdown.
pub(super) type Pages = Vec<(String, String, String)>;

/// By an entry's own name, its other names.
pub(super) fn by_entry(description: &Description) -> BTreeMap<String, Vec<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    each_name(description, &mut |target, name| {
        let own = target.name();
        if own.to_lowercase() != name {
            names.entry(own).or_default().insert(name.to_owned());
        }
    });
    names.into_iter().map(|(own, names)| (own, names.into_iter().collect())).collect()
}

/// The names of entries in `prm/` and in drivers; fields by the name of their structure.
pub(super) fn names(book: &Book<'_>) -> Pages {
    let mut letters: BTreeMap<char, BTreeSet<(String, String)>> = BTreeMap::new();
    each_name(book.description, &mut |target, name| {
        let initial = name.trim_start_matches("mlx5_").chars().next().unwrap_or('0');
        let initial = if initial.is_ascii_alphabetic() { initial } else { '0' };
        letters.entry(initial).or_default().insert((name.to_owned(), target.name()));
    });
    let page = |(letter, names): (char, BTreeSet<(String, String)>)| {
        let mut table = Table::new("values", &["name", "entry"]);
        for (name, target) in &names {
            table.row(None, &[format!("<code>{}</code>", escape(name)), book.named(target)]);
        }
        let title = format!("Names: {}", letter.to_uppercase());
        let text = format!(
            "# {title}\n\nNames of entries in these tables and in drivers, without the prefix \
             `mlx5_` where the letters are counted.\n\n{}",
            table.end()
        );
        (format!("names-{letter}.md"), title, text)
    };
    letters.into_iter().map(page).collect()
}

/// Opcodes, and the values that messages of drivers and programs show.
pub(super) fn numbers(book: &Book<'_>) -> Pages {
    let mut commands: Vec<_> = book.description.commands.iter().collect();
    commands.sort_by_key(|command| command.opcode);
    let title = "Numbers: opcodes of commands".to_owned();
    let text = format!("# {title}\n\n{}", book.commands(&commands));
    let mut pages = vec![("numbers-opcodes.md".to_owned(), title, text)];
    let mut table = Table::new("values", &["number", "kind", "name", "meaning"]);
    for e in book.description.enums.iter() {
        let Some(kind) = e.called.clone().or((e.name == "register_id").then(|| "register".into()))
        else {
            continue;
        };
        for value in &e.values {
            let target = Target::Value(e, value);
            let number = if e.decimal {
                format!("<code>{}</code>", value.value)
            } else {
                format!("<code>{:#x}</code>", value.value)
            };
            let name = link(book.places.of(&target), &value.name);
            table.row(None, &[number, escape(&kind), name, escape(&value.doc)]);
        }
    }
    let title = "Numbers: in messages, and registers".to_owned();
    let text = format!("# {title}\n\n{}", table.end());
    pages.push(("numbers-messages.md".to_owned(), title, text));
    pages
}
