//! The cases: those that failed with their commands, the reasons of skips, and all by group.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::report::document::{CaseResult, Ending, Report};
use crate::report::text::{duration, plain, plain_lines};

/// The cases that failed.
pub(super) fn failed(report: &Report) -> Markup {
    let failed = report.cases.iter().filter(|case| case.outcome == Ending::Failed);
    html! {
        section #failed {
            h2 { "Failed" }
            @for case in failed {
                article.failure {
                    h3 { code { (plain(&case.case)) } }
                    @if let Some(reason) = &case.reason { p { (plain(reason)) } }
                    p.hint {
                        "After " (duration(case.seconds)) "."
                        @if is_shell_word(&case.case) {
                            " Again: " code { "hwtest --filter " (case.case) }
                        }
                    }
                    @if !case.kernel_log.is_empty() {
                        details {
                            summary { "What the kernel logged meanwhile" }
                            pre { (plain_lines(&case.kernel_log.join("\n"))) }
                        }
                    }
                    @if !case.failed_commands.is_empty() {
                        details {
                            summary { "The last commands that failed before it" }
                            @for command in &case.failed_commands {
                                pre { (plain_lines(&command.describe())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a name is one word to every shell, and no option: a reader copies it from the page.
fn is_shell_word(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_:.-".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_plain)
}

/// The reasons for which cases did not run, the most frequent first.
pub(super) fn not_run(report: &Report, ending: Ending) -> Markup {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for case in report.cases.iter().filter(|case| case.outcome == ending) {
        *reasons.entry(case.reason.as_deref().unwrap_or("no reason")).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    html! {
        @if !reasons.is_empty() {
            section id=(ending) {
                h2.heading { (ending) }
                table.reasons {
                    tbody {
                        @for (reason, count) in reasons {
                            tr { td.number { (count) } td { (plain(reason)) } }
                        }
                    }
                }
            }
        }
    }
}

/// The cases of each group, in their order.
pub(super) fn groups(cases: &[CaseResult]) -> Vec<(&str, Vec<&CaseResult>)> {
    let mut groups: Vec<(&str, Vec<&CaseResult>)> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        let group = case.case.split_once("::").map_or(&*case.case, |(group, _)| group);
        let place = *places.entry(group).or_insert_with(|| {
            groups.push((group, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(case);
    }
    groups
}

/// All cases by group, folded.
pub(super) fn all(report: &Report) -> Markup {
    html! {
        section #cases {
            h2 { "Cases" }
            @for (group, cases) in groups(&report.cases) {
                @let failed = cases.iter().filter(|it| it.outcome == Ending::Failed).count();
                details {
                    summary {
                        code { (plain(group)) }
                        span.aside {
                            (cases.len()) @if cases.len() == 1 { " case" } @else { " cases" }
                            @if failed > 0 { ", " b.failed { (failed) " failed" } }
                        }
                    }
                    table.cases {
                        tbody {
                            @for case in cases {
                                tr {
                                    td { (badge(case.outcome)) }
                                    td.name {
                                        (plain(name(case)))
                                        @if let Some(reason) = &case.reason {
                                            span.reason { (plain(reason)) }
                                        }
                                    }
                                    td.number { (duration(case.seconds)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn name(case: &CaseResult) -> &str {
    case.case.split_once("::").map_or(&case.case, |(_, name)| name)
}

fn badge(ending: Ending) -> Markup {
    html! { span class={ "badge " (ending) } { (ending) } }
}
