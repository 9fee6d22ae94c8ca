//! Random programs on our hart and on QEMU's, which must end with the same registers and memory.
//!
//! A program is many snippets of a few instructions, each with registers of its own, in one ELF
//! file that writes all results to its standard output. `VERBLESS_DIFFERENTIAL_ROUNDS` is how many
//! programs of each class are compared, `VERBLESS_DIFFERENTIAL_SEED` the first seed. A difference
//! names its seed and snippet. Needs `qemu-riscv64` (Debian's qemu-user).

#![allow(unreachable_pub)]

#[path = "../support/mod.rs"]
mod support;

mod generate;
mod image;

use std::io::Write;
use std::process::Command;

use generate::{CLASSES, Class, Snippet};
use image::{Image, SNIPPETS};

const QEMU: &str = "qemu-riscv64";
/// RV64IMAC without the other extensions of QEMU's default, so that both refuse the same encodings.
const CPU: &str = "rv64,f=false,d=false,v=false,zba=false,zbb=false,zbc=false,zbs=false,\
                   h=false";

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

fn compare(class: Class) {
    let name = class.name;
    if Command::new(QEMU).arg("--version").output().is_err() {
        // The harness hides the output of `eprintln!` in a test that passes.
        let line = format!("skipped: {name}: no {QEMU}: apt-get install qemu-user\n");
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
        return;
    }
    let first = number("VERBLESS_DIFFERENTIAL_SEED", 1);
    for seed in first..first + number("VERBLESS_DIFFERENTIAL_ROUNDS", 1) {
        let snippets: Vec<Snippet> = class.snippets(seed, SNIPPETS);
        let image = Image::new(&snippets);
        let (ours, theirs) = (image.run(), on_qemu(name, seed, &image));
        for (index, snippet) in snippets.iter().enumerate() {
            let (ours, theirs) = (image.results(&ours, index), image.results(&theirs, index));
            for (register, (ours, theirs)) in (1..).zip(ours.iter().zip(theirs)) {
                assert_eq!(
                    *ours, theirs,
                    "{name}, seed {seed}, snippet {index}: x{register} is {ours:#x} here and \
                     {theirs:#x} on QEMU after {snippet:x?}"
                );
            }
        }
        assert!(ours == theirs, "{name}, seed {seed}: memory differs after the last snippet");
    }
}

fn on_qemu(name: &str, seed: u64, image: &Image) -> Vec<u8> {
    let path = std::env::temp_dir().join(format!("{name}-{seed}-{}.elf", std::process::id()));
    std::fs::write(&path, image.elf()).expect("the file is written");
    let mut chmod = Command::new("chmod");
    assert!(chmod.arg("+x").arg(&path).status().expect("chmod runs").success());
    let output = Command::new(QEMU).args(["-cpu", CPU]).arg(&path).output();
    let _ = std::fs::remove_file(&path);
    let output = output.expect("QEMU runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}, seed {seed}: {}: {said}", output.status);
    output.stdout
}

macro_rules! classes {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                compare(*CLASSES.iter().find(|it| it.name == stringify!($name)).unwrap());
            }
        )*

        #[test]
        fn every_class_is_compared() {
            assert_eq!(CLASSES.map(|it| it.name), [$(stringify!($name)),*]);
        }
    };
}

classes! {
    arithmetic
    multiplication
    loads_and_stores
    atomics
    branches
    compressed
    changed_code
    any_word
}
