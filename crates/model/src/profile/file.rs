//! The types of a profile: its sections, their fields, and how each is read from a text.

use verbless_prm::{HcaCapPage, HcaVportContext, LagContext, NicVportContext, RegisterId};
#[cfg(feature = "toml")]
use {
    super::error::ProfileError,
    super::text::{Read, Section, misplaced, table, wrong},
    toml::de::{DeTable, DeValue},
};

use super::values::{Layer, Values};

/// Declares structures as sections with these fields; a field is required unless it has a default.
macro_rules! sections {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[doc = $doc:literal])* $of:vis $field:ident: $type:ty $(= $default:expr)?, )*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq)]
        $visibility struct $name {
            $( $(#[doc = $doc])* $of $field: $type, )*
        }

        #[cfg(feature = "toml")]
        impl Read for $name {
            fn read(
                value: &DeValue<'_>,
                place: &str,
                base: Option<&Self>,
            ) -> Result<Self, ProfileError> {
                Self::of(place, table(value, place)?, base)
            }
        }

        #[cfg(feature = "toml")]
        impl $name {
            /// Reads a section over that of the base.
            fn of(
                name: &str,
                fields: &DeTable<'_>,
                base: Option<&Self>,
            ) -> Result<Self, ProfileError> {
                let mut section = Section::new(name, fields);
                let read = Self {
                    $( $field: sections!(@take section base $field $($default)?), )*
                };
                section.end()?;
                Ok(read)
            }
        }
    )*};
    (@take $section:ident $base:ident $field:ident) => {
        $section.required(stringify!($field), $base.map(|base| &base.$field))?
    };
    (@take $section:ident $base:ident $field:ident $default:expr) => {
        $section
            .optional(stringify!($field), $base.map(|base| &base.$field))?
            .unwrap_or_else(|| $default)
    };
}

/// Reads an enum from the names of its values.
#[cfg(feature = "toml")]
macro_rules! read_names {
    ($($type:ty = $all:literal { $($name:literal => $value:ident),* })*) => {$(
        impl Read for $type {
            fn read(
                value: &DeValue<'_>,
                place: &str,
                _: Option<&Self>,
            ) -> Result<Self, ProfileError> {
                let DeValue::String(text) = value else {
                    return Err(misplaced(place, value, "a string"));
                };
                match &**text {
                    $($name => Ok(Self::$value),)*
                    other => Err(wrong(place, format!("is {other:?}; {}", $all))),
                }
            }
        }
    )*};
}

#[cfg(feature = "toml")]
read_names! {
    Link = "a link is \"infiniband\" or \"ethernet\"" {
        "infiniband" => Infiniband, "ethernet" => Ethernet
    }
    Side = "a side is \"host\" or \"dpu\"" { "host" => Host, "dpu" => Dpu }
    Role = "a role is \"pf\", \"vf\" or \"sf\"" { "pf" => Pf, "vf" => Vf, "sf" => Sf }
}

/// The link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// An InfiniBand fabric: LIDs, P_Keys.
    Infiniband,
    /// Ethernet: RoCE, MACs and GIDs.
    Ethernet,
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

sections! {
    /// A whole profile.
    pub(super) struct File {
        pub name: String,
        pub link: Link,
        pub device: DeviceNumbers,
        pub keys: KeyNumbers,
        pub first: FirstNumbers,
        pub nic_vport: Values<NicVportContext> = Values::none(),
        /// Current values, by capability page.
        pub caps: Layer<HcaCapPage>,
        /// Maxima, by capability page, where they differ from the current values.
        pub max: Layer<HcaCapPage> = Layer::new(),
        /// Contents of registers, by register.
        pub registers: Layer<RegisterId> = Layer::new(),
        pub infiniband: ByLink,
        pub ethernet: ByLink,
        /// The data path accelerator; without this section, there is none.
        pub dpa: Option<DpaNumbers> = None,
        /// The embedded CPU's function; without this section, there is none.
        pub dpu: Option<OnDpu> = None,
        /// All functions of a card that has several, for models that show all of them.
        pub topology: Vec<FunctionPlace> = Vec::new(),
    }

    /// A function's place: its side, its PCI address, and its number among functions of its type.
    #[derive(Eq, Default)]
    pub struct FunctionPlace {
        /// The side that uses the function.
        pub side: Side,
        /// The type of the function.
        pub role: Role,
        /// Number of the PF: its own, or its parent's.
        pub pf: u16,
        /// Number of the VF or SF on its PF; of a PF, none.
        pub number: Option<u16> = None,
        /// PCI address without the domain, such as 0b:00.2; of an SF, that of its parent. `None`:
        /// the front end chooses one.
        pub address: Option<String> = None,
    }

    /// Values that replace the others on the DPU side.
    pub(super) struct OnDpu {
        pub caps: Layer<HcaCapPage>,
    }

    /// Values that replace the common ones for a certain link layer of the ports.
    pub(super) struct ByLink {
        pub port: PortNumbers,
        pub hca_vport: Values<HcaVportContext> = Values::none(),
        /// The bond of the ports (`lag_context`); without it they are in none.
        pub lag: Values<LagContext> = Values::none(),
        pub caps: Layer<HcaCapPage> = Layer::new(),
        pub max: Layer<HcaCapPage> = Layer::new(),
        pub registers: Layer<RegisterId> = Layer::new(),
    }

    /// Numbers that describe a device.
    pub struct DeviceNumbers {
        /// PCI vendor.
        pub vendor_id: u16,
        /// PCI device.
        pub device_id: u16,
        /// PCI device id of its VFs, if it differs.
        pub vf_device_id: Option<u16> = None,
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
        /// Maximum number of groups of EUs.
        pub groups: u16,
        /// Maximum number of partitions of EUs among functions, besides the default one.
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
        /// Reads return zeros, writes are discarded.
        pub null_mkey: u32,
        /// The key for padding by the DUMP opcode.
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
    /// Reads a whole profile; values that it does not give come from its base.
    #[cfg(feature = "toml")]
    pub(super) fn read(fields: &DeTable<'_>, base: Option<&Self>) -> Result<Self, ProfileError> {
        Self::of("", fields, base)
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
}
