//! The measurements on the model, and what their numbers must say.

use std::time::Duration;

use proptest::prelude::*;
use verbless_command::Device;
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;

use crate::measured::Group;
use crate::{Bandwidth, End, Kind, Latency, Measured, Operation, Plan};

/// Measures between two modelled devices; returns the numbers and what has arrived.
fn measure(plan: &Plan) -> (Measured, u64) {
    let card = Profile::load("connectx6dx").expect("the profile is built in");
    let model = Model::builder().device(card.clone()).device(card).build();
    let backend = InProcess::of(&model);
    let devices = backend.enumerate().expect("two devices");
    let [mut here, mut there] = [0, 1].map(|at| {
        let device = Device::open(&backend, &devices[at]).expect("the device opens");
        End::new(&device, plan).expect("the plan fits the device")
    });
    let (ours, theirs) = (here.hello().expect("an address"), there.hello().expect("an address"));
    here.connect(&theirs).expect("the QP connects");
    there.connect(&ours).expect("the QP connects");
    std::thread::scope(|scope| {
        let responder = scope.spawn(|| there.respond().expect("the responder succeeds"));
        let measured = here.measure().expect("the measurement succeeds");
        (measured, responder.join().expect("the thread ends"))
    })
}

#[test]
fn every_operation_has_a_bandwidth_and_a_latency() {
    for operation in Operation::ALL {
        let bytes = if operation.is_atomic() { 8 } else { 1000 };
        for kind in [Kind::Bandwidth, Kind::Latency] {
            let plan = Plan { iterations: 200, ..Plan::new(operation, kind, bytes) };
            let (measured, arrived) = measure(&plan);
            match measured {
                Measured::Bandwidth(it) => {
                    assert!(it.peak >= it.average && it.average > 0.0, "{plan:?}: {it:?}");
                    let mib = it.message_rate * 1e6 * f64::from(bytes) / f64::from(1 << 20);
                    assert!((mib / it.average - 1.0).abs() < 1e-9, "{plan:?}: {it:?}");
                    let sent = if operation.needs_receives() { 200 } else { 0 };
                    assert_eq!(arrived, sent, "{plan:?}");
                }
                Measured::Latency(it) => {
                    let ordered =
                        [it.min, it.typical, it.percentile_99, it.percentile_99_9, it.max];
                    assert!(ordered.is_sorted() && it.min > 0.0, "{plan:?}: {it:?}");
                    assert!((it.min..=it.max).contains(&it.average), "{plan:?}: {it:?}");
                }
            }
        }
    }
}

#[test]
fn several_qps_in_batches_send_all_messages() {
    let plan = Plan::new(Operation::Send, Kind::Bandwidth, 64);
    let (_, arrived) = measure(&Plan { iterations: 333, depth: 32, qps: 3, batch: 8, ..plan });
    assert_eq!(arrived, 999);
}

#[test]
fn batch_as_deep_as_the_window_completes() {
    let plan = Plan::new(Operation::Send, Kind::Bandwidth, 64);
    for (depth, batch) in [(128, 128), (128, 50), (128, 100), (3, 2)] {
        let (_, arrived) = measure(&Plan { iterations: 400, depth, batch, ..plan });
        assert_eq!(arrived, 400, "{depth} in flight, {batch} per doorbell");
    }
}

#[test]
fn messages_longer_than_a_request_make_ping_pong() {
    for bytes in [1, 220, 221, 100_000] {
        for operation in [Operation::Write, Operation::Send] {
            let plan = Plan { iterations: 50, ..Plan::new(operation, Kind::Latency, bytes) };
            let (Measured::Latency(it), _) = measure(&plan) else { panic!("a latency") };
            assert!(it.min > 0.0);
        }
    }
}

#[test]
fn bandwidth_follows_from_times_of_groups() {
    let group = |posted: u64, completed: u64| Group {
        posted: Duration::from_millis(posted),
        completed: Duration::from_millis(completed),
        messages: 10,
    };
    // 30 messages of 1 MiB in 300 ms; the last 20 in 100 ms.
    let it = Bandwidth::of(&[group(0, 200), group(200, 250), group(210, 300)], 1 << 20);
    let near = |value: f64, expected: f64| (value - expected).abs() < 1e-6;
    assert!(
        near(it.average, 100.0) && near(it.message_rate, 1e-4) && near(it.peak, 200.0),
        "{it:?}"
    );
    assert!(near(it.bits_per_second(), 100.0 * 1048576.0 * 8.0));
}

#[test]
fn latency_percentiles_are_ranks_of_samples() {
    let samples = (1..=1000).rev().map(|it| Duration::from_micros(2 * it)).collect();
    let it = Latency::of(samples, 2.0);
    let found = [it.min, it.typical, it.percentile_99, it.percentile_99_9, it.max, it.average];
    let expected = [1.0, 500.0, 990.0, 999.0, 1000.0, 500.5];
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    assert!((it.deviation - 288.675).abs() < 0.01, "{it:?}");
}

#[test]
fn row_has_a_number_below_each_column() {
    for name in ["write_bw", "send_lat"] {
        let plan = Plan::named(name).expect("the plan's name is known");
        let measured = match plan.kind {
            Kind::Bandwidth => Measured::Bandwidth(Bandwidth::of(&[], plan.bytes)),
            Kind::Latency => Measured::Latency(Latency::of(vec![Duration::from_micros(3)], 2.0)),
        };
        let columns = match plan.kind {
            Kind::Bandwidth => 5,
            Kind::Latency => 9,
        };
        let row = measured.row(&plan);
        let numbers: Vec<f64> = row.split_whitespace().map(|it| it.parse().unwrap()).collect();
        assert_eq!((numbers.len(), numbers[0]), (columns, f64::from(plan.bytes)), "{row}");
    }
}

#[test]
fn names_are_those_of_perftest_without_their_prefix() {
    let plan = Plan::named("write_bw").expect("the plan's name is known");
    assert_eq!((plan.bytes, plan.iterations, plan.name()), (65_536, 5000, "write_bw".into()));
    for operation in Operation::ALL {
        for kind in [Kind::Bandwidth, Kind::Latency] {
            let name = Plan::new(operation, kind, 8).name();
            let plan = Plan::named(&name).expect("the plan's name is known");
            assert_eq!((plan.operation, plan.kind), (operation, kind));
            assert!(plan.check().is_ok());
        }
    }
    assert!(["write", "bw", "write_xx", "no_bw", ""].iter().all(|it| Plan::named(it).is_none()));
}

proptest! {
    /// A plan comes from another machine.
    #[test]
    fn plan_from_any_bytes_is_within_limits(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        if let Ok(plan) = Plan::from_bytes(&bytes) {
            prop_assert!(plan.check().is_ok());
            prop_assert_eq!(plan.to_bytes().to_vec(), bytes);
        }
    }

    #[test]
    fn plan_round_trips(
        at in 0..6_usize, bytes in 1..=8192_u32, iterations in 1..1000_u32, depth in 1..=4096_u32,
    ) {
        let operation = Operation::ALL[at];
        let bytes = if operation.is_atomic() { 8 } else { bytes };
        let plan = Plan { iterations, depth, ..Plan::new(operation, Kind::Bandwidth, bytes) };
        prop_assert_eq!(Plan::from_bytes(&plan.to_bytes()).unwrap(), plan);
    }
}
