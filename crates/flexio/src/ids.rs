//! The numbers of a process's objects for programs and queues, each a type of its own: the compiler
//! refuses an outbox's number for a window's.
//!
//! A call takes them as arguments if its function is declared with their types. The program gets
//! the underlying integers.
//!
//! ```
//! use verbless_flexio::{Function, OutboxId, UarDeviceId, WindowId};
//!
//! let copies = Function::<(OutboxId, WindowId, UarDeviceId), u64>::named("copies");
//! assert_eq!(copies.signature(), "copies(u16,u16,u32)->u64");
//! ```

use std::fmt;

use crate::function::Word;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $word:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $word);

        impl verbless_flexio_dev::Word for $name {
            fn from_word(word: u64) -> Self {
                Self(verbless_flexio_dev::Word::from_word(word))
            }

            fn to_word(self) -> u64 {
                self.0.into()
            }
        }

        impl Word for $name {
            const NAME: &'static str = stringify!($word);
        }

        impl From<$name> for $word {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    )*};
}

ids! {
    /// An outbox, for programs (`flexio_outbox_get_id`).
    OutboxId u16;
    /// A window, for programs (`flexio_window_get_id`).
    WindowId u16;
    /// The page of a UAR, for queues (`flexio_uar_get_id`).
    UarId u32;
    /// An extended UAR, for programs (`flexio_uar_device_id`).
    UarDeviceId u32;
    /// A thread on the device, for CQs and for other threads that activate it
    /// (`flexio_event_handler_get_obj_id`, `flexio_event_handler_get_activation_id`).
    ThreadId u32;
    /// A doorbell of an emulated device, for programs (`flexio_emu_db_to_cq_ctx_get_id`).
    DoorbellId u32;
    /// A CQ, for programs (`flexio_cq_get_cq_num`).
    CqNumber u32;
    /// A queue pair, for programs and peers (`flexio_qp_get_qp_num`).
    QpNumber u32;
    /// A send queue, for programs (`flexio_sq_get_wq_num`).
    SqNumber u32;
    /// A receive queue, for programs (`flexio_rq_get_wq_num`).
    RqNumber u32;
    /// A pool of receives, for programs (`flexio_rmp_get_wq_num`).
    RmpNumber u32;
    /// A memory key, for WQEs and windows of programs (`flexio_mkey_get_id`).
    MkeyId u32;
    /// An event handler in its process, from 1, as its thread's metadata has it
    /// (`flexio_event_handler_get_id`). Not the number that CQs and threads start it by, which is a
    /// [`ThreadId`].
    HandlerId u32;
    /// A message stream, for programs (`flexio_msg_stream_get_id`).
    StreamId u8;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::{Arguments, Function};

    #[test]
    fn ids_convert_to_words() {
        let given = (OutboxId(7), WindowId(u16::MAX), UarDeviceId(u32::MAX), ThreadId(3));
        assert_eq!(given.to_words()[..5], [7, 0xffff, 0xffff_ffff, 3, 0]);
        let function = Function::<(OutboxId, ThreadId), UarId>::named("f");
        assert_eq!(function.signature(), "f(u16,u32)->u32");
        assert_eq!(
            <DoorbellId as verbless_flexio_dev::Word>::from_word(1 << 32 | 5),
            DoorbellId(5)
        );
        let handles = Function::<(CqNumber, MkeyId, StreamId), SqNumber>::named("f");
        assert_eq!(handles.signature(), "f(u32,u32,u8)->u32");
        assert_eq!((u16::from(WindowId(9)), OutboxId(4).to_string()), (9, "4".into()));
    }
}
