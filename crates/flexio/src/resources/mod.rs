//! The execution units that a program may use, from a file of the machine's administrator.
//!
//! FlexIO's file is YAML from a tool of NVIDIA's, and its keys are not published. This format is
//! verbless's own, of version [`VERSION`], in a small subset of YAML:
//!
//! ```
//! use verbless_flexio::Resources;
//!
//! let file = b"\
//! version: 1
//! resources:
//!   storage:                 # the key
//!     app_name: packets
//!     eu_groups: [1]
//!     eus: [16, 17, 18]
//!   telemetry:
//!     app_name: \"counters\"
//!     eus:
//!       - 20
//!       - 21
//! ";
//! let resources = Resources::new("telemetry", file)?;
//! assert_eq!(resources.app_name(), "counters");
//! assert_eq!((resources.eu_groups(), resources.eus()), (&[][..], &[20, 21][..]));
//! # Ok::<(), verbless_flexio::Error>(())
//! ```
//!
//! | key | |
//! |---|---|
//! | `version` | 1; it comes first |
//! | `resources` | a mapping of keys to the entries below |
//! | `app_name` | the program's name, up to 256 bytes; each key has one |
//! | `eu_groups` | numbers of groups of execution units; none by default |
//! | `eus` | numbers of execution units; none by default |
//!
//! The parser accepts mappings, lists of numbers in either form, comments, and names, plain or in
//! double quotes without escapes. It refuses all other YAML, with the line: tabs, anchors, tags,
//! several documents, other keys, duplicate keys and numbers.

mod yaml;

use crate::app::MAX_NAME_LEN;
use crate::error::Error;

use yaml::{Node, Value, YamlError};

/// The version of the format.
pub const VERSION: u16 = 1;
/// Maximum bytes of a file.
pub const MAX_BYTES: usize = 1 << 20;

/// Resources that a program may use (`flexio_resource`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    app_name: String,
    eu_groups: Vec<u16>,
    eus: Vec<u16>,
}

impl Resources {
    /// Reads the resources of `key` from a file (`flexio_resources_create`). A drop destroys them
    /// (`flexio_resources_destroy`). The whole file must be valid, whatever the key is.
    ///
    /// # Errors
    /// The file is invalid (the error has the line), or does not have the key.
    pub fn new(key: &str, file: &[u8]) -> Result<Self, Error> {
        let all = read(file).map_err(|YamlError { line, why }| {
            Error::Failed(format!("resources, line {line}: {why}"))
        })?;
        let mut keys: Vec<_> = all.iter().map(|(key, _)| key.clone()).collect();
        let found = all.into_iter().find_map(|(name, it)| (name == key).then_some(it));
        found.ok_or_else(|| {
            keys.truncate(20);
            Error::Failed(format!("the resources have no {key:?}: they have {}", keys.join(", ")))
        })
    }

    /// The program's name (`flexio_resources_get_app_name`).
    pub fn app_name(&self) -> &str {
        &self.app_name
    }

    /// The groups of execution units, for [`Affinity::Group`](crate::Affinity::Group)
    /// (`flexio_resources_get_eugs`, `flexio_resources_get_eugs_num`).
    pub fn eu_groups(&self) -> &[u16] {
        &self.eu_groups
    }

    /// The execution units, for [`Affinity::Strict`](crate::Affinity::Strict)
    /// (`flexio_resources_get_eus`, `flexio_resources_get_eus_num`).
    pub fn eus(&self) -> &[u16] {
        &self.eus
    }
}

