//! External events of a device.

use verbless_doca::async_event::{AsyncEvents, Change};
use verbless_doca::{Event, Retrieve, WorkQ};

use super::rig::{Rig, event, submit};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_async_event",
    "External events of a device, on a work queue.":
    workq_with_async_events_completes_jobs[cap!(dma_mmo_qp)],
    port_down_and_up_raise_async_events[Need::Model],
);

fn workq_with_async_events_completes_jobs(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::with(lab, WorkQ::builder(4).event_driven().build()?)?;
    let events = AsyncEvents::builder(&rig.dev).start()?;
    let dma = rig.dma()?;
    rig.workq.add(&events)?;
    rig.fill(0, &pattern(1, 64))?;
    for round in 0..50 {
        let job = dma.memcpy(rig.data(0, 64)?, rig.room(4096 + 64 * round, 64)?);
        submit(&mut rig.workq, job)?;
        // Port events of a shared lab may come in between.
        while !matches!(event(&mut rig.workq)?, Event::Dma(_)) {}
        ensure!(rig.bytes(4096 + 64 * round, 64)? == pattern(1, 64), "bytes of round {round}");
    }
    rig.leave(&events)?;
    let _builder = events.stop().map_err(|refused| refused.error)?;
    Ok(())
}

fn port_down_and_up_raise_async_events(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut rig = Rig::with(lab, WorkQ::builder(4).event_driven().build()?)?;
    let events = AsyncEvents::builder(&rig.dev).user_data(5).start()?;
    rig.workq.add(&events)?;
    for (up, expected) in [(false, Change::PortDown(1)), (true, Change::PortUp(1))] {
        model.set_port(0, 1, up);
        let Event::Async(event) = event(&mut rig.workq)? else {
            return Err(Stop::fail("an event of a job, though none was submitted"));
        };
        ensure_eq!((event.result?, event.user_data.0), (expected, 5), "the reported event");
    }
    ensure!(matches!(rig.workq.progress_retrieve(), Err(Retrieve::Again)), "one more event");
    Ok(())
}
