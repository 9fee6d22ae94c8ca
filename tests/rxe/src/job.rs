//! The inputs for serving a program, and its end.

use std::net::TcpListener;

use verbless::prelude::*;

use crate::program::Program;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A program to serve.
pub(crate) struct Job<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) listener: TcpListener,
    pub(crate) program: &'a Program,
    pub(crate) options: ConnectOptions,
    /// Frames are lost.
    pub(crate) lossy: bool,
}

/// The objects that remain after a program has been served.
pub(crate) type Server = Box<dyn std::any::Any>;
