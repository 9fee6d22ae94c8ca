//! What is asked for its capabilities: a device, open or not.

use crate::device::{Dev, DevInfo};
use crate::error::Result;

mod sealed {
    use crate::device::Dev;
    use crate::error::Result;

    pub trait Sealed {
        /// The device, open.
        fn dev(&self) -> Result<Dev>;
    }
}
use sealed::Sealed;

/// What the libraries' capability queries take: an open device, or what is known of one before,
/// which the query opens for as long as it takes. So a device can be chosen by what it can do.
pub trait AsDev: Sealed {}

impl AsDev for Dev {}
impl AsDev for DevInfo {}

impl Sealed for Dev {
    fn dev(&self) -> Result<Dev> {
        Ok(self.clone())
    }
}

impl Sealed for DevInfo {
    fn dev(&self) -> Result<Dev> {
        self.open()
    }
}
