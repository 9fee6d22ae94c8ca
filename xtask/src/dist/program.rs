//! The programs that are shipped, and the architectures that they are built for.

/// An architecture of shipped programs, as Rust names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arch(pub &'static str);

pub(super) const X86_64: Arch = Arch("x86_64");
pub(super) const AARCH64: Arch = Arch("aarch64");

impl Arch {
    pub(super) fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.0)
    }
}

/// A program that is shipped.
#[derive(Debug)]
pub(super) struct Program {
    pub name: &'static str,
    pub package: &'static str,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Bin,
    Example,
}

pub(super) const HWTEST: Program =
    Program { name: "hwtest", package: "verbless-conformance", kind: Kind::Bin };
pub(super) const MODEL: Program =
    Program { name: "verbless-model", package: "verbless-model-host", kind: Kind::Bin };
pub(super) const PROGRAMS: &[Program] = &[
    HWTEST,
    MODEL,
    Program { name: "devinfo", package: "verbless", kind: Kind::Example },
    Program { name: "kv", package: "verbless", kind: Kind::Example },
    Program { name: "perf", package: "verbless", kind: Kind::Example },
];
