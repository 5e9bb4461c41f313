//! How long the host waits for a kernel. The kernel's own waits end first; this bound is for what does not begin, or has no wait that ends.

use super::{GinError, World};
use ginlab_proxy::ProxyGroup;
use kernels::gin::SIGNALS;
use kernels::ring::Status;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// How often the device is looked at for a sign of life, once half of the time is over.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A wait of the host under way.
#[derive(Debug)]
pub(super) struct Life {
    /// When something was last seen to happen.
    since: Instant,
    looked: Instant,
    pulse: Option<u64>,
}

impl Life {
    pub fn new() -> Life {
        let now = Instant::now();
        Life { since: now, looked: now, pulse: None }
    }

    /// Whether half of the limit is over and the last look some time ago.
    fn is_due(&self, limit: Duration) -> bool {
        self.since.elapsed() > limit / 2 && (self.pulse.is_none() || self.looked.elapsed() > LOOK_EVERY)
    }

    /// What was seen at a look. The first one is what later ones are compared with.
    fn seen(&mut self, pulse: u64) {
        self.looked = Instant::now();
        if self.pulse.replace(pulse).is_some_and(|before| before != pulse) {
            self.since = self.looked;
        }
    }
}

impl World {
    /// Ends a wait for a kernel in whose PE nothing has happened for longer than any of its own waits: no signal raised, no command given.
    /// A kernel that goes on may take as long as it wants.
    ///
    /// # Errors
    /// [`GinError::Call`] with [`Status::DEADLINE`]. The kernel's waits are ended, too.
    pub(super) fn check_life(&self, life: &mut Life, what: &str) -> Result<(), GinError> {
        let limit = self.host_limit();
        if life.is_due(limit) {
            life.seen(self.pulse()?);
        }
        if life.since.elapsed() <= limit {
            return Ok(());
        }
        self.abort.write(0, &[Status::DEADLINE.0])?;
        let text = no_life(what, limit, self.device.sharers());
        Err(GinError::Call { text, stop: Status::DEADLINE, timed_out: true })
    }

    /// The kernels' own waits end before. Where busy threads share cores a kernel of the emulated device looks at its clock late: 4 s were not enough
    /// for a wait of 2 s on two cores with ten such threads.
    pub(super) fn host_limit(&self) -> Duration {
        Duration::from_nanos(self.description.timeout_ns) * if self.shares_core { 4 } else { 2 }
    }

    /// Changes when a signal of this PE is raised, or one of its rings moves.
    fn pulse(&self) -> Result<u64, GinError> {
        let mut words = vec![0u64; SIGNALS as usize];
        let mut hasher = DefaultHasher::new();
        for plane in [&self.heap, &self.far] {
            plane.read(0, &mut words)?;
            words.hash(&mut hasher);
        }
        self.group.iter().flat_map(ProxyGroup::rings).for_each(|ring| ring.state().hash(&mut hasher));
        self.cards.as_ref().map(|cards| cards.pulse()).transpose()?.hash(&mut hasher);
        Ok(hasher.finish())
    }
}

fn no_life(what: &str, limit: Duration, sharers: u32) -> String {
    let whose = if sharers > 1 { format!(" ({sharers} PEs share it)") } else { String::new() };
    format!(
        "{what}: no end and no sign of life within {:.0} s: are all blocks that wait for each other on the GPU at once{whose}? A kernel \
         that computes for so long needs a longer timeout",
        limit.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_prolongs_a_wait_and_looking_does_not() {
        let mut life = Life::new();
        let began = life.since;
        assert!(life.is_due(Duration::ZERO) && !life.is_due(Duration::from_secs(3600)));
        life.seen(7);
        life.seen(7);
        assert_eq!(life.since, began, "the first look, and one that saw the same");
        assert!(!life.is_due(Duration::ZERO), "just looked");
        life.seen(8);
        assert!(life.since > began);
        let text = no_life("kernel", Duration::from_secs(60), 4);
        assert!(
            text.starts_with("kernel: no end and no sign of life within 60 s") && text.contains("(4 PEs share it)")
        );
    }
}
