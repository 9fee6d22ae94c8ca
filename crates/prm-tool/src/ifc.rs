//! Reads layouts from a C header in the style of Linux's `mlx5_ifc.h`, whose array elements are
//! bits: `u8 cqe_sz[0x3];` is a field of three bits.

use std::collections::BTreeMap;

use super::facts::{Facts, Layout};

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
    Inline(Option<String>, Body),
    /// A member whose size is an unknown constant.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct Body {
    union: bool,
    members: Vec<Member>,
}

/// Reads all structures and unions `mlx5_ifc_…` of a header.
pub(crate) fn parse(text: &str) -> Result<Facts, String> {
    let tokens = tokens(text);
    let mut bodies: BTreeMap<String, Body> = BTreeMap::new();
    let mut at = 0;
    while at + 2 < tokens.len() {
        let union = tokens[at] == "union";
        if (union || tokens[at] == "struct")
            && tokens[at + 1].starts_with("mlx5_ifc_")
            && tokens[at + 2] == "{"
        {
            let name = tokens[at + 1].to_owned();
            at += 3;
            let members = members(&tokens, &mut at).map_err(|error| format!("{name}: {error}"))?;
            bodies.insert(name, Body { union, members });
        } else {
            at += 1;
        }
    }
    let mut structs = BTreeMap::new();
    for (name, body) in &bodies {
        let mut fields = BTreeMap::new();
        // A structure that refers to another header has no known size and is left out.
        if let Some(bits) = lay_out(&bodies, body, 0, &mut fields, 0) {
            structs.insert(name.clone(), Layout { bits, fields });
        }
    }
    Ok(Facts { structs, enums: BTreeMap::new() })
}

/// The words and punctuation, without comments and preprocessor lines.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line_start = true;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("//") || (line_start && c == '#') {
            rest.find('\n').unwrap_or(rest.len())
        } else if c.is_ascii_alphanumeric() || c == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let end = end.unwrap_or(rest.len());
            tokens.push(&rest[..end]);
            end
        } else {
            if !c.is_whitespace() {
                tokens.push(&rest[..c.len_utf8()]);
            }
            c.len_utf8()
        };
        line_start = c == '\n' || (line_start && c.is_whitespace());
        rest = &rest[length..];
    }
    tokens
}

/// The members up to the closing brace and its semicolon.
fn members(tokens: &[&str], at: &mut usize) -> Result<Vec<Member>, String> {
    let mut members = Vec::new();
    loop {
        let Some(&token) = tokens.get(*at) else { return Err("is not closed".into()) };
        *at += 1;
        match token {
            "}" => return Ok(members),
            ";" => {}
            "u8" => {
                let name = next(tokens, at)?;
                // The last size is an element's width; the others count elements.
                members.push(match sizes(tokens, at)? {
                    Some(sizes) => Member::Bits(name, sizes.iter().product()),
                    None => Member::Unknown,
                });
            }
            "struct" | "union" => {
                let what = next(tokens, at)?;
                if what == "{" {
                    let body =
                        Body { union: token == "union", members: self::members(tokens, at)? };
                    let named = tokens.get(*at).filter(|&&token| token != ";");
                    let name = named.map(|&name| name.to_owned());
                    *at += usize::from(name.is_some());
                    members.push(Member::Inline(name, body));
                    continue;
                }
                let name = next(tokens, at)?;
                members.push(match sizes(tokens, at)? {
                    Some(sizes) => Member::Named { name, of: what, count: sizes.iter().product() },
                    None => Member::Unknown,
                });
            }
            // A flexible array in a union: DECLARE_FLEX_ARRAY(struct mlx5_ifc_x_bits, name);
            "DECLARE_FLEX_ARRAY" => {
                let end = tokens[*at..].iter().position(|&token| token == ")");
                let end = end.ok_or("DECLARE_FLEX_ARRAY is not closed")?;
                let name = end.checked_sub(1).map(|i| tokens[*at + i]).unwrap_or_default();
                members.push(Member::Bits(name.to_owned(), 0));
                *at += end + 1;
            }
            other => return Err(format!("`{other}` is not a member of a layout")),
        }
    }
}

fn next(tokens: &[&str], at: &mut usize) -> Result<String, String> {
    let token = tokens.get(*at).ok_or("ends within a member")?;
    *at += 1;
    Ok((*token).to_owned())
}

/// The sizes in brackets; `[]` and `[0]` are 0, a flexible array; `None` if one is a constant.
fn sizes(tokens: &[&str], at: &mut usize) -> Result<Option<Vec<u32>>, String> {
    let mut sizes = Vec::new();
    let mut known = true;
    while tokens.get(*at) == Some(&"[") {
        *at += 1;
        let mut value: u32 = 0;
        let mut sign = 1i64;
        while let Some(&token) = tokens.get(*at) {
            *at += 1;
            match token {
                "]" => break,
                "+" => sign = 1,
                "-" => sign = -1,
                name if !name.starts_with(|c: char| c.is_ascii_digit()) => known = false,
                number => {
                    let parsed = match number.strip_prefix("0x") {
                        Some(hex) => u32::from_str_radix(hex, 16),
                        None => number.parse(),
                    };
                    let parsed = parsed.map_err(|_| format!("`{number}` is not a size"))?;
                    value = u32::try_from(i64::from(value) + sign * i64::from(parsed))
                        .map_err(|_| "a size is negative")?;
                }
            }
        }
        sizes.push(value);
    }
    Ok(known.then_some(sizes))
}

