//! The tests of a crate with all its mutants in them.
//!
//! The files of the copy get their switches, and each root of the crate the module of `active`.
//! Mutants that the compiler refuses are left out one by one, and the rest is compiled again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;

use super::list::Mutant;
use super::switch::{self, Change, ErrorCause, Switched};
use super::trial::{Executable, Tree};
use crate::workspace::Result;

const SUPPORT: &str = include_str!("support.rs");
/// The attribute that makes a `const` `active` possible, on the root's first line.
const FEATURES: &str = "#![feature(const_eval_select, core_intrinsics)] ";
/// Maximum number of builds: each leaves out at least one mutant or observation, so that more mean
/// another mistake.
const BUILDS: usize = 60;

/// Why a mutant has no switch.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Refusal {
    /// The changed text does not compile.
    Unviable,
    /// It might compile, but not beside the original.
    Unswitchable(String),
}

/// The mutants of a crate, switched in the copy until this is dropped.
pub(super) struct Program<'run> {
    tree: &'run Tree,
    package: String,
    /// Text, and changes, of each file.
    files: BTreeMap<PathBuf, (String, Vec<Change>)>,
    /// Roots of the crate and their texts.
    roots: BTreeMap<PathBuf, String>,
    /// Mutants whose operands are not observed.
    plain: BTreeSet<u32>,
    /// Mutants that the compiler may evaluate too, unchanged.
    in_const_fn: BTreeSet<u32>,
    pub(super) refused: BTreeMap<u32, Refusal>,
}

