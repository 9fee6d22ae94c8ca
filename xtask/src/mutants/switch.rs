//! Writes all mutants of a source file into it: each is switched by `active(NUMBER)`, so that one
//! program contains them all.
//!
//! ```text
//! a + b            (if active(1) { a - b } else if active(2) { a * b } else { a + b })
//! fn f() { g() }   fn f() { if active(3) { return 1; } g() }
//! x => y           x if !active(4) => y
//! a | b            or(5, a, b), beside the switch: notes whether `^` and `|` ever differed
//! ```
//!
//! Only one mutant is active at a time: a replacement contains the original text of its operands,
//! and only the last branch has the other switches.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::syntax::{Genre, Obstacle, Site, Sites};
use crate::workspace::Result;

/// The module of `active` and `or`, in each root of the crate.
pub(super) const MODULE: &str = "crate::__mutants";

/// A mutant of one file.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) number: u32,
    pub(super) genre: Genre,
    pub(super) range: Range<usize>,
    pub(super) replacement: String,
}

impl Change {
    /// Whether it is equivalent if the operands never have a bit in common.
    pub(super) fn may_be_equivalent(&self, text: &str) -> bool {
        self.replacement == "^" && text.get(self.range.clone()) == Some("|")
    }
}

/// Where a piece of the new text comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Origin {
    /// The text of a mutant.
    Replacement(u32),
    /// The switch of these mutants.
    Switch(Vec<u32>),
    /// The call that observes the operands of a mutant.
    Observation(u32),
    /// The source, from this offset on.
    Source(usize),
}

/// A file with its mutants.
pub(super) struct Switched {
    pub(super) text: String,
    /// By the offset at which a piece begins.
    pieces: BTreeMap<usize, Origin>,
    wraps: Vec<Wrap>,
    sites: Sites,
    pub(super) obstacles: BTreeMap<u32, Obstacle>,
}

/// The text around a range of the source, or before it if the range is empty.
#[derive(Debug, Clone)]
struct Wrap {
    range: Range<usize>,
    /// Of two with the same range, that with the lower depth is outside.
    depth: u8,
    open: Vec<(String, Origin)>,
    close: String,
    origin: Origin,
    /// The first byte of the matched expression, if it deletes an arm.
    matched: Option<usize>,
}

/// Switches the changes of a file; observes operands, except those of the mutants in `plain`.
pub(super) fn switch(text: &str, changes: &[Change], plain: &BTreeSet<u32>) -> Result<Switched> {
    let sites = Sites::of(text)?;
    let mut obstacles = BTreeMap::new();
    let mut expressions: BTreeMap<(usize, usize), Vec<(u32, String)>> = BTreeMap::new();
    let mut wraps = Vec::new();
    // Tokens that the call of an observation replaces by a comma.
    let mut commas = BTreeSet::new();
    for change in changes {
        let number = change.number;
        match sites.site(change.genre, &change.range, &change.replacement) {
            Err(obstacle) => _ = obstacles.insert(number, obstacle),
            Ok(Site::Expression(range)) => {
                let (before, after) =
                    (&text[range.start..change.range.start], &text[change.range.end..range.end]);
                let branch = [before, &change.replacement, after].concat();
                if syn::parse_str::<syn::Expr>(&branch).is_err() {
                    obstacles.insert(number, "the changed expression does not parse");
                    continue;
                }
                expressions.entry((range.start, range.end)).or_default().push((number, branch));
                if change.may_be_equivalent(text)
                    && !sites.is_in_const_fn(change.range.start)
                    && !plain.contains(&number)
                    && let Some(Ok(operator)) = sites.operator(&change.range)
                {
                    commas.insert(operator.token.start);
                    wraps.push(Wrap {
                        range: operator.whole,
                        depth: 2,
                        open: vec![(
                            format!("{MODULE}::or({number}, "),
                            Origin::Observation(number),
                        )],
                        close: ")".into(),
                        origin: Origin::Observation(number),
                        matched: None,
                    });
                }
            }
            Ok(Site::Body { first }) => {
                let switch = || Origin::Switch(vec![number]);
                wraps.push(Wrap {
                    range: first..first,
                    depth: 0,
                    open: vec![
                        (format!("if {MODULE}::active({number}) {{ return "), switch()),
                        (change.replacement.clone(), Origin::Replacement(number)),
                        ("; } ".into(), switch()),
                    ],
                    close: String::new(),
                    origin: switch(),
                    matched: None,
                });
            }
            Ok(Site::Arm { pattern_end, guard, matched }) => {
                let (range, open, close) = match guard {
                    None => {
                        let open = format!(" if !{MODULE}::active({number})");
                        (pattern_end..pattern_end, open, "")
                    }
                    Some(guard) if guard.has_let() => {
                        (guard.range, format!("!{MODULE}::active({number}) && "), "")
                    }
                    Some(guard) => (guard.range, format!("!{MODULE}::active({number}) && ("), ")"),
                };
                let origin = Origin::Switch(vec![number]);
                let open = vec![(open, origin.clone())];
                let (close, matched) = (close.into(), Some(matched));
                wraps.push(Wrap { range, depth: 0, open, close, origin, matched });
            }
        }
    }
    wraps.extend(expressions.into_iter().map(|((start, end), branches)| {
        let numbers: Vec<u32> = branches.iter().map(|(number, _)| *number).collect();
        let origin = Origin::Switch(numbers);
        let mut open = Vec::new();
        for (number, branch) in branches {
            let begin = if open.is_empty() { "(if" } else { " } else if" };
            open.push((format!("{begin} {MODULE}::active({number}) {{ "), origin.clone()));
            open.push((branch, Origin::Replacement(number)));
        }
        open.push((" } else { ".into(), origin.clone()));
        Wrap { range: start..end, depth: 1, open, close: " })".into(), origin, matched: None }
    }));
    let (text, pieces) = write(text, &wraps, &commas);
    Ok(Switched { text, pieces, wraps, sites, obstacles })
}

