//! The wires: which device a LID or a GID reaches.

/// The fabric that joins all devices of a model.
#[derive(Debug, Default)]
pub(crate) struct Fabric {}
