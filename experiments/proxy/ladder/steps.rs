//! Steps of the ladder, and the configurations that they lead to.

use crate::values;
use clap::ValueEnum;

/// Writes in flight per NIC from step `queue` on, and from step `batch` on.
const QUEUED: u32 = 4;
const BATCHED: u32 = 16;

/// Steps, in order. Each changes one thing of the preceding one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LadderStep {
    /// One NIC, one buffer, one write at a time
    One,
    /// Several writes in flight
    Queue,
    /// All NICs, by one thread
    Nics,
    /// A pass before the timed one
    Warm,
    /// Several threads on the same NICs
    Threads,
    /// A core for each thread
    Pin,
    /// NICs of its own for each thread
    Shard,
    /// Larger batches
    Batch,
    /// No wait for a batch
    Lazy,
}

impl LadderStep {
    /// All steps.
    pub const ALL: [LadderStep; 9] = [
        LadderStep::One,
        LadderStep::Queue,
        LadderStep::Nics,
        LadderStep::Warm,
        LadderStep::Threads,
        LadderStep::Pin,
        LadderStep::Shard,
        LadderStep::Batch,
        LadderStep::Lazy,
    ];

    /// Returns the name on the command line and in rows.
    pub fn name(self) -> String {
        values::name(self)
    }
}

/// Limits that the ladder climbs to.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Number of NICs.
    pub rails: usize,
    /// Number of threads. Divides the number of NICs.
    pub threads: usize,
    /// Whether the first writes over newly opened rails can take longer than later ones.
    pub is_cold_first: bool,
}

/// Configuration of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    pub step: LadderStep,
    /// Change compared with the preceding step.
    pub change: String,
    pub rails: usize,
    pub threads: usize,
    /// Whether each thread has its own NICs. Otherwise each uses all of them.
    pub own_rails: bool,
    pub is_pinned: bool,
    /// Whether the first writes over the newly opened rails are timed.
    pub is_cold: bool,
    /// Writes in flight per NIC.
    pub in_flight: u32,
    /// Whether a thread waits for all of its writes in flight before it posts more.
    pub waits: bool,
}

impl Rung {
    /// Returns the configuration of the first step.
    pub fn first() -> Rung {
        Rung {
            step: LadderStep::One,
            change: "one NIC, one buffer, one write at a time".into(),
            rails: 1,
            threads: 1,
            own_rails: false,
            is_pinned: false,
            is_cold: true,
            in_flight: 1,
            waits: true,
        }
    }

    /// Returns the name of the step.
    pub fn name(&self) -> String {
        self.step.name()
    }

    /// Returns the number of writes that a thread has in flight: its share of those of all NICs.
    pub fn batch(&self) -> u32 {
        (self.in_flight * self.rails as u32).div_ceil(self.threads as u32)
    }

    /// Returns the configuration after the change of `step`, or the reason why the step has no meaning.
    fn then(&self, step: LadderStep, most: &Most) -> Result<Rung, String> {
        let mut next = Rung { step, ..self.clone() };
        next.change = match step {
            LadderStep::One => return Ok(Rung { is_cold: most.is_cold_first, ..Rung::first() }),
            LadderStep::Queue => {
                next.in_flight = QUEUED;
                format!("{QUEUED} writes in flight, then a wait")
            }
            LadderStep::Nics if most.rails == 1 => return Err("there is one NIC".into()),
            LadderStep::Nics => {
                next.rails = most.rails;
                format!("{} NICs", most.rails)
            }
            LadderStep::Warm if !most.is_cold_first => return Err("modelled and null rails have no cold start".into()),
            LadderStep::Warm => {
                next.is_cold = false;
                "an untimed pass first".into()
            }
            LadderStep::Threads if self.rails == 1 || most.threads == 1 => {
                return Err("one thread serves the NICs".into());
            }
            LadderStep::Threads => {
                next.threads = most.threads;
                format!("{} threads, each on all NICs", most.threads)
            }
            LadderStep::Pin => {
                next.is_pinned = true;
                "a core per thread".into()
            }
            LadderStep::Shard if self.threads == 1 => return Err("there is one thread".into()),
            LadderStep::Shard => {
                next.own_rails = true;
                match self.rails / self.threads {
                    1 => "a NIC of its own per thread".into(),
                    rails => format!("{rails} NICs of its own per thread"),
                }
            }
            LadderStep::Batch => {
                next.in_flight = BATCHED;
                format!("{BATCHED} writes in flight per NIC")
            }
            LadderStep::Lazy => {
                next.waits = false;
                "no wait: post when there is room".into()
            }
        };
        Ok(next)
    }
}

/// Returns the configurations of the requested steps in the order of the ladder, and the steps that have no meaning
/// with the reason.
pub fn rungs(steps: &[LadderStep], most: &Most) -> (Vec<Rung>, Vec<(LadderStep, String)>) {
    let (mut rungs, mut absent) = (Vec::new(), Vec::new());
    let mut last = Rung { is_cold: most.is_cold_first, ..Rung::first() };
    for step in LadderStep::ALL.into_iter().filter(|step| steps.contains(step)) {
        match last.then(step, most) {
            Ok(rung) => {
                last = rung.clone();
                rungs.push(rung);
            }
            Err(why) => absent.push((step, why)),
        }
    }
    (rungs, absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rungs: &[Rung]) -> Vec<String> {
        rungs.iter().map(Rung::name).collect()
    }

    #[test]
    fn steps_change_one_thing_each() {
        let (rungs, absent) = rungs(&LadderStep::ALL, &Most { rails: 32, threads: 8, is_cold_first: true });
        assert_eq!((rungs.len(), absent), (9, Vec::new()));
        for pair in rungs.windows(2) {
            let [before, after] = pair else { continue };
            let changes = [
                before.rails != after.rails,
                before.threads != after.threads,
                before.own_rails != after.own_rails,
                before.is_pinned != after.is_pinned,
                before.is_cold != after.is_cold,
                before.in_flight != after.in_flight,
                before.waits != after.waits,
            ];
            assert_eq!(changes.iter().filter(|changed| **changed).count(), 1, "{after:?}");
        }
        let batches: Vec<u32> = rungs.iter().map(Rung::batch).collect();
        assert_eq!(batches, [1, 4, 128, 128, 16, 16, 16, 64, 64]);
    }

    #[test]
    fn steps_without_meaning_are_absent() {
        let (modelled, absent) = rungs(&LadderStep::ALL, &Most { rails: 1, threads: 1, is_cold_first: false });
        assert_eq!(names(&modelled), ["one", "queue", "pin", "batch", "lazy"]);
        assert!(modelled.iter().all(|rung| !rung.is_cold));
        let steps: Vec<LadderStep> = absent.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [LadderStep::Nics, LadderStep::Warm, LadderStep::Threads, LadderStep::Shard]);
        // The order of the list has no effect, and a change that was not requested is not applied.
        let (some, _) =
            rungs(&[LadderStep::Lazy, LadderStep::Nics], &Most { rails: 4, threads: 4, is_cold_first: true });
        assert_eq!(names(&some), ["nics", "lazy"]);
        assert_eq!((some[1].threads, some[1].in_flight, some[1].is_cold), (1, 1, true));
    }
}
