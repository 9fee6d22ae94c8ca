//! Link options of `run` and `pci`: fault plan, pcapng capture, uplink.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;
use verbless_model::{
    External, FaultPlan, FaultPlanError, Link, Model, RoceUplink, Uplink as EthernetUplink, Watch,
};

/// The outside network at the switch.
#[derive(Clone, Debug)]
pub enum Uplink {
    /// A datagram socket at the Ethernet switch.
    Ethernet(EthernetUplink),
    /// Hosts on the IP network, for the first Ethernet device.
    Roce(RoceUplink),
}

/// The prefix of an uplink to the IP network.
const ROCE: &str = "udp:";

impl FromStr for Uplink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(ROCE) {
            Some(text) => text.parse().map(Self::Roce),
            None => text.parse().map(Self::Ethernet),
        }
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethernet(uplink) => uplink.fmt(f),
            Self::Roce(uplink) => write!(f, "{ROCE}{uplink}"),
        }
    }
}

/// Options for the links of a model.
#[derive(Debug, Default)]
pub struct LinkOptions {
    /// The faults to inject.
    pub faults: FaultPlan,
    /// The pcapng file, with its path, for every frame that a port sends or receives.
    pub pcap: Option<(PathBuf, File)>,
    /// The outside network to connect to.
    pub uplink: Option<Uplink>,
    /// Selects the devices' MACs, GUIDs and link-local GIDs.
    pub identity: u16,
}

/// Why the link options cannot be applied.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The fault plan does not fit the model's devices.
    #[error("the faults cannot be applied: {0}")]
    Faults(#[from] FaultPlanError),
    /// The fault plan has `[[ioctl]]` faults, but this front end has no modelled kernel.
    #[error(
        "the faults cannot be applied: [[ioctl]] is for `run` and for models in process; a \
         guest's own kernel answers its ioctls"
    )]
    Ioctls,
    /// The capture cannot be started.
    #[error("the capture cannot be started: {0}")]
    Capture(io::Error),
    /// No device has an Ethernet port.
    #[error(
        "the uplink {0} has no port to serve: no device has Ethernet ports; choose --link ethernet"
    )]
    NoEthernet(Uplink),
    /// The socket cannot be bound.
    #[error(
        "the local end of the uplink {uplink} cannot be bound: {source}; it must be an address of \
         this machine that is not in use, or a file that does not exist{}",
        uplink.hint()
    )]
    Uplink {
        /// The uplink that failed.
        uplink: Uplink,
        /// The system's error.
        source: io::Error,
    },
}

impl Uplink {
    /// Hint for a local end that cannot be used.
    fn hint(&self) -> &'static str {
        match self {
            Self::Ethernet(_) => "",
            Self::Roce(_) => "; rdma_rxe uses UDP port 4791 where it is loaded",
        }
    }

    fn join(&self, model: &Model, device: usize) -> io::Result<External> {
        match self {
            Self::Ethernet(uplink) => model.join_ethernet(uplink),
            Self::Roce(uplink) => model.join_roce(device, uplink),
        }
    }
}

impl LinkOptions {
    /// Applies the options until the returned value is dropped.
    pub(crate) fn apply(self, model: &Model) -> Result<AppliedLinks, LinkError> {
        model.apply(&self.faults)?;
        let capture = self.pcap.map(|(path, file)| Ok((path, model.capture(file)?)));
        let capture = capture.transpose().map_err(LinkError::Capture)?;
        // From here on an error ends the capture.
        let mut applied = AppliedLinks { capture, external: None };
        let is_ethernet = |it: &usize| model.device(*it).profile().link() == Link::Ethernet;
        applied.external = match self.uplink {
            Some(uplink) => match (0..model.devices()).find(is_ethernet) {
                None => return Err(LinkError::NoEthernet(uplink)),
                Some(device) => Some(
                    uplink
                        .join(model, device)
                        .map_err(|source| LinkError::Uplink { uplink, source })?,
                ),
            },
            None => None,
        };
        Ok(applied)
    }
}

/// Applied link options; drop ends them.
#[derive(Debug)]
pub(crate) struct AppliedLinks {
    capture: Option<(PathBuf, Watch)>,
    external: Option<External>,
}

impl Drop for AppliedLinks {
    fn drop(&mut self) {
        drop(self.external.take());
        if let Some((path, capture)) = self.capture.take()
            && let missing @ 1.. = capture.end()
        {
            eprintln!("{missing} frames are missing in {}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplink_text_round_trips() {
        for (text, hint) in [
            ("127.0.0.1:4000,127.0.0.1:4001", ""),
            ("udp:127.0.0.1,127.0.0.2", "; rdma_rxe uses UDP port 4791 where it is loaded"),
        ] {
            let uplink: Uplink = text.parse().unwrap();
            assert_eq!(matches!(uplink, Uplink::Roce(_)), text.starts_with(ROCE), "{text}");
            assert_eq!(uplink.to_string(), text);
            let source = io::ErrorKind::AddrInUse.into();
            let error = LinkError::Uplink { uplink, source }.to_string();
            assert!(
                error.contains(text) && error.ends_with(&format!("not exist{hint}")),
                "{error}"
            );
        }
        assert!("nowhere".parse::<Uplink>().is_err() && "udp:here".parse::<Uplink>().is_err());
    }
}
