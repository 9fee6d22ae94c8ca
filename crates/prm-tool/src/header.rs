//! Reads layouts from C headers: those in the style of Linux's `mlx5_ifc.h`, whose array elements
//! are bits (`u8 cqe_sz[0x3];` is a field of three bits), and plain structures of bytes and
//! big-endian words, as WQEs and CQEs have.

use std::collections::BTreeMap;

use super::facts::{Facts, Layout};
use preprocess::{clean, evaluate};

mod preprocess;

/// A member of a C structure or union.
#[derive(Clone, Debug)]
enum Member {
    Bits(String, u32),
    Named {
        name: String,
        of: String,
        count: u32,
    },
    /// A nested structure; the members of an anonymous one belong to the outer structure.
    Inline(Option<String>, Body, u32),
    /// Bits of the member before it, counted from the lowest: name, lowest bit, width.
    Mask(String, u32, u32),
    /// A member whose size is an unknown constant.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct Body {
    union: bool,
    members: Vec<Member>,
}

/// The layouts of headers.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    /// Structures by name; one that refers to an unknown type or constant is not among them.
    pub(crate) facts: Facts,
    /// Why other structures were skipped.
    pub(crate) skipped: Vec<String>,
}

/// Constants of other headers: the bytes of a MAC address.
const ELSEWHERE: [&str; 3] = ["ETH_ALEN", "ETHER_ADDR_LEN", "ETHERNET_LL_SIZE"];

/// Reads all structures and unions of headers that may refer to each other.
pub(crate) fn read<'a>(texts: impl IntoIterator<Item = &'a str>) -> Headers {
    let mut bodies = BTreeMap::new();
    let mut skipped = Vec::new();
    for text in texts {
        let mut clean = clean(text);
        clean.constants.extend(ELSEWHERE.map(|name| (name.to_owned(), 6)));
        Parser { tokens: tokens(&clean.text), at: 0, constants: clean.constants, bits: false }
            .definitions(&mut bodies, &mut skipped);
    }
    let mut structs = BTreeMap::new();
    for (name, body) in &bodies {
        let mut fields = BTreeMap::new();
        if let Some(bits) = lay_out(&bodies, body, 0, "", &mut fields, 0) {
            structs.insert(name.clone(), Layout { bits, fields });
        }
    }
    Headers { facts: Facts { structs, enums: BTreeMap::new() }, skipped }
}

/// Reads a header of the `mlx5_ifc` family, in which every structure must be well formed.
pub(crate) fn parse(text: &str) -> Result<Facts, String> {
    let headers = read([text]);
    let error = headers.skipped.into_iter().find(|error| error.starts_with("mlx5_ifc_"));
    error.map_or(Ok(headers.facts), Err)
}

