//! Simulation of Jacobi iterations on many machines: the time of the exchange of boundary rows that does not
//! overlap with computation. Results are deterministic.
//!
//! GPUs form a ring in which the GPUs of a machine are adjacent. Two GPUs of each machine therefore have a neighbour
//! across the network. An iteration first computes its boundary tiles, once the neighbours' rows have arrived, and
//! sends them. It computes the rest of the field in the meantime. A proxy posts one piece after another. NICs,
//! latencies and the wire are those of the profile.

use ginlab::fabric::model::{Nic, Picoseconds, Profile};

/// Parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct HaloParameters {
    /// Number of machines, at least 2.
    pub nodes: u64,
    /// GPUs per machine.
    pub gpus_per_node: u64,
    /// NICs used per GPU.
    pub rails: u32,
    /// Number of pieces in which a boundary row is sent.
    pub pieces: u64,
    /// Bytes per piece.
    pub bytes: u64,
    /// Time in which a GPU computes its part.
    pub compute: Picoseconds,
    /// Time of the boundary tiles within `compute`. They are computed first.
    pub boundary: Picoseconds,
    /// Synchronization between two iterations.
    pub between: HaloSync,
    /// Whether the next iteration waits for the norm of all GPUs.
    pub norm_now: bool,
    /// One-way time within a machine (NVLink).
    pub near: Picoseconds,
    /// Number of iterations.
    pub iterations: u32,
    /// Seed of the latencies.
    pub seed: u64,
}

/// Synchronization between two iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaloSync {
    /// Each GPU waits for the rows of its two neighbours.
    Neighbours,
    /// All rows have arrived at all GPUs, followed by a barrier of all.
    Barrier,
}

#[derive(Default)]
struct Gpu {
    nics: Vec<Nic>,
    /// Time before which the proxy cannot post.
    proxy: Picoseconds,
    posted: u64,
    /// Times at which this iteration's rows of the GPUs above and below have arrived.
    rows: [Picoseconds; 2],
    /// Time at which the last iteration ended.
    end: Picoseconds,
}

/// Returns the mean time of an iteration.
#[must_use]
pub fn run(setting: &HaloParameters, profile: &Profile) -> Picoseconds {
    let all = setting.nodes * setting.gpus_per_node;
    let post = (profile.post_us.value * 1e6).round() as Picoseconds;
    let gpu = |number: u64| Gpu {
        nics: (0..u64::from(setting.rails)).map(|rail| Nic::new(profile, setting.seed ^ number << 8 ^ rail)).collect(),
        ..Gpu::default()
    };
    let mut gpus: Vec<Gpu> = (0..all).map(gpu).collect();
    for _ in 0..setting.iterations {
        let mut arrivals = vec![[0; 2]; all as usize];
        for (number, gpu) in gpus.iter_mut().enumerate() {
            let number = number as u64;
            let begin = gpu.end;
            let sent = begin.max(gpu.rows[0]).max(gpu.rows[1]) + setting.boundary;
            // While the boundary tiles wait for rows, other tiles are computed. The iteration ends when both are done.
            gpu.end = (begin + setting.compute).max(sent);
            for (side, other) in [(0, (number + all - 1) % all), (1, (number + 1) % all)] {
                let arrives = if other / setting.gpus_per_node == number / setting.gpus_per_node {
                    sent + setting.near
                } else {
                    gpu.send(setting, sent, post)
                };
                // A row that is sent up arrives from below.
                arrivals[other as usize][1 - side] = arrives;
            }
        }
        let latest = arrivals.iter().flatten().copied().max().unwrap_or(0);
        let met = gpus.iter().map(|gpu| gpu.end).max().unwrap_or(0).max(latest);
        for (number, gpu) in gpus.iter_mut().enumerate() {
            gpu.rows = arrivals[number];
            if setting.between == HaloSync::Barrier {
                gpu.end = met + gpu.latency_of_all(all);
            }
            if setting.norm_now {
                // All GPUs send to all GPUs: one post per GPU of another machine.
                let others = all - setting.gpus_per_node;
                gpu.end = gpu.end.max(met) + others * post + gpu.latency();
            }
        }
    }
    gpus.iter().map(|gpu| gpu.end).max().unwrap_or(0) / Picoseconds::from(setting.iterations.max(1))
}

impl Gpu {
    /// Sends a boundary row piece by piece. Returns the time at which the last piece is in the neighbour's memory.
    fn send(&mut self, setting: &HaloParameters, from: Picoseconds, post: Picoseconds) -> Picoseconds {
        let mut last = from;
        for _ in 0..setting.pieces {
            self.proxy = self.proxy.max(from) + post;
            let rails = self.nics.len() as u64;
            let rail = (self.posted % rails) as usize;
            self.posted += 1;
            last = last.max(self.nics[rail].post(self.proxy, setting.bytes).delivered);
        }
        last
    }

    fn latency(&mut self) -> Picoseconds {
        self.nics[0].latency()
    }

    /// Returns the latency of the rounds of a dissemination barrier.
    fn latency_of_all(&mut self, all: u64) -> Picoseconds {
        (0..all.next_power_of_two().trailing_zeros()).map(|_| self.latency()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Picoseconds = 1_000_000;

    fn setting() -> HaloParameters {
        HaloParameters {
            nodes: 2,
            gpus_per_node: 8,
            rails: 4,
            pieces: 1,
            bytes: 64 << 10,
            compute: 60 * US,
            boundary: US,
            between: HaloSync::Neighbours,
            norm_now: false,
            near: 2 * US,
            iterations: 200,
            seed: 1,
        }
    }

    /// Returns the microseconds of an iteration that are not computation.
    fn exposed(setting: &HaloParameters) -> f64 {
        let profile = Profile::named("p5").expect("known");
        (run(setting, &profile) as f64 - setting.compute as f64) / US as f64
    }

    #[test]
    fn whole_rows_overlap_computing_but_elements_do_not() {
        let row = exposed(&setting());
        assert!((0.0..1.0).contains(&row), "{row}");
        let elements = exposed(&HaloParameters { pieces: 16_384, bytes: 4, ..setting() });
        // The proxy's posts take 7.4 ms of it.
        assert!((7_000.0..12_000.0).contains(&elements), "{elements}");
    }

    #[test]
    fn barrier_cost_grows_with_machines() {
        let barrier = |nodes| exposed(&HaloParameters { nodes, between: HaloSync::Barrier, ..setting() });
        let norm = |nodes| exposed(&HaloParameters { nodes, norm_now: true, ..setting() });
        assert!(barrier(2) > 20.0 && barrier(16) > barrier(2), "{} {}", barrier(2), barrier(16));
        assert!(norm(2) > 5.0 && norm(16) > norm(2), "{} {}", norm(2), norm(16));
        assert_eq!(exposed(&setting()), exposed(&setting()), "the same on each run");
    }
}
