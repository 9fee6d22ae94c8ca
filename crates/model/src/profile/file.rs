//! The text form of a profile: its sections, checked for names and types.

use std::collections::BTreeMap;

use super::error::ProfileError;
use super::text::{Fields, Read, Section, Value, misplaced, wrong};

/// Declares structures as sections with these fields; all fields are required except marked ones.
macro_rules! sections {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[doc = $doc:literal])* $of:vis $field:ident: $type:ty $(= $default:ident)?, )*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone)]
        $visibility struct $name {
            $( $(#[doc = $doc])* $of $field: $type, )*
        }

        impl $name {
            /// Reads a section.
            fn of(name: &str, fields: Fields) -> Result<Self, ProfileError> {
                let mut section = Section::new(name, fields);
                let read = Self {
                    $( $field: sections!(@take section $field $($default)?), )*
                };
                section.end()?;
                Ok(read)
            }
        }

        impl Read for $name {
            fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
                Self::of(place, Fields::read(value, place)?)
            }
        }
    )*};
    (@take $section:ident $field:ident) => { $section.required(stringify!($field))? };
    (@take $section:ident $field:ident none) => { $section.optional(stringify!($field))? };
    (@take $section:ident $field:ident empty) => {
        $section.optional(stringify!($field))?.unwrap_or_default()
    };
}

/// The link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// An InfiniBand fabric: LIDs, P_Keys.
    Infiniband,
    /// Ethernet: RoCE, MACs and GIDs.
    Ethernet,
}

impl Link {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Infiniband => Self::Ethernet,
            Self::Ethernet => Self::Infiniband,
        }
    }

    /// The section of the profile for this link layer.
    pub(super) fn section(self) -> &'static str {
        match self {
            Self::Infiniband => "infiniband",
            Self::Ethernet => "ethernet",
        }
    }
}

/// The processor that uses a function of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Side {
    /// The machine that the card is plugged into.
    #[default]
    Host,
    /// The embedded CPU on the card, a DPU's Arm cores: its function is the ECPF.
    Dpu,
}

/// The type of a function of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// A physical PCI function.
    #[default]
    Pf,
    /// A virtual PCI function.
    Vf,
    /// A sub-function: part of a PCI function.
    Sf,
}

impl Read for Side {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        match &value {
            Value::String(text) if text == "host" => Ok(Self::Host),
            Value::String(text) if text == "dpu" => Ok(Self::Dpu),
            other => Err(wrong(place, format!("is {other:?}; a side is \"host\" or \"dpu\""))),
        }
    }
}

impl Read for Role {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        match &value {
            Value::String(text) if text == "pf" => Ok(Self::Pf),
            Value::String(text) if text == "vf" => Ok(Self::Vf),
            Value::String(text) if text == "sf" => Ok(Self::Sf),
            other => Err(wrong(place, format!("is {other:?}; a role is \"pf\", \"vf\" or \"sf\""))),
        }
    }
}

impl Read for Link {
    fn read(value: Value, place: &str) -> Result<Self, ProfileError> {
        match &value {
            Value::String(text) if text == "infiniband" => Ok(Self::Infiniband),
            Value::String(text) if text == "ethernet" => Ok(Self::Ethernet),
            Value::String(text) => {
                Err(wrong(place, format!("is {text:?}; a link is \"infiniband\" or \"ethernet\"")))
            }
            other => Err(misplaced(place, other, "a string")),
        }
    }
}

