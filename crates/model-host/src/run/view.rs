//! The devices of one side, numbered from 0, in the side's own tree.
//!
//! A model has the devices of both sides from the start, so programs on the other side can join
//! later.

use std::sync::Arc;

use super::error::RunError;
use super::node::Node;
use super::preflight;
use super::sysfs::{self, ShownDevice};
use super::tree::Tree;
use verbless_model::function::Function;
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;

/// The devices of one side.
#[derive(Debug)]
pub(super) struct View {
    pub tree: Tree,
    /// Model numbers of the shown devices.
    devices: Vec<usize>,
    /// Model numbers of the devices with a control file.
    controls: Vec<usize>,
    /// The devices, for interfaces other than the tree.
    pub shown: Vec<ShownDevice>,
}

impl View {
    pub(super) fn new(model: &Model, side: Side) -> Result<Self, RunError> {
        let backend = InProcess::of(model).on_side(side);
        let devices: Vec<_> = backend.shown().map(Function::number).collect();
        if devices.is_empty() && side == Side::Dpu {
            return Err(RunError::NoDpu { known: names() });
        }
        let shown = sysfs::shown(&backend);
        let tree = Tree::new(&shown)?;
        let with_control = devices.iter().zip(&shown).filter(|(_, it)| it.control.is_some());
        let controls = with_control.map(|(&device, _)| device).collect();
        Ok(Self { tree, devices, controls, shown })
    }

    /// The model number of a node's device.
    pub(super) fn of_node(&self, node: Node) -> Option<usize> {
        match node {
            Node::Verbs(number) => self.devices.get(number),
            Node::Fwctl(number) => self.controls.get(number),
        }
        .copied()
    }
}

/// The views of all sides in use.
pub(super) struct Views {
    model: Model,
    made: Vec<(Side, Arc<View>)>,
}

impl Views {
    pub(super) fn new(model: Model) -> Self {
        Self { model, made: Vec::new() }
    }

    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// The view of a side.
    ///
    /// # Errors
    /// No device has that side, or its files cannot be made.
    pub(super) fn of(&mut self, side: Side) -> Result<Arc<View>, RunError> {
        if let Some((_, view)) = self.made.iter().find(|(made, _)| *made == side) {
            return Ok(view.clone());
        }
        let view = Arc::new(View::new(&self.model, side)?);
        preflight::check_tree(&view.tree)?;
        self.made.push((side, view.clone()));
        Ok(view)
    }

    /// Removes the files of all views, even of views still in use.
    pub(super) fn remove(&self) {
        for (_, view) in &self.made {
            view.tree.remove();
        }
    }
}

/// The built-in profiles with a DPU side.
fn names() -> String {
    let has =
        |name: &&str| Profile::load(name).is_ok_and(|profile| profile.on(Side::Dpu).is_some());
    Profile::names().filter(has).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::fcntl::OFlag;

    use super::*;

    fn profile(name: &str) -> Profile {
        Profile::load(name).expect("a profile")
    }

    #[test]
    fn devices_are_numbered_per_side() {
        let model = Model::builder()
            .device_with_sides(profile("bluefield3"))
            .device_with_sides(profile("connectx6dx"))
            .device_with_sides(profile("bluefield3"))
            .build();
        let numbers = |side| {
            let view = View::new(&model, side).expect("there are devices");
            let nodes = (0..).map_while(|number| {
                let path = format!("/sys/class/infiniband_verbs/uverbs{number}/ibdev");
                view.tree
                    .open(path.as_bytes(), OFlag::O_PATH)
                    .ok()
                    .and(view.of_node(Node::Verbs(number)))
            });
            let nodes: Vec<_> = nodes.collect();
            let next = format!("/dev/infiniband/uverbs{}", nodes.len());
            assert_eq!(view.tree.open(next.as_bytes(), OFlag::O_PATH).err(), Some(Errno::ENOENT));
            assert_eq!(view.of_node(Node::Verbs(nodes.len())), None);
            nodes
        };
        assert_eq!(numbers(Side::Host), [0, 2, 3]);
        assert_eq!(numbers(Side::Dpu), [1, 4]);
    }

    #[test]
    fn programs_on_one_side_share_view() {
        let model = Model::builder().device_with_sides(profile("bluefield3")).build();
        let mut views = Views::new(model);
        let mut view = |side| views.of(side).expect("there are devices");
        let (host, dpu, again) = (view(Side::Host), view(Side::Dpu), view(Side::Host));
        assert!(Arc::ptr_eq(&host, &again) && !Arc::ptr_eq(&host, &dpu));
        let exists = |view: &View| view.tree.open(b"/dev/fwctl", OFlag::O_PATH).is_ok();
        assert!(exists(&host) && exists(&dpu));
    }

    #[test]
    fn side_without_devices_is_rejected() {
        let model = Model::builder().device_with_sides(profile("connectx6dx")).build();
        let error = View::new(&model, Side::Dpu).expect_err("there is none").to_string();
        assert!(error.contains("bluefield3") && !error.contains("connectx6dx"), "{error}");
        assert!(View::new(&model, Side::Host).is_ok());
    }
}
