//! The meanings of error codes in messages, for `verbless-model explain` and `prm show`.
//!
//! The same digits mean different things in different messages: "12" may be ibv_wc_status 12, errno
//! 12 or health syndrome 0xc; where a message prints bare hexadecimal, it is 0x12. [`explain`]
//! lists every meaning with its messages. The tables are the enums of `prm/` that list the messages
//! of their values.

use std::fmt;
use std::string::String;
use std::vec::Vec;

/// The error codes of one kind.
pub struct CodeTable {
    /// The kind, as in "CQE syndrome".
    pub kind: &'static str,
    /// Whether messages print it in decimal; otherwise in hexadecimal.
    pub decimal: bool,
    /// Prefixes of the codes' names in C, such as `IBV_WC_`.
    pub c_prefixes: &'static [&'static str],
    /// The messages: `{n}` is the code in decimal, `{x}` in hexadecimal with 0x, `{says}` its text.
    pub messages: &'static [&'static str],
    /// The codes.
    pub codes: &'static [Code],
}

/// One error code.
#[derive(Clone, Copy)]
pub struct Code {
    /// The number.
    pub value: u64,
    /// The name in `prm/`.
    pub name: &'static str,
    /// The texts in messages, as strerror has one for each errno.
    pub texts: &'static [&'static str],
    /// The meaning in a sentence.
    pub doc: &'static str,
}

/// A code of one kind; prints its meaning and its messages.
#[derive(Clone, Copy)]
pub struct Meaning<'a> {
    /// The table of the kind.
    pub table: &'a CodeTable,
    /// The code.
    pub code: &'a Code,
}

impl CodeTable {
    /// The meaning of a value.
    pub fn get(&self, value: u64) -> Option<Meaning<'_>> {
        let code = self.codes.iter().find(|code| code.value == value)?;
        Some(Meaning { table: self, code })
    }

    /// The table of this kind.
    pub fn of_kind<'a>(tables: &'a [Self], kind: &str) -> Option<&'a Self> {
        tables.iter().find(|table| table.kind == kind)
    }
}

impl Meaning<'_> {
    /// The meaning in one line, without the messages.
    pub fn line(&self) -> String {
        let Code { value, name, doc, .. } = self.code;
        let kind = self.table.kind;
        match self.table.decimal {
            true => std::format!("{kind} {value}, {name}: {doc}"),
            false => std::format!("{kind} {value:#x}, {name}: {doc}"),
        }
    }

    /// Its messages, with the number filled in.
    pub fn messages(&self) -> impl Iterator<Item = String> {
        let Code { value, name, texts, .. } = *self.code;
        let text = texts.first().copied().unwrap_or(name);
        self.table.messages.iter().map(move |message| {
            message
                .replace("{n}", &std::format!("{value}"))
                .replace("{x}", &std::format!("{value:#x}"))
                .replace("{says}", text)
        })
    }

    fn is_named(&self, query: &str) -> bool {
        let prefixes = self.table.c_prefixes.iter().map(|it| plain(it));
        let bare = prefixes
            .filter_map(|prefix| query.strip_prefix(&*prefix)?.strip_prefix(' '))
            .next()
            .unwrap_or(query);
        same(bare, self.code.name) || self.code.texts.iter().any(|text| same(query, text))
    }
}

impl fmt::Display for Meaning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())?;
        self.messages().try_for_each(|message| write!(f, "\n    {message}"))
    }
}

/// One reading of an error code as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It begins with 0x, or has digits that only hexadecimal has.
    Hexadecimal(u64),
    /// It has only decimal digits.
    Decimal(u64),
    /// The same digits in a message that prints hexadecimal without 0x.
    Bare(u64),
    /// It is negative, as kernel messages print an errno; the sign is dropped.
    Negative(u64),
}

