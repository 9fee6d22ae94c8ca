//! Errors of this crate: those of verbless-devx with hints added, and those of requests that are
//! refused before they are sent.

use verbless_devx::{Context, Error, ErrorKind};

/// A request that cannot be encoded or that every device would refuse.
pub(crate) fn invalid(attempted: &'static str, what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, attempted, what)
}

/// An invalid request, with a message made at run time.
pub(crate) fn refused(attempted: &'static str, what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, attempted, what)
}

/// A number above the limit of its field, or of this device.
pub(crate) fn limit(attempted: &'static str, what: &str, value: u64, most: u64) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        attempted,
        format!("{what} is {value}; at most {most} is supported"),
    )
}

/// A response that contradicts the PRM.
pub(crate) fn wrong_answer(attempted: &'static str, what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidResponse, attempted, what)
}

/// Fails if a part of a request to `device` belongs to another device context: its number may refer
/// to another object in this one.
pub(crate) fn all_of<'a>(
    device: &Context,
    attempted: &'static str,
    parts: impl IntoIterator<Item = (&'static str, &'a Context)>,
) -> Result<(), Error> {
    for (what, context) in parts {
        if !context.is(device) {
            let hint = format!("the {what} is of another device context: make it on this one");
            return Err(refused(attempted, hint));
        }
    }
    Ok(())
}

/// Fails if `value` needs more than `bits` bits.
pub(crate) fn fits(
    attempted: &'static str,
    what: &str,
    value: u32,
    bits: u32,
) -> Result<(), Error> {
    let most = (1 << bits) - 1;
    if value <= most { Ok(()) } else { Err(limit(attempted, what, value.into(), most.into())) }
}
