//! The devices that roles use.

use std::path::PathBuf;

use clap::Args;
use verbless_conformance::{Choice, Lab, Stop};

/// The devices that the roles use.
#[derive(Args, Clone)]
pub(crate) struct On {
    /// `auto`, `model`, or the name of the first role's device (mlx5_0).
    #[arg(long, default_value = "auto", global = true)]
    pub(crate) device: String,
    /// The second role's device: `auto`, `none` (the first one's port loops back), or a name.
    #[arg(long, default_value = "auto", global = true)]
    pub(crate) peer: String,
    /// The model's profile.
    #[arg(long, default_value = "connectx6dx", global = true)]
    pub(crate) profile: String,
    /// The model's port type: infiniband or ethernet; the profile's own if not given.
    #[arg(long, global = true)]
    pub(crate) link: Option<String>,
    /// Faults of the model's links: a file as described in docs/faults.md. In this process, a run
    /// of all cases fails if an effect of the file happened to no frame; under `verbless-model run
    /// --faults FILE` this option only declares that links lose messages of the cases.
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,
}

impl On {
    pub(crate) fn lab(&self) -> Result<Lab, Stop> {
        let On { device, peer, profile, link, faults } = self.clone();
        let lab = Lab::open(&Choice { device, peer, profile, link, faults, ..Choice::default() })?;
        Ok(if lab.is_private() { lab } else { lab.with_two_processes() })
    }
}
