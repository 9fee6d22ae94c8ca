//! The declaration of a transport service: its numbers, and the classes of requests that it
//! carries.

use core::fmt;

use verbless_prm::ServiceType;

use super::classes::{Class, class};

/// A transport service.
pub trait Service:
    sealed::Sealed + Carries<class::Nop> + Copy + fmt::Debug + Default + Send + Sync + 'static
{
    /// The service's number in device contexts.
    const TYPE: ServiceType;
    /// Abbreviation in the specifications, such as `RC`.
    const NAME: &'static str;
    /// The ds of the address vector of a datagram, after the control segment.
    const ADDRESS_DS: u32;
    /// The classes of requests that it carries.
    const CARRIES: &'static [Class];
    /// The service's constants as a value.
    const INFO: ServiceInfo = ServiceInfo {
        service: Self::TYPE,
        name: Self::NAME,
        address_ds: Self::ADDRESS_DS,
        carries: Self::CARRIES,
    };
}

/// A service whose queue pairs have one peer each.
pub trait Connected:
    Service + Carries<class::Send> + Carries<class::Write> + Carries<class::Umr>
{
}

/// A service carries the requests of a class.
#[diagnostic::on_unimplemented(
    message = "the transport service `{Self}` has no requests of the class `{C}`",
    note = "`Uc` has no READ, atomics and SEND with invalidate; `Ud` has only `Send` and \
            `SendImm`, each with `to(destination)`; `Eth` has only `EthSend`"
)]
pub trait Carries<C>: sealed::Sealed {}

/// The constants of a transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// The service's number in device contexts.
    pub service: ServiceType,
    /// Abbreviation in the specifications, such as `RC`.
    pub name: &'static str,
    /// The ds of the address vector in each WQE.
    pub address_ds: u32,
    /// The classes of requests that it carries.
    pub carries: &'static [Class],
}

pub(super) mod sealed {
    /// Only this crate has services: queues rely on their constants for WQEs.
    pub trait Sealed {}
}

/// Declares a service: its type, its numbers, and its classes.
macro_rules! service {
    ($(#[$attr:meta])* $name:ident = $type:ident, address_ds: $ds:literal,
     carries: [$($class:ident),* $(,)?]) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl super::declare::sealed::Sealed for $name {}

        impl super::declare::Service for $name {
            const TYPE: verbless_prm::ServiceType = verbless_prm::ServiceType::$type;
            const NAME: &'static str = stringify!($type);
            const ADDRESS_DS: u32 = $ds;
            const CARRIES: &'static [super::classes::Class] =
                &[$(super::classes::Class::$class),*];
        }

        $(impl super::declare::Carries<super::classes::class::$class> for $name {})*
    };
}
pub(super) use service;
