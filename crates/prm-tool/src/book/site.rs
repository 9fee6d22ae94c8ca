//! All pages of the book, and the run of mdBook over them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use mdbook_core::config::Config;
use mdbook_driver::MDBook;

use super::code::Code;
use super::example::Examples;
use super::html::link;
use super::page::{Book, legend};
use super::place::{Places, folder};
use super::reference::{CHAPTERS, Fact, Part, Reference, chapters, command, only, parts};
use super::{diagram, index};
use crate::description::{Description, Structure};
use crate::evidence::Evidence;
use crate::repository::Result;
use crate::runtime::Runtime;

/// Options of `prm book`.
#[derive(Parser)]
#[command(name = "cargo xtask prm book", bin_name = "cargo xtask prm book")]
pub struct Options {
    /// The folder of the site; what it had is deleted.
    #[arg(long, short, default_value = "target/prm-book")]
    output: PathBuf,
    /// Follow every link of the site, and fail on one that leads nowhere.
    #[arg(long)]
    check: bool,
}

/// Style of tables, diagrams and bytes, besides mdBook's own.
const STYLE: &str = include_str!("style.css");

/// Renders the book of the repository at `root`.
pub fn run(options: &Options) -> Result {
    let (root, start) = (crate::repository::root(), Instant::now());
    let description = crate::check::load_sound(&root)?;
    let runtime = Runtime::new(&description);
    let evidence = Evidence::gather(&root, &description)?;
    let book = Book {
        description: &description,
        runtime: &runtime,
        evidence: &evidence,
        places: Places::new(&description),
        examples: Examples::read(&root, &runtime)?,
        code: Code::read(&root)?,
        names: index::by_entry(&description),
    };
    let work = options.output.join("src");
    if options.output.exists() {
        let ours = work.join("SUMMARY.md");
        if !ours.is_file() && fs::read_dir(&options.output)?.next().is_some() {
            let place = options.output.display();
            return Err(format!("{place} is not empty and has no book: name another").into());
        }
        fs::remove_dir_all(&options.output)?;
    }
    let mut pages = Pages { folder: work, summary: "# Summary\n\n".into(), count: 0 };
    pages.write_all(&root, &book)?;
    let mut config = Config::default();
    config.book.title = Some("The mlx5 PRM".into());
    config.book.language = Some("en".into());
    config.set("output.html.additional-css", ["style.css"])?;
    config.set("output.html.search.limit-results", 20)?;
    config.set("output.html.search.use-boolean-and", true)?;
    config.set("output.html.search.boost-title", 4)?;
    config.set("output.html.fold.enable", true)?;
    config.set("output.html.no-section-label", true)?;
    config.set("output.html.print.enable", false)?;
    // Its links are absolute.
    config.set("output.html.input-404", "")?;
    fs::write(options.output.join("style.css"), STYLE)?;
    MDBook::load_with_config(&options.output, config)?.build()?;
    let site = options.output.join("book");
    println!(
        "{} pages in {:.1} s: {}",
        pages.count,
        start.elapsed().as_secs_f64(),
        site.join("index.html").display()
    );
    if options.check {
        let links = super::links::check(&site)?;
        println!("{links} links lead to a page and an anchor of the site");
    }
    Ok(())
}

/// The Markdown files of the book, and their summary.
struct Pages {
    folder: PathBuf,
    summary: String,
    count: usize,
}

impl Pages {
    fn write(&mut self, depth: usize, title: &str, path: &str, text: &str) -> Result {
        let file = self.folder.join(path);
        fs::create_dir_all(file.parent().ok_or("a page needs a folder")?)?;
        fs::write(file, text)?;
        self.summary += &format!("{}- [{title}]({path})\n", "  ".repeat(depth));
        self.count += 1;
        Ok(())
    }

    fn part(&mut self, title: &str) {
        self.summary += &format!("\n# {title}\n\n");
    }

    fn write_all(&mut self, root: &Path, book: &Book<'_>) -> Result {
        let chapters = chapters(root)?;
        self.write(0, "The mlx5 PRM", "index.md", &front(book.description, &chapters))?;
        self.part("Chapters");
        for (file, text) in &chapters {
            let text = chapter(root, book, file, text)?;
            self.write(0, title(&text), &format!("chapters/{file}"), &text)?;
        }
        self.part("Commands");
        for (family, commands) in families(&book.description.commands, |it| &it.file) {
            let list = book.commands(&commands);
            self.family("commands", family, &list)?;
            for it in commands {
                let path = format!("commands/{}.md", it.name);
                self.write(1, &it.name.to_uppercase(), &path, &book.command(it))?;
            }
        }
        for (kind, part) in [("structures", "Structures"), ("registers", "Registers")] {
            self.part(part);
            let own = |it: &&Structure| folder(it) == kind && !book.places.is_inline(it);
            let structures: Vec<&Structure> =
                book.description.structures.iter().filter(own).collect();
            for (family, structures) in families(structures, |it| &it.file) {
                let lines = structures.iter().map(|it| {
                    format!("- {}: {}\n", book.named(&it.name), it.doc.replace('\n', " "))
                });
                let list: String = lines.collect();
                self.family(kind, family, &list)?;
                for it in structures {
                    let path = format!("{kind}/{}.md", it.name);
                    self.write(1, &it.name, &path, &book.structure(it))?;
                }
            }
        }
        self.part("Enums");
        for e in &book.description.enums {
            self.write(0, &e.name, &format!("enums/{}.md", e.name), &book.enumeration(e))?;
        }
        self.part("Index");
        for (file, title, text) in index::numbers(book).into_iter().chain(index::names(book)) {
            self.write(0, &title, &format!("index/{file}"), &text)?;
        }
        fs::write(self.folder.join("SUMMARY.md"), &self.summary)?;
        Ok(())
    }

