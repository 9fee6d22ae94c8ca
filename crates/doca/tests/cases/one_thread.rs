//! What one thread uses at a time.

/// `Sync` or not, a type has this trait; `Sync`, it has it twice, and the compiler does not know
/// which is meant. So this file does not compile if one of these types is `Sync`.
trait OfOneThread<Way> {
    fn holds() {}
}

impl<T> OfOneThread<()> for T {}
impl<T: Sync> OfOneThread<u8> for T {}

#[test]
fn maps_buffers_inventories_work_queues_and_sync_events_are_used_by_one_thread_at_a_time() {
    use verbless_doca::sync_event::{SyncEvent, SyncEventCtx};
    use verbless_doca::{Buf, BufPool, DynamicMmap, Inventory, Mmap, WorkQ};
    <Buf as OfOneThread<_>>::holds();
    <BufPool as OfOneThread<_>>::holds();
    <DynamicMmap as OfOneThread<_>>::holds();
    <Inventory as OfOneThread<_>>::holds();
    <Mmap as OfOneThread<_>>::holds();
    <SyncEvent as OfOneThread<_>>::holds();
    <SyncEventCtx as OfOneThread<_>>::holds();
    <WorkQ as OfOneThread<_>>::holds();
}