/// The readings of a code, the likeliest first. Labels before the number are ignored:
/// `status=12`, `errno 22`, `err(-22)`.
pub fn readings(code: &str) -> Vec<Reading> {
    const LABELS: &[&str] = &[
        "code",
        "err",
        "errno",
        "error",
        "number",
        "opcode",
        "prov_errno",
        "status",
        "synd",
        "syndrom",
        "syndrome",
        "vend",
        "vend_err",
        "vendor",
        "vendor_err",
        "wc",
    ];
    let code = code.trim().trim_end_matches([')', ']', '.', ',', ';', ':']);
    let separators = [' ', '=', ':', '(', '['];
    let start = code.rfind(separators).map_or(0, |at| at + 1);
    let (labels, digits) = code.split_at(start);
    let mut labels = labels.split(separators).filter(|word| !word.is_empty());
    if !labels.all(|word| LABELS.contains(&&*word.to_ascii_lowercase())) {
        return Vec::new();
    }
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let unsigned = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let all = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) if unsigned(digits) => [hexadecimal(digits).map(Reading::Hexadecimal), None],
        _ => match digits.strip_prefix('-') {
            Some(digits) if unsigned(digits) => [digits.parse().ok().map(Reading::Negative), None],
            _ if !unsigned(digits) => [None, None],
            _ => match digits.parse().ok() {
                Some(value) => {
                    let bare = hexadecimal(digits).filter(|bare| *bare != value);
                    [Some(Reading::Decimal(value)), bare.map(Reading::Bare)]
                }
                None => [hexadecimal(digits).map(Reading::Hexadecimal), None],
            },
        },
    };
    all.into_iter().flatten().collect()
}

/// Every meaning of an error code, or of a code's name or text, each with its messages; `None` if
/// there is none.
///
/// ```
/// let text = verbless_prm::numbers::explain(verbless_prm::NUMBERS, "12").unwrap();
/// assert!(text.contains("ibv_wc_status 12, RETRY_EXC_ERR"));
/// assert!(text.contains("CQE syndrome 0x12, REMOTE_INVALID_REQUEST"));
/// ```
pub fn explain(tables: &[CodeTable], code: &str) -> Option<String> {
    let mut text = String::new();
    let mut add = |title: &str, found: &[Meaning<'_>]| {
        if !found.is_empty() {
            if !text.is_empty() {
                text.push('\n');
            }
            text += title;
            for meaning in found {
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                text += &std::format!("{meaning}");
            }
        }
    };
    let named = named(tables, code);
    if !named.is_empty() {
        add("", &named);
        return Some(text);
    }
    for reading in readings(code) {
        let (value, title) = match reading {
            Reading::Hexadecimal(value) | Reading::Decimal(value) | Reading::Negative(value) => {
                (value, String::new())
            }
            Reading::Bare(value) => {
                let title = "Where a message prints hexadecimal without 0x, it is";
                (value, std::format!("{title} {value:#x}:"))
            }
        };
        let mut tables: Vec<&CodeTable> = tables.iter().collect();
        match reading {
            Reading::Negative(_) => tables.retain(|it| it.kind == "errno"),
            Reading::Bare(_) => tables.retain(|it| !it.decimal),
            Reading::Decimal(_) => tables.sort_by_key(|it| !it.decimal),
            Reading::Hexadecimal(_) => tables.sort_by_key(|it| it.decimal),
        }
        let found: Vec<Meaning<'_>> = tables.iter().filter_map(|it| it.get(value)).collect();
        add(&title, &found);
    }
    (!text.is_empty()).then_some(text)
}

/// Explains an error code above 0xff that no table has, by the range of each kind.
pub fn beyond(tables: &[CodeTable], value: u64) -> String {
    let with_base = |decimal| tables.iter().filter(move |it| it.decimal == decimal);
    let last = |it: &CodeTable| it.codes.iter().map(|code| code.value).max().unwrap_or_default();
    // The firmware's syndromes have more bits; they are named below.
    let short: Vec<&str> =
        with_base(false).filter(|it| last(it) <= 0xff).map(|it| it.kind).collect();
    let ends = with_base(true).map(|it| std::format!("{} ends at {}", it.kind, last(it)));
    let ends: Vec<String> = ends.collect();
    let mut text = std::format!(
        "{value} ({value:#x}) is in no table: {} have at most 8 bits; {}",
        short.join(", "),
        ends.join("; ")
    );
    text += match u32::try_from(value) {
        Ok(_) => {
            ". Only the syndrome of a command has 32 bits, and of the firmware's syndromes only \
             those that public reports explain are known; `cargo xtask prm show` shows command \
             opcodes and register ids"
        }
        Err(_) => ". No number of mlx5's messages has more than 32 bits: it may be an address",
    };
    text
}

/// The codes with that name or text.
pub fn named<'a>(tables: &'a [CodeTable], name: &str) -> Vec<Meaning<'a>> {
    let query = plain(name);
    let all =
        tables.iter().flat_map(|table| table.codes.iter().map(move |code| Meaning { table, code }));
    all.filter(|meaning| !query.is_empty() && meaning.is_named(&query)).collect()
}

/// Names of codes that contain the query.
pub fn near(tables: &[CodeTable], query: &str, max: usize) -> Vec<&'static str> {
    let query = plain(query);
    let all = tables.iter().flat_map(|table| table.codes);
    let mut names: Vec<&'static str> = all
        .filter(|it| query.len() > 2 && plain(it.name).contains(&*query))
        .map(|it| it.name)
        .collect();
    names.dedup();
    names.truncate(max);
    names
}

