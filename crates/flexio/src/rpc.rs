//! Calls with attributes: where a call runs, and what its thread begins with.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use std::time::Duration;
//!
//! use verbless_flexio::{Affinity, Function, Outbox, OutboxConfig, RpcAttr};
//!
//! let attr = RpcAttr {
//!     name: "adder".into(),
//!     storage: Some(process.alloc(64)?),
//!     outbox: Some(Outbox::create(&process, &OutboxConfig::default())?),
//!     affinity: Affinity::Strict(7),
//!     timeout: Some(Duration::from_secs(1)),
//!     ..RpcAttr::default()
//! };
//! let add = Function::<(u64, u32), u64>::named("add");
//! assert_eq!(process.call_with_attr(&attr, add, (40, 2))?, 42);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use verbless_command::{Affinity, DpaEntry};
use verbless_flexio_dev::metadata::{BYTES, ThreadMetadata};

use crate::error::Error;
use crate::function::{Arguments, Function, Word};
use crate::memory::{Buffer, storage_of};
use crate::outbox::Outbox;
use crate::process::Process;
use crate::window::Window;

/// Attributes of a call's thread (`flexio_rpc_attr`). The C library publishes only the struct's
/// name and that it sets thread-local storage; the other fields are verbless's own. It is a Rust
/// type without a binary layout, so its version is the crate's.
#[derive(Debug, Clone, Default)]
pub struct RpcAttr {
    /// The thread-local storage, which `get_thread_local_storage` returns.
    pub storage: Option<Buffer>,
    /// The thread's name, cut to 16 bytes.
    pub name: String,
    /// The outbox that is configured at the start; `None`: the function chooses one by its number.
    pub outbox: Option<Outbox>,
    /// The windows that are configured at the start.
    pub windows: [Option<Window>; 2],
    /// The execution units on which the call may run.
    pub affinity: Affinity,
    /// How long the call may take; `None`: [`ProcessConfig::timeout`](crate::ProcessConfig).
    pub timeout: Option<Duration>,
}

impl Process {
    /// Calls a function as [`Process::call`] does, with attributes
    /// (`flexio_process_call_with_attr`).
    ///
    /// # Errors
    /// As [`Process::call`], and no such execution unit or group. [`Error::CopyTimeout`], where it
    /// has storage or a name: it was not called.
    pub fn call_with_attr<A: Arguments, R: Word>(
        &self,
        attr: &RpcAttr,
        function: Function<A, R>,
        arguments: A,
    ) -> Result<R, Error> {
        let address = self.app().address_of(&function)?;
        // A thread without anything of its own needs no metadata.
        let metadata = match attr.storage.is_some() || !attr.name.is_empty() {
            true => {
                let storage = storage_of(attr.storage.as_ref(), self)?;
                let metadata = ThreadMetadata::new(self.next_thread(), storage, &attr.name);
                let buffer = self.alloc(BYTES as u64)?;
                buffer.write_at(0, &metadata.to_bytes())?;
                Some(buffer)
            }
            false => None,
        };
        let entry = DpaEntry {
            metadata: metadata.as_ref().map_or(0, Buffer::address),
            outbox: attr.outbox.as_ref().map(|outbox| outbox.object().clone()),
            windows: attr
                .windows
                .each_ref()
                .map(|window| window.as_ref().map(|window| window.object().clone())),
            affinity: attr.affinity,
            ..DpaEntry::at(address)
        };
        let call = self.begin(&entry, arguments.to_words())?;
        let timeout = attr.timeout.unwrap_or_else(|| self.timeout());
        let finished = self.finish_within(call, timeout).map(R::from_word);
        // If the call could not be ended, it may go on to use them.
        if !matches!(finished, Ok(_) | Err(Error::Fatal(_) | Error::Timeout(_))) {
            std::mem::forget((metadata, attr.storage.clone()));
        }
        finished
    }
}