/// Writes the position of each member to `fields`, and returns the number of bits; `None` if a size
/// is unknown.
fn lay_out(
    bodies: &BTreeMap<String, Body>,
    body: &Body,
    start: u32,
    fields: &mut BTreeMap<String, (u32, u32)>,
    depth: u32,
) -> Option<u32> {
    if depth > 16 {
        return None;
    }
    let (mut at, mut longest) = (start, 0);
    for member in &body.members {
        let width = match member {
            Member::Bits(name, width) => {
                fields.insert(name.clone(), (at, *width));
                *width
            }
            Member::Named { name, of, count } => {
                let inner = bodies.get(of)?;
                let width = lay_out(bodies, inner, 0, &mut BTreeMap::new(), depth + 1)? * count;
                fields.insert(name.clone(), (at, width));
                width
            }
            Member::Unknown => return None,
            Member::Inline(None, inner) => lay_out(bodies, inner, at, fields, depth)?,
            Member::Inline(Some(name), inner) => {
                let width = lay_out(bodies, inner, 0, &mut BTreeMap::new(), depth)?;
                fields.insert(name.clone(), (at, width));
                width
            }
        };
        longest = longest.max(width);
        if !body.union {
            at += width;
        }
    }
    Some(if body.union { longest } else { at - start })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "
#define X 1 \\
enum { MLX5_A = 1, };
/* struct mlx5_ifc_not_this_bits { */
struct mlx5_ifc_inner_bits {
	u8         a[0x8];
	u8         reserved_at_8[0x18]; // a gap
};

union mlx5_ifc_either_bits {
	struct mlx5_ifc_inner_bits inner;
	u8 raw[0x60];
};

struct mlx5_ifc_outer_bits {
	u8         x[0x4];
	u8         y[0x20 - 4];
	struct mlx5_ifc_inner_bits one;
	struct mlx5_ifc_inner_bits two[2];
	union {
		u8 left[0x10];
		struct {
			u8 half[0x8];
			u8 rest[0x18];
		};
	};
	union mlx5_ifc_either_bits either;
	struct { u8 hidden[0x10]; } named;
	u8         reserved_at_110[0x10];
	u8         ip[4][0x20];
	union {
		DECLARE_FLEX_ARRAY(struct mlx5_ifc_inner_bits, more);
		u8 pas[][0x40];
	};
};

struct mlx5_ifc_foreign_bits {
	struct mlx5_ifc_elsewhere_bits unknown;
};
";

    #[test]
    fn ifc_layout_matches_compiler() {
        let facts = parse(HEADER).unwrap();
        let outer = &facts.structs["mlx5_ifc_outer_bits"];
        assert_eq!(outer.bits, 32 + 32 + 64 + 32 + 96 + 32 + 128);
        for (name, span) in [
            ("x", (0, 4)),
            ("y", (4, 28)),
            ("one", (32, 32)),
            ("two", (64, 64)),
            ("left", (128, 16)),
            ("half", (128, 8)),
            ("rest", (136, 24)),
            ("either", (160, 96)),
            ("named", (256, 16)),
            ("ip", (288, 128)),
            ("pas", (416, 0)),
            ("more", (416, 0)),
        ] {
            assert_eq!(outer.fields[name], span, "{name}");
        }
        assert!(!outer.fields.contains_key("hidden"));
        assert!(!facts.structs.contains_key("mlx5_ifc_foreign_bits"));
        assert!(!facts.structs.contains_key("mlx5_ifc_not_this_bits"));
    }

    #[test]
    fn malformed_layout_is_rejected() {
        for text in [
            "struct mlx5_ifc_a_bits { u8 a[0x8];",
            "struct mlx5_ifc_a_bits { int a; };",
            "struct mlx5_ifc_a_bits { u8 a[1 - 2]; };",
            "struct mlx5_ifc_a_bits { u8",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let constant = "struct mlx5_ifc_a_bits { u8 a[SIZE]; };";
        assert!(parse(constant).unwrap().structs.is_empty());
        let own = "struct mlx5_ifc_a_bits { struct mlx5_ifc_a_bits a; };";
        assert!(parse(own).unwrap().structs.is_empty());
    }

    #[test]
    fn comments_and_preprocessor_lines_are_skipped() {
        let text = "a /* b */ c // d\n#define e\n\t #if f\n g_1 # h[0x2];\n/* open";
        assert_eq!(tokens(text), ["a", "c", "g_1", "#", "h", "[", "0x2", "]", ";"]);
    }

    #[test]
    fn non_structure_declarations_are_ignored() {
        let last = "struct mlx5_ifc_last_bits { u8 a[0x8]; };";
        for before in [
            "struct other { int a; };",
            "enum mlx5_ifc_kind { A, B, C, D, E, F, G, H };",
            "struct mlx5_ifc_last_bits *pointer;",
            "u8 mlx5_ifc_name { } ;",
        ] {
            let facts = parse(&format!("{before} {last}")).unwrap();
            assert!(facts.structs.keys().eq(["mlx5_ifc_last_bits"]), "{before}");
        }
        assert!(parse("struct mlx5_ifc_a_bits").unwrap().structs.is_empty());
    }

    #[test]
    fn nesting_is_limited_to_sixteen_levels() {
        let mut header = "struct mlx5_ifc_s0_bits { u8 a[0x8]; };".to_owned();
        for i in 1..=17 {
            let inner = i - 1;
            header += &format!(
                "struct mlx5_ifc_s{i}_bits {{ struct mlx5_ifc_s{inner}_bits a; u8 b[0x8]; }};"
            );
        }
        let facts = parse(&header).unwrap();
        assert_eq!(facts.structs["mlx5_ifc_s16_bits"].bits, 17 * 8);
        assert!(!facts.structs.contains_key("mlx5_ifc_s17_bits"));
    }
}
