//! A row of the ledger: a commit of another driver that corrects a mistake, or a thread that
//! reports one, and its verdict.

use std::fmt;

use serde::Deserialize;

use crate::workspace::Result;

/// Subjects of rows.
const SUBJECTS: [&str; 27] = [
    "address",
    "atomic",
    "barrier",
    "build",
    "context",
    "cq",
    "crypto",
    "dc",
    "doorbell",
    "event",
    "flow",
    "memory",
    "mr",
    "mw",
    "other",
    "qp",
    "raw",
    "signature",
    "srq",
    "steering",
    "style",
    "tag",
    "time",
    "uar",
    "ud",
    "umr",
    "wqe",
];

/// The project whose commit or thread it is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    #[serde(rename = "dpdk")]
    Dpdk,
    #[serde(rename = "libfabric")]
    Libfabric,
    #[serde(rename = "nccl")]
    Nccl,
    #[serde(rename = "nvshmem")]
    Nvshmem,
    #[serde(rename = "perftest")]
    Perftest,
    #[serde(rename = "rust-ibverbs")]
    RustIbverbs,
    #[serde(rename = "sideway")]
    Sideway,
    /// Other programs on these devices; the id of a row names the repository.
    #[serde(rename = "others")]
    Others,
    #[serde(rename = "rdma-core")]
    RdmaCore,
    #[serde(rename = "ucx")]
    Ucx,
    /// Drivers without libmlx5, whose commits follow what a card did.
    #[serde(rename = "ipxe")]
    Ipxe,
    #[serde(rename = "snabb")]
    Snabb,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dpdk => "dpdk",
            Self::Libfabric => "libfabric",
            Self::Nccl => "nccl",
            Self::Nvshmem => "nvshmem",
            Self::Perftest => "perftest",
            Self::RustIbverbs => "rust-ibverbs",
            Self::Sideway => "sideway",
            Self::Others => "others",
            Self::RdmaCore => "rdma-core",
            Self::Ucx => "ucx",
            Self::Ipxe => "ipxe",
            Self::Snabb => "snabb",
        })
    }
}

/// A commit or thread and its verdict, as the file has them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) source: Source,
    /// The beginning of the commit's hash; of a thread, `owner/repository#number`.
    pub(super) id: String,
    date: toml::value::Datetime,
    pub(super) subject: String,
    /// The mistake and its effect.
    wrong: String,
    /// The file or folder where the same mistake could be; empty if there is none.
    #[serde(default)]
    pub(super) here: String,
    unconcerned: Option<String>,
    #[serde(default)]
    shown_by: Vec<String>,
    hardware: Option<String>,
    untested: Option<String>,
}