sections! {
    /// The whole file.
    pub(super) struct File {
        pub name: String,
        pub link: Link,
        pub device: DeviceNumbers,
        pub keys: KeyNumbers,
        pub first: FirstNumbers,
        pub nic_vport: Fields = empty,
        /// Current values, by capability page.
        pub caps: BTreeMap<String, Fields>,
        /// Maxima, by capability page, where they differ from the current values.
        pub max: BTreeMap<String, Fields> = empty,
        /// Contents of registers, by register.
        pub registers: BTreeMap<String, Fields> = empty,
        pub infiniband: ByLink,
        pub ethernet: ByLink,
        /// The data path accelerator; without this section, there is none.
        pub dpa: Option<DpaNumbers> = none,
        /// The embedded CPU's function; without this section, there is none.
        pub dpu: Option<OnDpu> = none,
        /// All functions of a card that has several, for models that show all of them.
        pub topology: Vec<FunctionPlace> = empty,
    }

    /// A function's place: its side, its PCI address, and its number among functions of its type.
    #[derive(PartialEq, Eq, Default)]
    pub struct FunctionPlace {
        /// The side that uses the function.
        pub side: Side,
        /// The type of the function.
        pub role: Role,
        /// Number of the PF: its own, or its parent's.
        pub pf: u16,
        /// Number of the VF or SF on its PF; of a PF, none.
        pub number: Option<u16> = none,
        /// PCI address without the domain, such as 0b:00.2; of an SF, that of its parent. `None`:
        /// the front end chooses one.
        pub address: Option<String> = none,
    }

    /// Values that replace the others on the DPU side.
    pub(super) struct OnDpu {
        pub caps: BTreeMap<String, Fields>,
    }

    /// Values that replace the common ones for a certain link layer of the ports.
    pub(super) struct ByLink {
        pub port: PortNumbers,
        pub hca_vport: Fields = empty,
        /// The bond of the ports (`lag_context`); without it they are in none.
        pub lag: Fields = empty,
        pub caps: BTreeMap<String, Fields> = empty,
        pub max: BTreeMap<String, Fields> = empty,
        pub registers: BTreeMap<String, Fields> = empty,
    }

    /// Numbers that describe a device.
    pub struct DeviceNumbers {
        /// PCI vendor.
        pub vendor_id: u16,
        /// PCI device.
        pub device_id: u16,
        /// PCI device id of its VFs, if it differs.
        pub vf_device_id: Option<u16> = none,
        /// IEEE OUI of the vendor.
        pub ieee_vendor_id: u32,
        /// The parameter set id (PSID), at most 16 characters; a name that no vendor gives.
        pub board_id: String,
        /// Firmware version: major, minor, sub-minor.
        pub firmware: [u16; 3],
        /// Supported versions of the software interface (ISSI): bit n is version n.
        pub issi: u32,
        /// 4 KiB pages that the device requests before it executes any command.
        pub boot_pages: u32,
        /// 4 KiB pages that the device requests before INIT_HCA.
        pub init_pages: u32,
        /// Contexts of objects that fit into a page: for each such number of objects, the device
        /// requests another page while it runs.
        pub contexts_per_page: u32,
        /// Pages that the device requests or returns at a time.
        pub page_batch: u32,
        /// The number of 4 KiB UAR pages in the BAR.
        pub uar_pages: u32,
        /// MSI-X vectors of a function.
        pub vectors: u32,
    }

    /// The size of a card's data path accelerator.
    pub struct DpaNumbers {
        /// Number of cores.
        pub cores: u16,
        /// Execution units of each core.
        pub units_per_core: u16,
        /// Execution units that the system reserves.
        pub reserved_units: u16,
        /// Maximum number of groups of units.
        pub groups: u16,
        /// Maximum number of partitions of units among functions, besides the default one.
        pub partitions: u16,
        /// Maximum bytes of all processes of a function: programs, heaps, stacks.
        pub memory: u64,
        /// Instructions after which the device stops a run.
        pub watchdog: u64,
        /// The first number of its objects.
        pub first_object: u32,
    }

    /// Keys that exist without being created.
    pub struct KeyNumbers {
        /// The reserved lkey: all of memory, for the kernel's QPs.
        pub reserved_lkey: u32,
        /// Reads give zeros, writes vanish.
        pub null_mkey: u32,
        /// Reads are dumped, for filling.
        pub dump_fill_mkey: u32,
        /// Ends a scatter list.
        pub terminate_scatter_list_mkey: u32,
        /// Marks a repeated block in a KLM list.
        pub repeated_mkey: u32,
    }

    /// The first number of each kind of object.
    #[expect(missing_docs, reason = "each is the first number of its kind")]
    pub struct FirstNumbers {
        pub uid: u32,
        pub pd: u32,
        pub transport_domain: u32,
        /// UAR pages of the kernel.
        pub uar: u32,
        /// UAR pages of user contexts; they follow those of the kernel.
        pub user_uar: u32,
        pub umem: u32,
        /// An mkey index: the key without its low byte.
        pub mkey: u32,
        pub cq: u32,
        pub eq: u32,
        pub qp: u32,
        pub q_counter: u32,
        pub xrcd: u32,
        /// XRC SRQs and RMPs.
        pub shared_queue: u32,
    }

    /// Numbers that describe the ports of a device.
    pub struct PortNumbers {
        /// Largest path MTU in bytes: 256 to 4096, a power of two.
        pub max_mtu: u16,
        /// Path MTU in force, in bytes.
        pub active_mtu: u16,
        /// Active width as InfiniBand encodes it: 1 for 1X, 2 for 4X, 4 for 8X, 8 for 12X.
        pub active_width: u8,
        /// Active speed as InfiniBand encodes it: 32 for EDR, 64 for HDR, 128 for NDR.
        pub active_speed: u16,
        /// Rate in Mb/s; QUERY_VPORT_STATE reports it in units of 100.
        pub rate_mbps: u32,
    }
}

