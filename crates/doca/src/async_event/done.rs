//! Events that a device reports.

use verbless_devx::abi::core::event_type;

use crate::context::failure::JobError;
use crate::types::UserData;

/// An external event of a device.
#[derive(Clone, Copy, Debug)]
pub struct AsyncEvent {
    /// The user data of the context.
    pub user_data: UserData,
    /// The reported change. A failure, retrieved like a failed job, is the last event of its work
    /// queue: the kernel's file could not be read, for the given reason.
    pub result: std::result::Result<Change, JobError>,
}

/// A change of a device. Ports are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Change {
    /// A port became active (`IBV_EVENT_PORT_ACTIVE`).
    PortUp(u8),
    /// A port is down (`IBV_EVENT_PORT_ERR`).
    PortDown(u8),
    /// Entries of a port's table of GIDs changed (`IBV_EVENT_GID_CHANGE`).
    Gids(u8),
    /// Another change of a port: its LID, its P_Keys, its subnet manager.
    Port {
        /// The port.
        port: u8,
        /// The number of `enum ibv_event_type`.
        event: u32,
    },
    /// The speed of the device's ports changed (`IBV_EVENT_DEVICE_SPEED_CHANGE`).
    Speed,
    /// The device failed, or was removed (`IBV_EVENT_DEVICE_FATAL`): no more completions and no
    /// more events come.
    DeviceFatal,
    /// A type of event that this crate does not know.
    Other {
        /// The number of `enum ibv_event_type`.
        event: u32,
    },
}

impl From<verbless_devx::AsyncEvent> for Change {
    fn from(event: verbless_devx::AsyncEvent) -> Self {
        use verbless_devx::AsyncEvent as Told;
        match event {
            Told::DeviceFatal => Self::DeviceFatal,
            Told::DeviceSpeedChange => Self::Speed,
            Told::Other { event, .. } => Self::Other { event },
            Told::Port { port, event } => match (u8::try_from(port), event) {
                (Ok(port), event_type::PORT_ACTIVE) => Self::PortUp(port),
                (Ok(port), event_type::PORT_ERR) => Self::PortDown(port),
                (Ok(port), event_type::GID_CHANGE) => Self::Gids(port),
                (Ok(port), _) => Self::Port { port, event },
                (Err(_), _) => Self::Other { event },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_event_maps_to_change() {
        use verbless_devx::AsyncEvent as Told;
        let port = |event| Change::from(Told::Port { port: 2, event });
        assert_eq!(port(event_type::PORT_ACTIVE), Change::PortUp(2));
        assert_eq!(port(event_type::PORT_ERR), Change::PortDown(2));
        assert_eq!(port(event_type::GID_CHANGE), Change::Gids(2));
        assert_eq!(Change::from(Told::DeviceSpeedChange), Change::Speed);
        let lid = event_type::LID_CHANGE;
        assert_eq!(port(lid), Change::Port { port: 2, event: lid });
        let far = Told::Port { port: 256, event: lid };
        assert_eq!(Change::from(far), Change::Other { event: lid }, "no device has so many");
        assert_eq!(Change::from(Told::DeviceFatal), Change::DeviceFatal);
        let other = Told::Other { element: 9, event: 99 };
        assert_eq!(Change::from(other), Change::Other { event: 99 });
    }
}
