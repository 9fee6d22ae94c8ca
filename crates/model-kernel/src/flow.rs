//! Flow rules: FLOW_MATCHER_CREATE and CREATE_FLOW with the rules of Linux 6.12 `hw/mlx5/fs.c`, of
//! what the port receives, with a DevX TIR or flow table as their destination.

use nix::errno::Errno;
use verbless_prm::{FlowDestination, FlowDestinationType, FteMatchParam, Opcode};

use super::abi::attr;
use super::client::Capability;
use super::file::Method;
use super::handles::Object;
use super::steering::{FlowMatcher, Rule};

/// The last priority that rules may have (`MLX5_IB_FLOW_LAST_PRIO`).
const LAST_PRIORITY: u16 = 15;
/// NIC_RX among the types of tables (`mlx5_ib_uapi_flow_table_type`), and as many as there are.
const NIC_RX: u64 = 0;
const TABLE_TYPES: u64 = 5;
/// Flags of CREATE_FLOW.
const DEFAULT_MISS: u32 = 1;
const DROP: u32 = 2;

/// A client's mask or value, as far as the device knows its fields.
fn match_param(bytes: &[u8]) -> Result<Box<FteMatchParam>, Errno> {
    let mut param = Box::new(FteMatchParam::zeroed());
    let known = bytes.len().min(FteMatchParam::BYTES);
    param.as_bytes_mut()[..known].copy_from_slice(&bytes[..known]);
    match bytes[known..].iter().all(|&byte| byte == 0) {
        true => Ok(param),
        false => Err(Errno::EINVAL),
    }
}

impl Method<'_> {
    pub(super) fn flow_matcher_create(&mut self) -> Result<Object, Errno> {
        let mask = match_param(&self.attrs.bytes(attr::MATCHER_MASK)?)?;
        let priority = self.attrs.bytes(attr::MATCHER_FLOW_TYPE)?;
        let priority = u16::from_ne_bytes(*priority.first_chunk().ok_or(Errno::EINVAL)?);
        let enable = *self.attrs.bytes(attr::MATCHER_CRITERIA)?.first().ok_or(Errno::EINVAL)?;
        let (flags, kind) = (attr::MATCHER_FLOW_FLAGS, attr::MATCHER_FT_TYPE);
        if self.attrs.has(flags) && self.attrs.has(kind) {
            return Err(Errno::EINVAL);
        }
        // Of other packets than those that the port receives there are no tables.
        if self.attrs.has(kind) && self.attrs.number(kind, TABLE_TYPES - 1)? != NIC_RX {
            return Err(Errno::EOPNOTSUPP);
        }
        const EGRESS: u32 = 1 << 2;
        if self.attrs.has(flags) && self.attrs.flags(flags, EGRESS)? != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Object::FlowMatcher(FlowMatcher { mask, enable, priority }))
    }

    /// Makes a rule; returns it, and the handles of the objects that it uses.
    pub(super) fn create_flow(&mut self) -> Result<(Object, Vec<u32>), Errno> {
        if !self.attrs.client.capable(Capability::NetRaw) {
            return Err(Errno::EPERM);
        }
        let handle = self.handle_of(attr::FLOW_MATCHER).ok_or(Errno::EINVAL)?;
        let Some(Object::FlowMatcher(matcher)) = self.state.object(handle) else {
            return Err(Errno::EINVAL);
        };
        let matcher = matcher.clone();
        let flags = match self.attrs.has(attr::FLOW_FLAGS) {
            true => self.attrs.flags(attr::FLOW_FLAGS, DEFAULT_MISS | DROP)?,
            false => 0,
        };
        let destination = self.destination()?;
        if flags == DEFAULT_MISS | DROP || destination.is_some() && flags != 0 {
            return Err(Errno::EINVAL);
        }
        if flags & DEFAULT_MISS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let value = match_param(&self.attrs.bytes(attr::FLOW_MATCH_VALUE)?)?;
        let tag = match self.attrs.has(attr::FLOW_TAG) {
            true => {
                let bytes = self.attrs.bytes(attr::FLOW_TAG)?;
                Some(u32::from_ne_bytes(*bytes.first_chunk().ok_or(Errno::EINVAL)?))
            }
            false => None,
        };
        if tag.is_some_and(|tag| tag >> 24 != 0) {
            return Err(Errno::EINVAL);
        }
        if matcher.priority > LAST_PRIORITY {
            return Err(Errno::ENOMEM);
        }
        if destination.is_none() && flags & DROP == 0 {
            return Err(Errno::EINVAL);
        }
        let kernel = &self.file.kernel;
        let rule = Rule { value, tag, to: destination };
        let flow = kernel.flows.add(&*kernel.function, &matcher, rule)?;
        Ok((Object::Flow(flow), vec![handle]))
    }

    /// The DevX object that a rule leads to.
    fn destination(&self) -> Result<Option<FlowDestination>, Errno> {
        // Queue pairs of raw packets, the other kind of destination, do not exist.
        if self.handle_of(attr::FLOW_DEST_QP).is_some() {
            return Err(Errno::EINVAL);
        }
        let Some(handle) = self.handle_of(attr::FLOW_DEST_DEVX) else { return Ok(None) };
        let Some(Object::Devx(object)) = self.state.object(handle) else {
            return Err(Errno::EINVAL);
        };
        let kind = match object.id.opcode {
            Opcode::CREATE_TIR => FlowDestinationType::TIR,
            Opcode::CREATE_FLOW_TABLE => FlowDestinationType::FLOW_TABLE,
            _ => return Err(Errno::EINVAL),
        };
        let mut destination = FlowDestination::zeroed();
        destination.set_destination_type(kind).set_destination_id(object.id.number);
        Ok(Some(destination))
    }
}
