//! The numbers, in perftest's columns.

use std::fmt::Write as _;
use std::time::Duration;

use crate::Plan;

/// Bytes of a MiB.
const MIB: f64 = (1 << 20) as f64;

/// A bandwidth. A MiB is 2^20 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// The highest of any part of the run, in MiB/s: from the post of a request to the completion
    /// of another.
    pub peak: f64,
    /// That of the whole run, in MiB/s.
    pub average: f64,
    /// Messages per second of the whole run, in millions.
    pub message_rate: f64,
    /// The share of messages that have arrived: below 1 if datagrams were lost.
    pub arrived: f64,
}

/// Latencies in µs. Those of writes and sends are half of a round trip, those of reads and atomics
/// the whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// The longest.
    pub max: f64,
    /// The median.
    pub typical: f64,
    /// The mean.
    pub average: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// 99 of 100 are not longer.
    pub percentile_99: f64,
    /// 999 of 1000 are not longer.
    pub percentile_99_9: f64,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measured {
    /// By a plan of bandwidth.
    Bandwidth(Bandwidth),
    /// By a plan of latency.
    Latency(Latency),
}

/// Requests that were posted one after the other and completed together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// When the first of them was posted, since the start.
    pub(crate) posted: Duration,
    /// When the last of them completed, since the start.
    pub(crate) completed: Duration,
    pub(crate) messages: u32,
}

/// Groups among which the peak is searched, at most.
const MAX_GROUPS: usize = 2000;

impl Bandwidth {
    /// The bandwidth of groups in the order of their completions, from one start.
    pub(crate) fn of(groups: &[Group], bytes: u32) -> Self {
        let messages: f64 = groups.iter().map(|group| f64::from(group.messages)).sum();
        let end = groups.iter().map(|group| group.completed).max().unwrap_or_default();
        let start = groups.iter().map(|group| group.posted).min().unwrap_or_default();
        let rate = |messages: f64, spent: Duration| messages / spent.as_secs_f64().max(1e-9);
        let merged: Vec<Group> =
            groups.chunks(groups.len().div_ceil(MAX_GROUPS).max(1)).map(merge).collect();
        let mut peak = 0_f64;
        for (at, first) in merged.iter().enumerate() {
            let mut messages = 0.0;
            for last in &merged[at..] {
                messages += f64::from(last.messages);
                peak = peak.max(rate(messages, last.completed.saturating_sub(first.posted)));
            }
        }
        let average = rate(messages, end.saturating_sub(start));
        let mib = f64::from(bytes) / MIB;
        let message_rate = average / 1e6;
        Self { peak: peak * mib, average: average * mib, message_rate, arrived: 1.0 }
    }

    /// Bits per second of the whole run.
    pub fn bits_per_second(&self) -> f64 {
        self.average * MIB * 8.0
    }
}

fn merge(groups: &[Group]) -> Group {
    let posted = groups.iter().map(|group| group.posted).min().unwrap_or_default();
    let completed = groups.iter().map(|group| group.completed).max().unwrap_or_default();
    Group { posted, completed, messages: groups.iter().map(|group| group.messages).sum() }
}

impl Latency {
    /// The latencies of samples, of which each is `parts` latencies.
    pub(crate) fn of(mut samples: Vec<Duration>, parts: f64) -> Self {
        samples.sort_unstable();
        let micros: Vec<f64> = samples.iter().map(|it| it.as_secs_f64() * 1e6 / parts).collect();
        let count = micros.len().max(1) as f64;
        let average = micros.iter().sum::<f64>() / count;
        let squares: f64 = micros.iter().map(|it| (it - average).powi(2)).sum();
        let rank = |share: f64| {
            let at = (share * micros.len() as f64).ceil() as usize;
            micros.get(at.max(1) - 1).copied().unwrap_or_default()
        };
        Self {
            min: rank(0.0),
            max: rank(1.0),
            typical: rank(0.5),
            average,
            deviation: (squares / count).sqrt(),
            percentile_99: rank(0.99),
            percentile_99_9: rank(0.999),
        }
    }
}

impl Measured {
    /// The names of the columns, as perftest writes them.
    pub fn header(&self) -> &'static str {
        match self {
            Self::Bandwidth(_) => {
                " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
            }
            Self::Latency(_) => {
                " #bytes #iterations    t_min[usec]    t_max[usec]  \
                 t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                 99% percentile[usec]   99.9% percentile[usec]"
            }
        }
    }

    /// The columns, as perftest writes them.
    pub fn row(&self, plan: &Plan) -> String {
        let Plan { bytes, iterations, qps, .. } = plan;
        let iterations = u64::from(*iterations) * u64::from(*qps);
        let mut row = String::new();
        // Writing to a string does not fail.
        let _ = match self {
            Self::Bandwidth(Bandwidth { peak, average, message_rate, .. }) => write!(
                row,
                " {bytes:<7}    {iterations:<10}       {peak:<7.2}            {average:<7.2}\
                 {:14}{message_rate:<7.6}",
                ""
            ),
            Self::Latency(it) => write!(
                row,
                " {bytes:<7} {iterations:<10}     {:<7.2}        {:<7.2}      {:<7.2}{:12}{:<7.2}\
                 {:8}{:<7.2}{:9}{:<7.2}{:16}{:<7.2}",
                it.min,
                it.max,
                it.typical,
                "",
                it.average,
                "",
                it.deviation,
                "",
                it.percentile_99,
                "",
                it.percentile_99_9
            ),
        };
        row
    }
}
