//! Checks the packages for a registry: a program builds and runs from only these files.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::commands::cargo;
use crate::outcome::Outcome;
use crate::workspace::{Result, workspace_root};

/// The crates that a user's program may depend on, with their own dependencies.
const PACKAGES: [&str; 15] = [
    "verbless-prm",
    "verbless-ring",
    "verbless-devx",
    "verbless-command",
    "verbless-queue",
    "verbless-riscv",
    "verbless-dpa",
    "verbless-wire",
    "verbless-model",
    "verbless-model-kernel",
    "verbless-doca",
    "verbless-flexio-macros",
    "verbless-flexio-dev",
    "verbless-flexio",
    "verbless",
];

/// The program: it opens a modelled device and writes to its own memory by RDMA.
const PROGRAM: &str = r#"
use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::builder().device(Profile::load("connectx6dx")?).build();
    let backend = InProcess::of(&model);
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let domain = Domain::new(&device)?;
    let mut cq = domain.completion_queue(&CqConfig::new(64))?;
    let mut qp = domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
    let itself = domain.address(&qp, &ConnectOptions::default())?;
    domain.connect(&mut qp, &itself, &ConnectOptions::default())?;
    let region = domain.region(128, KeyAccess::ALL)?;
    region.write_at(0, b"packaged")?;
    qp.post(&wr::Write::new(region.sge(0, 8)?, region.remote(64, 8)?).signaled(), 0)?;
    let done = loop {
        if let Some(done) = qp.poll(&mut cq) {
            break done?;
        }
    };
    assert_eq!(done.operation(), WcOpcode::Write);
    let mut bytes = [0; 8];
    region.read_at(64, &mut bytes)?;
    assert_eq!(&bytes, b"packaged");
    Ok(())
}
"#;

/// The crates that a dry run of `cargo publish` names, in the order of publication.
fn published(stderr: &str) -> Vec<&str> {
    let lines = stderr.lines().filter_map(|line| line.trim_start().strip_prefix("Uploading "));
    lines.filter_map(|rest| rest.split_whitespace().next()).collect()
}

/// Fails unless a dry run of `cargo publish` names exactly the expected crates.
fn publish_dry_run() -> Result<bool> {
    let mut publish = cargo(&["publish", "--dry-run", "--workspace", "--no-verify"]);
    publish.args(["--allow-dirty", "--color", "never", "--target-dir"]);
    let output = publish.arg(workspace_root().join("target/packages/published")).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut names = published(&stderr);
    names.sort_unstable();
    let mut expected = PACKAGES.to_vec();
    expected.sort_unstable();
    let good = output.status.success() && names == expected;
    if !good {
        println!("cargo publish --dry-run of {names:?}, and not of {expected:?}:\n{stderr}");
    }
    Ok(good)
}

/// Runs `cargo publish` as a dry run, packages the crates, unpacks them elsewhere, and runs a
/// program that depends on them.
pub(crate) fn check() -> Result<Outcome> {
    if !publish_dry_run()? {
        return Ok(Outcome::ran(0, 1));
    }
    let target = workspace_root().join("target/packages");
    let packed = target.join("package");
    let _ = fs::remove_dir_all(&packed);
    let mut package = cargo(&["package", "--no-verify", "--allow-dirty", "--quiet"]);
    for name in PACKAGES {
        package.args(["-p", name]);
    }
    if !package.arg("--target-dir").arg(&target).status()?.success() {
        return Ok(Outcome::ran(1, 1));
    }
    let user = target.join("user");
    fs::create_dir_all(user.join("src"))?;
    let mut manifest = String::from(
        "[package]\nname = \"user\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [profile.dev]\ndebug = false\n\n[dependencies]\n\
         verbless = { version = \"0.1\", features = [\"model\", \"doca\", \"tokio\"] }\n\
         verbless-flexio = \"0.1\"\n\n[patch.crates-io]\n",
    );
    for name in PACKAGES {
        let file =
            fs::read_dir(&packed)?.filter_map(|entry| Some(entry.ok()?.path())).find(|path| {
                let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
                let rest = file.strip_prefix(name).and_then(|rest| rest.strip_suffix(".crate"));
                rest.is_some_and(|rest| rest[1..].starts_with(|digit: char| digit.is_ascii_digit()))
            });
        let file = file.ok_or_else(|| format!("cargo package made no {name}"))?;
        // `m`: the files get current times. All packages have the same times in them, and cargo
        // rebuilds by time.
        let unpacked =
            Command::new("tar").arg("xzmf").arg(&file).arg("-C").arg(&packed).status()?;
        if !unpacked.success() {
            return Err(format!("{} does not unpack", file.display()).into());
        }
        let folder = file.with_extension("");
        writeln!(manifest, "{name} = {{ path = {:?} }}", folder.display().to_string())?;
    }
    fs::write(user.join("Cargo.toml"), manifest)?;
    fs::write(user.join("src/main.rs"), PROGRAM)?;
    let mut run = cargo(&["run", "--quiet", "--manifest-path"]);
    run.arg(user.join("Cargo.toml")).arg("--target-dir").arg(target.join("build"));
    let good = run.status()?.success();
    Ok(Outcome::ran(2 + u64::from(good), u64::from(!good)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn dry_run_names_each_crate_once() {
        let stderr = "    Updating crates.io index\n   Packaging verbless-prm v0.1.0 (/w/prm)\n   \
                    Uploading verbless-prm v0.1.0 (/w/prm)\nwarning: aborting upload due to dry \
                    run\n   Uploading verbless v0.1.0 (/w/verbless)\n";
        assert_eq!(super::published(stderr), ["verbless-prm", "verbless"]);
    }
}
