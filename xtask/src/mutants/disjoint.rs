//! The `|` of constants whose operands have no bit in common, as the source shows: `^` for such a
//! `|` changes nothing. A running program cannot observe the operands of a constant.
//!
//! An operand's possible bits follow from literals, from `&` with a literal, from shifts by a
//! literal, and from the type of a parameter. A named constant counts as a flag: it shares no bit
//! with another name.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprBinary, FnArg, Lit, Pat, Signature, Type};

use super::list::Mutant;
use crate::workspace::{Result, workspace_root};

/// Why such a mutant is not tried.
pub(super) const REASON: &str = "a constant whose operands have no bit in common";

/// Whether a mutant is `^` for one of these operators.
pub(super) fn covers(mutant: &Mutant) -> Result<bool> {
    if mutant.replacement != "^" {
        return Ok(false);
    }
    let text = std::fs::read_to_string(workspace_root().join(&mutant.file))?;
    let range = mutant.range(&text)?;
    Ok(operators(&text)?.contains(&(range.start, range.end)))
}

/// The ranges of the operators `|` in constants and `const fn` of a file whose operands have no bit
/// in common.
fn operators(text: &str) -> Result<BTreeSet<(usize, usize)>> {
    let mut found = Finder::default();
    found.visit_file(&syn::parse_file(text)?);
    Ok(found.disjoint)
}

/// The bits that may be set in a value.
#[derive(Debug, Clone, Default)]
struct Bits {
    mask: u128,
    /// Named constants.
    flags: BTreeSet<String>,
}

impl Bits {
    const ALL: Self = Self::of(u128::MAX);

    const fn of(mask: u128) -> Self {
        Self { mask, flags: BTreeSet::new() }
    }

    /// The bits after an operation on the mask. Flags may become any bits.
    fn map(self, with: impl Fn(u128) -> u128) -> Self {
        Self::of(with(if self.flags.is_empty() { self.mask } else { u128::MAX }))
    }

    fn is_disjoint(&self, other: &Self) -> bool {
        let known = self.flags.is_empty() || other.mask == 0;
        let other_known = other.flags.is_empty() || self.mask == 0;
        known && other_known && self.mask & other.mask == 0 && self.flags.is_disjoint(&other.flags)
    }

    fn or(mut self, other: Self) -> Self {
        self.mask |= other.mask;
        self.flags.extend(other.flags);
        self
    }
}

#[derive(Default)]
struct Finder {
    disjoint: BTreeSet<(usize, usize)>,
    is_constant: bool,
    /// The bits of the parameters of a `const fn`.
    parameters: BTreeMap<String, u128>,
}

impl Finder {
    /// Visits a constant.
    fn constant(&mut self, parameters: BTreeMap<String, u128>, visit: impl FnOnce(&mut Self)) {
        let before = (self.is_constant, std::mem::replace(&mut self.parameters, parameters));
        self.is_constant = true;
        visit(self);
        (self.is_constant, self.parameters) = before;
    }

    /// Visits a function, which may be `const`.
    fn function(&mut self, signature: &Signature, visit: impl FnOnce(&mut Self)) {
        if signature.constness.is_some() {
            return self.constant(parameters(signature), visit);
        }
        let before = (self.is_constant, std::mem::take(&mut self.parameters));
        self.is_constant = false;
        visit(self);
        (self.is_constant, self.parameters) = before;
    }