/// What a row says about this driver.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    /// The mistake cannot occur in this driver, for this reason.
    Unconcerned(&'a str),
    /// These tests show that it does not make the mistake.
    Shown(&'a [String]),
    /// Only a card can show it: the section of docs/hardware-unknowns.md that has the question.
    Hardware(&'a str),
    /// The driver does not make the mistake, but no test shows it: the place, and the missing test.
    Untested(&'a str),
}

/// Reads `tests/ledger.toml`.
pub(super) fn read(text: &str) -> Result<Vec<Row>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Ledger {
        commit: Vec<Row>,
        #[serde(default)]
        thread: Vec<Row>,
    }
    let Ledger { commit, thread } = toml::from_str(text)?;
    Ok(commit.into_iter().chain(thread).collect())
}

/// Whether `id` is the beginning of a hash.
fn is_commit(id: &str) -> bool {
    id.len() >= 9 && id.bytes().all(|letter| letter.is_ascii_hexdigit())
}

/// Whether `id` is that of an issue or a pull request: `owner/repository#number`.
fn is_thread(id: &str) -> bool {
    let is_name = |name: &str| {
        let known = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
        !name.is_empty() && name.bytes().all(known)
    };
    id.split_once('#').is_some_and(|(repository, number)| {
        repository.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
            && !number.is_empty()
            && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

impl Row {
    pub(super) fn verdict(&self) -> std::result::Result<Verdict<'_>, String> {
        let shown = (!self.shown_by.is_empty()).then_some(Verdict::Shown(&self.shown_by));
        let verdicts = [
            self.unconcerned.as_deref().map(Verdict::Unconcerned),
            shown,
            self.hardware.as_deref().map(Verdict::Hardware),
            self.untested.as_deref().map(Verdict::Untested),
        ];
        let mut verdicts = verdicts.into_iter().flatten();
        match (verdicts.next(), verdicts.next()) {
            (Some(verdict), None) => Ok(verdict),
            (found, _) => {
                let found = if found.is_some() { "several" } else { "none" };
                let names = "unconcerned, shown_by, hardware and untested";
                Err(format!("it must have one of {names}, and has {found}"))
            }
        }
    }

    /// Whether no test shows it, though it concerns this driver.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.verdict(), Ok(Verdict::Untested(_) | Verdict::Hardware(_)) | Err(_))
    }

    /// What is wrong with the row by itself.
    pub(super) fn fault(&self) -> Option<String> {
        if let Err(fault) = self.verdict() {
            return Some(fault);
        }
        if !is_commit(&self.id) && !is_thread(&self.id) {
            return Some(format!(
                "id = {:?}: neither 9 or more hexadecimal digits nor owner/repository#number",
                self.id
            ));
        }
        if self.date.date.is_none() || self.date.time.is_some() {
            return Some(format!("date = {}: not a date alone", self.date));
        }
        if !SUBJECTS.contains(&&*self.subject) {
            return Some(format!("subject = {:?}: unknown", self.subject));
        }
        let text = match self.verdict() {
            Ok(Verdict::Unconcerned(text) | Verdict::Untested(text)) => text,
            _ => "-",
        };
        (self.wrong.trim().is_empty() || text.trim().is_empty()).then(|| "a text is empty".into())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, id, date, subject, wrong, here, .. } = self;
        write!(f, "{source} {id} {date} {subject}\n  {wrong}")?;
        if !here.is_empty() {
            write!(f, "\n  here: {here}")?;
        }
        match self.verdict() {
            Ok(Verdict::Unconcerned(why)) => write!(f, "\n  unconcerned: {why}"),
            Ok(Verdict::Shown(tests)) => write!(f, "\n  tested: {}", tests.join(", ")),
            Ok(Verdict::Hardware(question)) => write!(f, "\n  only on hardware: {question}"),
            Ok(Verdict::Untested(what)) => write!(f, "\n  untested: {what}"),
            Err(fault) => write!(f, "\n  {fault}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(verdict: &str) -> Result<Row> {
        let head = "[[commit]]\nsource = \"ucx\"\nid = \"0123456789\"\ndate = 2020-01-02\n";
        let text = format!("{head}subject = \"cq\"\nwrong = \"It hung.\"\n{verdict}\n");
        Ok(read(&text)?.remove(0))
    }

    #[test]
    fn row_has_exactly_one_verdict() {
        let none = row("").unwrap();
        assert!(none.is_open() && none.fault().unwrap().ends_with("has none"));
        let two = row("unconcerned = \"a\"\nshown_by = [\"b\"]").unwrap();
        assert!(two.fault().unwrap().ends_with("has several"));
        let one = row("shown_by = [\"b\"]").unwrap();
        assert_eq!((one.fault(), one.is_open()), (None, false));
        assert_eq!(one.verdict(), Ok(Verdict::Shown(&["b".to_owned()])));
        let text = "ucx 0123456789 2020-01-02 cq\n  It hung.\n  tested: b";
        assert_eq!(one.to_string(), text);
    }

    #[test]
    fn id_is_commit_or_thread() {
        for id in ["012345678", "openucx/ucx#9", "NVIDIA/nccl#1710", "a-b/c_d.e#12"] {
            assert!(is_commit(id) || is_thread(id), "{id}");
        }
        for id in ["01234567", "0123456z9", "ucx#9", "openucx/ucx", "a/b#", "a/b#x", "/b#1", "a/#1"]
        {
            assert!(!is_commit(id) && !is_thread(id), "{id}");
        }
        let text = "[[commit]]\nsource = \"ucx\"\nid = \"0123456789\"\ndate = 2020-01-02\n\
                    subject = \"cq\"\nwrong = \"It hung.\"\nshown_by = [\"b\"]\n";
        let thread = text.replace("commit", "thread").replace("0123456789", "openucx/ucx#9");
        let rows = read(&format!("{thread}{text}")).unwrap();
        let ids: Vec<&str> = rows.iter().map(|row| &*row.id).collect();
        assert_eq!(ids, ["0123456789", "openucx/ucx#9"]);
        assert!(rows.iter().all(|row| row.fault().is_none()));
    }

    #[test]
    fn row_rejects_unknown_keys_and_subjects() {
        assert!(row("finding = \"a\"").is_err());
        let text = row("unconcerned = \" \"").unwrap();
        assert_eq!(text.fault().unwrap(), "a text is empty");
        let mut unknown = row("unconcerned = \"a\"").unwrap();
        unknown.subject = "cqs".into();
        assert_eq!(unknown.fault().unwrap(), "subject = \"cqs\": unknown");
    }
}
