//! The sites of a source file that mutants change, and how a running program can switch each.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprBinary};

use crate::workspace::Result;

/// The kind of a mutant's change, as cargo-mutants names it.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// How a mutant is switched. Offsets count bytes of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Site {
    /// This expression is evaluated with or without the change.
    Expression(Range<usize>),
    /// The function returns the replacement before its first statement.
    Body { first: usize },
    /// The arm gets a guard, or another condition in its guard. `matched` is the first byte of the
    /// matched expression.
    Arm { pattern_end: usize, guard: Option<Guard>, matched: usize },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Guard {
    pub(super) range: Range<usize>,
    /// `if let`, or a chain with `let`: it cannot be in parentheses.
    has_let: bool,
}

impl Guard {
    pub(super) fn has_let(&self) -> bool {
        self.has_let
    }
}

/// Why a mutant cannot be switched.
pub(super) type Obstacle = &'static str;
const CONSTANT: Obstacle = "the compiler evaluates it";
const LET: Obstacle = "a chain with `let`";
const IMPL: Obstacle = "the function returns `impl Trait`";

/// A site, if the mutant can be switched there.
type Found<T> = std::result::Result<T, Obstacle>;

/// The sites of a file.
#[derive(Default)]
pub(super) struct Sites {
    /// By the range of the operator.
    operators: BTreeMap<(usize, usize), Found<Operator>>,
    /// By the first byte of the first statement.
    bodies: BTreeMap<usize, Found<Site>>,
    /// By the first byte.
    arms: BTreeMap<usize, Found<Site>>,
    guards: BTreeMap<usize, Found<Range<usize>>>,
    structures: Vec<(Range<usize>, Option<Obstacle>)>,
    /// The range of each function, and whether it is `const`.
    functions: Vec<(Range<usize>, bool)>,
    /// Why nothing here can be switched.
    obstacle: Option<Obstacle>,
    /// The outermost binary expression around an operand, as far as precedence joins them.
    chain: Option<Range<usize>>,
}

/// An operator and its operands.
#[derive(Debug, Clone)]
pub(super) struct Operator {
    pub(super) whole: Range<usize>,
    pub(super) token: Range<usize>,
    /// The outermost expression whose operators may regroup when the operator changes.
    chain: Range<usize>,
    /// 0 for an assignment and for a unary operator, whose replacements bind alike.
    precedence: u8,
}

impl Sites {
    pub(super) fn of(text: &str) -> Result<Self> {
        let file = syn::parse_file(text)?;
        let mut sites = Self::default();
        sites.visit_file(&file);
        Ok(sites)
    }

    /// How the mutant with this range and replacement is switched.
    pub(super) fn site(
        &self,
        genre: Genre,
        range: &Range<usize>,
        replacement: &str,
    ) -> Found<Site> {
        const UNKNOWN: Obstacle = "its site is not found";
        match genre {
            Genre::BinaryOperator | Genre::UnaryOperator => {
                let operator = self.operator(range).unwrap_or(Err(UNKNOWN))?;
                let same = operator.precedence == precedence_of(replacement);
                Ok(Site::Expression(if same { operator.whole } else { operator.chain }))
            }
            Genre::FnValue => self.bodies.get(&range.start).cloned().unwrap_or(Err(UNKNOWN)),
            Genre::MatchArm => self.arms.get(&range.start).cloned().unwrap_or(Err(UNKNOWN)),
            Genre::MatchArmGuard => {
                let found = self.guards.get(&range.start).cloned().unwrap_or(Err(UNKNOWN));
                found.map(Site::Expression)
            }
            Genre::StructField => {
                let is_around = |it: &Range<usize>| it.start < range.start && range.end < it.end;
                let around = self.structures.iter().filter(|(it, _)| is_around(it));
                let (whole, obstacle) =
                    around.min_by_key(|(it, _)| it.len()).ok_or(UNKNOWN)?.clone();
                obstacle.map_or(Ok(Site::Expression(whole)), Err)
            }
        }
    }