    fn bits(&self, of: &Expr) -> Bits {
        match of {
            Expr::Lit(it) => number(of).map_or_else(
                || if matches!(it.lit, Lit::Bool(_)) { Bits::of(1) } else { Bits::ALL },
                Bits::of,
            ),
            Expr::Paren(it) => self.bits(&it.expr),
            Expr::Cast(it) => self.bits(&it.expr).map(|mask| mask & width(&it.ty)),
            Expr::Field(it) => match &*it.base {
                Expr::Path(_) => self.bits(&it.base),
                _ => Bits::ALL,
            },
            Expr::Path(it) => {
                let name = it.path.segments.iter().map(|part| part.ident.to_string());
                let name = name.collect::<Vec<_>>().join("::");
                let last = name.rsplit("::").next().unwrap_or(&name);
                match self.parameters.get(&name) {
                    Some(&mask) => Bits::of(mask),
                    None if last.chars().any(char::is_lowercase) => Bits::ALL,
                    None => Bits { mask: 0, flags: [name].into() },
                }
            }
            Expr::Binary(ExprBinary { left, op, right, .. }) => {
                let (left, by) = (self.bits(left), number(right));
                match (op, by.and_then(|by| u32::try_from(by).ok())) {
                    (BinOp::BitOr(_), _) => left.or(self.bits(right)),
                    (BinOp::BitAnd(_), _) => {
                        let right = self.bits(right).map(|mask| mask).mask;
                        left.map(|mask| mask & right)
                    }
                    (BinOp::Shl(_), Some(by @ 0..128)) => left.map(|mask| mask << by),
                    (BinOp::Shr(_), Some(by @ 0..128)) => left.map(|mask| mask >> by),
                    _ => Bits::ALL,
                }
            }
            _ => Bits::ALL,
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(BTreeMap::new(), |this| visit::visit_item_const(this, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(BTreeMap::new(), |this| visit::visit_item_static(this, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(BTreeMap::new(), |this| visit::visit_impl_item_const(this, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, |this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, |this| visit::visit_impl_item_fn(this, item));
    }

    fn visit_expr_binary(&mut self, expression: &'ast ExprBinary) {
        visit::visit_expr_binary(self, expression);
        let BinOp::BitOr(operator) = &expression.op else { return };
        let (left, right) = (self.bits(&expression.left), self.bits(&expression.right));
        if self.is_constant && left.is_disjoint(&right) {
            let range = operator.span().byte_range();
            self.disjoint.insert((range.start, range.end));
        }
    }
}

/// The bits of the parameters whose type shows them.
fn parameters(signature: &Signature) -> BTreeMap<String, u128> {
    let typed = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(it) => Some(it),
        FnArg::Receiver(_) => None,
    });
    let named = typed.filter_map(|it| match &*it.pat {
        Pat::Ident(name) => Some((name.ident.to_string(), width(&it.ty))),
        _ => None,
    });
    named.collect()
}

/// The bits of an unsigned type; all for any other.
fn width(of: &Type) -> u128 {
    let Type::Path(path) = of else { return u128::MAX };
    match path.path.get_ident().map(ToString::to_string).as_deref() {
        Some("bool") => 1,
        Some("u8") => u8::MAX.into(),
        Some("u16") => u16::MAX.into(),
        Some("u32") => u32::MAX.into(),
        Some("u64") => u64::MAX.into(),
        _ => u128::MAX,
    }
}

/// The value of a literal.
fn number(of: &Expr) -> Option<u128> {
    match of {
        Expr::Lit(it) => match &it.lit {
            Lit::Int(it) => it.base10_parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{operators, workspace_root};

    /// The operators `|` in the text, and those that are found.
    fn counts(text: &str) -> (usize, usize) {
        (text.matches('|').count(), operators(text).unwrap().len())
    }

    #[test]
    fn disjoint_operands_are_proven_by_source() {
        for text in [
            "const A: u32 = 1 << 1 | 1 << 8 | 0x100_0000;",
            "const A: i32 = libc::O_PATH | libc::O_CLOEXEC | Mask::RRE.0;",
            "static A: u64 = (B | C) as u64;",
            "const fn f(a: u64, b: u64) -> u64 { a & 0xff | (b >> 16 & 0xff) << 8 }",
            "const fn f(a: u16, b: u8) -> u64 { a as u64 | (b as u64) << 16 }",
            "impl A { const fn f(a: bool) -> u8 { a as u8 | 2 } const B: u8 = 1 | 2; }",
            "fn f() { const A: u32 = 0x100 | 0x1000; }",
        ] {
            let (all, found) = counts(text);
            assert_eq!(found, all, "{text}");
        }
    }

    #[test]
    fn overlapping_or_unknown_operands_are_not_proven() {
        for text in [
            "const A: u32 = 3 << 1 | 1 << 2;",
            "const A: i32 = libc::O_PATH | libc::O_PATH;",
            "const A: u32 = B | 1;",
            "const A: u32 = B << 1 | C;",
            "const fn f(a: u64, b: u8) -> u64 { a | (b as u64) << 16 }",
            "const fn f(a: u32, b: u8) -> u64 { a as u64 | (b as u64) << 16 }",
            "impl A { const fn f(&self) -> u8 { self.a | self.b } }",
            "const fn f(a: u64, n: u32) -> u64 { a & 1 | 1 << n }",
            "fn f(a: u64) -> u64 { a & 1 | 2 }",
            "fn f() -> i32 { libc::O_PATH | libc::O_CLOEXEC }",
        ] {
            assert_eq!(counts(text), (1, 0), "{text}");
        }
    }

    #[test]
    fn packed_words_of_crates_are_proven() {
        for (file, at_least) in [
            ("crates/command/src/qp.rs", 2),
            ("crates/devx/src/abi/mlx5.rs", 3),
            ("crates/flexio-dev/src/outbox.rs", 1),
            ("crates/flexio-dev/src/stream/entry.rs", 1),
            ("crates/model-host/src/run/open_how.rs", 8),
            ("crates/model-host/src/run/paths.rs", 2),
            ("crates/model-host/src/run/sys.rs", 1),
            ("crates/model-kernel/src/verbs/qp.rs", 4),
        ] {
            let text = std::fs::read_to_string(workspace_root().join(file)).unwrap();
            let found = operators(&text).unwrap().len();
            assert!(found >= at_least, "{found} in {file}, and not {at_least}");
        }
    }
}
