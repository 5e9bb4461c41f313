//! The list of exhibits.

use super::kernel::{self, ExhibitKernel};
use super::port::{self, ExhibitBody};
use super::{network, rules};
use kernels::museum;

/// Code of an exhibit.
#[derive(Clone, Copy)]
pub enum Code {
    /// A kernel over the device API.
    Kernel(ExhibitKernel),
    /// A rule that a proxy or the target of writes must follow.
    Rule(ExhibitBody),
}

/// A bug, in a broken and in a fixed form.
pub struct Exhibit {
    pub name: &'static str,
    /// Project and number of the public issue.
    pub issue: &'static str,
    /// Assumption of the broken form.
    pub assumed: &'static str,
    /// The rule of the network that causes the broken form to fail.
    pub rule: &'static str,
    pub code: Code,
    /// File of the code.
    pub source: &'static str,
    /// Options of the network besides the seed.
    pub options: &'static str,
    /// A seed under which the broken form fails.
    pub seed: u64,
}

/// Number of PEs of an exhibit that is a rule.
const PES: usize = 2;

/// Options for exhibits whose words are polled in memory: an 8-byte word arrives as a whole and is not poisoned
/// beforehand.
const WHOLE_WORDS: &str = "packets=1,poison=off";

/// All exhibits.
pub const ALL: &[Exhibit] = &[
    Exhibit {
        name: "overtaking-signal",
        issue: "NVIDIA/nccl #2302, uccl-project/uccl #374",
        assumed: "a signal that is sent after puts arrives after them",
        rule: "two operations of one sender have no order",
        code: Code::Kernel(museum::museum_overtaking_thread),
        source: "kernels/src/museum/overtaking.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "one-counter",
        issue: "NVIDIA/nvshmem #84",
        assumed: "the n-th signal of a counter belongs to the n-th put",
        rule: "puts in flight arrive in any order; a sum does not name them",
        code: Code::Kernel(museum::museum_one_counter_thread),
        source: "kernels/src/museum/one_counter.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "slot-rewritten",
        issue: "ROCm/mori #80, deepseek-ai/DeepEP #166",
        assumed: "a slot is free when the put into it is complete",
        rule: "a completion does not imply that the reader has finished",
        code: Code::Kernel(museum::museum_slot_thread),
        source: "kernels/src/museum/slot.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "source-reused",
        issue: "tenstorrent/tt-metal #50811, pmodels/armci-mpi #25",
        assumed: "a source is free when its put has been posted",
        rule: "a source belongs to the NIC until the completion; a retransmission reads it again",
        code: Code::Kernel(museum::museum_source_thread),
        source: "kernels/src/museum/source.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "completion-as-notice",
        issue: "microsoft/mscclpp #495, ofiwg/libfabric #9651",
        assumed: "the target has counted a signal whose put is complete at the sender",
        rule: "a completion and the immediate of its write have no order",
        code: Code::Kernel(museum::museum_completion_thread),
        source: "kernels/src/museum/completion.rs",
        options: "",
        seed: 2,
    },
    Exhibit {
        name: "generation-alias",
        issue: "NVIDIA/nccl #2303, NVIDIA/nccl-extensions #6",
        assumed: "a flag that is set was set for this call",
        rule: "memory keeps the value of an earlier call; only a generation distinguishes them",
        code: Code::Kernel(museum::museum_generation_thread),
        source: "kernels/src/museum/generation.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "dropped-put",
        issue: "NVIDIA/nccl #2119",
        assumed: "a post that does not fail has been accepted",
        rule: "any post may be refused for a while (-FI_EAGAIN)",
        code: Code::Rule(rules::dropped),
        source: "experiments/museum/rules/dropped.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "coalesced-signal",
        issue: "aws/aws-ofi-nccl #1327",
        assumed: "the last value written to a counter remains",
        rule: "two writes of one sender to the same word have no order; there are no atomics",
        code: Code::Rule(rules::coalesced),
        source: "experiments/museum/rules/coalesced.rs",
        options: WHOLE_WORDS,
        seed: 1,
    },
    Exhibit {
        name: "error-completion",
        issue: "NVIDIA/nccl #2383, ai-dynamo/nixl #1747",
        assumed: "a completion that is not a success has not happened yet",
        rule: "a transfer completes once, also if it fails",
        code: Code::Rule(rules::error_completion),
        source: "experiments/museum/rules/error_completion.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "weak-signal",
        issue: "ginlab's own NCCL plugin",
        assumed: "a signal without bytes has nothing to wait for",
        rule: "the put that it belongs to is another operation, and may arrive later",
        code: Code::Rule(rules::weak_signal),
        source: "experiments/museum/rules/weak_signal.rs",
        options: "",
        seed: 1,
    },
    Exhibit {
        name: "reset-word",
        issue: "ginlab's own NCCL plugin; deepseek-ai/DeepEP #310",
        assumed: "a word can be reset after a barrier that follows its signal",
        rule: "a write that is late lands on the reset word",
        code: Code::Rule(rules::reset_word),
        source: "experiments/museum/rules/reset_word.rs",
        options: WHOLE_WORDS,
        seed: 1,
    },
];

/// Options of a network that delays, splits and refuses as little as possible and never retransmits.
const CALM: &str = "delay=1,packets=1,again=0,resend=0";

impl Exhibit {
    /// Returns the options of the network besides the seed, or those of a calm network.
    pub fn network(&self, calm: bool) -> String {
        let options = [self.options, if calm { CALM } else { "" }];
        options.into_iter().filter(|options| !options.is_empty()).collect::<Vec<_>>().join(",")
    }

    /// Runs one form with a seed. Returns the mistake as an error.
    pub fn run(&self, fixed: bool, calm: bool, seed: u64) -> Result<(), String> {
        let spec = network::spec(&self.network(calm), seed)?;
        match self.code {
            Code::Kernel(kernel) => kernel::run(kernel, fixed, &spec),
            Code::Rule(body) => port::run(body, fixed, PES, &spec),
        }
    }

    /// Returns the kind of the code.
    pub fn kind(&self) -> &'static str {
        match self.code {
            Code::Kernel(_) => "kernel",
            Code::Rule(_) => "rule",
        }
    }
}
