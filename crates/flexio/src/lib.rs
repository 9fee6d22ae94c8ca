//! Programs on a DPA from their host. So far: a program in the host's binary ([`embed!`],
//! [`App`]), its process ([`Process`]), and typed calls of its functions ([`Process::call`]).
//!
//! A program is a crate that uses `verbless-flexio-dev`; `cargo xtask dpa build` compiles it. Its
//! functions with `#[rpc]` become constants here that know their arguments:
//!
//! ```ignore
//! verbless_flexio::embed!(pub mod program = "../../target/dpa/program.elf");
//!
//! let process = Process::create(&device, &program::APP.app()?, &ProcessConfig::default())?;
//! assert_eq!(process.call(program::add, (40, 2))?, 42);
//! ```
//!
//! How a process is made is published of no hardware. These are objects of verbless's model, and
//! the driver sends hardware none of it: [`Process::create`] refuses it with that reason.
#![forbid(unsafe_code)]

mod app;
mod error;
mod function;
mod process;

pub use app::{App, Embedded};
pub use error::Error;
pub use function::{Arguments, Function, Handler, Word};
pub use process::{Process, ProcessConfig};
/// Puts a program into this binary, with a constant for each of its functions:
/// `embed!(pub mod program = "PATH");`, of which the path begins at the crate's `Cargo.toml`.
///
/// The module has `APP`, an [`Embedded`], and under its own name a [`Function`] for each function
/// with `#[rpc]` and a [`Handler`] for each with `#[event_handler]`. It is made anew when the file
/// changes. A file that is not there or is no program does not compile.
pub use verbless_flexio_macros::embed;
