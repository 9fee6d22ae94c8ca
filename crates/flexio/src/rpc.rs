//! [`Process::call_with_attr`] sets a call's affinity, timeout, outbox, windows and thread-local
//! storage. [`Process::call_packed`] passes a struct by address.
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
use crate::event_handler::own_or;
use crate::function::{Arguments, Function, REGISTERS, Word, pack};
use crate::memory::{Buffer, storage_of};
use crate::outbox::Outbox;
use crate::process::{Process, keep_unless_ended};
use crate::window::Window;

/// Attributes of a call's thread (`flexio_rpc_attr`). The C library publishes only the struct's
/// name and that it sets thread-local storage; the other fields are verbless's own. It is a Rust
/// type without a binary layout, so its version is the crate's.
#[derive(Debug, Clone, Default)]
pub struct RpcAttr {
    /// The thread-local storage, for `get_thread_local_storage`.
    pub storage: Option<Buffer>,
    /// The thread's name, cut to 16 bytes.
    pub name: String,
    /// The outbox that is configured at the start; `None`: the process's own, until the function
    /// selects another by its number.
    pub outbox: Option<Outbox>,
    /// The windows that are configured at the start.
    pub windows: [Option<Window>; 2],
    /// The execution units on which the call may run.
    pub affinity: Affinity,
    /// The time limit of the call; `None`: [`ProcessConfig::timeout`](crate::ProcessConfig).
    pub timeout: Option<Duration>,
}

impl Process {
    /// Copies `block` to the DPA heap and calls `function` with the copy's address; frees the copy
    /// when the call returns. Use it for a struct that host and DPA program share, such as the
    /// argument buffer of a C pack function.
    ///
    /// # Errors
    /// As [`Process::call`]; the heap has no room. [`Error::CopyTimeout`]: the function was not
    /// called.
    pub fn call_packed<R: Word>(
        &self,
        function: Function<(u64,), R>,
        block: &[u8],
    ) -> Result<R, Error> {
        let entry = self.entry(self.app().address_of(&function)?);
        let block = self.alloc_from(block)?;
        let mut words = [0; REGISTERS];
        words[0] = block.address();
        let call = self.begin(&entry, words)?;
        let finished = self.finish(call).map(R::from_word);
        keep_unless_ended(&finished, Some(block));
        finished
    }

    /// The registers of a call with these arguments, and the buffer of packed ones.
    pub(crate) fn pack<A: Arguments>(
        &self,
        arguments: A,
    ) -> Result<([u64; REGISTERS], Option<Buffer>), Error> {
        let (words, mut registers) = (arguments.to_words(), [0; REGISTERS]);
        if A::COUNT <= REGISTERS {
            registers.copy_from_slice(&words[..REGISTERS]);
            return Ok((registers, None));
        }
        let buffer = self.alloc_from(&pack(&words[..A::COUNT]))?;
        registers[0] = buffer.address();
        Ok((registers, Some(buffer)))
    }

    /// Calls a function like [`Process::call`], with attributes (`flexio_process_call_with_attr`).
    ///
    /// # Errors
    /// As [`Process::call`]; the execution unit or group does not exist. [`Error::CopyTimeout`],
    /// with storage or a name: the function was not called.
    pub fn call_with_attr<A: Arguments, R: Word>(
        &self,
        attr: &RpcAttr,
        function: Function<A, R>,
        arguments: A,
    ) -> Result<R, Error> {
        let address = self.app().address_of(&function)?;
        // A thread without storage and name needs no metadata.
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
            outbox: Some(own_or(self, attr.outbox.as_ref())),
            windows: attr
                .windows
                .each_ref()
                .map(|window| window.as_ref().map(|window| window.object().clone())),
            affinity: attr.affinity,
            ..DpaEntry::at(address)
        };
        let (words, packed) = self.pack(arguments)?;
        let call = self.begin(&entry, words)?;
        let timeout = attr.timeout.unwrap_or_else(|| self.timeout());
        let finished = self.finish_within(call, timeout).map(R::from_word);
        keep_unless_ended(&finished, (metadata, attr.storage.clone(), packed));
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessConfig;
    use crate::program::process;

    #[test]
    fn call_packs_arguments_beyond_registers() {
        const LAST: &str = "dpa:last(u8,u8,u8,u8,u8,u8,u8,u8,u32,u8,u8,u8,u8,u8,u8,u16)->u64";
        let instructions = [
            0x0785_3283, // ld   t0, 120(a0): the last argument
            0x0405_3303, // ld   t1, 64(a0): the ninth
            0x0202_9293, // slli t0, t0, 32
            0x0062_e533, // or   a0, t0, t1
            0x0000_8067, // ret
            0x0085_3503, // ld   a0, 8(a0): the second word of a block
            0x0000_8067, // ret
        ];
        let functions = [(LAST, 0), ("last", 0), ("dpa:second(u64)->u64", 5), ("second", 5)];
        let (_model, process) = process(&instructions, &[], &functions, &ProcessConfig::default());
        let info = process.app().function_info("last").unwrap();
        assert_eq!(info.packed, Some(128));
        type Sixteen = (u8, u8, u8, u8, u8, u8, u8, u8, u32, u8, u8, u8, u8, u8, u8, u16);
        let last = || Function::<Sixteen, u64>::named("last");
        let given = (1, 2, 3, 4, 5, 6, 7, 8, 0x9999_9999, 10, 11, 12, 13, 14, 15, 0xffff);
        let free = process.heap_info().allocated;
        assert_eq!(process.call(last(), given).unwrap(), 0xffff_9999_9999);
        let attr = RpcAttr { name: "packs".into(), ..RpcAttr::default() };
        assert_eq!(process.call_with_attr(&attr, last(), given).unwrap(), 0xffff_9999_9999);
        let second = Function::<(u64,), u64>::named("second");
        assert_eq!(process.app().function_info("second").unwrap().packed, None);
        let block = [7_u64.to_le_bytes(), 42_u64.to_le_bytes()].concat();
        assert_eq!(process.call_packed(second, &block).unwrap(), 42);
        assert_eq!(process.heap_info().allocated, free, "the buffers are free again");
    }
}
