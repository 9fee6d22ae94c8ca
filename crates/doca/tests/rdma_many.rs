//! Thousands of connections on one work queue.

mod support;

use std::time::Duration;

use verbless_doca::rdma::{Rdma, RdmaState};
use verbless_doca::{DevInfo, Event, WorkQ};

use support::backend;

/// Unoptimised, 10,000 take minutes.
const CONNECTIONS: u32 = if cfg!(debug_assertions) { 2_000 } else { 10_000 };

/// Resident bytes of this process.
fn resident() -> u64 {
    let counts = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = counts.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Retrieves `jobs` results, by the user data of their jobs: each once.
fn retrieve(workq: &mut WorkQ, jobs: u32) -> Vec<u32> {
    let mut seen = vec![0; jobs as usize];
    for _ in 0..jobs {
        let event = workq.retrieve_within(Some(Duration::from_secs(60))).unwrap();
        let Some(Event::Rdma(done)) = event else { panic!("{event:?}") };
        seen[done.user_data.0 as usize] += 1;
    }
    assert_eq!(workq.in_flight(), 0);
    seen
}

#[test]
fn workq_serves_thousands_of_connections() {
    let devs = DevInfo::list_of(&backend("bluefield3")).unwrap();
    let mut workqs = [WorkQ::new(CONNECTIONS).unwrap(), WorkQ::new(CONNECTIONS).unwrap()];
    let before = resident();
    let ends: Vec<Vec<Rdma>> = (0..2)
        .map(|side| {
            let dev = devs[side].open().unwrap();
            let instance = || {
                let rdma = Rdma::builder(&dev).send_queue_size(1).recv_queue_size(1).start();
                let rdma = rdma.unwrap();
                workqs[side].add(&rdma).unwrap();
                rdma
            };
            std::iter::repeat_with(instance).take(CONNECTIONS as usize).collect()
        })
        .collect();
    for (a, b) in ends[0].iter().zip(&ends[1]) {
        a.connect(b.export().unwrap()).unwrap();
        b.connect(a.export().unwrap()).unwrap();
    }
    let each = (resident() - before) / u64::from(CONNECTIONS);
    println!("a connection takes {each} bytes: both of its ends, and what the model has of them");
    assert!(each < 64 << 10, "{each}");

    let [a, b] = &mut workqs;
    for lap in 0..2 {
        for (number, rdma) in (0..).zip(&ends[1]) {
            b.submit(rdma.receive(None).user_data(number)).unwrap();
        }
        for (number, rdma) in (0..).zip(&ends[0]) {
            a.submit(rdma.send_imm(None, number as u32).user_data(number)).unwrap();
        }
        assert!(retrieve(a, CONNECTIONS).iter().all(|&times| times == 1), "{lap}");
        assert!(retrieve(b, CONNECTIONS).iter().all(|&times| times == 1), "{lap}");
    }
    // A failed one affects no other.
    let failing = &ends[0][777];
    a.submit(failing.send(None)).unwrap_or_else(|refused| panic!("{refused}"));
    a.abort(failing).unwrap();
    assert_eq!(failing.state(), RdmaState::Error);
    let _ended = a.retrieve_within(Some(Duration::from_secs(60)));
    b.submit(ends[1][778].receive(None).user_data(0)).unwrap();
    a.submit(ends[0][778].send(None).user_data(0)).unwrap();
    assert_eq!((retrieve(a, 1), retrieve(b, 1)), (vec![1], vec![1]));
}