impl<'run> Program<'run> {
    /// Switches these mutants of a package. A mutant's number is its index plus one.
    pub(super) fn new(tree: &'run Tree, package: &str, mutants: &[&Mutant]) -> Result<Self> {
        let mut files: BTreeMap<PathBuf, (String, Vec<Change>)> = BTreeMap::new();
        for (number, mutant) in (1..).zip(mutants) {
            let path = tree.sources().join(&mutant.file);
            let (text, changes) = match files.entry(path) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let text = fs::read_to_string(entry.key())?;
                    entry.insert((text, Vec::new()))
                }
            };
            let range = mutant.range(text)?;
            let replacement = mutant.replacement.clone();
            changes.push(Change { number, genre: mutant.genre, range, replacement });
        }
        let mut roots = BTreeMap::new();
        let mut refused = BTreeMap::new();
        match tree.packages().roots(package)? {
            Some(paths) => {
                for path in paths {
                    roots.insert(path.to_owned(), fs::read_to_string(path)?);
                }
            }
            None => {
                let why = || Refusal::Unswitchable("the compiler runs it".into());
                refused.extend((1..).zip(mutants).map(|(number, _)| (number, why())));
            }
        }
        let support = tree.support();
        let count = format!("const COUNT: usize = {};", mutants.len());
        fs::write(support, SUPPORT.replace("const COUNT: usize = 0;", &count))?;
        let (package, plain, in_const_fn) = (package.into(), BTreeSet::new(), BTreeSet::new());
        Ok(Self { tree, package, files, roots, plain, in_const_fn, refused })
    }

    /// Compiles the tests of a package; leaves out mutants until that works.
    pub(super) fn build(&mut self, tests_of: &str) -> Result<Vec<Executable>> {
        for build in 1..=BUILDS {
            let switched = self.write()?;
            let (executables, errors) = compile(self.tree, tests_of)?;
            if errors.is_empty() {
                return executables.ok_or_else(|| self.failure("cargo fails without an error"));
            }
            let left_out = self.leave_out(&switched, &errors);
            if left_out == 0 {
                return Err(self.failure(&errors[0].message));
            }
            println!("build {build} of {}: {left_out} switches do not compile", self.package);
        }
        Err(self.failure("too many builds"))
    }

    fn failure(&self, why: &str) -> Box<dyn std::error::Error> {
        let log = self.tree.log();
        format!("{} does not compile with its mutants: {why}; see {}", self.package, log.display())
            .into()
    }

    /// Writes the files with the switches that are left.
    fn write(&mut self) -> Result<BTreeMap<PathBuf, Switched>> {
        let mut written = BTreeMap::new();
        let mut texts = BTreeMap::new();
        for (path, (text, changes)) in &self.files {
            let left: Vec<Change> = changes
                .iter()
                .filter(|it| !self.refused.contains_key(&it.number))
                .cloned()
                .collect();
            let switched = switch::switch(text, &left, &self.plain)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let why = |(number, obstacle): (&u32, &&str)| {
                (*number, Refusal::Unswitchable((*obstacle).into()))
            };
            self.refused.extend(switched.obstacles.iter().map(why));
            let is_in_const_fn = |it: &&Change| switched.is_in_const_fn(it);
            self.in_const_fn.extend(left.iter().filter(is_in_const_fn).map(|it| it.number));
            texts.insert(path.clone(), switched.text.clone());
            written.insert(path.clone(), switched);
        }
        for (path, text) in &self.roots {
            let text = texts.entry(path.clone()).or_insert_with(|| text.clone());
            // A crate without the standard library can still use it in this module.
            let module = switch::MODULE.trim_start_matches("crate::");
            let support = self.tree.support();
            text.insert_str(0, FEATURES);
            text.push_str(&format!("\n#[path = {support:?}]\nmod {module};\n"));
        }
        for (path, text) in texts {
            if fs::read_to_string(&path)? != text {
                fs::write(path, text)?;
            }
        }
        Ok(written)
    }

    /// Leaves out the switches and observations that cause the errors; returns their number.
    fn leave_out(&mut self, switched: &BTreeMap<PathBuf, Switched>, errors: &[Error]) -> usize {
        let mut blamed = Vec::new();
        for error in errors {
            let at = error.positions.iter().find_map(|(path, offset)| {
                let switched = switched.get(path)?;
                let before = if self.roots.contains_key(path) { FEATURES.len() } else { 0 };
                let offset = &offset.saturating_sub(before);
                let error_cause = match error.code.as_deref() {
                    Some("E0004") => switched.error_cause_of_match(*offset),
                    _ => switched.error_cause(*offset),
                };
                (error_cause != ErrorCause::Unknown).then_some(error_cause)
            });
            blamed.extend(at.map(|error_cause| (error, error_cause)));
        }
        let mut count = 0;
        // While another candidate can be left out, one that is only near an error is kept.
        let is_sure = |(error, error_cause): &(&Error, ErrorCause)| match error_cause {
            ErrorCause::Switch(_) => error.code.as_deref() == Some("E0004"),
            ErrorCause::Replacement(_) | ErrorCause::Observation(_) => true,
            ErrorCause::Unknown => false,
        };
        let only_sure = blamed.iter().any(is_sure);
        for blamed in blamed {
            let takes = !only_sure || is_sure(&blamed);
            let (error, error_cause) = blamed;
            match error_cause {
                ErrorCause::Replacement(number) => {
                    let refusal = match error.is_of_text_alone() {
                        true => Refusal::Unviable,
                        false => Refusal::Unswitchable(error.message.clone()),
                    };
                    count += usize::from(self.refused.insert(number, refusal).is_none());
                }
                ErrorCause::Observation(numbers) => {
                    count += numbers.into_iter().filter(|it| self.plain.insert(*it)).count();
                }
                ErrorCause::Switch(numbers) if takes => {
                    for number in numbers {
                        let refusal = Refusal::Unswitchable(error.message.clone());
                        let new = !self.refused.contains_key(&number);
                        self.refused.entry(number).or_insert(refusal);
                        count += usize::from(new);
                    }
                }
                ErrorCause::Switch(_) | ErrorCause::Unknown => {}
            }
        }
        count
    }

    /// Whether the operands of a mutant are observed.
    pub(super) fn is_observed(&self, number: u32) -> bool {
        let mut all = self
            .files
            .values()
            .flat_map(|(text, changes)| changes.iter().map(move |change| (text, change)));
        let change = all.find(|(_, change)| change.number == number);
        change.is_some_and(|(text, change)| change.may_be_equivalent(text))
            && !self.plain.contains(&number)
            && !self.in_const_fn.contains(&number)
    }

    /// Whether the compiler may evaluate a mutant too: there, it is not active.
    pub(super) fn is_in_const_fn(&self, number: u32) -> bool {
        self.in_const_fn.contains(&number)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        let texts = self.files.iter().map(|(path, (text, _))| (path, text)).chain(&self.roots);
        for (path, text) in texts {
            if let Err(error) = fs::write(path, text) {
                println!("{} keeps its mutants: {error}", path.display());
            }
        }
    }
}

/// An error of the compiler.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Error {
    message: String,
    code: Option<String>,
    /// Files and offsets, the likeliest first.
    positions: Vec<(PathBuf, usize)>,
}