/// The text with the wraps, and where its pieces come from.
fn write(
    text: &str,
    wraps: &[Wrap],
    commas: &BTreeSet<usize>,
) -> (String, BTreeMap<usize, Origin>) {
    // At one offset: ends from the innermost on, then beginnings from the outermost on.
    let mut marks: Vec<(usize, bool, usize, usize)> = Vec::new();
    let mut order: Vec<usize> = (0..wraps.len()).collect();
    order.sort_by_key(|&at| {
        let Wrap { range, depth, .. } = &wraps[at];
        (range.start, !range.is_empty(), usize::MAX - range.end, *depth)
    });
    for (rank, &at) in order.iter().enumerate() {
        marks.push((wraps[at].range.start, true, rank, at));
        if !wraps[at].range.is_empty() {
            marks.push((wraps[at].range.end, false, usize::MAX - rank, at));
        }
    }
    marks.sort_unstable();
    let (mut out, mut pieces, mut copied) = (String::new(), BTreeMap::new(), 0);
    let mut copy = |out: &mut String, pieces: &mut BTreeMap<usize, Origin>, to: usize| {
        while copied < to {
            let comma = commas.range(copied..to).next().copied();
            pieces.insert(out.len(), Origin::Source(copied));
            if comma == Some(copied) {
                out.push(',');
                copied += 1;
            } else {
                let end = comma.unwrap_or(to);
                out.push_str(&text[copied..end]);
                copied = end;
            }
        }
    };
    for (offset, begins, _, at) in marks {
        copy(&mut out, &mut pieces, offset);
        let wrap = &wraps[at];
        let closing = [(wrap.close.clone(), wrap.origin.clone())];
        for (piece, origin) in if begins { &wrap.open[..] } else { &closing } {
            pieces.insert(out.len(), origin.clone());
            out.push_str(piece);
        }
    }
    copy(&mut out, &mut pieces, text.len());
    (out, pieces)
}

/// The cause of a compiler error.
#[derive(Debug, PartialEq)]
pub(super) enum ErrorCause {
    /// The changed text of this mutant.
    Replacement(u32),
    /// The switch of these mutants.
    Switch(Vec<u32>),
    /// The observation of these mutants' operands.
    Observation(Vec<u32>),
    Unknown,
}