impl File {
    /// Reads a whole profile.
    pub(super) fn new(fields: Fields) -> Result<Self, ProfileError> {
        Self::of("", fields)
    }

    pub(super) fn by_link(&self, link: Link) -> &ByLink {
        match link {
            Link::Infiniband => &self.infiniband,
            Link::Ethernet => &self.ethernet,
        }
    }

    /// The values that replace the common ones on this side.
    pub(super) fn by_side(&self, side: Side) -> Option<&OnDpu> {
        self.dpu.as_ref().filter(|_| side == Side::Dpu)
    }

    /// Checks rules that the types do not express.
    pub(super) fn check(&self) -> Result<(), ProfileError> {
        let wrong = |section: &str, field: &str, why: &str| {
            Err(ProfileError::Value {
                section: section.into(),
                field: field.into(),
                why: why.into(),
            })
        };
        if self.device.board_id.len() > 16 {
            return wrong("device", "board_id", "has more than 16 characters");
        }
        if self.first.user_uar <= self.first.uar || self.device.uar_pages <= self.first.user_uar {
            return wrong("first", "user_uar", "leaves no page to the kernel or to user contexts");
        }
        if !self.device.uar_pages.is_power_of_two() {
            return wrong("device", "uar_pages", "is not a power of two, as the size of a BAR is");
        }
        if let Some(dpa) = &self.dpa {
            let all = u32::from(dpa.cores) * u32::from(dpa.units_per_core);
            if all > u16::MAX.into() || u32::from(dpa.reserved_units) >= all {
                return wrong("dpa", "reserved_units", "leaves no unit, or there are over 65535");
            }
            if dpa.first_object == 0 {
                return wrong("dpa", "first_object", "is 0, which names no object");
            }
        }
        if self.device.contexts_per_page == 0 {
            return wrong("device", "contexts_per_page", "is 0: a page holds something");
        }
        if self.device.page_batch == 0 {
            return wrong("device", "page_batch", "is 0: nothing would ever be asked for");
        }
        if self.device.vectors == 0 {
            return wrong("device", "vectors", "is 0, but commands and events need one");
        }
        if self.first.uid == 0 {
            return wrong("first", "uid", "is 0, which is the kernel's");
        }
        for (link, port) in
            [("infiniband", &self.infiniband.port), ("ethernet", &self.ethernet.port)]
        {
            for (field, mtu) in [("max_mtu", port.max_mtu), ("active_mtu", port.active_mtu)] {
                if !mtu.is_power_of_two() || !(256..=4096).contains(&mtu) || mtu > port.max_mtu {
                    let why = format!("is {mtu}, not 256, 512, 1024, 2048 or 4096 within max_mtu");
                    return wrong(&format!("{link}.port"), field, &why);
                }
            }
        }
        self.check_topology()
    }

    /// Checks that each function of the topology is valid and listed once.
    fn check_topology(&self) -> Result<(), ProfileError> {
        let mut seen: Vec<&FunctionPlace> = Vec::new();
        for place in &self.topology {
            let wrong = |why: &str| {
                Err(ProfileError::Value {
                    section: "profile".into(),
                    field: "topology".into(),
                    why: format!("has {place:?}, {why}"),
                })
            };
            if place.address.is_none() {
                return wrong("which has no address");
            }
            if (place.role == Role::Pf) != place.number.is_none() {
                return wrong("where a VF and an SF have a number, and a PF has none");
            }
            if place.side == Side::Dpu && self.dpu.is_none() {
                return wrong("but the profile has no section dpu");
            }
            let is_parent = |it: &&&FunctionPlace| {
                it.role == Role::Pf && (it.side, it.pf) == (place.side, place.pf)
            };
            if place.role != Role::Pf && !seen.iter().any(|it| is_parent(&it)) {
                return wrong("whose PF does not precede it");
            }
            if seen.contains(&place) {
                return wrong("which is listed twice");
            }
            seen.push(place);
        }
        Ok(())
    }
}
