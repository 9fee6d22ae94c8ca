//! One link: the cable between a physical port and the switch, both directions.

use std::time::Duration;

use super::fault::{ActiveFault, FrameFault, FrameOutcome};
use super::frame::Frame;
use crate::clock::nanoseconds;
use crate::profile::Link;

/// Bytes that may wait for one direction of a link; more are dropped.
const MAX_QUEUED_BYTES: u64 = 16 << 20;

/// The settings of a link. The default is perfect: up, without delay, with unlimited bandwidth.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSettings {
    /// Whether frames pass.
    pub up: bool,
    /// Time from the last bit sent to the last bit received.
    pub latency: Duration,
    /// Bits per second in each direction, at least 1; `None`: a frame takes no time to send.
    pub bandwidth: Option<u64>,
    /// The link's partition: the switch forwards only between links of the same partition.
    pub partition: u32,
    /// Whether all settings except `up` also apply to frames that are switched inside the card and
    /// never cross the link.
    pub loopback: bool,
    /// Faults that happen to frames.
    pub faults: Vec<FrameFault>,
    /// Seed for the frames that faults hit by chance: the same seed selects the same frames.
    pub seed: u64,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            up: true,
            latency: Duration::ZERO,
            bandwidth: None,
            partition: 0,
            loopback: false,
            faults: Vec::new(),
            seed: 0,
        }
    }
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the card to the switch.
    Out,
    /// From the switch to the card.
    In,
    /// From one vport of the card to another, without the link.
    Inside,
}

/// Counts of the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that entered the link.
    pub frames: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Frames that did not fit into the queue in front of the link, or exceeded the limit of frames
    /// in flight.
    pub overflowed: u64,
    /// Frames lost because the link was down.
    pub down: u64,
    /// Frames that a fault lost.
    pub lost: u64,
    /// Copies that faults added.
    pub duplicated: u64,
    /// Frames that a fault delayed.
    pub delayed: u64,
    /// Frames that a fault corrupted.
    pub corrupted: u64,
}

/// One direction of a link.
#[derive(Debug, Default)]
struct LinkDirection {
    /// When the last bit of all waiting frames is sent, in picoseconds.
    busy_until: u128,
    /// When the last frame in order arrives.
    last_arrival: u64,
    /// Frames in flight.
    in_flight: usize,
    traffic: Traffic,
}

/// A link with its state.
#[derive(Debug)]
pub(super) struct Cable {
    kind: Link,
    /// The number of the link, which seeds the chances of its faults.
    number: u64,
    settings: LinkSettings,
    faults: Vec<ActiveFault>,
    lanes: [LinkDirection; 3],
}

impl Cable {
    pub(super) fn new(kind: Link, number: usize) -> Self {
        let number = number as u64;
        let (settings, faults) = (LinkSettings::default(), Vec::new());
        Self { kind, number, settings, faults, lanes: Default::default() }
    }

    pub(super) fn kind(&self) -> Link {
        self.kind
    }

    pub(super) fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    /// Frames in flight keep their arrival time. The faults before the first changed one keep their
    /// counts; if the seed changes, all counts restart.
    pub(super) fn set(&mut self, settings: LinkSettings) {
        let alike = self.settings.faults.iter().zip(&settings.faults);
        let kept = match self.settings.seed == settings.seed {
            true => alike.take_while(|(before, now)| before == now).count(),
            false => 0,
        };
        self.faults.truncate(kept);
        let others = settings.faults.iter().cloned().zip(0..).skip(kept);
        let active = |(fault, at)| ActiveFault::new(fault, settings.seed, self.number, at);
        self.faults.extend(others.map(active));
        self.settings = settings;
    }

    pub(super) fn traffic(&self, direction: Direction) -> Traffic {
        self.lanes[direction as usize].traffic
    }