impl Switched {
    /// The cause of an error at an offset of the new text.
    pub(super) fn error_cause(&self, offset: usize) -> ErrorCause {
        let Some((&start, origin)) = self.pieces.range(..=offset).next_back() else {
            return ErrorCause::Unknown;
        };
        let offset = match origin {
            Origin::Replacement(number) => return ErrorCause::Replacement(*number),
            Origin::Switch(numbers) => return ErrorCause::Switch(numbers.clone()),
            Origin::Observation(number) => return ErrorCause::Observation(vec![*number]),
            Origin::Source(from) => from + (offset - start),
        };
        let around = self.wraps.iter().filter(|it| it.range.contains(&offset));
        if let Some(wrap) = around.min_by_key(|it| (it.range.len(), u8::MAX - it.depth)) {
            return Self::cause_of_wraps([wrap]);
        }
        // An error of inference may be anywhere in the function.
        match self.sites.function(offset) {
            Some(function) => {
                let within =
                    |it: &&Wrap| function.start <= it.range.start && it.range.end <= function.end;
                Self::cause_of_wraps(self.wraps.iter().filter(within))
            }
            None => ErrorCause::Unknown,
        }
    }

    /// The cause of a match that is not exhaustive, whose matched expression is at an offset of the
    /// new text: an arm with a guard does not count.
    pub(super) fn error_cause_of_match(&self, offset: usize) -> ErrorCause {
        let matched = self.pieces.range(..=offset).next_back().into_iter();
        let matched = matched.chain(self.pieces.range(offset..)).find_map(|(start, origin)| {
            let Origin::Source(from) = origin else { return None };
            Some(from + offset.saturating_sub(*start))
        });
        Self::cause_of_wraps(
            self.wraps.iter().filter(|it| it.matched.is_some() && it.matched == matched),
        )
    }

