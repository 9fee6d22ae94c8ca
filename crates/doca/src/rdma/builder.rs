//! An instance that is being configured.

use std::fmt;
use std::sync::Arc;

use super::instance::Instance;
use super::properties::{Mtu, Properties, TransportType};
use super::{Owned, Rdma};
use crate::context::core::{Core, CtxId};
use crate::context::{Removable, sealed};
use crate::device::Dev;
use crate::error::{Refused, Result};
use crate::types::AccessFlags;

#[cfg(doc)]
use crate::error::ErrorKind;

/// An instance in RESET, being configured or stopped.
#[must_use = "an instance exists when it is started"]
pub struct RdmaBuilder {
    dev: Dev,
    properties: Properties,
    /// The stopped instance, to be restarted in its slot of the work queue.
    stopped: Option<(Arc<Core>, Arc<Instance>)>,
}

/// Declares the setters of properties.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty $(=> $wrap:ident)?;)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $name: $type) -> Self {
            self.properties.$name = setters!(@ $name $($wrap)?);
            self
        }
    )*};
    (@ $name:ident) => { $name };
    (@ $name:ident $wrap:ident) => { $wrap($name) };
}

impl RdmaBuilder {
    pub(super) fn new(dev: &Dev) -> Self {
        Self { dev: dev.clone(), properties: Properties::default(), stopped: None }
    }

    pub(super) fn stopped(rdma: Rdma) -> Self {
        let Rdma { core, instance, properties } = rdma;
        Self { dev: core.dev().clone(), properties, stopped: Some((core, instance.clone())) }
    }

    setters! {
        /// Sets [`Properties::send_queue_size`].
        send_queue_size: u32;
        /// Sets [`Properties::recv_queue_size`].
        recv_queue_size: u32;
        /// Sets [`Properties::recv_buf_chain_len`].
        recv_buf_chain_len: u32;
        /// Sets [`Properties::send_buf_chain_len`].
        send_buf_chain_len: u32;
        /// Sets [`Properties::permissions`].
        permissions: AccessFlags;
        /// Sets [`Properties::transport_type`].
        transport_type: TransportType;
        /// Sets [`Properties::port`].
        port: u8;
        /// Sets [`Properties::gid_index`].
        gid_index: u8 => Some;
        /// Sets [`Properties::pkey_index`].
        pkey_index: u16;
        /// Sets [`Properties::router_lid`].
        router_lid: u16 => Some;
        /// Sets [`Properties::mtu`].
        mtu: Mtu => Some;
        /// Sets [`Properties::service_level`].
        service_level: u8 => Some;
        /// Sets [`Properties::traffic_class`].
        traffic_class: u8;
        /// Sets [`Properties::retry_count`].
        retry_count: u8;
        /// Sets [`Properties::rnr_retry_count`].
        rnr_retry_count: u8;
        /// Sets [`Properties::ack_timeout`].
        ack_timeout: u8;
        /// Sets [`Properties::min_rnr_timer`].
        min_rnr_timer: u8;
        /// Sets [`Properties::reads`].
        reads: u8;
    }

    /// The device.
    pub const fn dev(&self) -> &Dev {
        &self.dev
    }

    /// The current properties (`doca_rdma_get_<property>`).
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Starts the instance (`doca_ctx_start`): it is in INIT. A stopped instance stays on its work
    /// queue, unless it was [removed](crate::WorkQ::remove) from it meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a property beyond the limits of the device, its port or the
    /// completion queue that it brought to a work queue; [`ErrorKind::NotSupported`] for
    /// [`TransportType::Dc`], and for atomics on a device without them; the device refuses. The
    /// error returns the configuration.
    pub fn start(self) -> std::result::Result<Rdma, Refused<Self>> {
        match self.started() {
            Ok((core, instance)) => {
                Ok(Rdma { core, instance: Owned(instance), properties: self.properties })
            }
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    fn started(&self) -> Result<(Arc<Core>, Arc<Instance>)> {
        self.properties.check(&self.dev)?;
        match &self.stopped {
            Some((core, instance)) => {
                instance.restart(self.properties)?;
                Ok((core.clone(), instance.clone()))
            }
            None => {
                let core = Arc::new(Core::new(&self.dev, true, 1));
                let instance = Instance::new(&core, self.properties);
                Ok((core, Arc::new(instance)))
            }
        }
    }
}

impl sealed::Member for RdmaBuilder {
    fn member(&self) -> Option<CtxId> {
        self.stopped.as_ref().map(|(core, _)| core.id())
    }
}

impl Removable for RdmaBuilder {}

impl fmt::Debug for RdmaBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaBuilder")
            .field("dev", &self.dev)
            .field("properties", &self.properties)
            .finish_non_exhaustive()
    }
}
