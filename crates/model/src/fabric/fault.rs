//! Faults of frames on a link: the frames, the time, the effect.

use std::time::Duration;

use super::frame::{Direction, Frame};
use super::random::Random;
use crate::clock::nanoseconds;
use crate::connection::PSN_MASK;

/// The effect of a fault on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEffect {
    /// The frame is lost.
    Lose,
    /// The frame arrives twice.
    Duplicate,
    /// The frame is late by this time, so that later frames overtake it.
    Delay(Duration),
    /// This number of consecutive bits is inverted, after the Ethernet header or LRH. The link's
    /// own check (FCS, VCRC) does not notice; only the ICRC and the IPv4 checksum can.
    Corrupt(u32),
}

/// Selects frames of a link: those that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameSelector {
    /// To the switch, or from it.
    pub leaving: Option<bool>,
    /// Packets for this QP.
    pub qpn: Option<u32>,
    /// Packets with one of these BTH opcodes.
    pub opcodes: Vec<u8>,
    /// Packets from the first to the second of these PSNs, which wrap from 0xffffff to 0.
    pub psns: Option<(u32, u32)>,
    /// Only NAKs that fail a connection (all but PSN sequence errors), or no such NAK.
    ///
    /// A responder that refuses a request fails, and is silent from then on. So a requester whose
    /// NAK is lost only sees that its peer does not answer.
    pub fatal_nak: Option<bool>,
}

impl FrameSelector {
    fn selects(&self, direction: Direction, frame: &Frame) -> bool {
        let leaves = direction != Direction::In;
        if self.leaving.is_some_and(|leaving| leaving != leaves) {
            return false;
        }
        if self.fatal_nak.is_some_and(|fatal| fatal != frame.is_fatal_nak()) {
            return false;
        }
        if self.qpn.is_none() && self.opcodes.is_empty() && self.psns.is_none() {
            return true;
        }
        let Some(bth) = frame.bth() else { return false };
        let in_range = |(first, last): (u32, u32)| {
            let psns_from_first = |psn: u32| psn.wrapping_sub(first) & PSN_MASK;
            psns_from_first(bth.psn()) <= psns_from_first(last)
        };
        self.qpn.is_none_or(|qpn| qpn == bth.destination_qp())
            && (self.opcodes.is_empty() || self.opcodes.contains(&bth.opcode().0))
            && self.psns.is_none_or(in_range)
    }
}

/// When a fault happens to the selected frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Occurrence {
    /// To each with this probability, from 0 to 1.
    Chance(f64),
    /// To `count` consecutive frames, after `skip` have passed.
    Nth {
        /// Frames that pass first.
        skip: u64,
        /// Frames to which the fault happens.
        count: u64,
    },
}

/// A fault of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameFault {
    /// The effect.
    pub effect: FrameEffect,
    /// The frames that the fault may happen to.
    pub select: FrameSelector,
    /// Which of the selected frames the fault happens to.
    pub when: Occurrence,
}

/// An active fault: its counts and its random numbers, separate for each direction.
#[derive(Debug)]
pub(super) struct ActiveFault {
    fault: FrameFault,
    random: [Random; 3],
    seen: u64,
}

/// The combined effect of all faults on one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameOutcome {
    pub lost: bool,
    /// Number of extra copies that arrive, each unchanged.
    pub copies: u32,
    /// Nanoseconds by which the frame is late.
    pub delay: u64,
    /// Number of bits to invert, and the seed that chooses them.
    pub corrupt: Option<(u32, u64)>,
}

impl ActiveFault {
    /// `seed` is the model's, `link` the link's number, `number` the fault's.
    pub(super) fn new(fault: FrameFault, seed: u64, link: u64, number: u64) -> Self {
        let random = [0, 1, 2].map(|direction| Random::new(&[seed, link, direction, number]));
        Self { fault, random, seen: 0 }
    }

    /// Whether the fault cannot happen again.
    pub(super) fn is_over(&self) -> bool {
        match self.fault.when {
            Occurrence::Chance(probability) => probability <= 0.0,
            Occurrence::Nth { skip, count } => self.seen >= skip.saturating_add(count),
        }
    }

