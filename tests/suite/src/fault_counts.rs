//! Effects of a fault plan on frames, over all cases of a run: a run in which nothing was lost
//! has not shown that anything survives a loss.

use std::sync::{Mutex, PoisonError};

use verbless_model::{FaultPlan, FrameEffect, Model, Traffic};

/// The requested effects, and how often each happened.
pub(crate) struct FaultCounts {
    asked: Vec<FrameEffect>,
    sum: Mutex<Traffic>,
}

impl FaultCounts {
    pub(crate) fn new(plan: &FaultPlan) -> Self {
        Self { asked: plan.frame_effects().collect(), sum: Mutex::default() }
    }

    /// Adds the effects on the links of a model that is about to end.
    pub(crate) fn add(&self, model: &Model) {
        let mut sum = self.sum.lock().unwrap_or_else(PoisonError::into_inner);
        for device in 0..model.devices() {
            let [out, into] = model.traffic(device, 1);
            for of in [out, into, model.traffic_inside(device, 1)] {
                sum.frames += of.frames;
                sum.lost += of.lost;
                sum.duplicated += of.duplicated;
                sum.delayed += of.delayed;
                sum.corrupted += of.corrupted;
            }
        }
    }

    /// A summary line of the effects.
    pub(crate) fn describe(&self) -> String {
        let Traffic { frames, lost, duplicated, delayed, corrupted, .. } = self.sum();
        format!(
            "Of {frames} frames, counted at each end of a link, faults lost {lost}, doubled \
             {duplicated}, delayed {delayed} and corrupted {corrupted}"
        )
    }

    /// A line for each requested effect that never happened.
    pub(crate) fn never(&self) -> Vec<String> {
        let sum = self.sum();
        let count = |effect: &FrameEffect| match effect {
            FrameEffect::Lose => ("lost", sum.lost),
            FrameEffect::Duplicate => ("doubled", sum.duplicated),
            FrameEffect::Delay(_) => ("delayed", sum.delayed),
            FrameEffect::Corrupt(_) => ("corrupted", sum.corrupted),
        };
        let never = self.asked.iter().map(count).filter(|(_, count)| *count == 0);
        never.map(|(what, _)| format!("no frame was {what}, as the fault plan asks")).collect()
    }

    fn sum(&self) -> Traffic {
        *self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use verbless_model::Profile;

    use super::*;

    #[test]
    fn requested_effects_never_seen_are_named() {
        let plan = "[[fault]]\neffect = \"lose\"\nchance = 0.5\n\
            [[fault]]\neffect = \"delay\"\nby = \"1us\"\nchance = 0.5";
        let counts = FaultCounts::new(&FaultPlan::parse(plan).unwrap());
        let model = Model::builder().device(Profile::load("connectx6dx").unwrap()).stepped();
        counts.add(&model.build());
        let never = |what| format!("no frame was {what}, as the fault plan asks");
        assert_eq!(counts.never(), ["lost", "delayed"].map(never));
        counts.sum.lock().unwrap().lost = 1;
        assert_eq!(counts.never(), [never("delayed")]);
    }
}