    /// Determines the effect of faults on a frame.
    pub(super) fn draw_faults(&mut self, direction: Direction, frame: &Frame) -> FrameOutcome {
        let mut outcome = FrameOutcome::default();
        if direction != Direction::Inside || self.settings.loopback {
            self.faults.iter_mut().for_each(|it| it.apply(direction, frame, &mut outcome));
        }
        let traffic = &mut self.lanes[direction as usize].traffic;
        match outcome.lost {
            true => traffic.lost += 1,
            false => {
                traffic.duplicated += u64::from(outcome.copies);
                traffic.delayed += u64::from(outcome.delay > 0);
                traffic.corrupted += u64::from(outcome.corrupt.is_some());
            }
        }
        outcome
    }

    /// When a frame of `bytes` bytes that is sent now arrives, late by `delay`; `None` if it is
    /// dropped. Frames arrive in order, except delayed ones.
    pub(super) fn cross(
        &mut self,
        direction: Direction,
        now: u64,
        bytes: usize,
        delay: u64,
    ) -> Option<u64> {
        let Self { kind, settings, lanes, .. } = self;
        let lane = &mut lanes[direction as usize];
        lane.traffic.frames += 1;
        lane.traffic.bytes += bytes as u64;
        if direction == Direction::Inside && !settings.loopback {
            return Some(now);
        }
        if !settings.up && direction != Direction::Inside {
            lane.traffic.down += 1;
            return None;
        }
        let mut sent = now;
        if let Some(bandwidth) = settings.bandwidth {
            if waiting(lane, now, bandwidth) > MAX_QUEUED_BYTES {
                lane.traffic.overflowed += 1;
                return None;
            }
            let begins = lane.busy_until.max(u128::from(now) * 1000);
            let bits = 8 * (bytes as u128 + u128::from(overhead(*kind)));
            lane.busy_until = begins + bits * 1_000_000_000_000 / u128::from(bandwidth.max(1));
            sent = u64::try_from(lane.busy_until.div_ceil(1000)).unwrap_or(u64::MAX);
        }
        let arrival = sent.saturating_add(nanoseconds(settings.latency)).max(lane.last_arrival);
        lane.last_arrival = arrival;
        Some(arrival.saturating_add(delay))
    }

    /// Counts a frame that is dropped because too many frames wait.
    pub(super) fn overflow(&mut self, direction: Direction) {
        self.lanes[direction as usize].traffic.overflowed += 1;
    }

    /// Whether a frame that arrives at once overtakes no frame.
    pub(super) fn is_empty(&self, direction: Direction) -> bool {
        self.lanes[direction as usize].in_flight == 0
    }

    /// Counts a frame that is in flight.
    pub(super) fn departed(&mut self, direction: Direction) {
        self.lanes[direction as usize].in_flight += 1;
    }

    /// Ends the flight of a frame; false if the link went down meanwhile and the frame is lost.
    pub(super) fn arrived(&mut self, direction: Direction) -> bool {
        let lane = &mut self.lanes[direction as usize];
        lane.in_flight -= 1;
        let passes = self.settings.up || direction == Direction::Inside;
        lane.traffic.down += u64::from(!passes);
        passes
    }

    /// Whether frames cross the link without latency, limit or fault, in the partition of all
    /// others.
    pub(super) fn is_undisturbed(&self) -> bool {
        self.settings.partition == 0
            && self.settings.latency.is_zero()
            && self.settings.bandwidth.is_none()
            && self.faults.iter().all(ActiveFault::is_over)
    }
}

/// Bytes that wait in a direction.
fn waiting(lane: &LinkDirection, now: u64, bandwidth: u64) -> u64 {
    let time = lane.busy_until.saturating_sub(u128::from(now) * 1000);
    u64::try_from(time * u128::from(bandwidth) / 8_000_000_000_000).unwrap_or(u64::MAX)
}