impl Error {
    /// Whether the text would not compile in place of the original either: an error of inference or
    /// of borrowing may come from the switch.
    fn is_of_text_alone(&self) -> bool {
        const OF_SWITCH: [&str; 4] = ["E0282", "E0283", "E0284", "E0716"];
        let Some(code) = self.code.as_deref() else { return false };
        let borrows = ("E0381".."E0389").contains(&code)
            || ("E0499".."E0510").contains(&code)
            || code == "E0597";
        !borrows && !OF_SWITCH.contains(&code)
    }
}

/// Compiles the tests of a package. The programs are there if all compile.
fn compile(tree: &Tree, package: &str) -> Result<(Option<Vec<Executable>>, Vec<Error>)> {
    let mut command = tree.command(&["build", "--tests", "--keep-going", "--all-features"])?;
    command.args(["--package", package]);
    command.args(["--message-format", "json"]).stdout(Stdio::piped());
    let output = super::trial::spawn(command)?.wait_with_output()?;
    let (executables, errors) = read(&String::from_utf8(output.stdout)?, &tree.sources())?;
    Ok((output.status.success().then_some(executables), errors))
}

/// Reads cargo's messages.
fn read(text: &str, sources: &Path) -> Result<(Vec<Executable>, Vec<Error>)> {
    #[derive(Deserialize)]
    struct Line {
        reason: String,
        message: Option<Message>,
        executable: Option<PathBuf>,
        manifest_path: Option<PathBuf>,
        profile: Option<Profile>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    #[derive(Deserialize)]
    struct Message {
        level: String,
        message: String,
        code: Option<Code>,
        spans: Vec<Span>,
    }
    #[derive(Deserialize)]
    struct Code {
        code: String,
    }
    #[derive(Deserialize)]
    struct Span {
        file_name: PathBuf,
        byte_start: usize,
        is_primary: bool,
        expansion: Option<Box<Expansion>>,
    }
    #[derive(Deserialize)]
    struct Expansion {
        span: Span,
    }
    let (mut executables, mut errors) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let line: Line = serde_json::from_str(line)?;
        if let (Some(path), Some(manifest), Some(Profile { test: true })) =
            (line.executable, line.manifest_path, line.profile)
        {
            let folder = manifest.parent().unwrap_or(sources).to_owned();
            executables.push(Executable { path, folder });
        }
        let Some(message) = line.message.filter(|it| {
            line.reason == "compiler-message" && it.level == "error" && !it.spans.is_empty()
        }) else {
            continue;
        };
        let mut positions = Vec::new();
        let mut spans = message.spans;
        spans.sort_by_key(|it| !it.is_primary);
        for span in spans {
            let mut next = Some(span);
            while let Some(Span { file_name, byte_start, expansion, .. }) = next {
                positions.push((sources.join(file_name), byte_start));
                next = expansion.map(|it| it.span);
            }
        }
        let code = message.code.map(|it| it.code);
        errors.push(Error { message: message.message, code, positions });
    }
    Ok((executables, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_are_read() {
        let text = [
            r#"{"reason":"compiler-artifact","manifest_path":"/t/crates/a/Cargo.toml","#,
            r#""profile":{"test":true},"executable":"/t/deps/a-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/t/crates/a/Cargo.toml","#,
            r#""profile":{"test":false},"executable":"/t/a"}"#,
            "\n",
            r#"{"reason":"compiler-message","message":{"level":"error","message":"m","#,
            r#""code":{"code":"E0277"},"spans":[{"file_name":"b.rs","byte_start":9,"#,
            r#""is_primary":false,"expansion":null},{"file_name":"a.rs","byte_start":7,"#,
            r#""is_primary":true,"expansion":null}]}}"#,
            "\n",
            r#"{"reason":"build-finished","success":false}"#,
        ];
        let (executables, errors) = read(&text.concat(), Path::new("/t")).unwrap();
        let folder = "/t/crates/a".into();
        assert_eq!(executables, [Executable { path: "/t/deps/a-1".into(), folder }]);
        assert_eq!(errors[0].positions, [("/t/a.rs".into(), 7), ("/t/b.rs".into(), 9)]);
        assert!(errors[0].is_of_text_alone());
    }

    #[test]
    fn error_of_borrowing_may_come_from_switch() {
        let error =
            |code: &str| Error { message: "".into(), code: Some(code.into()), positions: vec![] };
        for code in ["E0382", "E0499", "E0505", "E0282"] {
            assert!(!error(code).is_of_text_alone(), "{code}");
        }
        for code in ["E0015", "E0277", "E0308", "E0369", "E0433"] {
            assert!(error(code).is_of_text_alone(), "{code}");
        }
    }
}
