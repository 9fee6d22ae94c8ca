//! A capability page as a table.

use maud::{Markup, html};

use crate::report::docs::doc;
use crate::report::document::Page;
use crate::report::fields::{Capability, Value};

/// A page, folded: its fields that are set, and below them those that are 0.
pub(super) fn page(page: &Page) -> Markup {
    let all = page.capabilities();
    let (set, unset): (Vec<_>, Vec<_>) =
        all.iter().partition(|it| !(it.current.is_zero() && it.maximum.is_zero()));
    let unnamed = page.unnamed_bits();
    html! {
        details {
            summary {
                code { (page.title()) }
                span.aside { (set.len()) " of " (all.len()) " fields set" }
            }
            @if all.is_empty() {
                p.hint { "The PRM does not know this page's layout. Its current values:" }
                pre { (page.current.to_string()) }
            } @else {
                @if !set.is_empty() { (table(&set)) }
                @if !unnamed.is_empty() {
                    p.note {
                        (unnamed.len()) " bits that the PRM does not name are set, from bit "
                        (format!("{:#x}", unnamed[0])) " on."
                    }
                }
                @if !unset.is_empty() {
                    details.inner {
                        summary { (unset.len()) " fields are 0" }
                        (table(&unset))
                    }
                }
            }
        }
    }
}

fn table(fields: &[&Capability]) -> Markup {
    html! {
        table.fields {
            tbody {
                @for field in fields {
                    @let flag = field.leaf.field.width == 1;
                    tr {
                        th scope="row" { code { (field.leaf.path) } }
                        td.value {
                            (shown(&field.current, flag))
                            @if field.maximum != field.current {
                                span.max { "at most " (shown(&field.maximum, flag)) }
                            }
                        }
                        td.doc { (doc(&field.leaf)) }
                    }
                }
            }
        }
    }
}

fn shown(value: &Value, flag: bool) -> String {
    match value {
        Value::Number(0) if flag => "no".into(),
        Value::Number(_) if flag => "yes".into(),
        value => value.to_string(),
    }
}