    /// The operator at this range.
    pub(super) fn operator(&self, range: &Range<usize>) -> Option<Found<Operator>> {
        self.operators.get(&(range.start, range.end)).cloned()
    }

    /// The innermost function around an offset.
    pub(super) fn function(&self, offset: usize) -> Option<Range<usize>> {
        self.around(offset).map(|(range, _)| range.clone())
    }

    /// Whether the compiler may evaluate this site; a call at run time can be switched.
    pub(super) fn is_in_const_fn(&self, offset: usize) -> bool {
        self.around(offset).is_some_and(|(_, is_const)| *is_const)
    }

    fn around(&self, offset: usize) -> Option<&(Range<usize>, bool)> {
        let around = self.functions.iter().filter(|(range, _)| range.contains(&offset));
        around.min_by_key(|(range, _)| range.len())
    }

    fn found<T>(&self, site: T) -> Found<T> {
        self.obstacle.map_or(Ok(site), Err)
    }

    /// Visits code that the compiler evaluates, or code that runs.
    fn within(&mut self, obstacle: Option<Obstacle>, visit: impl FnOnce(&mut Self)) {
        let outer = (std::mem::replace(&mut self.obstacle, obstacle), self.chain.take());
        visit(self);
        (self.obstacle, self.chain) = outer;
    }

    fn function_of(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let mut returns = Impl(false);
        returns.visit_return_type(&signature.output);
        if let Some(first) = block.stmts.first() {
            let first = bytes(first).start;
            // The replacement may be of another type than the body.
            let found = if returns.0 { Err(IMPL) } else { Ok(Site::Body { first }) };
            self.bodies.insert(first, found);
        }
        let range = bytes(signature).start..bytes(block).end;
        self.functions.push((range, signature.constness.is_some()));
        self.within(None, |sites| {
            sites.visit_signature(signature);
            sites.visit_block(block);
        });
    }
}

