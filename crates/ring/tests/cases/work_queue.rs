//! Queues as `dyn WorkQueue`.

use crate::support::{Completer, Receiver, Sender, Settings};
use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_ring::{WcOpcode, WorkQueue};

#[test]
fn boxed_queues_complete_their_cqes() {
    let mut sender = Sender::new(Settings::default());
    let mut receiver = Receiver::new(0x777, 4, 64);
    receiver.queue.post([], 5).unwrap();
    sender.queue.post(&verbless_ring::wr::Nop::new().signaled(), 6).unwrap();
    let mut device = Completer::new(0x123);
    let mut boxed: Box<dyn WorkQueue> = Box::new(sender.queue);
    let cqe = device.completion(opcode::NOP, 0);
    let completion = boxed.complete(cqe).unwrap();
    assert_eq!((completion.cookie, completion.operation()), (6, WcOpcode::Nop));
    let mut device = Completer::new(0x777);
    let mut boxed: Box<dyn WorkQueue> = Box::new(receiver.queue);
    let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, 0);
    let completion = boxed.complete(device.deliver(cqe)).unwrap();
    assert_eq!((completion.cookie, completion.operation()), (5, WcOpcode::Receive));
}