/// Words and punctuation.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = if is_word(c) { rest.find(|c| !is_word(c)) } else { Some(c.len_utf8()) };
        let (token, after) = rest.split_at(end.unwrap_or(rest.len()));
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// Bits of a C type; in the style of `mlx5_ifc.h` a `u8` is one bit.
fn width(name: &str, bits: bool) -> Option<u32> {
    let name = name.trim_start_matches('_');
    let width = match name {
        "u8" | "uint8_t" | "char" | "bits8_t" | "bool" => 8,
        "u16" | "be16" | "uint16_t" | "rte_be16_t" | "uint16be_t" | "bits16_t" => 16,
        "uint24be_t" | "bits24_t" => 24,
        "u32" | "be32" | "uint32_t" | "rte_be32_t" | "uint32be_t" | "bits32_t" => 32,
        "u64" | "be64" | "uint64_t" | "rte_be64_t" | "uint64be_t" | "bits64_t" => 64,
        _ => return None,
    };
    match bits {
        true => (width == 8).then_some(1),
        false => Some(width),
    }
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    constants: BTreeMap<String, u64>,
    /// Whether the present structure counts bits.
    bits: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Result<&'a str, String> {
        let token = self.peek().ok_or("is not closed")?;
        self.at += 1;
        Ok(token)
    }

    /// Reads every definition of a structure or union.
    fn definitions(&mut self, bodies: &mut BTreeMap<String, Body>, skipped: &mut Vec<String>) {
        while let Some(token) = self.peek() {
            self.at += 1;
            let start = self.at;
            if !matches!(token, "struct" | "union") {
                self.constant();
                continue;
            }
            let tag = self.tag();
            if self.peek() != Some("{") {
                self.at = start;
                continue;
            }
            self.at += 1;
            self.bits = tag.is_some_and(is_of_bits);
            let union = token == "union";
            let read = self.members().and_then(|members| Ok((members, self.declarator()?)));
            match read {
                Ok((members, (name, _))) => {
                    let names = [tag.map(str::to_owned), name];
                    for name in names.into_iter().flatten() {
                        bodies.insert(name, Body { union, members: members.clone() });
                    }
                }
                Err(error) => {
                    skipped.push(format!("{}: {error}", tag.unwrap_or("a structure")));
                    self.at = start;
                }
            }
        }
    }

    /// Records `NAME = 1` of an enum.
    fn constant(&mut self) {
        let [name, "=", value, ",", ..] = self.tokens[self.at - 1..] else { return };
        if let Some(value) = evaluate(&[value], &self.constants) {
            self.constants.insert(name.to_owned(), value);
        }
    }

    /// The name after `struct`, among attributes.
    fn tag(&mut self) -> Option<&'a str> {
        let mut tag = None;
        while let Some(token) = self.peek() {
            if token == "(" {
                self.skip_parentheses();
                continue;
            }
            if !is_name(token) {
                break;
            }
            tag = (!token.starts_with("__")).then_some(token).or(tag);
            self.at += 1;
        }
        tag
    }

    fn skip_parentheses(&mut self) {
        let mut depth = 0;
        while let Some(token) = self.peek() {
            self.at += 1;
            depth += i32::from(token == "(") - i32::from(token == ")");
            if depth == 0 {
                break;
            }
        }
    }

    /// The members up to the closing brace.
    fn members(&mut self) -> Result<Vec<Member>, String> {
        let mut members = Vec::new();
        loop {
            match self.next()? {
                "}" => return Ok(members),
                ";" | "const" | "volatile" | "__extension__" | "RTE_STD_C11" => {}
                // A name for several members: struct_group(trailer, u8 a; u8 b; );
                "struct_group" => self.at += 3,
                ")" => {}
                "@" => {
                    let name = self.next()?.to_owned();
                    let mut number = || self.next()?.parse().map_err(|_| "is no mask".to_owned());
                    members.push(Member::Mask(name, number()?, number()?));
                }
                token @ ("struct" | "union") => {
                    let tag = self.tag();
                    if self.peek() == Some("{") {
                        self.at += 1;
                        let body = Body { union: token == "union", members: self.members()? };
                        let (name, count) = self.declarator()?;
                        members.push(Member::Inline(name, body, count));
                    } else {
                        // Without a brace, the last word is the member.
                        self.at -= 1;
                        let of = self.tokens[..self.at].iter().rev().find(|t| is_name(t));
                        let of = of.filter(|_| tag.is_some()).ok_or("has no type")?;
                        members.push(self.named((*of).to_owned())?);
                    }
                }
                // A flexible array in a union: DECLARE_FLEX_ARRAY(struct mlx5_ifc_x_bits, name);
                "DECLARE_FLEX_ARRAY" => {
                    let start = self.at;
                    self.skip_parentheses();
                    let name = self.tokens[start..self.at].iter().rev().find(|t| is_name(t));
                    members.push(Member::Bits((*name.unwrap_or(&"")).to_owned(), 0));
                }
                token => match width(token, self.bits) {
                    Some(width) => self.numbers(width, &mut members)?,
                    None if is_name(token) && !self.bits => {
                        members.push(self.named(token.to_owned())?);
                    }
                    None => return Err(format!("`{token}` is not a member of a layout")),
                },
            }
        }
    }

    /// Members of a structure's type.
    fn named(&mut self, of: String) -> Result<Member, String> {
        let name = self.next()?.to_owned();
        if !is_name(&name) {
            return Err(format!("`{name}` is not a member's name"));
        }
        let sizes = self.sizes()?;
        Ok(match sizes {
            Some(sizes) => Member::Named { name, of, count: sizes.iter().product() },
            None => Member::Unknown,
        })
    }

    /// The declarators after a number's type: `a[0x3];`, `b, c;`, `d : 4;`.
    fn numbers(&mut self, width: u32, members: &mut Vec<Member>) -> Result<(), String> {
        loop {
            let name = self.next()?;
            if !is_name(name) {
                return Err(format!("`{name}` is not a member's name"));
            }
            let sizes = self.sizes()?;
            members.push(match (sizes, self.peek()) {
                (_, Some(":")) => {
                    self.at += 1;
                    let width = self.next()?;
                    let width = evaluate(&[width], &self.constants).ok_or("has no width")?;
                    Member::Bits(name.to_owned(), width as u32)
                }
                // The last size is an element's width; the others count elements.
                (Some(sizes), _) => {
                    Member::Bits(name.to_owned(), width * sizes.iter().product::<u32>())
                }
                (None, _) => Member::Unknown,
            });
            if self.peek() != Some(",") {
                return Ok(());
            }
            self.at += 1;
        }
    }

    /// The name between a structure's closing brace and its semicolon, and the number of elements;
    /// attributes are skipped.
    fn declarator(&mut self) -> Result<(Option<String>, u32), String> {
        let (mut name, mut count) = (None, 1);
        loop {
            match self.peek().ok_or("is not closed")? {
                ";" => return Ok((name, count)),
                "(" => self.skip_parentheses(),
                "[" => count = self.sizes()?.ok_or("has no size")?.iter().product(),
                token => {
                    if is_name(token) && !token.starts_with("__") && name.is_none() {
                        name = Some(token.to_owned());
                    }
                    self.at += 1;
                }
            }
        }
    }

    /// The sizes in brackets; `[]` and `[0]` are 0, a flexible array; `None` if one is a constant.
    fn sizes(&mut self) -> Result<Option<Vec<u32>>, String> {
        let mut sizes = Some(Vec::new());
        while self.peek() == Some("[") {
            let start = self.at + 1;
            while self.next()? != "]" {}
            let size = &self.tokens[start..self.at - 1];
            let value = match size {
                [] => Some(0),
                size => evaluate(size, &self.constants),
            };
            if value.is_none() && size.iter().all(|token| !is_name(token)) {
                return Err(format!("`{}` is not a size", size.join(" ")));
            }
            let value = value.and_then(|value| u32::try_from(value).ok());
            sizes = sizes.zip(value).map(|(sizes, value)| [sizes, vec![value]].concat());
        }
        Ok(sizes)
    }
}

