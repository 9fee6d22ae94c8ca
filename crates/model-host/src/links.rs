//! What `run` and `pci` do with links: faults from a file, a capture, a socket at the switch.

use std::fs::File;
use std::io;

use thiserror::Error;
use verbless_model::{External, FaultPlan, FaultPlanError, Link, Model, Uplink, Watch};

/// What there is to do with the links of a model.
#[derive(Debug, Default)]
pub struct LinkOptions {
    /// What is to go wrong.
    pub faults: FaultPlan,
    /// Where every frame that a port sends or receives is written, in the format pcapng.
    pub pcap: Option<File>,
    /// The socket that is joined to the Ethernet switch.
    pub uplink: Option<Uplink>,
}

/// Why it cannot be done.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The faults name what there is not.
    #[error("the faults cannot be applied: {0}")]
    Faults(#[from] FaultPlanError),
    /// The capture cannot be begun.
    #[error("the capture cannot be written: {0}")]
    Capture(io::Error),
    /// No port is at the Ethernet switch.
    #[error(
        "the uplink {0} would reach nobody: no device has Ethernet ports; choose --link ethernet"
    )]
    NoEthernet(Uplink),
    /// The socket cannot be bound.
    #[error(
        "the local end of the uplink {uplink} cannot be bound: {source}; it must be an address of \
         this machine that nobody uses, or a file that does not exist"
    )]
    Uplink {
        /// Its ends.
        uplink: Uplink,
        /// What the system says.
        source: io::Error,
    },
}

impl LinkOptions {
    /// Does it, for as long as what is returned lives.
    pub(crate) fn apply(
        self,
        model: &Model,
    ) -> Result<(Option<Watch>, Option<External>), LinkError> {
        model.apply(&self.faults)?;
        let capture = self.pcap.map(|file| model.capture(file)).transpose();
        let is_ethernet =
            || (0..model.devices()).any(|it| model.device(it).profile().link() == Link::Ethernet);
        let external = match self.uplink {
            Some(uplink) if !is_ethernet() => return Err(LinkError::NoEthernet(uplink)),
            Some(uplink) => Some(
                model
                    .join_ethernet(&uplink)
                    .map_err(|source| LinkError::Uplink { uplink, source })?,
            ),
            None => None,
        };
        Ok((capture.map_err(LinkError::Capture)?, external))
    }
}
