//! Address handles: the kernel resolves the destination MAC address of a RoCE path.

use crate::abi::attr::{ah_destroy, invoke_write, uhw};
use crate::abi::core::{AhAttributes, CreateAh, CreateAhResponse};
use crate::abi::method::{self, write_command};
use crate::abi::mlx5::CreateAhDriverResponse;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::handle::{DestroyError, Handle, Release};
use crate::pd::Pd;
use crate::sys::Request;
use zerocopy::IntoBytes;

const RELEASE: Release =
    Release { what: "ah", method: method::AH_DESTROY, attribute: ah_destroy::HANDLE };

/// An address handle of the kernel, for a path from a port to a peer.
#[derive(Debug)]
pub struct Ah {
    handle: Handle,
    destination_mac: Option<[u8; 6]>,
    _pd: Pd,
}

/// Bytes of the driver's response up to the end of the MAC address.
const WITH_MAC: u32 = 10;

impl Context {
    /// Creates an address handle for a path. On Ethernet the kernel resolves the GID to a MAC
    /// address; the call blocks while ARP or neighbour discovery runs.
    ///
    /// # Errors
    /// EINVAL for an invalid port, GID index or path (Ethernet needs `is_global`); ETIMEDOUT or
    /// EHOSTUNREACH when the peer does not answer.
    pub fn create_ah(&self, pd: &Pd, path: &AhAttributes) -> Result<Ah> {
        let mut core = CreateAhResponse::default();
        let mut driver = CreateAhDriverResponse::default();
        let ask = CreateAh {
            response: (&raw mut core).expose_provenance() as u64,
            pd_handle: pd.handle(),
            attr: *path,
            ..Default::default()
        };
        Request::new(method::INVOKE_WRITE)
            .input_u64(invoke_write::WRITE_CMD, u64::from(write_command::CREATE_AH))
            .input(invoke_write::CORE_IN, ask.as_bytes())
            .output_of(invoke_write::CORE_OUT, &mut core)
            .output_of(uhw::OUT, &mut driver)
            .send(self.device())?
            .filled(&[invoke_write::CORE_OUT])?;
        let handle = Handle::new(self, &RELEASE, core.ah_handle);
        if driver.response_length as usize > size_of::<CreateAhDriverResponse>() {
            let what = format_args!("address handle response of {} bytes", driver.response_length);
            return Err(Error::answer(method::INVOKE_WRITE, what));
        }
        let destination_mac = (driver.response_length >= WITH_MAC).then_some(driver.dmac);
        Ok(Ah { handle, destination_mac, _pd: pd.clone() })
    }
}

impl Ah {
    /// Destination MAC address of a RoCE path; `None` on InfiniBand.
    #[must_use]
    pub const fn destination_mac(&self) -> Option<[u8; 6]> {
        self.destination_mac
    }

    /// Destroys the address handle.
    ///
    /// # Errors
    /// None in practice; if the kernel refuses, the error returns the object.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        DestroyError::attempt(self, |ah| &mut ah.handle)
    }
}
