//! The reliable connected service: every operation, as it should go.

use verbless_queue::Operation;
use verbless_queue::wr::{Inline, Send, Write};

use crate::case::cases;
use crate::{Lab, Pair, Stop, ensure_eq};

cases!("rc":
    a_write_arrives,
    a_send_arrives_where_the_receive_says,
);

fn a_write_arrives(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let text = b"through the wire";
    pair.a.region.write_at(0, text)?;
    let local = pair.a.region.sge(0, text.len())?;
    let remote = pair.b.region.remote(4096).ok_or_else(|| Stop::fail("no remote key"))?;
    pair.a.qp.post(&Write::new(local, remote).signaled(), 7)?;
    let done = pair.a.sent()??;
    ensure_eq!(done.cookie, 7, "cookie");
    ensure_eq!(pair.b.bytes(4096, text.len())?, text, "what arrived");
    Ok(())
}

fn a_send_arrives_where_the_receive_says(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let into = pair.b.region.sge(512, 64)?;
    pair.b.qp.post_receive(into, 3)?;
    pair.a.qp.post(&Send::new(Inline(b"hello")).signaled(), 4)?;
    ensure_eq!(pair.a.sent()??.cookie, 4, "cookie of the send");
    let done = pair.b.received()??;
    ensure_eq!(done.cookie, 3, "cookie of the receive");
    ensure_eq!(done.operation, Operation::Receive, "operation");
    ensure_eq!(pair.b.bytes(512, 5)?, b"hello", "what arrived");
    Ok(())
}