impl<'ast> Visit<'ast> for Sites {
    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        self.function_of(&it.sig, &it.block);
    }

    fn visit_impl_item_fn(&mut self, it: &'ast syn::ImplItemFn) {
        self.function_of(&it.sig, &it.block);
    }

    fn visit_trait_item_fn(&mut self, it: &'ast syn::TraitItemFn) {
        if let Some(block) = &it.default {
            self.function_of(&it.sig, block);
        }
    }

    fn visit_expr_closure(&mut self, it: &'ast syn::ExprClosure) {
        self.within(None, |sites| visit::visit_expr_closure(sites, it));
    }

    fn visit_item_const(&mut self, it: &'ast syn::ItemConst) {
        self.within(Some(CONSTANT), |sites| visit::visit_item_const(sites, it));
    }

    fn visit_item_static(&mut self, it: &'ast syn::ItemStatic) {
        self.within(Some(CONSTANT), |sites| visit::visit_item_static(sites, it));
    }

    fn visit_impl_item_const(&mut self, it: &'ast syn::ImplItemConst) {
        self.within(Some(CONSTANT), |sites| visit::visit_impl_item_const(sites, it));
    }

    fn visit_trait_item_const(&mut self, it: &'ast syn::TraitItemConst) {
        self.within(Some(CONSTANT), |sites| visit::visit_trait_item_const(sites, it));
    }

    fn visit_variant(&mut self, it: &'ast syn::Variant) {
        self.within(Some(CONSTANT), |sites| visit::visit_variant(sites, it));
    }

    fn visit_expr_const(&mut self, it: &'ast syn::ExprConst) {
        self.within(Some(CONSTANT), |sites| visit::visit_expr_const(sites, it));
    }

    fn visit_type(&mut self, it: &'ast syn::Type) {
        self.within(Some(CONSTANT), |sites| visit::visit_type(sites, it));
    }

    fn visit_generic_argument(&mut self, it: &'ast syn::GenericArgument) {
        self.within(Some(CONSTANT), |sites| visit::visit_generic_argument(sites, it));
    }

    fn visit_pat(&mut self, it: &'ast syn::Pat) {
        self.within(Some("a pattern"), |sites| visit::visit_pat(sites, it));
    }

    fn visit_expr_repeat(&mut self, it: &'ast syn::ExprRepeat) {
        self.within(self.obstacle, |sites| sites.visit_expr(&it.expr));
        self.within(Some(CONSTANT), |sites| sites.visit_expr(&it.len));
    }

    fn visit_expr(&mut self, it: &'ast Expr) {
        match it {
            Expr::Binary(binary) => self.visit_expr_binary(binary),
            _ => self.within(self.obstacle, |sites| visit::visit_expr(sites, it)),
        }
    }

    fn visit_expr_binary(&mut self, it: &'ast ExprBinary) {
        let whole = bytes(&it.left).start..bytes(&it.right).end;
        let token = bytes(&it.op);
        let outer = self.chain.clone();
        let chain = outer.clone().unwrap_or(whole.clone());
        let found = match has_let(&it.left) || has_let(&it.right) {
            true => Err(LET),
            false => {
                let precedence = precedence(&it.op);
                let chain = chain.clone();
                self.found(Operator { whole, token: token.clone(), chain, precedence })
            }
        };
        // Each operand of a chain with `let` is an expression of its own.
        self.chain = (found.as_ref().err() != Some(&LET)).then_some(chain);
        self.operators.insert((token.start, token.end), found);
        self.visit_expr(&it.left);
        self.visit_expr(&it.right);
        self.chain = outer;
    }

    fn visit_expr_unary(&mut self, it: &'ast syn::ExprUnary) {
        let token = bytes(&it.op);
        let whole = token.start..bytes(&it.expr).end;
        let chain = whole.clone();
        let found = self.found(Operator { whole, token: token.clone(), chain, precedence: 0 });
        self.operators.insert((token.start, token.end), found);
        visit::visit_expr_unary(self, it);
    }

    fn visit_expr_struct(&mut self, it: &'ast syn::ExprStruct) {
        let range = bytes(&it.path).start..bytes(it).end;
        self.structures.push((range, self.obstacle));
        visit::visit_expr_struct(self, it);
    }

    fn visit_expr_match(&mut self, it: &'ast syn::ExprMatch) {
        let matched = bytes(&it.expr).start;
        for arm in &it.arms {
            let guard = arm.guard.as_ref().map(|(_, guard)| {
                let guard = Guard { range: bytes(guard), has_let: has_let(guard) };
                let found = if guard.has_let { Err(LET) } else { self.found(guard.range.clone()) };
                self.guards.insert(guard.range.start, found);
                guard
            });
            let pattern_end = bytes(&arm.pat).end;
            let found = self.found(Site::Arm { pattern_end, guard, matched });
            self.arms.insert(bytes(arm).start, found);
        }
        visit::visit_expr_match(self, it);
    }
}

/// Whether a type has `impl Trait`.
struct Impl(bool);

impl Visit<'_> for Impl {
    fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
        self.0 = true;
    }
}

fn bytes(it: &impl Spanned) -> Range<usize> {
    let span: proc_macro2::Span = it.span();
    span.byte_range()
}