/// Bytes that a link adds to each frame: Ethernet's preamble, check sequence and gap;
/// InfiniBand's VCRC.
const fn overhead(kind: Link) -> u64 {
    match kind {
        Link::Ethernet => 8 + 4 + 12,
        Link::Infiniband => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cable(kind: Link, settings: LinkSettings) -> Cable {
        let mut cable = Cable::new(kind, 0);
        cable.set(settings);
        cable
    }

    fn slow() -> LinkSettings {
        LinkSettings {
            latency: Duration::from_nanos(500),
            bandwidth: Some(1_000_000_000),
            ..LinkSettings::default()
        }
    }

    #[test]
    fn perfect_link_adds_no_delay() {
        let mut cable = Cable::new(Link::Ethernet, 0);
        assert!(cable.is_undisturbed() && cable.is_empty(Direction::Out));
        assert_eq!(cable.cross(Direction::Out, 7, 9000, 0), Some(7));
        cable.departed(Direction::Out);
        assert!(!cable.is_empty(Direction::Out), "a frame is on its way");
        assert!(cable.arrived(Direction::Out) && cable.is_empty(Direction::Out));
    }

    #[test]
    fn crossing_time_adds_serialization_and_latency() {
        // 1 bit/ns, and 24 bytes around each frame of Ethernet.
        let mut ethernet = cable(Link::Ethernet, slow());
        assert!(!ethernet.is_undisturbed());
        assert_eq!(ethernet.cross(Direction::Out, 1000, 1000, 0), Some(1000 + 8 * 1024 + 500));
        assert_eq!(ethernet.cross(Direction::Out, 1000, 1000, 0), Some(1000 + 2 * 8 * 1024 + 500));
        assert_eq!(ethernet.cross(Direction::In, 1000, 1000, 0), Some(1000 + 8 * 1024 + 500));
        assert_eq!(ethernet.cross(Direction::Inside, 1000, 1000, 0), Some(1000));
        let mut infiniband = cable(Link::Infiniband, slow());
        assert_eq!(infiniband.cross(Direction::Out, 0, 998, 0), Some(8 * 1000 + 500));
        // The link was idle in between.
        assert_eq!(infiniband.cross(Direction::Out, 10_000, 998, 0), Some(10_000 + 8 * 1000 + 500));
        assert_eq!(infiniband.traffic(Direction::Out).bytes, 2 * 998);
    }

    #[test]
    fn parts_of_a_nanosecond_add_up() {
        let bandwidth = Some(400_000_000_000);
        let mut cable = cable(Link::Infiniband, LinkSettings { bandwidth, ..Default::default() });
        let last = (0..1000).map(|_| cable.cross(Direction::Out, 0, 66, 0)).last();
        assert_eq!(last, Some(Some(1360)), "1000 frames of 68 bytes at 50 bytes/ns");
    }

    #[test]
    fn inside_switching_is_delayed_only_with_loopback() {
        let mut cable = cable(Link::Ethernet, LinkSettings { loopback: true, ..slow() });
        assert_eq!(cable.cross(Direction::Inside, 0, 1000, 0), Some(8 * 1024 + 500));
        cable.set(LinkSettings { loopback: true, up: false, ..LinkSettings::default() });
        assert_eq!(
            cable.cross(Direction::Inside, 20_000, 9, 0),
            Some(20_000),
            "the frame stays in the card"
        );
    }

    #[test]
    fn down_link_loses_frames_in_flight() {
        let mut cable = cable(Link::Ethernet, slow());
        cable.cross(Direction::In, 0, 100, 0);
        cable.departed(Direction::In);
        cable.set(LinkSettings { up: false, ..slow() });
        assert!(!cable.arrived(Direction::In));
        assert_eq!(cable.cross(Direction::In, 0, 100, 0), None);
        assert_eq!(cable.traffic(Direction::In).down, 2);
    }

    #[test]
    fn frame_does_not_overtake_after_speed_change() {
        let mut cable = cable(Link::Ethernet, slow());
        let first = cable.cross(Direction::Out, 0, 1000, 0).unwrap();
        cable.set(LinkSettings::default());
        assert_eq!(cable.cross(Direction::Out, 10, 1000, 0), Some(first));
        assert_eq!(cable.cross(Direction::Out, first + 1, 1000, 0), Some(first + 1));
    }

    #[test]
    fn link_queue_is_bounded() {
        let mut cable = cable(Link::Ethernet, slow());
        let mut frames = 0;
        while cable.cross(Direction::Out, 0, 1000, 0).is_some() {
            frames += 1;
        }
        assert_eq!(frames, (16 << 20) / 1024 + 1);
        assert_eq!(cable.traffic(Direction::Out).overflowed, 1);
    }
}
