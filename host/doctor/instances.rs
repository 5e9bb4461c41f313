//! EC2 instances that carry GPUs and EFA cards, and how many of each.
//!
//! Sources, read on 2026-11-23: AWS EC2 User Guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network
//! cards" (p5, p5e, p6-b200, p6-b300: 17 network cards, of which card 0 is ENA alone); AWS ParallelCluster's profiles (p4d,
//! p5en); what `aws ec2 describe-instance-types` prints as `MaximumEfaInterfaces` (g6e).

/// One size of an instance family. Other sizes of a family have fewer cards, so each size has its own line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The type as the firmware and EC2 name it.
    pub name: &'static str,
    /// GPUs.
    pub gpus: usize,
    /// EFA cards, when the launch template attaches all of them.
    pub cards: usize,
}

impl Instance {
    /// The instance of this name, where its figures are known.
    #[must_use]
    pub fn named(name: &str) -> Option<Instance> {
        INSTANCES.into_iter().find(|instance| instance.name == name)
    }

    /// EFA cards of each GPU: what `--rails` takes at most for one rank per GPU.
    #[must_use]
    pub fn rails(&self) -> usize {
        (self.cards / self.gpus).max(1)
    }
}

const fn of(name: &'static str, gpus: usize, cards: usize) -> Instance {
    Instance { name, gpus, cards }
}

/// Every instance whose figures are known.
pub const INSTANCES: [Instance; 9] = [
    of("p4d.24xlarge", 8, 4),
    of("p4de.24xlarge", 8, 4),
    of("p5.48xlarge", 8, 32),
    of("p5e.48xlarge", 8, 32),
    of("p5en.48xlarge", 8, 16),
    of("p6-b200.48xlarge", 8, 8),
    of("p6-b300.48xlarge", 8, 16),
    of("g6e.12xlarge", 4, 1),
    of("g6e.48xlarge", 8, 4),
];