/// Whether both are the same name or text, except for a final "error".
fn same(query: &str, name: &str) -> bool {
    let bare = |text: &str| {
        let text = plain(text);
        let bare = text.strip_suffix(" error").or(text.strip_suffix(" err"));
        bare.map_or(text.clone(), String::from)
    };
    bare(query) == bare(name)
}

/// Lower case, with single spaces in place of white space, `_`, `-` and backquotes.
fn plain(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c == '_' || c == '-' || c == '`');
    let mut out = String::new();
    for word in words.filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out += &word.to_lowercase();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const TABLES: &[CodeTable] = &[
        CodeTable {
            kind: "CQE syndrome",
            decimal: false,
            c_prefixes: &["MLX5_CQE_SYNDROME_"],
            messages: &["`syndrome {x}`"],
            codes: &[
                Code { value: 0xc, name: "TWELVE", texts: &[], doc: "It is 12." },
                Code { value: 0x12, name: "BAD", texts: &["Bad error"], doc: "It is bad." },
                Code { value: 0xf9, name: "FLUSHED", texts: &[], doc: "It is flushed." },
            ],
        },
        CodeTable {
            kind: "errno",
            decimal: true,
            c_prefixes: &[],
            messages: &["`{says}`, {n}"],
            codes: &[
                Code { value: 12, name: "ENOMEM", texts: &["No memory"], doc: "Too little." },
                Code { value: 18, name: "EXDEV", texts: &[], doc: "Across devices." },
            ],
        },
    ];

    fn explained(code: &str) -> String {
        explain(TABLES, code).unwrap_or_default()
    }

    #[test]
    fn decimal_number_lists_hexadecimal_meaning_last() {
        assert_eq!(
            explained("12"),
            "errno 12, ENOMEM: Too little.\n    `No memory`, 12\n\
             CQE syndrome 0xc, TWELVE: It is 12.\n    `syndrome 0xc`\n\
             Where a message prints hexadecimal without 0x, it is 0x12:\n\
             CQE syndrome 0x12, BAD: It is bad.\n    `syndrome 0x12`"
        );
    }

    #[test]
    fn hex_number_is_found_in_every_table() {
        let text = explained("0x12");
        assert!(text.starts_with("CQE syndrome 0x12, BAD"), "{text}");
        assert!(text.contains("errno 18, EXDEV") && !text.contains("ENOMEM"), "{text}");
        assert_eq!(explained("f9"), explained("0xF9"));
    }

    #[test]
    fn beyond_names_the_widths_of_every_kind() {
        let text = beyond(TABLES, 300);
        assert!(text.starts_with("300 (0x12c) is in no table: CQE syndrome have"), "{text}");
        assert!(text.contains("errno ends at 18. Only the syndrome of a command has 32"), "{text}");
        assert!(beyond(TABLES, 1 << 32).contains("No number of mlx5's messages has more"));
        // Of the tables of prm/, one has wider codes.
        let text = beyond(crate::NUMBERS, 300);
        let (short, _) = text.split_once(" have at most 8 bits").expect("the short kinds");
        assert!(short.contains("command status") && !short.contains("firmware"), "{text}");
    }

    #[test]
    fn negative_number_is_errno() {
        for code in ["-12", "err(-12)", "errno: -12"] {
            assert_eq!(explained(code), "errno 12, ENOMEM: Too little.\n    `No memory`, 12");
        }
    }

    #[test]
    fn labels_before_number_are_ignored() {
        for code in ["status=12", "status 12", "vendor err 12", "STATUS(12)", " 12. "] {
            assert_eq!(explained(code), explained("12"), "{code}");
        }
        for code in ["worker 12", "", "0x", "-", "0x1-2", "+12", "mlx5_0"] {
            assert_eq!(readings(code), vec![], "{code}");
        }
        assert_eq!(readings("99999999999999999999999999999999"), vec![]);
    }

    #[test]
    fn names_match_in_any_spelling() {
        for name in ["BAD", "bad", "bad error", "BAD_ERR", "MLX5_CQE_SYNDROME_BAD_ERR", "Bad Error"]
        {
            assert!(explained(name).starts_with("CQE syndrome 0x12"), "{name}");
        }
        assert!(explained("no memory").starts_with("errno 12"));
        assert_eq!(explained("worse"), "");
        assert_eq!(near(TABLES, "flush", 3), ["FLUSHED"]);
    }
}
