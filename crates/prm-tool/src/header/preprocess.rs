//! The text of a C header without comments and directives.
//!
//! Of alternatives (`#if`, `#else`) the big-endian one is kept, or the first. A `#define` of an
//! integer is a constant for sizes; one that is a mask becomes `@ NAME LOW WIDTH`, because drivers
//! name the bits of a word by macros below the member that they belong to.

use std::collections::BTreeMap;

/// A header as [`clean`] leaves it.
#[derive(Debug, Default)]
pub(super) struct Clean {
    pub(super) text: String,
    /// Integers of `#define` lines.
    pub(super) constants: BTreeMap<String, u64>,
}

/// Removes comments and directives.
pub(super) fn clean(text: &str) -> Clean {
    let text = without_comments(text).replace("\\\r\n", " ").replace("\\\n", " ");
    let mut clean = Clean::default();
    // For each open `#if`: whether its present part is kept, and whether one was.
    let mut open: Vec<(bool, bool)> = Vec::new();
    for line in text.lines() {
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            if open.iter().all(|&(kept, _)| kept) {
                clean.text += line;
                clean.text.push('\n');
            }
            continue;
        };
        let directive = directive.trim_start();
        let word = directive.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        let condition = directive[word.len()..].trim();
        match word {
            "if" | "ifdef" | "ifndef" => {
                let kept = !is_excluded(condition);
                open.push((kept, kept));
            }
            "elif" | "else" => {
                if let Some((kept, any)) = open.last_mut() {
                    *kept = !*any && !is_excluded(condition);
                    *any |= *kept;
                }
            }
            "endif" => {
                open.pop();
            }
            "define" if open.iter().all(|&(kept, _)| kept) => clean.define(condition),
            _ => {}
        }
    }
    clean
}

/// Whether the other alternative describes memory as the device sees it: DPDK pads CQEs to 128
/// bytes on some processors.
fn is_excluded(condition: &str) -> bool {
    ["0", "__cplusplus", "(RTE_CACHE_LINE_SIZE == 128)"].contains(&condition)
        || condition.contains("LITTLE")
}

impl Clean {
    fn define(&mut self, text: &str) {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, value) = text.split_at(end.unwrap_or(text.len()));
        // A macro with parameters has no blank before its parenthesis.
        if value.starts_with('(') || value.trim().is_empty() {
            return;
        }
        let tokens = super::tokens(value);
        let Some(number) = evaluate(&tokens, &self.constants) else { return };
        self.constants.insert(name.to_owned(), number);
        let shifted = value.contains("<<") && !value.contains('|');
        let named = name.ends_with("_MASK") || name.contains("_CAP_");
        if (shifted || (named && value.contains("0x")))
            && let Some((low, width)) = mask(number)
        {
            self.text += &format!("@ {name} {low} {width}\n");
        }
    }
}

/// Lowest bit and width of contiguous ones.
fn mask(value: u64) -> Option<(u32, u32)> {
    let low = value.trailing_zeros();
    let ones = value.checked_shr(low)?;
    (ones & ones.wrapping_add(1) == 0).then(|| (low, ones.count_ones()))
}

fn without_comments(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        out += &rest[..at];
        let block = rest[at..].starts_with("/*");
        let end = if block { rest[at..].find("*/") } else { rest[at..].find('\n') };
        out.push(' ');
        rest = end.map_or("", |end| &rest[at + end + if block { 2 } else { 0 }..]);
    }
    out + rest
}

/// The value of an expression of integers, known names, parentheses and `+ - * / <<`.
pub(super) fn evaluate(tokens: &[&str], constants: &BTreeMap<String, u64>) -> Option<u64> {
    let mut at = 0;
    let value = expression(tokens, &mut at, constants)?;
    (at == tokens.len()).then_some(value)
}

fn expression(tokens: &[&str], at: &mut usize, names: &BTreeMap<String, u64>) -> Option<u64> {
    let mut value = operand(tokens, at, names)?;
    while let Some(&operator) = tokens.get(*at).filter(|&&token| token != ")") {
        *at += if operator == "<" { 2 } else { 1 };
        let right = operand(tokens, at, names)?;
        value = match operator {
            "+" => value.checked_add(right)?,
            "-" => value.checked_sub(right)?,
            "*" => value.checked_mul(right)?,
            "/" => value.checked_div(right)?,
            "<" => value.checked_shl(right.try_into().ok()?)?,
            _ => return None,
        };
    }
    Some(value)
}

fn operand(tokens: &[&str], at: &mut usize, names: &BTreeMap<String, u64>) -> Option<u64> {
    let &token = tokens.get(*at)?;
    *at += 1;
    if token == "(" {
        let value = expression(tokens, at, names)?;
        return (tokens.get(*at) == Some(&")")).then(|| {
            *at += 1;
            value
        });
    }
    let digits = token.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok().or_else(|| names.get(token).copied()),
    }
}
