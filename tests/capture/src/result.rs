//! How everything here ends.

/// What everything here returns: an error is for people.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
