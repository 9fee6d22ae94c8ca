//! Flow rules: FLOW_MATCHER_CREATE and CREATE_FLOW with the rules of Linux 6.12 `hw/mlx5/fs.c`, for
//! packets that the port receives, with a DevX TIR or flow table as their destination.

use nix::errno::Errno;
use verbless_prm::{FlowDestination, FlowDestinationType, FteMatchParam, Opcode};

use super::abi::attr;
use super::client::Capability;
use super::file::Method;
use super::handles::{Object, charge_of_object};
use super::refused::refused;
use super::release::KernelRelease;
use super::steering::{FlowMatcher, Rule};

/// The highest priority value of a rule (`MLX5_IB_FLOW_LAST_PRIO`).
const LAST_PRIORITY: u16 = 15;
/// NIC_RX among the table types (`mlx5_ib_uapi_flow_table_type`), and the count of types.
const NIC_RX: u64 = 0;
const TABLE_TYPES: u64 = 5;
/// Flags of CREATE_FLOW.
const DEFAULT_MISS: u32 = 1;
const DROP: u32 = 2;

/// A client's mask or value, cut to the fields that the device knows.
fn match_param(bytes: &[u8], release: KernelRelease) -> Result<Box<FteMatchParam>, Errno> {
    let most = usize::from(release.match_param_bytes());
    if bytes.len() > most {
        let words = format!("{} bytes of match parameters; at most {most} fit", bytes.len());
        return Err(refused(Errno::EINVAL, words));
    }
    let mut param = Box::new(FteMatchParam::zeroed());
    let known = bytes.len().min(FteMatchParam::BYTES);
    param.as_bytes_mut()[..known].copy_from_slice(&bytes[..known]);
    match bytes[known..].iter().all(|&byte| byte == 0) {
        true => Ok(param),
        false => {
            let words =
                format!("match parameters have bits beyond the {known} bytes that are known");
            Err(refused(Errno::EINVAL, words))
        }
    }
}

impl Method<'_> {
    pub(super) fn flow_matcher_create(&mut self) -> Result<Object, Errno> {
        let release = self.file.kernel.release;
        let mask = match_param(&self.attrs.bytes(attr::MATCHER_MASK)?, release)?;
        let priority = self.attrs.bytes(attr::MATCHER_FLOW_TYPE)?;
        let short = || refused(Errno::EINVAL, "flow type or match criteria have no bytes");
        let priority = u16::from_ne_bytes(*priority.first_chunk().ok_or_else(short)?);
        let enable = *self.attrs.bytes(attr::MATCHER_CRITERIA)?.first().ok_or_else(short)?;
        let (flags, kind) = (attr::MATCHER_FLOW_FLAGS, attr::MATCHER_FT_TYPE);
        if self.attrs.has(flags) && self.attrs.has(kind) {
            let words = "both flow flags and a table type: give only one of them";
            return Err(refused(Errno::EINVAL, words));
        }
        // Only received packets have tables here.
        if self.attrs.has(kind) && self.attrs.number(kind, TABLE_TYPES - 1)? != NIC_RX {
            return Err(refused(
                Errno::EOPNOTSUPP,
                "flow tables other than NIC_RX are not modelled",
            ));
        }
        const EGRESS: u32 = 1 << 2;
        if self.attrs.has(flags) && self.attrs.flags(flags, EGRESS)? != 0 {
            return Err(refused(Errno::EOPNOTSUPP, "matchers of egress are not modelled"));
        }
        let _bytes = charge_of_object(self.attrs.client, FteMatchParam::BYTES)?;
        Ok(Object::FlowMatcher { matcher: FlowMatcher { mask, enable, priority }, _bytes })
    }

    /// Creates a rule; returns it, and the handles of the objects that it uses.
    pub(super) fn create_flow(&mut self) -> Result<(Object, Vec<u32>), Errno> {
        if !self.attrs.client.capable(Capability::NetRaw) {
            return Err(refused(Errno::EPERM, "a flow rule needs CAP_NET_RAW"));
        }
        let no_matcher = || refused(Errno::EINVAL, "the rule names no matcher");
        let handle = self.handle_of(attr::FLOW_MATCHER).ok_or_else(no_matcher)?;
        let Some(Object::FlowMatcher { matcher, .. }) = self.state.object(handle) else {
            return Err(no_matcher());
        };
        let matcher = matcher.clone();
        let flags = match self.attrs.has(attr::FLOW_FLAGS) {
            true => self.attrs.flags(attr::FLOW_FLAGS, DEFAULT_MISS | DROP)?,
            false => 0,
        };
        let destination = self.destination()?;
        if flags == DEFAULT_MISS | DROP || destination.is_some() && flags != 0 {
            let words =
                format!("flags {flags:#x}: a rule has one of DEFAULT_MISS, DROP, destination");
            return Err(refused(Errno::EINVAL, words));
        }
        if flags & DEFAULT_MISS != 0 {
            return Err(refused(Errno::EOPNOTSUPP, "DEFAULT_MISS is not modelled"));
        }
        let value =
            match_param(&self.attrs.bytes(attr::FLOW_MATCH_VALUE)?, self.file.kernel.release)?;
        let tag = match self.attrs.has(attr::FLOW_TAG) {
            true => {
                let bytes = self.attrs.bytes(attr::FLOW_TAG)?;
                let short = || refused(Errno::EINVAL, "the flow tag has fewer than 4 bytes");
                Some(u32::from_ne_bytes(*bytes.first_chunk().ok_or_else(short)?))
            }
            false => None,
        };
        if let Some(tag) = tag.filter(|tag| tag >> 24 != 0) {
            let words = format!("flow tag {tag:#x} has more than 24 bits");
            return Err(refused(Errno::EINVAL, words));
        }
        if matcher.priority > LAST_PRIORITY {
            let words =
                format!("the matcher's priority {} is above {LAST_PRIORITY}", matcher.priority);
            return Err(refused(Errno::ENOMEM, words));
        }
        if destination.is_none() && flags & DROP == 0 {
            return Err(refused(Errno::EINVAL, "the rule has no destination and does not drop"));
        }
        let kernel = &self.file.kernel;
        let rule = Rule { value, tag, to: destination };
        let flow = kernel.flows.add(&*kernel.function, &matcher, rule)?;
        Ok((Object::Flow(flow), vec![handle]))
    }

    /// The DevX object that a rule steers to.
    fn destination(&self) -> Result<Option<FlowDestination>, Errno> {
        // The other kind of destination, a raw packet QP, does not exist here.
        if self.handle_of(attr::FLOW_DEST_QP).is_some() {
            return Err(refused(Errno::EINVAL, "the destination is not a raw packet QP"));
        }
        let Some(handle) = self.handle_of(attr::FLOW_DEST_DEVX) else { return Ok(None) };
        let Some(Object::Devx(object)) = self.state.object(handle) else {
            return Err(refused(Errno::EINVAL, "the destination is not a DevX object"));
        };
        let kind = match object.id.opcode {
            Opcode::CREATE_TIR => FlowDestinationType::TIR,
            Opcode::CREATE_FLOW_TABLE => FlowDestinationType::FLOW_TABLE,
            _ => {
                let words = "the destination is neither a TIR nor a flow table";
                return Err(refused(Errno::EINVAL, words));
            }
        };
        let mut destination = FlowDestination::zeroed();
        destination.set_destination_type(kind).set_destination_id(object.id.number);
        Ok(Some(destination))
    }
}