    /// Adds the effect of this fault on a frame.
    pub(super) fn apply(
        &mut self,
        direction: Direction,
        frame: &Frame,
        outcome: &mut FrameOutcome,
    ) {
        if !self.fault.select.selects(direction, frame) {
            return;
        }
        let random = &mut self.random[direction as usize];
        let happens = match self.fault.when {
            Occurrence::Chance(probability) => random.happens(probability),
            Occurrence::Nth { skip, count } => {
                self.seen = self.seen.saturating_add(1);
                self.seen > skip && self.seen - skip <= count
            }
        };
        if !happens {
            return;
        }
        match self.fault.effect {
            FrameEffect::Lose => outcome.lost = true,
            FrameEffect::Duplicate => outcome.copies += 1,
            FrameEffect::Delay(by) => {
                outcome.delay = outcome.delay.saturating_add(nanoseconds(by));
            }
            FrameEffect::Corrupt(bits) => outcome.corrupt = Some((bits, random.next())),
        }
    }
}

#[cfg(test)]
mod tests {
    use verbless_prm::{Aeth, Bth, BthOpcode, Lrh};

    use super::super::frame::Buffers;
    use super::*;
    use crate::profile::Link;
    use verbless_wire::{Extensions, Headers, Route, Transport};

    fn packet(qpn: u32, opcode: BthOpcode, psn: u32) -> Frame {
        let mut bth = Bth::zeroed();
        bth.set_opcode(opcode).set_destination_qp(qpn).set_psn(psn);
        let transport = Transport { bth, extensions: Extensions::default() };
        let headers = Headers { route: Route::Local(Lrh::zeroed()), transport };
        Buffers::default().packet(&headers, 0, |_| ())
    }

    fn active(effect: FrameEffect, select: FrameSelector, when: Occurrence) -> ActiveFault {
        ActiveFault::new(FrameFault { effect, select, when }, 1, 2, 3)
    }

    fn outcome(active: &mut ActiveFault, direction: Direction, frame: &Frame) -> FrameOutcome {
        let mut outcome = FrameOutcome::default();
        active.apply(direction, frame, &mut outcome);
        outcome
    }

    #[test]
    fn selector_matches_direction_qp_opcode_and_psn() {
        let (only, last) = (BthOpcode::RC_SEND_ONLY, BthOpcode::RC_SEND_LAST);
        let all = FrameSelector::default();
        let select = |selector: &FrameSelector, frame: &Frame| {
            [Direction::Out, Direction::In, Direction::Inside].map(|it| selector.selects(it, frame))
        };
        let frame = packet(7, only, 100);
        assert_eq!(select(&all, &frame), [true; 3]);
        let leaving = FrameSelector { leaving: Some(true), ..all.clone() };
        assert_eq!(select(&leaving, &frame), [true, false, true]);
        let coming = FrameSelector { leaving: Some(false), ..all.clone() };
        assert_eq!(select(&coming, &frame), [false, true, false]);
        let of_qp = FrameSelector { qpn: Some(7), ..all.clone() };
        assert_eq!(select(&of_qp, &frame), [true; 3]);
        assert_eq!(select(&of_qp, &packet(8, only, 100)), [false; 3]);
        let of_opcode = FrameSelector { opcodes: vec![only.0, 0x11], ..all.clone() };
        assert_eq!(select(&of_opcode, &frame), [true; 3]);
        assert_eq!(select(&of_opcode, &packet(7, last, 100)), [false; 3]);
        let both = FrameSelector { qpn: Some(8), ..of_opcode };
        assert_eq!(select(&both, &frame), [false; 3]);
        let raw = Buffers::default().of_bytes(Link::Ethernet, &[0; 64]);
        assert_eq!((select(&all, &raw), select(&of_qp, &raw)), ([true; 3], [false; 3]));
    }

