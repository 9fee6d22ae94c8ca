//! One function (vhca) of a modelled device: its objects and the commands on them.

pub(crate) mod objects;
