//! Types that are not `Sync`.

/// Every type implements this trait once, and a `Sync` type twice, which makes `OfOneThread<_>`
/// ambiguous: this file does not compile if one of these types is `Sync`.
trait OfOneThread<Marker> {
    fn holds() {}
}

impl<T> OfOneThread<()> for T {}
impl<T: Sync> OfOneThread<u8> for T {}

#[test]
fn buf_workq_and_sync_event_are_not_sync() {
    use verbless_doca::sync_event::{SyncEvent, SyncEventCtx};
    use verbless_doca::{Buf, WorkQ};
    <Buf as OfOneThread<_>>::holds();
    <SyncEvent as OfOneThread<_>>::holds();
    <SyncEventCtx as OfOneThread<_>>::holds();
    <WorkQ as OfOneThread<_>>::holds();
}
