//! The FlexIO version that a host is written for.

use std::fmt;
use std::sync::OnceLock;

use crate::error::Error;

/// A version (`FLEXIO_VER`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version whose host header defines the fields of this library's structs
    /// (`FLEXIO_CURRENT_VERSION`): FlexIO numbers its versions by year and release.
    pub const CURRENT: Self = Self::new(25, 1, 0);

    /// Major, minor and sub-minor number.
    pub const fn new(major: u8, minor: u8, sub_minor: u16) -> Self {
        Self((major as u64) << 24 | (minor as u64) << 16 | sub_minor as u64)
    }

    /// The number of the version in C.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl From<u64> for Version {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = self;
        write!(f, "{}.{}.{}", number >> 24, number >> 16 & 0xff, number & 0xffff)
    }
}

static VERSION: OnceLock<Version> = OnceLock::new();

/// Declares the version that this host is written for, once (`flexio_version_set`); the same
/// version may be declared again. This library has the functions of both 2022 and 3.2.0 if they
/// differ (the deprecated ones with the feature `sdk-2022`), so nothing else depends on it.
///
/// # Errors
/// Another version was set before; the version is above [`Version::CURRENT`]. A host for a later
/// release sets [`Version::CURRENT`]: all functions of 3.2.0 exist with any version.
pub fn set_version(version: Version) -> Result<(), Error> {
    if version > Version::CURRENT {
        let current = Version::CURRENT;
        return Err(Error::Failed(format!(
            "version {version} is above {current}, the version of this library's headers: set \
             Version::CURRENT, which has the functions of DOCA 3.2.0, too"
        )));
    }
    match *VERSION.get_or_init(|| version) {
        set if set == version => Ok(()),
        set => Err(Error::Failed(format!(
            "the version is {set}, and cannot become {version}: it is set once"
        ))),
    }
}

/// The version that was set; the current one by default.
pub fn version() -> Version {
    VERSION.get().copied().unwrap_or(Version::CURRENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_number_matches_c_encoding() {
        assert_eq!(Version::new(25, 1, 0).number(), 0x1901_0000);
        assert_eq!(Version::from(0xffff_ffff).to_string(), "255.255.65535");
        assert!(Version::new(24, 255, 0xffff) < Version::CURRENT);
        assert!(Version::from(u64::MAX) > Version::CURRENT);
    }
}
