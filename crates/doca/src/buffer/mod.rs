//! Buffers and their stores (`doca_buf.h`, `doca_buf_inventory.h`, `doca_bufpool.h`,
//! `doca_buf_array.h`; sections 3.3.3 and 3.3.4 of 2.2, 4.5, 4.6, 5.2 and 5.3 of 1.3).
//!
//! A [`Buf`] is a descriptor, not the bytes: it points to a part of a memory map. The part has
//! three rooms:
//!
//! ```text
//! head                 data                       data + data_len            head + len
//! |---- headroom ------|-------- dataroom --------|-------- tailroom --------|
//! ```
//!
//! A job reads the dataroom of its source and appends to the dataroom of its destination, into the
//! tailroom; it does not touch the headroom. Buffers can be chained: a job then reads their
//! datarooms as one, and fills their tailrooms one after the other.
//!
//! Buffers come from an [`Inventory`] (any map, any address), a [`BufPool`] (one map, one size) or
//! a [`BufArray`] (one map, one size, by index). Each allocates at its start only. A dropped buffer
//! returns to its store.

mod array;
mod buf;
mod descriptor;
mod element;
mod inventory;
mod mkey;
mod pool;
mod reference;
mod view;

pub use array::{BufArray, BufArrayBuilder, Target};
pub use buf::Buf;
pub(crate) use buf::{KeyedRange, Link};
pub use inventory::{Extensions, Inventory, InventoryBuilder};
pub use pool::{BufPool, BufPoolBuilder};
pub use reference::BufRef;
