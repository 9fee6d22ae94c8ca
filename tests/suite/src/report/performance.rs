//! What a report says of bandwidths and latencies: `hwtest perf --json`.

use serde::{Deserialize, Serialize};
use verbless_perf::{Bandwidth, Latency, Measured, Plan};

/// Limit for measurements of a report.
pub(super) const MAX_MEASUREMENTS: usize = 10_000;

/// A measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Measurement {
    /// What was measured: `write_bw`, `read_lat`, `ud_send_bw`.
    pub name: String,
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages of each queue pair.
    pub iterations: u32,
    /// Requests in flight of each queue pair; of no influence on latencies.
    pub depth: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Requests per doorbell.
    pub batch: u32,
    /// The numbers of a bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthNumbers>,
    /// The numbers of a latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyNumbers>,
    /// Why there are no numbers, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A bandwidth. A MiB is 2^20 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BandwidthNumbers {
    /// The highest of any part of the run, in MiB/s.
    pub peak: f64,
    /// That of the whole run, in MiB/s.
    pub average: f64,
    /// Messages per second, in millions.
    pub message_rate: f64,
    /// The share of messages that arrived: below 1 if datagrams were lost.
    pub arrived: f64,
    /// The share of the slower port's speed that payload took; `null` if no port says its speed.
    pub port_share: Option<f64>,
}

/// Latencies in µs: of writes and sends half of a round trip, of reads and atomics the whole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LatencyNumbers {
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

impl Measurement {
    /// The result of a plan. `port_gigabits`: the speed of the slower port in Gb/s, if known.
    pub fn of(plan: &Plan, result: Result<Measured, String>, port_gigabits: Option<f64>) -> Self {
        let &Plan { bytes, iterations, depth, qps, batch, .. } = plan;
        let name = plan.name();
        let (bandwidth, latency, error) = match result {
            Ok(Measured::Bandwidth(it)) => {
                let Bandwidth { peak, average, message_rate, arrived } = it;
                let port_share = port_gigabits.map(|speed| it.bits_per_second() / (speed * 1e9));
                let numbers = BandwidthNumbers { peak, average, message_rate, arrived, port_share };
                (Some(numbers), None, None)
            }
            Ok(Measured::Latency(it)) => {
                let Latency { min, max, typical, average, deviation, .. } = it;
                let Latency { percentile_99, percentile_99_9, .. } = it;
                let numbers = LatencyNumbers {
                    min,
                    max,
                    typical,
                    average,
                    deviation,
                    percentile_99,
                    percentile_99_9,
                };
                (None, Some(numbers), None)
            }
            Err(why) => (None, None, Some(why)),
        };
        Self { name, bytes, iterations, depth, qps, batch, bandwidth, latency, error }
    }

    /// What the types do not say: every number is one that can be shown.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut numbers = Vec::new();
        if let Some(it) = &self.bandwidth {
            numbers.extend([it.peak, it.average, it.message_rate, it.arrived]);
            numbers.extend(it.port_share);
        }
        if let Some(it) = &self.latency {
            numbers.extend([it.min, it.max, it.typical, it.average, it.deviation]);
            numbers.extend([it.percentile_99, it.percentile_99_9]);
        }
        match numbers.iter().find(|number| !(0.0..=1e15).contains(*number)) {
            Some(number) => Err(format!("{:?} of {} bytes: {number}", self.name, self.bytes)),
            None => Ok(()),
        }
    }
}
