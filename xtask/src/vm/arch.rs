//! What differs between guests of two architectures.

use std::path::PathBuf;

use super::series::Series;

/// An architecture of guests.
#[derive(Debug)]
pub(crate) struct Arch {
    /// Its name in Rust and Linux.
    pub(crate) name: &'static str,
    /// Its name in Debian.
    pub(crate) debian: &'static str,
    /// The `e_machine` of its ELF files.
    pub(crate) machine: u16,
    /// The target of our programs in the guest, if it is not this machine's own. Such programs are
    /// linked by Rust's own linker, with no library to load.
    pub(crate) target: Option<&'static str>,
    /// Debian's package of its QEMU, and the program of the package.
    pub(crate) qemu: &'static str,
    pub(crate) emulator: &'static str,
    /// QEMU's options for the board and its processor, up to the board's own options.
    pub(crate) board: [&'static str; 4],
    /// The start of the kernel's command line: its console, and what only this architecture needs.
    pub(crate) console: &'static str,
    /// The serial port of the program's output, in the guest's `/dev`.
    pub(crate) output: &'static str,
    /// Debian's directory of libraries.
    pub(crate) libraries: &'static str,
    /// The C library's loader among the libraries, and the directory where programs expect it.
    pub(crate) loader: &'static str,
    pub(crate) loaders: &'static str,
    /// The series that boots if none is named.
    pub(crate) series: Series,
    /// Sizes of its pages, in KiB, of which Debian has kernels.
    pub(crate) pages: &'static [u32],
    /// The suffix of trees below `target/vm`.
    suffix: &'static str,
}

/// The clock is the HPET. The kernel measures the rate of the processor's own counter during boot,
/// and gets a far too low value when other processes occupy the host's processors: every timeout in
/// the guest then ends after a fraction of its time.
pub(crate) static X86_64: Arch = Arch {
    name: "x86_64",
    debian: "amd64",
    machine: 62,
    target: None,
    qemu: "qemu-system-x86",
    emulator: "qemu-system-x86_64",
    board: ["-machine", "q35,accel=tcg,memory-backend=ram", "-cpu", "max"],
    console: "console=ttyS0 no_timer_check clocksource=hpet tsc=unstable",
    output: "ttyS1",
    libraries: "usr/lib/x86_64-linux-gnu",
    loader: "ld-linux-x86-64.so.2",
    loaders: "usr/lib64",
    series: Series::Linux6_1,
    pages: &[4],
    suffix: "",
};

/// Signed pointers would take most of an emulated processor's time.
pub(crate) static AARCH64: Arch = Arch {
    name: "aarch64",
    debian: "arm64",
    machine: 183,
    target: Some("aarch64-unknown-linux-musl"),
    qemu: "qemu-system-arm",
    emulator: "qemu-system-aarch64",
    board: [
        "-machine",
        "virt,gic-version=3,its=on,accel=tcg,memory-backend=ram",
        "-cpu",
        "max,pauth=off",
    ],
    console: "console=ttyAMA0",
    output: "ttyAMA1",
    libraries: "usr/lib/aarch64-linux-gnu",
    loader: "ld-linux-aarch64.so.1",
    loaders: "usr/lib",
    series: Series::Linux6_12,
    pages: &[4, 16],
    suffix: "-arm64",
};

impl Arch {
    /// The argument of `--arch`.
    pub(crate) fn parse(name: &str) -> Result<&'static Self, String> {
        let known = [&X86_64, &AARCH64];
        known
            .into_iter()
            .find(|arch| arch.name == name)
            .ok_or_else(|| format!("the architectures are {} and {}", X86_64.name, AARCH64.name))
    }

    /// Its name in Debian, if its packages are not this machine's own.
    pub(crate) fn foreign(&self) -> Option<&'static str> {
        self.target.map(|_| self.debian)
    }

    /// The name of a tree of this architecture below `target/vm`.
    pub(crate) fn tree(&self, name: &str) -> String {
        format!("{name}{}", self.suffix)
    }

    /// The directory of libraries in a tree, and the loader there.
    pub(crate) fn loader_in(&self, tree: &std::path::Path) -> PathBuf {
        tree.join(self.libraries).join(self.loader)
    }
}

#[cfg(test)]
mod tests {
    use super::Arch;

    #[test]
    fn architecture_is_named_as_rust_names_it() {
        assert_eq!(Arch::parse("aarch64").map(|arch| arch.debian), Ok("arm64"));
        assert_eq!(Arch::parse(std::env::consts::ARCH).map(|arch| arch.target), Ok(None));
        assert!(Arch::parse("arm64").is_err());
    }
}
