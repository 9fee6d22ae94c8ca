//! Arguments of capability queries: an open device, or the description of one.

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

/// The argument of the libraries' capability queries: an open device, or the description of one,
/// which the query opens temporarily. So a program can choose a device by its capabilities.
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
