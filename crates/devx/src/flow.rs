//! Flow rules: which packets go to which TIR.
//!
//! The kernel owns the port's flow tables. A user makes a matcher (a mask over packet headers) and
//! rules of it (values under the mask, and a destination); the kernel puts both into its tables.
//! Both need the capability `CAP_NET_RAW`.
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

/// A matcher: a mask over packet headers, with a priority.
#[derive(Debug)]
pub struct FlowMatcher {
    handle: Handle,
    /// Bytes of mask and values.
    length: usize,
}

/// A flow rule. It keeps its matcher alive; the caller keeps the destination alive.
#[derive(Debug)]
pub struct FlowRule {
    handle: Handle,
    // Field order: the rule is destroyed before its matcher.
    _matcher: Arc<FlowMatcher>,
}

impl Context {
    /// FLOW_MATCHER_CREATE for received packets. `mask` is the beginning of a `fte_match_param`;
    /// `criteria` has a bit for each part that counts (`match_criteria_enable`: 1 for the outer
    /// headers). Rules of a matcher with a lower `priority` match first.
    ///
    /// # Errors
    /// EINVAL for an empty mask, or one longer than the kernel knows.
    pub fn create_flow_matcher(
        &self,
        mask: &[u8],
        criteria: u8,
        priority: u16,
    ) -> Result<FlowMatcher> {
        use flow_matcher_create::{FLOW_TYPE, HANDLE, MATCH_CRITERIA, MATCH_MASK};
        let (criteria, priority) = ([criteria], priority.to_ne_bytes());
        let answer = Request::new(method::FLOW_MATCHER_CREATE)
            .new_handle(HANDLE)
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
    /// CREATE_FLOW: packets whose headers under the mask equal `value` go to the TIR `destination`;
    /// their CQEs carry `tag`.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; [`ErrorKind::InvalidInput`] if `value` is not as long as the mask
    /// or `tag` has more than 24 bits; EINVAL if the destination is no TIR.
    pub fn create_rule(
        self: &Arc<Self>,
        value: &[u8],
        destination: &DevxObject,
        tag: Option<u32>,
    ) -> Result<FlowRule> {
        use flow_create::{DEST_DEVX, HANDLE, MATCH_VALUE, MATCHER, TAG};
        let refused =
            |hint: String| Error::new(ErrorKind::InvalidInput, "making a flow rule", hint);
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
            .new_handle(HANDLE)
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

    /// DESTROY_FLOW: the rule matches no more packets.
    ///
    /// # Errors
    /// The device's refusal; the error returns the rule.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        DestroyError::attempt(self, |rule| &mut rule.handle)
    }
}
