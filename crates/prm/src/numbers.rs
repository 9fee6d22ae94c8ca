//! The meanings of numbers in messages, for `verbless-model explain` and `prm show`.
//!
//! A number has many meanings: 12 is an ibv_wc status, an errno and a health syndrome, and 0x12 in
//! a message that prints hexadecimal without 0x. [`explain`] lists every meaning with its messages.
//! The tables are the enums of `prm/` that list the messages of their values.

use std::fmt;
use std::string::String;
use std::vec::Vec;

/// The values of one kind of number in messages.
pub struct Numbers {
    /// The kind, as in "CQE syndrome".
    pub called: &'static str,
    /// Whether messages print it in decimal; otherwise in hexadecimal.
    pub decimal: bool,
    /// Prefixes of the values' names in C, such as `IBV_WC_`.
    pub prefixes: &'static [&'static str],
    /// The messages: `{n}` is the number in decimal, `{x}` in hexadecimal with 0x, `{says}` its
    /// words.
    pub shown_in: &'static [&'static str],
    /// The values.
    pub values: &'static [Number],
}

/// One value.
#[derive(Clone, Copy)]
pub struct Number {
    /// The number.
    pub value: u64,
    /// Its name in `prm/`.
    pub name: &'static str,
    /// Its words in messages.
    pub says: &'static [&'static str],
    /// Its meaning in a sentence.
    pub doc: &'static str,
}

/// A value of one kind; prints its meaning and its messages.
#[derive(Clone, Copy)]
pub struct Meaning<'a> {
    /// The kind.
    pub of: &'a Numbers,
    /// The value.
    pub is: &'a Number,
}

impl Numbers {
    /// The meaning of a value.
    pub fn get(&self, value: u64) -> Option<Meaning<'_>> {
        let is = self.values.iter().find(|it| it.value == value)?;
        Some(Meaning { of: self, is })
    }

    /// The table of that kind.
    pub fn called<'a>(tables: &'a [Self], called: &str) -> Option<&'a Self> {
        tables.iter().find(|it| it.called == called)
    }
}

impl Meaning<'_> {
    /// The meaning in one line, without the messages.
    pub fn line(&self) -> String {
        let Number { value, name, doc, .. } = self.is;
        let called = self.of.called;
        match self.of.decimal {
            true => std::format!("{called} {value}, {name}: {doc}"),
            false => std::format!("{called} {value:#x}, {name}: {doc}"),
        }
    }

    /// Its messages, with the number filled in.
    pub fn messages(&self) -> impl Iterator<Item = String> {
        let Number { value, name, says, .. } = *self.is;
        let says = says.first().copied().unwrap_or(name);
        self.of.shown_in.iter().map(move |message| {
            message
                .replace("{n}", &std::format!("{value}"))
                .replace("{x}", &std::format!("{value:#x}"))
                .replace("{says}", says)
        })
    }

    fn is_named(&self, query: &str) -> bool {
        let prefixes = self.of.prefixes.iter().map(|it| plain(it));
        let bare = prefixes
            .filter_map(|prefix| query.strip_prefix(&*prefix)?.strip_prefix(' '))
            .next()
            .unwrap_or(query);
        same(bare, self.is.name) || self.is.says.iter().any(|says| same(query, says))
    }
}

impl fmt::Display for Meaning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())?;
        self.messages().try_for_each(|message| write!(f, "\n    {message}"))
    }
}

/// One reading of a code as a number.
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

/// Every meaning of a number, or of a value's name or words, each with its messages; `None` if
/// there is none.
///
/// ```
/// let text = verbless_prm::numbers::explain(verbless_prm::NUMBERS, "12").unwrap();
/// assert!(text.contains("ibv_wc_status 12, RETRY_EXC_ERR"));
/// assert!(text.contains("CQE syndrome 0x12, REMOTE_INVALID_REQUEST"));
/// ```
pub fn explain(tables: &[Numbers], code: &str) -> Option<String> {
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
        let mut tables: Vec<&Numbers> = tables.iter().collect();
        match reading {
            Reading::Negative(_) => tables.retain(|it| it.called == "errno"),
            Reading::Bare(_) => tables.retain(|it| !it.decimal),
            Reading::Decimal(_) => tables.sort_by_key(|it| !it.decimal),
            Reading::Hexadecimal(_) => tables.sort_by_key(|it| it.decimal),
        }
        let found: Vec<Meaning<'_>> = tables.iter().filter_map(|it| it.get(value)).collect();
        add(&title, &found);
    }
    (!text.is_empty()).then_some(text)
}

/// Explains a number above 0xff that no table has, by the range of each kind.
pub fn beyond(tables: &[Numbers], value: u64) -> String {
    let called = |decimal| tables.iter().filter(move |it| it.decimal == decimal);
    let short: Vec<&str> = called(false).map(|it| it.called).collect();
    let last = |it: &Numbers| it.values.iter().map(|value| value.value).max().unwrap_or_default();
    let ends = called(true).map(|it| std::format!("{} ends at {}", it.called, last(it)));
    let ends: Vec<String> = ends.collect();
    let mut text = std::format!(
        "{value} ({value:#x}) is in no table: {} have at most 8 bits; {}",
        short.join(", "),
        ends.join("; ")
    );
    text += match u32::try_from(value) {
        Ok(_) => {
            ". Only the syndrome of a command has 32 bits, and the firmware's syndromes are not \
             published; `cargo xtask prm show` shows command opcodes and register ids"
        }
        Err(_) => ". No number of mlx5's messages has more than 32 bits: it may be an address",
    };
    text
}

/// The values with that name or those words.
pub fn named<'a>(tables: &'a [Numbers], name: &str) -> Vec<Meaning<'a>> {
    let query = plain(name);
    let all = tables.iter().flat_map(|of| of.values.iter().map(move |is| Meaning { of, is }));
    all.filter(|meaning| !query.is_empty() && meaning.is_named(&query)).collect()
}

/// Names of values that contain the query.
pub fn near(tables: &[Numbers], query: &str, max: usize) -> Vec<&'static str> {
    let query = plain(query);
    let all = tables.iter().flat_map(|of| of.values);
    let mut names: Vec<&'static str> = all
        .filter(|it| query.len() > 2 && plain(it.name).contains(&*query))
        .map(|it| it.name)
        .collect();
    names.dedup();
    names.truncate(max);
    names
}

/// Whether both are the same name or words, except for a final "error".
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

    const TABLES: &[Numbers] = &[
        Numbers {
            called: "CQE syndrome",
            decimal: false,
            prefixes: &["MLX5_CQE_SYNDROME_"],
            shown_in: &["`syndrome {x}`"],
            values: &[
                Number { value: 0xc, name: "TWELVE", says: &[], doc: "It is 12." },
                Number { value: 0x12, name: "BAD", says: &["Bad error"], doc: "It is bad." },
                Number { value: 0xf9, name: "FLUSHED", says: &[], doc: "It is flushed." },
            ],
        },
        Numbers {
            called: "errno",
            decimal: true,
            prefixes: &[],
            shown_in: &["`{says}`, {n}"],
            values: &[
                Number { value: 12, name: "ENOMEM", says: &["No memory"], doc: "Too little." },
                Number { value: 18, name: "EXDEV", says: &[], doc: "Across devices." },
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
        // The hexadecimal tables of prm/ have at most 8 bits, as the text says.
        for table in crate::NUMBERS.iter().filter(|it| !it.decimal) {
            assert!(table.values.iter().all(|it| it.value <= 0xff), "{}", table.called);
        }
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
