//! EC2 instance types with GPUs and EFA devices, and how many of each they have.
//!
//! Sources, as of 2026-11-23: AWS EC2 User Guide, "Maximize network bandwidth on Amazon EC2 instances with multiple
//! network cards" (p5, p5e, p6-b200, p6-b300: 17 network cards, of which card 0 supports only ENA); AWS
//! ParallelCluster's profiles (p4d, p5en); `MaximumEfaInterfaces` as printed by `aws ec2 describe-instance-types`
//! (g6e).

/// One size of an instance family. Sizes of a family differ in their number of EFA devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Instance type, as named by the firmware and by EC2.
    pub name: &'static str,
    /// Number of GPUs.
    pub gpus: usize,
    /// Number of EFA devices, if the launch template attaches all of them.
    pub cards: usize,
}

impl Instance {
    /// Returns the instance type of this name, if it is known.
    #[must_use]
    pub fn named(name: &str) -> Option<Instance> {
        INSTANCES.into_iter().find(|instance| instance.name == name)
    }

    /// Returns the number of EFA devices per GPU, which is the maximum of `--rails` for one rank per GPU.
    #[must_use]
    pub fn rails(&self) -> usize {
        (self.cards / self.gpus).max(1)
    }
}

const fn of(name: &'static str, gpus: usize, cards: usize) -> Instance {
    Instance { name, gpus, cards }
}

/// All known instance types.
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
