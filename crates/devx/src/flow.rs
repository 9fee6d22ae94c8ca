//! Flow rules: which packets go to which TIR.
//!
//! Who receives raw Ethernet has no flow table of the port: those are the kernel's. It makes a
//! matcher, which says which bits of a packet's headers count, and rules of it, which say their
//! values and where such packets go; the kernel puts both into its tables. Both need the capability
//! `CAP_NET_RAW`.
//!
//! Source: Linux `drivers/infiniband/hw/mlx5/fs.c`.

use std::sync::Arc;

use crate::abi::attr::{
    flow_create, flow_destroy, flow_matcher_create, flow_matcher_destroy, flow_matcher_type,
};
use crate::abi::method;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{DestroyError, Handle, Release};
use crate::object::DevxObject;
use crate::sys::Request;

const MATCHER: Release = Release {
    what: "flow matcher",
    method: method::FLOW_MATCHER_DESTROY,
    attribute: flow_matcher_destroy::HANDLE,
};

const RULE: Release =
    Release { what: "flow rule", method: method::FLOW_DESTROY, attribute: flow_destroy::HANDLE };

/// A matcher: a mask over the headers of packets, and how it ranks among others.
#[derive(Debug)]
pub struct FlowMatcher {
    handle: Handle,
    /// Bytes of mask and values.
    length: usize,
}

/// A flow rule. It keeps its matcher; who makes it keeps what it leads to.
#[derive(Debug)]
pub struct FlowRule {
    handle: Handle,
    // Behind the handle: a matcher with rules cannot be destroyed.
    _matcher: Arc<FlowMatcher>,
}

impl Context {
    /// FLOW_MATCHER_CREATE: of received packets. `mask` begins a `fte_match_param`; `criteria` has
    /// a bit for each part of it that counts (`match_criteria_enable`: 1 for the outer headers).
    /// Rules of a matcher with a lower `priority` come first.
    ///
    /// # Errors
    /// EINVAL for a mask of no bytes, or of more than the kernel knows.
    pub fn create_flow_matcher(
        &self,
        mask: &[u8],
        criteria: u8,
        priority: u16,
    ) -> Result<FlowMatcher> {
        use flow_matcher_create::{FLOW_TYPE, HANDLE, MATCH_CRITERIA, MATCH_MASK};
        let (criteria, priority) = ([criteria], priority.to_ne_bytes());
        let answer = Request::new(method::FLOW_MATCHER_CREATE)
            .fresh(HANDLE)
            .input(MATCH_MASK, mask)
            .element(FLOW_TYPE, flow_matcher_type::NORMAL, &priority)
            .input(MATCH_CRITERIA, &criteria)
            .send(self.device())?;
        let number = answer
            .handle(HANDLE)
            .inspect_err(|error| self.count_leak(MATCHER.what, u32::MAX, error))?;
        Ok(FlowMatcher { handle: Handle::new(self, &MATCHER, number), length: mask.len() })
    }
}

impl FlowMatcher {
    /// CREATE_FLOW: packets whose headers under the mask are `value` go to `destination`, a TIR,
    /// whose queue sees `tag` in their completions.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; `value` is not as long as the mask; `tag` has more than 24 bits;
    /// EINVAL where the destination is none.
    pub fn create_rule(
        self: &Arc<Self>,
        value: &[u8],
        destination: &DevxObject,
        tag: Option<u32>,
    ) -> Result<FlowRule> {
        use flow_create::{DEST_DEVX, HANDLE, MATCH_VALUE, MATCHER, TAG};
        let refused = |hint: String| Error::new(ErrorKind::Input, "making a flow rule", hint);
        if value.len() != self.length {
            let (value, mask) = (value.len(), self.length);
            return Err(refused(format!("the value has {value} bytes, and its mask {mask}")));
        }
        if let Some(tag) = tag.filter(|tag| tag >> 24 != 0) {
            return Err(refused(format!("the flow tag {tag:#x} has more than 24 bits")));
        }
        let context = self.handle.context();
        if !destination.context().is(context) {
            return Err(refused("matcher and destination are of two contexts".into()));
        }
        let answer = Request::new(method::FLOW_CREATE)
            .fresh(HANDLE)
            .input(MATCH_VALUE, value)
            .handle(DEST_DEVX, destination.handle())
            .handle(MATCHER, self.handle.number())
            .with(|request| match tag {
                Some(tag) => request.input_u32(TAG, tag),
                None => request,
            })
            .send(context.device())?;
        let number = answer
            .handle(HANDLE)
            .inspect_err(|error| context.count_leak(RULE.what, u32::MAX, error))?;
        Ok(FlowRule { handle: Handle::new(context, &RULE, number), _matcher: self.clone() })
    }
}

impl FlowRule {
    /// The context in which the rule was made.
    #[must_use]
    pub const fn context(&self) -> &Context {
        self.handle.context()
    }

    /// DESTROY_FLOW: packets do not go this way any more.
    ///
    /// # Errors
    /// The device's refusal; the rule comes back.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        DestroyError::attempt(self, |rule| &mut rule.handle)
    }
}