/// Whether a structure of this name is in the style of `mlx5_ifc.h`.
pub(crate) fn is_of_bits(name: &str) -> bool {
    name.starts_with("mlx5_ifc_") || name.ends_with("_bits")
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Writes the position of each member to `fields`, and returns the number of bits; `None` if a size
/// is unknown. The members of a named inner structure get its name and a dot, and so do those of
/// another structure of bytes.
fn lay_out(
    bodies: &BTreeMap<String, Body>,
    body: &Body,
    start: u32,
    prefix: &str,
    fields: &mut BTreeMap<String, (u32, u32)>,
    depth: u32,
) -> Option<u32> {
    if depth > 16 {
        return None;
    }
    let (mut at, mut longest) = (start, 0);
    let mut last = (start, 0);
    for member in &body.members {
        let mut put = |name: &str, width| fields.insert(format!("{prefix}{name}"), (at, width));
        let width = match member {
            Member::Bits(name, width) => {
                put(name, *width);
                *width
            }
            Member::Named { name, of, count } => {
                let inner = bodies.get(of)?;
                let path = format!("{prefix}{name}.");
                let mut parts = BTreeMap::new();
                let width = lay_out(bodies, inner, at, &path, &mut parts, depth + 1)?;
                let width = width.checked_mul(*count)?;
                put(name, width);
                if !is_of_bits(of) {
                    fields.extend(parts);
                }
                width
            }
            Member::Mask(name, low, width) => {
                let (start, of) = last;
                if let Some(above) = u32::checked_sub(of, low + width) {
                    fields.insert(format!("{prefix}{name}"), (start + above, *width));
                }
                continue;
            }
            Member::Unknown => return None,
            Member::Inline(None, inner, count) => {
                lay_out(bodies, inner, at, prefix, fields, depth)?.checked_mul(*count)?
            }
            Member::Inline(Some(name), inner, count) => {
                let path = format!("{prefix}{name}.");
                let width =
                    lay_out(bodies, inner, at, &path, fields, depth)?.checked_mul(*count)?;
                fields.insert(format!("{prefix}{name}"), (at, width));
                width
            }
        };
        last = (at, width);
        longest = longest.max(width);
        if !body.union {
            at += width;
        }
    }
    Some(if body.union { longest } else { at - start })
}

#[cfg(test)]
mod tests;
