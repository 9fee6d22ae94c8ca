//! Converts names in `prm/` to names in Rust.

/// `cq_context` as `CqContext`.
pub(crate) fn type_name(name: &str) -> String {
    let mut out = String::new();
    for part in name.split('_') {
        let mut chars = part.chars();
        out.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        out.push_str(chars.as_str());
    }
    out
}

/// A field's name as a method: keywords get `r#`.
pub(crate) fn method_name(name: &str) -> String {
    if KEYWORDS.contains(&name) { format!("r#{name}") } else { name.to_owned() }
}

/// The unsigned type that holds `bits` bits.
pub(crate) fn unsigned(bits: u32) -> &'static str {
    match bits {
        0..=8 => "u8",
        9..=16 => "u16",
        17..=32 => "u32",
        _ => "u64",
    }
}

/// Whether it is a `snake_case` name and can be a Rust method.
pub(crate) fn is_snake(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !["self", "super", "crate"].contains(&name)
}

/// Whether it is an `UPPER_CASE` name and can be a Rust constant.
pub(crate) fn is_upper(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_uppercase())
        && bytes.all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Methods of every view; no field may have these names.
pub(crate) const TAKEN: &[&str] =
    &["new", "zeroed", "from_prefix", "from_prefix_mut", "as_bytes", "as_bytes_mut"];

const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "static",
    "struct", "trait", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where",
    "while", "yield",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_snake_and_is_upper_require_leading_letter() {
        for (name, snake, upper) in [
            ("a_1", true, false),
            ("A_1", false, true),
            ("aB", false, false),
            ("Ab", false, false),
            ("1a", false, false),
            ("1A", false, false),
            ("_a", false, false),
            ("_A", false, false),
            ("a-b", false, false),
            ("A-B", false, false),
            ("", false, false),
            ("self", false, false),
            ("crate", false, false),
        ] {
            assert_eq!((is_snake(name), is_upper(name)), (snake, upper), "{name}");
        }
    }

    #[test]
    fn rust_names_are_camel_case_or_raw() {
        assert_eq!(type_name("cq_context"), "CqContext");
        assert_eq!(type_name("cqe_inline_32"), "CqeInline32");
        assert_eq!((method_name("type"), method_name("types")), ("r#type".into(), "types".into()));
        let widths = [1, 8, 9, 16, 17, 32, 33, 64].map(unsigned);
        assert_eq!(widths, ["u8", "u8", "u16", "u16", "u32", "u32", "u64", "u64"]);
    }
}
