//! Ownership of kernel objects: each is destroyed once; failures are counted.

use std::fmt;

use crate::abi::Method;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Request;

/// How a kind of object is destroyed.
#[derive(Debug)]
pub(crate) struct Release {
    /// Kind of the object, for messages.
    pub(crate) what: &'static str,
    /// The method that destroys the object.
    pub(crate) method: Method,
    /// The only attribute of `method`: the handle.
    pub(crate) attribute: u16,
}

/// An owned handle. Drop destroys the object. A failure is counted in [`Context::leaked`] and keeps
/// the context open until the process ends, because closing the file would let the kernel free
/// memory that the device still uses. A removed device uses none: its objects are counted in
/// [`Context::lost`] and freed with the file.
pub(crate) struct Handle {
    context: Context,
    release: &'static Release,
    number: u32,
    live: bool,
}

impl Handle {
    pub(crate) fn new(context: &Context, release: &'static Release, number: u32) -> Self {
        Self { context: context.clone(), release, number, live: true }
    }

    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    fn destroy(&mut self) -> Result<()> {
        if self.live {
            Request::new(self.release.method)
                .handle(self.release.attribute, self.number)
                .send(self.context.device())?;
            self.live = false;
        }
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            self.context.count_undestroyed(self.release.what, self.number, &error);
            if error.kind() != ErrorKind::DeviceGone {
                std::mem::forget(self.context.clone());
            }
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.release.what, self.number)
    }
}

/// An object that could not be destroyed, with the reason. Try again later, or drop it (drop tries
/// once more, then counts it as leaked) and keep alive what the device may still use.
#[derive(Debug)]
pub struct DestroyError<T> {
    /// The object, still alive.
    pub object: T,
    /// The reason.
    pub error: Error,
}

impl<T> DestroyError<T> {
    pub(crate) fn attempt(
        mut object: T,
        handle: impl FnOnce(&mut T) -> &mut Handle,
    ) -> Result<(), Self> {
        match handle(&mut object).destroy() {
            Ok(()) => Ok(()),
            Err(error) => Err(Self { object, error }),
        }
    }
}

impl<T> fmt::Display for DestroyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for DestroyError<T> {}

impl<T> From<DestroyError<T>> for Error {
    fn from(failed: DestroyError<T>) -> Self {
        failed.error
    }
}