    /// The page that lists a family: the entries of one file of `prm/`.
    fn family(&mut self, kind: &str, family: &str, list: &str) -> Result {
        let name = family.trim_start_matches("prm/").trim_end_matches(".toml");
        let file = name.replace('/', "-");
        let text = format!("# {name}: {kind}\n\n{list}");
        self.write(0, name, &format!("{kind}/family-{file}.md"), &text)
    }
}

/// Entries by file, in the order of their first entries.
fn families<'a, T>(
    entries: impl IntoIterator<Item = &'a T>,
    file: impl Fn(&'a T) -> &'a str,
) -> Vec<(&'a str, Vec<&'a T>)> {
    let mut families: Vec<(&str, Vec<&T>)> = Vec::new();
    for entry in entries {
        let name = file(entry);
        match families.iter_mut().find(|family| family.0 == name) {
            Some(family) => family.1.push(entry),
            None => families.push((name, vec![entry])),
        }
    }
    families
}

/// The title of a chapter: its first line.
fn title(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches('#').trim()
}

/// The first page.
fn front(description: &Description, chapters: &[(String, String)]) -> String {
    let fields: usize = description.structures.iter().map(|it| it.fields.len()).sum();
    let list: String = chapters
        .iter()
        .map(|(file, text)| format!("- [{}](chapters/{file})\n", title(text)))
        .collect();
    format!(
        "# The mlx5 PRM\n\nCommands, structures and queue formats of NVIDIA's mlx5 devices: \
         ConnectX NICs and BlueField DPUs. {} commands, {} structures and registers with {fields} \
         fields, {} enums, each with its sources; nothing here comes from the vendor's manual.\n\n\
         Search finds every name of an entry, in these tables and in drivers: `cq_context`, \
         `mlx5_ifc_cqc_bits`, `mlx5_cqe64`, `0x400`. Bit 31 is the first bit of a dword; numbers \
         are big-endian. `at` is the byte offset of the dword, then the bits.\n\n{}\n\
         ## Chapters\n\n{list}",
        description.commands.len(),
        description.structures.len(),
        description.enums.len(),
        legend(),
    )
}

/// A chapter with its references resolved.
fn chapter(root: &Path, book: &Book<'_>, file: &str, text: &str) -> Result<String> {
    let mut out = String::new();
    for part in parts(text) {
        match part {
            Part::Text(text) => out += text,
            Part::Braces(inner) => {
                let place = || format!("{CHAPTERS}/{file}: {{{{{inner}}}}}");
                let reference =
                    Reference::parse(inner).map_err(|fault| format!("{}: {fault}", place()))?;
                if let Some(fault) = reference.fault(root, book.description) {
                    return Err(format!("{}: {fault}", place()).into());
                }
                out += &resolved(root, book, &reference)?;
            }
        }
    }
    Ok(out)
}

/// The text of a sound reference.
fn resolved(root: &Path, book: &Book<'_>, reference: &Reference) -> Result<String> {
    let description = book.description;
    let missing = || format!("{reference}: nothing");
    Ok(match reference {
        Reference::Name(name, fact) => {
            let target = only(description, name)?;
            let text = fact.of(&target).ok_or_else(missing)?;
            match fact {
                Fact::Name | Fact::Short => link(book.places.of(&target), &text),
                Fact::Doc => text,
                Fact::At | Fact::Value | Fact::Bits | Fact::Bytes => format!("`{text}`"),
            }
        }
        Reference::Fields(name, fields) => {
            let structure = description.structure(name).ok_or_else(missing)?;
            let chosen = structure.fields.iter();
            let chosen = chosen.filter(|it| fields.is_empty() || fields.contains(&it.name));
            let table = book.fields(structure, &chosen.collect::<Vec<_>>());
            // The ids of the rows belong to the structure's page.
            table.replace(" id=\"", " data-of=\"")
        }
        Reference::Values(name, values) => {
            let e = description.enumeration(name).ok_or_else(missing)?;
            let chosen = e.values.iter();
            let chosen = chosen.filter(|it| values.is_empty() || values.contains(&it.name));
            book.values(e, &chosen.collect::<Vec<_>>()).replace(" id=\"", " data-of=\"")
        }
        Reference::Commands(names) => {
            let commands = names.iter().filter_map(|name| command(description, name));
            book.commands(&commands.collect::<Vec<_>>())
        }
        Reference::Diagram(name) => {
            diagram::structure(&book.places, description.structure(name).ok_or_else(missing)?)
        }
        Reference::Example(name) => {
            let input = command(description, name).map(|it| it.input.as_str());
            let name = input.unwrap_or(name);
            match (book.examples.of(name), book.runtime.structure(name)) {
                (Some(example), Some(info)) => example.html(info),
                _ => return Err(format!("no recording has `{name}`").into()),
            }
        }
        Reference::States(name) => book.states(name),
        Reference::Decode(file) => {
            let path = root.join(CHAPTERS).join("traces").join(file);
            let decoded =
                crate::decode::text(description, book.runtime, &fs::read_to_string(path)?)?;
            format!("```text\n{}\n```\n", decoded.trim_end())
        }
    })
}
