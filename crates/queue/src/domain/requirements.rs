//! The ring's capabilities and the UMR rules that follow from a device's capabilities.

use verbless_command::Caps;
use verbless_prm as prm;
use verbless_ring::wr::{Capability, Fence, UmrRules};

/// Whether the device has the capability that an operation needs.
pub(crate) fn has(caps: &Caps, capability: Capability) -> bool {
    let ethernet = caps.ethernet.as_ref();
    match capability {
        Capability::Atomics => caps.atomics,
        // Linux checks the same (`umr_check_mkey_mask` and `get_umr_update_access_mask` of
        // mlx5_ib); a change of page sizes also depends on `umr_modify_entity_size_disabled`.
        Capability::Umr => !caps.general.umr_indirect_mkey_disabled(),
        Capability::UmrAtomic => {
            caps.general.atomic() && !caps.general.umr_modify_atomic_disabled()
        }
        Capability::Dma => caps.dma_mmo(),
        Capability::WaitOnData => caps.general.wait_on_data(),
        Capability::FrameChecksums => ethernet.is_some_and(|page| page.csum_cap()),
        Capability::VlanInsertion => ethernet.is_some_and(|page| page.wqe_vlan_insert()),
    }
}

/// The device's requirements on requests that change keys. The fence is that of Linux
/// (`mlx5_get_umr_fence`).
pub(crate) fn umr_rules(caps: &Caps) -> UmrRules {
    let fence = match caps.general.umr_fence() {
        prm::UmrFence::NONE => Fence::None,
        prm::UmrFence::SMALL => Fence::Small,
        _ => Fence::Strong,
    };
    // The sizes come from a word of 16 bits.
    let max_atomic_bytes = caps.max_atomic_bytes() as u32;
    UmrRules { fence, max_atomic_bytes, ..UmrRules::STRICT }
        .with_max_wqe_bytes(caps.max_send_wqe_bytes.into())
}

#[cfg(test)]
mod tests {
    use verbless_command::Device;
    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;
    use verbless_ring::wr::Capability;

    /// A device of this profile with additional lines.
    fn open(name: &str, lines: &str) -> (Model, Device) {
        let text = format!("base = \"{name}\"\n{lines}");
        let profile = Profile::from_toml(&text).expect("a profile");
        let model = Model::builder().device(profile).stepped().build();
        let backend = InProcess::of(&model);
        let info = backend.enumerate().expect("the model has devices").remove(0);
        let device = Device::open(&backend, &info).expect("the model opens");
        (model, device)
    }

    #[test]
    fn max_klms_follow_max_wqe_sz_sq() {
        for (bytes, klms) in [(1024, 52), (512, 24)] {
            let lines = format!("[caps.general]\nmax_wqe_sz_sq = {bytes}\n");
            let (_model, device) = open("connectx6dx", &lines);
            assert_eq!(super::umr_rules(device.caps()).max_klms, klms, "{bytes} bytes");
        }
    }

    #[test]
    fn capabilities_follow_hca_cap_bits() {
        let has = |name, lines: &str| {
            let (_model, device) = open(name, lines);
            let has = |capability: &Capability| super::has(device.caps(), *capability);
            Capability::ALL.into_iter().filter(has).collect::<Vec<_>>()
        };
        let (name, general) = ("connectx6dx", "[caps.general]\n");
        let first = has(name, "");
        let without = |gone: &[Capability]| {
            first.iter().copied().filter(|it| !gone.contains(it)).collect::<Vec<_>>()
        };
        let [atomics, umr, umr_atomic] =
            [Capability::Atomics, Capability::Umr, Capability::UmrAtomic];
        assert!([atomics, umr, umr_atomic].iter().all(|it| first.contains(it)), "{first:?}");
        assert!(!first.contains(&Capability::Dma) && !first.contains(&Capability::WaitOnData));
        let set = |line: &str| has(name, &[general, line].concat());
        assert_eq!(set("umr_indirect_mkey_disabled = true"), without(&[umr]));
        assert_eq!(set("umr_modify_atomic_disabled = true"), without(&[umr_atomic]));
        assert_eq!(set("atomic = false"), without(&[atomics, umr_atomic]));
        assert!(has("bluefield3", "").contains(&Capability::Dma));
        let none = has("bluefield3", "[caps.general]\ndma_mmo_qp = false\n");
        assert!(!none.contains(&Capability::Dma), "{none:?}");
        for (line, more) in [
            ("wait_on_data = true", Capability::WaitOnData),
            ("dma_mmo_sq = true", Capability::Dma),
        ] {
            let now = set(line);
            assert!(now.contains(&more), "{line}: {now:?}");
            assert_eq!(now.len(), first.len() + 1, "{line}: {now:?}");
        }
    }
}