/// All resources of a file.
fn read(file: &[u8]) -> Result<Vec<(String, Resources)>, YamlError> {
    if file.len() > MAX_BYTES {
        return Err(YamlError::new(
            1,
            format!("it has {} bytes; the limit is {MAX_BYTES}", file.len()),
        ));
    }
    let text = std::str::from_utf8(file).map_err(|error| {
        let before = &file[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        YamlError::new(line, "a byte that is no UTF-8")
    })?;
    let mut entries = yaml::parse(text)?.into_iter();
    match entries.next() {
        Some(Node { key, value: Value::Scalar(version), line }) if key == "version" => {
            if version != VERSION.to_string() {
                let why = format!("version {version:?}; this reads version {VERSION}");
                return Err(YamlError::new(line, why));
            }
        }
        other => {
            let line = other.map_or(1, |node| node.line);
            return Err(YamlError::new(line, format!("`version: {VERSION}` comes first")));
        }
    }
    let resources = match entries.next() {
        Some(Node { key, value: Value::Mapping(keys), .. }) if key == "resources" => keys,
        Some(node) => {
            return Err(YamlError::new(node.line, "`resources:` and its keys come second"));
        }
        None => {
            return Err(YamlError::new(text.lines().count().max(1), "there is no `resources:`"));
        }
    };
    if let Some(node) = entries.next() {
        return Err(YamlError::new(node.line, format!("no such key here: {}", node.key)));
    }
    resources.into_iter().map(one).collect()
}

fn one(node: Node) -> Result<(String, Resources), YamlError> {
    let Value::Mapping(fields) = node.value else {
        return Err(YamlError::new(node.line, format!("{} has no app_name", node.key)));
    };
    let (mut app_name, mut eu_groups, mut eus) = (None, Vec::new(), Vec::new());
    for Node { key, value, line } in fields {
        match (&key[..], value) {
            ("app_name", Value::Scalar(name)) if name.len() <= MAX_NAME_LEN => {
                app_name = Some(name);
            }
            ("app_name", Value::Scalar(name)) => {
                let why = format!("a name of {} bytes; the limit is {MAX_NAME_LEN}", name.len());
                return Err(YamlError::new(line, why));
            }
            ("eu_groups", Value::List(items)) => eu_groups = numbers(&items)?,
            ("eus", Value::List(items)) => eus = numbers(&items)?,
            ("app_name", _) => return Err(YamlError::new(line, "app_name is a name")),
            ("eu_groups" | "eus", _) => {
                return Err(YamlError::new(line, format!("{key} is a list of numbers")));
            }
            _ => return Err(YamlError::new(line, format!("no such key here: {key}"))),
        }
    }
    let app_name = app_name
        .ok_or_else(|| YamlError::new(node.line, format!("{} has no app_name", node.key)))?;
    Ok((node.key, Resources { app_name, eu_groups, eus }))
}

fn numbers(items: &[(String, usize)]) -> Result<Vec<u16>, YamlError> {
    let mut all = Vec::new();
    for (item, line) in items {
        // `parse` also accepts a plus sign.
        let digits = item.bytes().all(|byte| byte.is_ascii_digit());
        let number = item.parse().ok().filter(|_| digits);
        let number = number.ok_or_else(|| {
            YamlError::new(*line, format!("{item:?} is not an EU or group number: 0 to 65535"))
        })?;
        if all.contains(&number) {
            return Err(YamlError::new(*line, format!("{number} comes twice")));
        }
        all.push(number);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(file: &str) -> (usize, String) {
        let YamlError { line, why } = read(file.as_bytes()).expect_err(file);
        (line, why)
    }

    #[test]
    fn invalid_resources_are_rejected_with_line() {
        let of = |text: &str| format!("version: 1\nresources:\n  a:\n    app_name: b\n{text}");
        let long = format!("    app_name: {}\n", "x".repeat(MAX_NAME_LEN + 1));
        for (text, line, why) in [
            ("    app_name: c\n", 5, "comes twice"),
            ("    eus: 5\n", 5, "list of numbers"),
            ("    eus: [5, 5]\n", 5, "5 comes twice"),
            ("    eus:\n      - 5\n      - 65536\n", 7, "\"65536\" is not an EU"),
            ("    eus: [-1]\n", 5, "\"-1\" is not an EU"),
            ("    eus: [1]#2\n", 5, "text after the list"),
            ("    eus: [+1]\n", 5, "\"+1\" is not an EU"),
            ("    eus: [0x10]\n", 5, "is not an EU"),
            ("    threads: [1]\n", 5, "no such key here: threads"),
            ("  c:\n", 5, "has no app_name"),
            ("  a:\n    app_name: d\n", 5, "a comes twice"),
            ("other: 1\n", 5, "no such key here: other"),
            (&long[1..], 5, "under no key"),
        ] {
            let (found, said) = fault(&of(text));
            assert!(found == line && said.contains(why), "{text:?}: {found}: {said}");
        }
        let name = format!("version: 1\nresources:\n  a:\n{long}");
        assert_eq!(fault(&name), (4, "a name of 257 bytes; the limit is 256".into()));
        for (file, line, why) in [
            ("", 1, "comes first"),
            ("resources:\n", 1, "comes first"),
            ("version: 2\n", 1, "this reads version 1"),
            ("version: 1.0\n", 1, "this reads version 1"),
            ("version: 1\n\n# no more\n", 3, "no `resources:`"),
            ("version: 1\nresources: [1]\n", 2, "come second"),
            ("version: 1\nresources:\nother: 1\n", 2, "come second"),
        ] {
            let (found, said) = fault(file);
            assert!(found == line && said.contains(why), "{file:?}: {found}: {said}");
        }
        let bytes = [b"version: 1\n# \xff\n".as_slice(), &vec![b'#'; MAX_BYTES]];
        for (bytes, line) in bytes.into_iter().zip([2, 1]) {
            assert_eq!(read(bytes).unwrap_err().line, line);
        }
    }

    #[test]
    fn eu_groups_and_eus_are_lists_within_size_limit() {
        let of = |fields: &str| format!("version: 1\nresources:\n  a:\n    app_name: b\n{fields}");
        let both = of("    eu_groups: [3, 65535]\n    eus: []\n");
        let both = Resources::new("a", both.as_bytes()).unwrap();
        assert_eq!((both.eu_groups(), both.eus()), (&[3, 65535][..], &[][..]));
        let wrong = |text: &str| read(text.as_bytes()).unwrap_err().why;
        assert!(wrong(&of("    eu_groups: 3\n")).contains("eu_groups is a list"));
        assert!(wrong(&of("    eu_groups: [65536]\n")).contains("is not an EU"));
        assert!(wrong("edition: 1\n").contains("comes first"));
        assert!(wrong("version: 1\nmemory:\n  a:\n    app_name: b\n").contains("come second"));
        let longest = of("") + "#";
        let longest = longest.clone() + &"#".repeat(MAX_BYTES - longest.len());
        assert_eq!(read(longest.as_bytes()).unwrap().len(), 1);
        assert!(wrong(&(longest + "#")).contains("the limit is 1048576"));
    }

    #[test]
    fn truncated_file_is_not_accepted_as_whole() {
        let whole = "version: 1\nresources:\n  a:\n    app_name: \"b\"\n    eus: [1, 2]\n";
        assert_eq!(Resources::new("a", whole.as_bytes()).unwrap().eus(), [1, 2]);
        for end in 0..whole.len() {
            // The file is text: a truncated number or name is a different one.
            if let Ok(resources) = Resources::new("a", &whole.as_bytes()[..end]) {
                assert!(["\"b\"", "\n", " ", "]"].iter().any(|it| whole[..end].ends_with(it)));
                assert_eq!(resources.app_name(), "b");
            }
        }
        let error = Resources::new("c", whole.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("no \"c\": they have a"), "{error}");
    }
}
