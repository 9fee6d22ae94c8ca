//! The result type of this crate.

/// The result of every function here; the error is text for the user.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