    #[test]
    fn selector_distinguishes_fatal_naks() {
        let answer = |syndrome: u8| {
            let mut bth = Bth::zeroed();
            bth.set_opcode(BthOpcode::RC_ACKNOWLEDGE);
            let mut aeth = Aeth::zeroed();
            aeth.set_syndrome(syndrome);
            let extensions = Extensions { aeth: Some(aeth), ..Extensions::default() };
            let transport = Transport { bth, extensions };
            let headers = Headers { route: Route::Local(Lrh::zeroed()), transport };
            Buffers::default().packet(&headers, 0, |_| ())
        };
        let selected = |fatal, frame: &Frame| {
            let selector = FrameSelector { fatal_nak: Some(fatal), ..FrameSelector::default() };
            selector.selects(Direction::Out, frame)
        };
        for (syndrome, fatal) in
            [(0x1f, false), (0x2e, false), (0x60, false), (0x61, true), (0x62, true), (0x63, true)]
        {
            let frame = answer(syndrome);
            assert_eq!([selected(true, &frame), selected(false, &frame)], [fatal, !fatal]);
        }
        let request = packet(7, BthOpcode::RC_SEND_ONLY, 0);
        assert_eq!([selected(true, &request), selected(false, &request)], [false, true]);
        let raw = Buffers::default().of_bytes(Link::Ethernet, &[0; 64]);
        assert_eq!([selected(true, &raw), selected(false, &raw)], [false, true]);
    }

    #[test]
    fn psn_range_may_wrap() {
        let selects = |psns, psn| {
            let selector = FrameSelector { psns: Some(psns), ..FrameSelector::default() };
            selector.selects(Direction::Out, &packet(1, BthOpcode::RC_SEND_ONLY, psn))
        };
        assert_eq!([9, 10, 20, 21].map(|psn| selects((10, 20), psn)), [false, true, true, false]);
        let around = [0xff_fffd, 0xff_fffe, 0, 1, 2].map(|psn| selects((0xff_fffe, 1), psn));
        assert_eq!(around, [false, true, true, true, false]);
    }

    #[test]
    fn nth_fault_hits_only_its_selected_frames() {
        let select = FrameSelector { qpn: Some(7), ..FrameSelector::default() };
        let mut fault = active(FrameEffect::Lose, select, Occurrence::Nth { skip: 1, count: 2 });
        let (mine, other) =
            (packet(7, BthOpcode::RC_SEND_ONLY, 0), packet(8, BthOpcode::RC_SEND_ONLY, 0));
        let mut lost = |frame| outcome(&mut fault, Direction::Out, frame).lost;
        let seen = [&mine, &other, &mine, &other, &mine, &mine].map(&mut lost);
        assert_eq!(seen, [false, false, true, false, true, false]);
        assert!(fault.is_over());
    }

    #[test]
    fn chance_is_reproducible_but_differs_by_direction() {
        let run = |direction| {
            let when = Occurrence::Chance(0.5);
            let mut fault = active(FrameEffect::Lose, FrameSelector::default(), when);
            let frame = packet(1, BthOpcode::RC_SEND_ONLY, 0);
            let all: Vec<_> =
                (0..64).map(|_| outcome(&mut fault, direction, &frame).lost).collect();
            assert!(!fault.is_over());
            all
        };
        assert_eq!(run(Direction::Out), run(Direction::Out));
        assert_ne!(run(Direction::Out), run(Direction::In));
        let never = active(FrameEffect::Lose, FrameSelector::default(), Occurrence::Chance(0.0));
        assert!(never.is_over());
    }

    #[test]
    fn effects_of_several_faults_add_up() {
        let mut sum = FrameOutcome::default();
        let frame = packet(1, BthOpcode::RC_SEND_ONLY, 0);
        for effect in [
            FrameEffect::Duplicate,
            FrameEffect::Delay(Duration::from_nanos(5)),
            FrameEffect::Duplicate,
            FrameEffect::Delay(Duration::from_nanos(6)),
            FrameEffect::Corrupt(3),
        ] {
            let when = Occurrence::Chance(1.0);
            active(effect, FrameSelector::default(), when).apply(Direction::In, &frame, &mut sum);
        }
        assert!(!sum.lost);
        assert_eq!((sum.copies, sum.delay, sum.corrupt.map(|(bits, _)| bits)), (2, 11, Some(3)));
    }
}
