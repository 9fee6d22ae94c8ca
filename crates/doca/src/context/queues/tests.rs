//! The contexts and devices of a work queue.

use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;

use super::*;
use crate::context::sealed::Sealed as _;
use crate::device::{Dev, DevInfo};
use crate::dma::Dma;
use crate::sha::Sha;

fn devs() -> [Dev; 2] {
    let card = Profile::load("bluefield3").unwrap();
    let model = Model::builder().device(card.clone()).device(card).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let infos = DevInfo::list_of(&backend).unwrap();
    [0, 1].map(|at: usize| infos[at].open().unwrap())
}

#[test]
fn contexts_of_device_share_cq_until_last() {
    let devs = devs();
    let handle = Handle::new().unwrap();
    for events in [None, Some(&handle)] {
        let mut queues = Queues::new(4);
        let first = [0, 1].map(|_| Dma::builder(&devs[0]).start().unwrap());
        let second = Dma::builder(&devs[1]).start().unwrap();
        for (contexts, device_cqs, dma) in [(1, 1, &first[0]), (2, 1, &first[1]), (3, 2, &second)] {
            queues.add(dma, events).unwrap();
            assert_eq!(
                (queues.contexts(), queues.device_cqs.iter().count()),
                (contexts, device_cqs)
            );
        }
        for (contexts, device_cqs, dma) in [(2, 2, &first[0]), (1, 1, &first[1]), (0, 0, &second)] {
            queues.remove(dma.core().id(), &handle).unwrap();
            assert_eq!(
                (queues.contexts(), queues.device_cqs.iter().count()),
                (contexts, device_cqs)
            );
        }
    }
}

#[test]
fn context_slots_are_reused() {
    let [dev, _] = devs();
    let handle = Handle::new().unwrap();
    let mut queues = Queues::new(1);
    let mut contexts: Vec<_> = (0..2 * NEAR).map(|_| Sha::builder(&dev).start().unwrap()).collect();
    let slot = |queues: &Queues, sha: &Sha| queues.slot_of(sha.core().id()).unwrap() as usize;
    for sha in &contexts {
        queues.add(sha, None).unwrap();
    }
    let mut slots: Vec<_> = contexts.iter().map(|sha| slot(&queues, sha)).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 2 * NEAR, "each has one of its own");
    let count = queues.far.len();
    assert_eq!(count, slots.iter().filter(|&&at| at >= NEAR).count(), "and none is without one");
    for _ in 0..3 {
        let at = contexts.iter().position(|sha| slot(&queues, sha) >= NEAR).unwrap();
        let sha = contexts.remove(at);
        let left = slot(&queues, &sha);
        queues.remove(sha.core().id(), &handle).unwrap();
        // It may get a near slot, if another context left one.
        let sha = Sha::builder(&dev).start().unwrap();
        queues.add(&sha, None).unwrap();
        assert!(slot(&queues, &sha) == left || slot(&queues, &sha) < NEAR);
        assert_eq!(queues.far.len(), count);
        contexts.push(sha);
    }
    for sha in &contexts {
        let found = queues.at(slot(&queues, sha) as u32).unwrap();
        assert!(found.id == sha.core().id());
    }
}

#[test]
fn sides_are_found_by_slot_and_device() {
    let devs = devs();
    let device_cq = |at: usize| DeviceCq::for_test(&devs[at], 4).unwrap();
    let mut device_cqs = DeviceCqs::default();
    assert_eq!(
        (device_cqs.add(device_cq(0)), device_cqs.on(&devs[0]), device_cqs.on(&devs[1])),
        (0, Some(0), None)
    );
    assert_eq!((device_cqs.add(device_cq(1)), device_cqs.slots()), (1, 2));
    for (at, dev) in devs.iter().enumerate() {
        assert_eq!(device_cqs.on(dev), Some(at));
        assert!(device_cqs.get(at).is_some_and(|device_cq| device_cq.dev == *dev));
    }
    assert!(device_cqs.get(2).is_none());
    device_cqs.remove(0);
    assert!(device_cqs.get(0).is_none() && device_cqs.get(1).is_some());
    assert_eq!((device_cqs.on(&devs[0]), device_cqs.on(&devs[1])), (None, Some(1)));
    assert_eq!(device_cqs.iter_mut().count(), 1);
    assert_eq!(device_cqs.add(device_cq(0)), 0);
    assert_eq!(device_cqs.iter_mut().count(), 2);
    device_cqs.get(1).unwrap().owner = Some(3);
    assert_eq!(device_cqs.on(&devs[1]), None, "only that context has it");
    device_cqs.remove(1);
    device_cqs.remove(0);
    assert_eq!(device_cqs.iter_mut().count(), 0);
}
