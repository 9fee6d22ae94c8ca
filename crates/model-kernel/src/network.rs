//! Administrator settings of the netdevs of Ethernet ports: IP addresses, which become GIDs, and
//! static neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The netdevs of a model.
#[derive(Default)]
pub(super) struct Network {
    settings: Mutex<Settings>,
}

#[derive(Default)]
struct Settings {
    /// Addresses per device, in the order of their addition.
    addresses: BTreeMap<usize, Vec<[u8; 16]>>,
    /// Devices whose netdev is in another network namespace.
    away: BTreeSet<usize>,
    /// MACs by address.
    neighbours: BTreeMap<[u8; 16], [u8; 6]>,
}

impl Network {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The added addresses of a device as GIDs; the link-local one precedes them.
    pub(super) fn addresses(&self, device: usize) -> Vec<[u8; 16]> {
        self.settings().addresses.get(&device).cloned().unwrap_or_default()
    }

    pub(super) fn add_address(&self, device: usize, gid: [u8; 16]) {
        self.settings().addresses.entry(device).or_default().push(gid);
    }

    /// Whether a device's netdev is in the programs' network namespace.
    pub(super) fn is_here(&self, device: usize) -> bool {
        !self.settings().away.contains(&device)
    }

    pub(super) fn move_netdev_away(&self, device: usize) {
        self.settings().away.insert(device);
    }

    pub(super) fn neighbour(&self, gid: &[u8; 16]) -> Option<[u8; 6]> {
        self.settings().neighbours.get(gid).copied()
    }

    pub(super) fn add_neighbour(&self, gid: [u8; 16], mac: [u8; 6]) {
        self.settings().neighbours.insert(gid, mac);
    }
}

/// A neighbour of the netdevs; as text, `IP=MAC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The neighbour's address.
    pub address: IpAddr,
    /// The neighbour's MAC.
    pub mac: [u8; 6],
}

impl FromStr for Neighbour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(address, mac)| {
            let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
            let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().ok()?;
            Some(Self { address: address.parse().ok()?, mac: bytes.try_into().ok()? })
        });
        parsed.ok_or_else(|| {
            format!("'{text}' is no IP address and MAC: give them as 192.0.2.2=52:54:00:12:34:56")
        })
    }
}

/// Whether a GID is an IPv4 address.
pub(super) fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

#[cfg(test)]
mod tests {
    use verbless_wire::gid_of;

    use super::*;

    #[test]
    fn neighbour_is_parsed() {
        let neighbour: Neighbour = "192.0.2.2=52:54:00:12:34:ff".parse().unwrap();
        let expected =
            Neighbour { address: [192, 0, 2, 2].into(), mac: [0x52, 0x54, 0, 0x12, 0x34, 0xff] };
        assert_eq!(neighbour, expected);
        assert!("fd00::1=52:54:00:12:34:ff".parse::<Neighbour>().is_ok());
        for wrong in ["192.0.2.2", "192.0.2=52:54:00:12:34:ff", "192.0.2.2=52:54:00:12:34", ""] {
            let error = wrong.parse::<Neighbour>().unwrap_err();
            assert!(error.starts_with(&format!("'{wrong}' is no IP address and MAC")), "{error}");
        }
    }

    #[test]
    fn gid_of_maps_ipv4_and_keeps_ipv6() {
        let mapped = gid_of([192, 0, 2, 1].into());
        assert_eq!(mapped[8..], [0, 0, 0xff, 0xff, 192, 0, 2, 1]);
        assert!(is_ipv4(&mapped));
        let global: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(gid_of(global)[..4], [0x20, 0x01, 0x0d, 0xb8]);
        assert!(!is_ipv4(&gid_of(global)));
    }
}