    /// The observations among the wraps, or else their switches.
    fn cause_of_wraps<'wraps>(wraps: impl IntoIterator<Item = &'wraps Wrap>) -> ErrorCause {
        let (mut switches, mut observations) = (Vec::new(), Vec::new());
        for wrap in wraps {
            match &wrap.origin {
                Origin::Observation(number) => observations.push(*number),
                Origin::Switch(numbers) => switches.extend(numbers),
                Origin::Replacement(_) | Origin::Source(_) => {}
            }
        }
        match (observations.is_empty(), switches.is_empty()) {
            (false, _) => ErrorCause::Observation(observations),
            (true, false) => ErrorCause::Switch(switches),
            (true, true) => ErrorCause::Unknown,
        }
    }

    /// Whether the compiler may evaluate the mutant's site.
    pub(super) fn is_in_const_fn(&self, change: &Change) -> bool {
        self.sites.is_in_const_fn(change.range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the first `old` behind `near`.
    fn change(
        text: &str,
        number: u32,
        genre: Genre,
        (near, old): (&str, &str),
        new: &str,
    ) -> Change {
        let from = text.find(near).unwrap();
        let start = from + text[from..].find(old).unwrap();
        Change { number, genre, range: start..start + old.len(), replacement: new.into() }
    }

    fn binary(text: &str, number: u32, near: &str, old: &str, new: &str) -> Change {
        change(text, number, Genre::BinaryOperator, (near, old), new)
    }

    /// The switched text, with a short name for the module.
    fn switched(text: &str, changes: &[Change]) -> String {
        let out = switch(text, changes, &BTreeSet::new()).unwrap();
        syn::parse_file(&out.text).unwrap();
        out.text.replace(MODULE, "m")
    }

    #[test]
    fn operator_is_switched_in_place() {
        let text = "fn f() { g(a + b); }";
        let changes = [binary(text, 1, "a", "+", "-"), binary(text, 2, "a", "+", "*")];
        assert_eq!(
            switched(text, &changes),
            "fn f() { g((if m::active(1) { a - b } else if m::active(2) { a * b } else { \
             a + b })); }"
        );
        let text = "fn f() { !a }";
        let deleted = change(text, 1, Genre::UnaryOperator, ("!", "!"), "");
        assert_eq!(switched(text, &[deleted]), "fn f() { (if m::active(1) { a } else { !a }) }");
    }

    #[test]
    fn nested_operators_have_original_text_in_replacements() {
        let text = "fn f() { (a + b) * c }";
        let changes = [binary(text, 1, "a", "+", "-"), binary(text, 2, "b", "*", "/")];
        assert_eq!(
            switched(text, &changes),
            "fn f() { (if m::active(2) { (a + b) / c } else { \
             ((if m::active(1) { a - b } else { a + b })) * c }) }"
        );
    }

    #[test]
    fn disjoint_operands_are_observed() {
        let text = "fn f() { a | b | c }";
        let changes = [binary(text, 1, "a", "|", "^"), binary(text, 2, "b", "|", "^")];
        assert_eq!(
            switched(text, &changes),
            "fn f() { (if m::active(1) { a ^ b | c } else if m::active(2) { a | b ^ c } else { \
             m::or(2, m::or(1, a , b) , c) }) }"
        );
        let plain = switch(text, &changes, &[1, 2].into()).unwrap();
        assert!(!plain.text.contains("or("));
    }

    #[test]
    fn body_returns_replacement_first() {
        let text = "fn f() -> u32 { let x = 1; x }";
        let body = change(text, 7, Genre::FnValue, ("let", "let x = 1; x"), "0");
        assert_eq!(
            switched(text, &[body]),
            "fn f() -> u32 { if m::active(7) { return 0; } let x = 1; x }"
        );
        let text = "fn f() -> u32 { a + b }";
        let body = change(text, 7, Genre::FnValue, ("a +", "a + b"), "0");
        assert_eq!(
            switched(text, &[binary(text, 1, "a", "+", "-"), body]),
            "fn f() -> u32 { if m::active(7) { return 0; } \
             (if m::active(1) { a - b } else { a + b }) }"
        );
    }

    #[test]
    fn deleted_arm_gets_guard() {
        let text = "fn f() { match x { 1 => a, n if n > 2 => b, _ => c } }";
        let changes = [
            change(text, 1, Genre::MatchArm, ("1", "1 => a,"), ""),
            change(text, 2, Genre::MatchArm, ("n if", "n if n > 2 => b,"), ""),
            change(text, 3, Genre::MatchArmGuard, ("n >", "n > 2"), "true"),
        ];
        assert_eq!(
            switched(text, &changes),
            "fn f() { match x { 1 if !m::active(1) => a, n if !m::active(2) && \
             ((if m::active(3) { true } else { n > 2 })) => b, _ => c } }"
        );
    }

    #[test]
    fn field_is_deleted_from_whole_expression() {
        let text = "fn f() { S { a: 1, ..b } }";
        let field = change(text, 1, Genre::StructField, ("a:", "a: 1,"), "");
        assert_eq!(
            switched(text, &[field]),
            "fn f() { (if m::active(1) { S {  ..b } } else { S { a: 1, ..b } }) }"
        );
    }

    #[test]
    fn unparsable_replacement_is_an_obstacle() {
        let text = "fn f() { a as usize > b }";
        let out = switch(text, &[binary(text, 1, "a", ">", "<")], &BTreeSet::new()).unwrap();
        assert_eq!(out.text, text);
        assert!(out.obstacles.contains_key(&1));
    }

    #[test]
    fn inexhaustive_match_is_blamed_on_its_deleted_arms() {
        let text =
            "fn f() { match a + b { 1 => match c { 2 => d, _ => e }, _ if g => h, n => i } }";
        let arm = |number, arm| change(text, number, Genre::MatchArm, (arm, arm), "");
        let operator = binary(text, 4, "a", "+", "-");
        let changes = [arm(1, "1 =>"), arm(2, "2 => d,"), arm(3, "n => i"), operator];
        let out = switch(text, &changes, &BTreeSet::new()).unwrap();
        let at = out.text.find("(if").unwrap();
        assert_eq!(out.error_cause_of_match(at), ErrorCause::Switch(vec![1, 3]));
        let at = out.text.find("c {").unwrap();
        assert_eq!(out.error_cause_of_match(at), ErrorCause::Switch(vec![2]));
    }

    #[test]
    fn error_is_blamed_on_innermost_wrap_or_function() {
        let text = "fn f() { h(); g(a | b) }";
        let changes = [binary(text, 1, "a", "|", "^"), binary(text, 2, "a", "|", "&")];
        let out = switch(text, &changes, &BTreeSet::new()).unwrap();
        let at = |piece: &str| out.error_cause(out.text.find(piece).unwrap());
        assert_eq!(at("a ^ b"), ErrorCause::Replacement(1));
        assert_eq!(at("& b"), ErrorCause::Replacement(2));
        assert_eq!(at("else {"), ErrorCause::Switch(vec![1, 2]));
        assert_eq!(at("::or("), ErrorCause::Observation(vec![1]));
        assert_eq!(at("h()"), ErrorCause::Observation(vec![1]), "any wrap of the function");
        let out = switch(text, &changes, &[1].into()).unwrap();
        let at = |piece: &str| out.error_cause(out.text.find(piece).unwrap());
        assert_eq!(at("h()"), ErrorCause::Switch(vec![1, 2]));
        assert_eq!(at("fn f"), ErrorCause::Switch(vec![1, 2]));
    }
}
