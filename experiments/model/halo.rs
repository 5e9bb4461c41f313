//! Jacobi iterations of many machines in virtual time: what of the exchange of boundary rows is not hidden behind computing. The same on
//! each run.
//!
//! GPUs stand in a ring, those of a machine side by side, so that two GPUs of each machine have a neighbour across the network. An
//! iteration computes the boundary tiles first, when the neighbours' rows are there, and sends them; the rest of the field is computed
//! meanwhile. A proxy posts one piece after another; cards, latencies and the wire are the profile's.

use ginlab::fabric::model::{Nic, Picoseconds, Profile};

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Machines, at least 2.
    pub nodes: u64,
    /// GPUs of each.
    pub gpus_per_node: u64,
    /// Cards of each GPU that are used.
    pub rails: u32,
    /// Pieces of a boundary row that are sent for themselves, and their bytes.
    pub pieces: u64,
    /// Bytes of each.
    pub bytes: u64,
    /// Time in which a GPU computes its part.
    pub compute: Picoseconds,
    /// Of that, the boundary tiles, which come first.
    pub boundary: Picoseconds,
    /// What stands between two iterations.
    pub between: Between,
    /// Whether the next iteration waits for the norm of all.
    pub norm_now: bool,
    /// One way within a machine (NVLink).
    pub near: Picoseconds,
    /// Iterations.
    pub iterations: u32,
    /// Which latencies are drawn.
    pub seed: u64,
}

/// What stands between two iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Each GPU waits for the rows of its two neighbours.
    Neighbours,
    /// All rows have arrived everywhere, then a barrier of all.
    Barrier,
}

#[derive(Default)]
struct Gpu {
    nics: Vec<Nic>,
    /// The proxy posts nothing before.
    proxy: Picoseconds,
    posted: u64,
    /// This iteration's rows of the PE above and below are there.
    rows: [Picoseconds; 2],
    /// Its last iteration has ended.
    end: Picoseconds,
}

/// Mean time of an iteration.
#[must_use]
pub fn run(setting: &Setting, profile: &Profile) -> Picoseconds {
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
            // The boundary tiles wait where others could compute; the last of the field ends when both are done.
            gpu.end = (begin + setting.compute).max(sent);
            for (side, other) in [(0, (number + all - 1) % all), (1, (number + 1) % all)] {
                let arrives = if other / setting.gpus_per_node == number / setting.gpus_per_node {
                    sent + setting.near
                } else {
                    gpu.send(setting, sent, post)
                };
                // What goes up comes from below.
                arrivals[other as usize][1 - side] = arrives;
            }
        }
        let latest = arrivals.iter().flatten().copied().max().unwrap_or(0);
        let met = gpus.iter().map(|gpu| gpu.end).max().unwrap_or(0).max(latest);
        for (number, gpu) in gpus.iter_mut().enumerate() {
            gpu.rows = arrivals[number];
            if setting.between == Between::Barrier {
                gpu.end = met + gpu.latency_of_all(all);
            }
            if setting.norm_now {
                // To everyone from everyone: one post for each GPU of another machine.
                let others = all - setting.gpus_per_node;
                gpu.end = gpu.end.max(met) + others * post + gpu.latency();
            }
        }
    }
    gpus.iter().map(|gpu| gpu.end).max().unwrap_or(0) / Picoseconds::from(setting.iterations.max(1))
}

impl Gpu {
    /// A boundary row, piece by piece; when the last one is in the neighbour's memory.
    fn send(&mut self, setting: &Setting, from: Picoseconds, post: Picoseconds) -> Picoseconds {
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

    /// Rounds in which everyone has heard of everyone.
    fn latency_of_all(&mut self, all: u64) -> Picoseconds {
        (0..all.next_power_of_two().trailing_zeros()).map(|_| self.latency()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Picoseconds = 1_000_000;

    fn setting() -> Setting {
        Setting {
            nodes: 2,
            gpus_per_node: 8,
            rails: 4,
            pieces: 1,
            bytes: 64 << 10,
            compute: 60 * US,
            boundary: US,
            between: Between::Neighbours,
            norm_now: false,
            near: 2 * US,
            iterations: 200,
            seed: 1,
        }
    }

    /// Microseconds that are not computing.
    fn exposed(setting: &Setting) -> f64 {
        let profile = Profile::named("p5").expect("known");
        (run(setting, &profile) as f64 - setting.compute as f64) / US as f64
    }

    #[test]
    fn rows_in_one_piece_hide_behind_computing_and_elements_do_not() {
        let row = exposed(&setting());
        assert!((0.0..1.0).contains(&row), "{row}");
        let elements = exposed(&Setting { pieces: 16_384, bytes: 4, ..setting() });
        // The proxy's posts alone are 7.4 ms.
        assert!((7_000.0..12_000.0).contains(&elements), "{elements}");
    }

    #[test]
    fn waiting_for_all_costs_trips_and_more_of_them_with_more_machines() {
        let barrier = |nodes| exposed(&Setting { nodes, between: Between::Barrier, ..setting() });
        let norm = |nodes| exposed(&Setting { nodes, norm_now: true, ..setting() });
        assert!(barrier(2) > 20.0 && barrier(16) > barrier(2), "{} {}", barrier(2), barrier(16));
        assert!(norm(2) > 5.0 && norm(16) > norm(2), "{} {}", norm(2), norm(16));
        assert_eq!(exposed(&setting()), exposed(&setting()), "the same on each run");
    }
}
