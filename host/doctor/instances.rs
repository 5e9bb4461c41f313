//! EC2 instance types with GPUs and EFA devices, and the number of each.
//!
//! Sources: AWS EC2 User Guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards" (p5,
//! p5e, p6-b200, p6-b300: 17 network cards, of which card 0 supports only ENA), as of 2026-11-23; AWS ParallelCluster's
//! profiles (p4d, p5en); `MaximumEfaInterfaces` as printed by `aws ec2 describe-instance-types` (g6e);
//! aws/sagemaker-hyperpod-cli, src/sagemaker/hyperpod/training/constants.py, at 011ca92 of 2026-06-22 (further g6e,
//! g7e, p5.4xlarge); awslabs/awsome-distributed-ai, 2.gpu-cluster-healthcheck/instance-profiles.conf, at 95b939cd of
//! 2026-07-23 (p6e-gb200: 4 EFA devices; the former source has 0); NVIDIA/aicr, examples of a node group of
//! p6e-gb300r.36xlarge (4 GPUs, one usable EFA device). For p6e-gb300.36xlarge, no public number of EFA devices was
//! found.
//!
//! GPUDirect: `gdr_required` of aws/aws-ofi-nccl, src/platform-aws.cpp, at 2daf7d30 of 2026-08-21. It has no entry for
//! g6e.
//!
//! Rates of a port: bandwidth of the instance over its EFA devices (`host/fabric/model/profiles.toml` names the source
//! of each; p6-b300: 6400 Gb/s over 16).

use ginlab_fabric::model::Profile;

/// One size of an instance family. Sizes of a family differ in their number of EFA devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Instance type, as named by the firmware and by EC2.
    pub name: &'static str,
    /// Number of GPUs.
    pub gpus: usize,
    /// Number of EFA devices if the launch template attaches all of them.
    pub cards: usize,
    /// Rate of a port of the EFA devices in Gb/s, if it is known.
    pub port_gbits_s: Option<u32>,
    /// Whether its EFA devices access GPU memory. `None` if it is unknown.
    pub gpu_direct: Option<bool>,
}

impl Instance {
    /// Returns the instance type of this name, if it is known. SageMaker HyperPod's names start with `ml.`.
    #[must_use]
    pub fn named(name: &str) -> Option<Instance> {
        let name = plain(name);
        Instance::all().find(|instance| instance.name == name)
    }

    /// Returns all known instance types.
    pub fn all() -> impl Iterator<Item = Instance> {
        INSTANCES.into_iter().chain(COUNTED)
    }

    /// Returns the modelled properties of the whole instance, if they are known.
    #[must_use]
    pub fn profile(&self) -> Option<Profile> {
        // Other sizes of a family have fewer NICs.
        let name = match self.name {
            "p4d.24xlarge" | "p4de.24xlarge" => "p4d",
            "p5.48xlarge" | "p5e.48xlarge" => "p5",
            "p5en.48xlarge" => "p5en",
            "p6-b200.48xlarge" => "p6-b200",
            _ => return None,
        };
        Profile::named(name).ok()
    }

    /// Returns the number of EFA devices per GPU, which is the maximum of `--rails` for one rank per GPU.
    #[must_use]
    pub fn rails(&self) -> usize {
        (self.cards / self.gpus).max(1)
    }
}

/// Returns the name without HyperPod's prefix.
#[must_use]
pub fn plain(name: &str) -> &str {
    name.strip_prefix("ml.").unwrap_or(name)
}

const fn of(name: &'static str, gpus: usize, cards: usize, port_gbits_s: Option<u32>) -> Instance {
    Instance { name, gpus, cards, port_gbits_s, gpu_direct: Some(true) }
}

/// Returns an instance type whose EFA devices do not access GPU memory, or of which this is unknown.
const fn other(name: &'static str, gpus: usize, cards: usize, gpu_direct: Option<bool>) -> Instance {
    Instance { gpu_direct, ..of(name, gpus, cards, None) }
}

/// Instance types for which docs/two-p5.md and deploy/ have a launch template.
pub const INSTANCES: [Instance; 9] = [
    of("p4d.24xlarge", 8, 4, Some(100)),
    of("p4de.24xlarge", 8, 4, Some(100)),
    of("p5.48xlarge", 8, 32, Some(100)),
    of("p5e.48xlarge", 8, 32, Some(100)),
    of("p5en.48xlarge", 8, 16, Some(200)),
    of("p6-b200.48xlarge", 8, 8, Some(400)),
    of("p6-b300.48xlarge", 8, 16, Some(400)),
    other("g6e.12xlarge", 4, 1, None),
    other("g6e.48xlarge", 8, 4, None),
];

/// Instance types of which only these numbers are known.
pub const COUNTED: [Instance; 10] = [
    other("p5.4xlarge", 1, 1, Some(false)),
    of("p6e-gb200.36xlarge", 4, 4, None),
    of("p6e-gb300r.36xlarge", 4, 1, None),
    other("g6e.8xlarge", 1, 1, None),
    other("g6e.16xlarge", 1, 1, None),
    other("g6e.24xlarge", 4, 2, None),
    other("g7e.8xlarge", 1, 1, Some(false)),
    of("g7e.12xlarge", 2, 1, None),
    of("g7e.24xlarge", 4, 2, None),
    of("g7e.48xlarge", 8, 4, None),
];