/// Whether a chain of conditions contains `let`.
fn has_let(it: &Expr) -> bool {
    match it {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// How tightly a binary operator binds.
fn precedence(operator: &BinOp) -> u8 {
    match operator {
        BinOp::Mul(_) | BinOp::Div(_) | BinOp::Rem(_) => 9,
        BinOp::Add(_) | BinOp::Sub(_) => 8,
        BinOp::Shl(_) | BinOp::Shr(_) => 7,
        BinOp::BitAnd(_) => 6,
        BinOp::BitXor(_) => 5,
        BinOp::BitOr(_) => 4,
        BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) => 3,
        BinOp::Gt(_) | BinOp::Le(_) | BinOp::Ge(_) => 3,
        BinOp::And(_) => 2,
        BinOp::Or(_) => 1,
        _ => 0,
    }
}

/// As `precedence`; 0 for no operator.
fn precedence_of(replacement: &str) -> u8 {
    syn::parse_str::<BinOp>(replacement).map_or(0, |operator| precedence(&operator))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of the expression that a mutant of the first `operator` is switched at.
    fn switched<'text>(text: &'text str, operator: &str, replacement: &str) -> Found<&'text str> {
        let start = text.find(operator).unwrap();
        let range = start..start + operator.len();
        let sites = Sites::of(text).unwrap();
        match sites.site(Genre::BinaryOperator, &range, replacement)? {
            Site::Expression(range) => Ok(&text[range]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn operator_of_same_precedence_is_switched_alone() {
        let text = "fn f() { g(a - b + c * d); }";
        assert_eq!(switched(text, "-", "+"), Ok("a - b"));
        assert_eq!(switched(text, "-", "/"), Ok("a - b + c * d"));
        assert_eq!(switched(text, "*", "/"), Ok("c * d"));
        assert_eq!(switched("fn f() { x = (a | b) == c }", "|", "^"), Ok("a | b"));
        assert_eq!(switched("fn f() { x += a + b }", "+=", "-="), Ok("x += a + b"));
    }

    #[test]
    fn chain_with_let_is_switched_by_operand() {
        let text = "fn f() { if let Some(x) = y && a + b == c {} }";
        assert_eq!(switched(text, "&&", "||"), Err(LET));
        assert_eq!(switched(text, "+", "*"), Ok("a + b == c"));
    }

    #[test]
    fn constants_are_not_switchable() {
        for text in [
            "const A: u32 = 1 + 2;",
            "impl A { const B: u32 = 1 + 2; }",
            "fn f() -> [u8; 1 + 2] { x }",
            "fn f() { [0; 1 + 2] }",
            "fn f() { const { 1 + 2 } }",
            "enum A { B = 1 + 2 }",
            "fn f() { g::<{ 1 + 2 }>() }",
        ] {
            assert_eq!(switched(text, "+", "-"), Err(CONSTANT), "{text}");
        }
        let closure = "static A: Lazy = Lazy::new(|| 1 + 2);";
        assert_eq!(switched(closure, "+", "-"), Ok("1 + 2"));
    }

    #[test]
    fn const_fn_is_known() {
        let text = "const fn f() { fn g() { 1 + 2 } 3 * 4 }";
        let sites = Sites::of(text).unwrap();
        assert!(!sites.is_in_const_fn(text.find('+').unwrap()));
        assert!(sites.is_in_const_fn(text.find('*').unwrap()));
        assert_eq!(switched(text, "*", "+"), Ok("3 * 4"));
    }

    #[test]
    fn body_of_fn_returning_impl_is_not_switchable() {
        let site = |text: &str| {
            let first = text.find('x').unwrap();
            Sites::of(text).unwrap().site(Genre::FnValue, &(first..first + 1), "y")
        };
        assert_eq!(site("fn f() -> Vec<u8> { x }"), Ok(Site::Body { first: 20 }));
        assert_eq!(site("fn f() -> Option<impl A> { x }"), Err(IMPL));
    }

    #[test]
    fn struct_field_is_switched_in_innermost_expression() {
        let text = "fn f() { A { b: B { c: 1, ..d }, ..e } }";
        let start = text.find("c: 1,").unwrap();
        let site = Sites::of(text).unwrap().site(Genre::StructField, &(start..start + 5), "");
        let Ok(Site::Expression(range)) = site else { panic!("{site:?}") };
        assert_eq!(&text[range], "B { c: 1, ..d }");
    }
}
