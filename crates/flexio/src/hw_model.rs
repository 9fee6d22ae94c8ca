//! Hardware models with a DPA.

use std::fmt;

use verbless_command::Device;

/// A hardware model, by FlexIO's number (`flexio_hw_model_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum HwModel {
    /// The model of the device (`FLEXIO_HW_MODEL_DEF`).
    Default = 0,
    /// ConnectX-7 (`FLEXIO_HW_MODEL_CX7`).
    Cx7 = 1,
    /// BlueField-3 (`FLEXIO_HW_MODEL_BF3`).
    Bf3 = 2,
    /// ConnectX-8 (`FLEXIO_HW_MODEL_CX8`).
    Cx8 = 3,
    /// ConnectX-9 (`FLEXIO_HW_MODEL_CX9`).
    Cx9 = 4,
    /// No known model (`FLEXIO_HW_MODEL_NA`).
    NotAvailable = 0xffff,
}

impl HwModel {
    /// The hardware model of a device, by its PCI device id (`flexio_hw_model_id_get`). VFs of all
    /// models share one id, which identifies no model.
    pub fn of(device: &Device) -> Self {
        Self::of_pci_device(device.info().device_id)
    }

    /// Source: the PCI ID table of Linux's mlx5_core.
    const fn of_pci_device(id: u16) -> Self {
        match id {
            0x1021 => Self::Cx7,
            0xa2dc => Self::Bf3,
            0x1023 => Self::Cx8,
            0x1025 => Self::Cx9,
            _ => Self::NotAvailable,
        }
    }
}

impl fmt::Display for HwModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "any model",
            Self::Cx7 => "ConnectX-7",
            Self::Bf3 => "BlueField-3",
            Self::Cx8 => "ConnectX-8",
            Self::Cx9 => "ConnectX-9",
            Self::NotAvailable => "no model",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hw_models_match_flexio_numbers_and_pci_ids() {
        let of = |id| HwModel::of_pci_device(id) as u16;
        // ConnectX-6 Dx, its neighbours, and the id of VFs.
        assert_eq!([0x101d, 0x1021, 0xa2dc, 0x1023, 0x1025].map(of), [0xffff, 1, 2, 3, 4]);
        assert_eq!([0x1022, 0xa2df, 0x101e, 0].map(of), [0xffff; 4]);
        assert_eq!(HwModel::Default as u16, 0);
    }
}
