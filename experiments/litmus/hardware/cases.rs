//! Cases to run. Each combines executors of the roles, their placement, a scope and an order.

use super::super::{LitmusArgs, check_list, keeps};
use super::tests::{LitmusTest, TESTS};
use crate::error::Failure;
use cuda_std::litmus::{AccessOrder, MemoryScope};
use kernels::litmus_bulk::BulkOrder;
use strum::IntoStaticStr;

/// Executor of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Executor {
    /// A thread of a grid.
    Thread,
    /// A thread of a grid whose bytes the copy unit of its multiprocessor stores (`cp.async.bulk`).
    Bulk,
    /// A copy engine of the GPU.
    CopyEngine,
    /// A thread of the CPU.
    Cpu,
}

/// Location of the roles relative to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Placement {
    /// One block.
    Block,
    /// Several blocks of one grid.
    Device,
    /// A GPU and the CPU.
    Host,
    /// Several GPUs.
    Peer,
    /// Grids of several processes on one GPU.
    SameGpu,
}

/// Memory of the locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum LitmusMemory {
    /// The GPU's memory.
    Device,
    /// Pinned host memory.
    Host,
    /// The memory of the last role's GPU.
    OfReader,
    /// The memory of the first role's GPU.
    OfWriter,
    /// X in the memory of the last role's GPU, and the other words in the memory of the first role's GPU.
    Split,
}

/// Order between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LitmusFence {
    /// Order within the pairs of all roles.
    Pairs(AccessOrder),
    /// Order between a bulk store and its signal. The reader uses acquire loads.
    Bulk(BulkOrder),
    /// Two copies by copy engines, in one stream or in two. The reader uses acquire loads.
    Copies { one_stream: bool },
}

impl LitmusFence {
    /// Returns the value of the column.
    pub fn name(self) -> &'static str {
        match self {
            LitmusFence::Pairs(AccessOrder::Nothing)
            | LitmusFence::Bulk(BulkOrder::Nothing)
            | LitmusFence::Copies { one_stream: false } => "none",
            LitmusFence::Pairs(AccessOrder::ReleaseAcquire) => "release-acquire",
            LitmusFence::Pairs(AccessOrder::AcquireRelease) => "fence-acq-rel",
            LitmusFence::Pairs(AccessOrder::Sequential) => "fence-sc",
            LitmusFence::Pairs(AccessOrder::ReadBack) => "read-back",
            LitmusFence::Bulk(BulkOrder::SourceRead) => "bulk-source-read",
            LitmusFence::Bulk(BulkOrder::Complete) => "bulk-complete",
            LitmusFence::Bulk(BulkOrder::CompleteFence) => "bulk-complete-proxy-fence",
            LitmusFence::Bulk(BulkOrder::Unfenced) => "bulk-source-unfenced",
            LitmusFence::Copies { one_stream: true } => "stream-order",
        }
    }
}

/// A combination.
#[derive(Clone, Copy, Debug)]
pub struct LitmusCase {
    pub test: &'static LitmusTest,
    pub scope: MemoryScope,
    /// Executor of each role.
    pub roles: [Executor; 4],
    pub fence: LitmusFence,
    pub placement: Placement,
    pub memory: LitmusMemory,
}

const ORDERS: [AccessOrder; 5] = [
    AccessOrder::Nothing,
    AccessOrder::ReleaseAcquire,
    AccessOrder::AcquireRelease,
    AccessOrder::Sequential,
    AccessOrder::ReadBack,
];
const THREADS: [Executor; 4] = [Executor::Thread; 4];

impl LitmusCase {
    /// Returns whether the memory model permits the weak outcome. If the scope does not include the other roles, a
    /// fence of that scope does not order the accesses.
    pub fn is_allowed(&self) -> bool {
        let needed = match self.placement {
            Placement::Block => MemoryScope::Block,
            Placement::Device => MemoryScope::Device,
            Placement::Host | Placement::Peer | Placement::SameGpu => MemoryScope::System,
        };
        let is_narrow = (self.scope as u32) < needed as u32;
        is_narrow
            || match self.fence {
                LitmusFence::Pairs(order) => self.test.allowed_with(order),
                LitmusFence::Bulk(order) => !matches!(order, BulkOrder::Complete | BulkOrder::CompleteFence),
                LitmusFence::Copies { one_stream } => !one_stream,
            }
    }

    fn roles(&self) -> &[Executor] {
        &self.roles[..self.test.count() as usize]
    }

    /// Returns the number of the executor of this kind, if any role has one.
    pub fn role_of(&self, executor: Executor) -> Option<u32> {
        self.roles().iter().position(|role| *role == executor).map(|role| role as u32)
    }

    /// Returns the roles of this executor on PE `pe` of `pes`, one bit each.
    pub fn mask(&self, executor: Executor, pe: usize, pes: usize) -> u32 {
        let own = |role: &usize| self.roles[*role] == executor && role % pes == pe;
        (0..self.roles().len()).filter(own).fold(0, |mask, role| mask | (1 << role))
    }

    /// Returns the value of column `writer`: a CPU thread between two kernels is a proxy.
    pub fn writer(&self) -> &'static str {
        match self.roles() {
            [first, .., last] if first == last && self.role_of(Executor::Cpu).is_some() => "proxy",
            roles => roles[0].into(),
        }
    }

    /// Returns the value of column `reader`.
    pub fn reader(&self) -> &'static str {
        self.roles().last().map_or("", |role| (*role).into())
    }

    /// Returns the name of the scope.
    pub fn scope_name(&self) -> &'static str {
        match self.scope {
            MemoryScope::Block => "block",
            MemoryScope::Device => "device",
            MemoryScope::System => "system",
        }
    }
}

/// Returns all orders of a test of pairs.
fn orders(test: &'static LitmusTest) -> impl Iterator<Item = LitmusFence> {
    ORDERS.into_iter().filter(|order| *order != AccessOrder::ReadBack || test.reads_back).map(LitmusFence::Pairs)
}

/// Returns the cases on one GPU and the CPU.
fn on_one(emulated: bool) -> Vec<LitmusCase> {
    let mut cases = Vec::new();
    let scopes = [MemoryScope::Block, MemoryScope::Device, MemoryScope::System];
    for test in &TESTS {
        for placement in [Placement::Block, Placement::Device] {
            for scope in scopes {
                let is_wide = scope == MemoryScope::System && placement == Placement::Device;
                let memories =
                    if is_wide { &[LitmusMemory::Device, LitmusMemory::Host][..] } else { &[LitmusMemory::Device] };
                for &memory in memories {
                    cases.extend(orders(test).map(|fence| LitmusCase {
                        test,
                        scope,
                        roles: THREADS,
                        fence,
                        placement,
                        memory,
                    }));
                }
            }
        }
        for roles in with_cpu(test) {
            cases.extend(orders(test).map(|fence| LitmusCase {
                test,
                scope: MemoryScope::System,
                roles,
                fence,
                placement: Placement::Host,
                memory: LitmusMemory::Host,
            }));
        }
    }
    let bytes = LitmusCase {
        test: LitmusTest::named("signal-after-bytes"),
        scope: MemoryScope::System,
        roles: THREADS,
        fence: LitmusFence::Copies { one_stream: false },
        placement: Placement::Device,
        memory: LitmusMemory::Device,
    };
    for one_stream in [false, true] {
        let roles = [Executor::CopyEngine, Executor::Thread, Executor::Thread, Executor::Thread];
        cases.push(LitmusCase { roles, fence: LitmusFence::Copies { one_stream }, ..bytes });
    }
    if !emulated {
        for (reader, placement, memory) in [
            (Executor::Thread, Placement::Device, LitmusMemory::Device),
            (Executor::Thread, Placement::Device, LitmusMemory::Host),
            (Executor::Cpu, Placement::Host, LitmusMemory::Host),
        ] {
            let roles = [Executor::Bulk, reader, reader, reader];
            cases.extend(bulk_orders().map(|fence| LitmusCase { roles, fence, placement, memory, ..bytes }));
        }
    }
    cases
}

fn bulk_orders() -> impl Iterator<Item = LitmusFence> {
    use BulkOrder::{Complete, CompleteFence, Nothing, SourceRead, Unfenced};
    [Nothing, SourceRead, Complete, CompleteFence, Unfenced].into_iter().map(LitmusFence::Bulk)
}

/// Returns the executors of a test in which some roles are run by the CPU.
fn with_cpu(test: &LitmusTest) -> Vec<[Executor; 4]> {
    use Executor::{Cpu, Thread};
    match test.name {
        "message-passing" | "signal-after-bytes" => vec![[Thread, Cpu, Thread, Thread], [Cpu, Thread, Thread, Thread]],
        "store-buffering" | "load-buffering" | "2+2w" | "wrc" | "isa2" => vec![[Thread, Cpu, Thread, Thread]],
        _ => vec![],
    }
}

/// Returns the cases on several PEs.
fn on_several(emulated: bool, placement: Placement) -> Vec<LitmusCase> {
    let mut cases = Vec::new();
    for test in &TESTS {
        for memory in [LitmusMemory::OfReader, LitmusMemory::OfWriter, LitmusMemory::Split] {
            let case = LitmusCase {
                test,
                scope: MemoryScope::System,
                roles: THREADS,
                fence: LitmusFence::Pairs(AccessOrder::Nothing),
                placement,
                memory,
            };
            cases.extend(orders(test).map(|fence| LitmusCase { fence, ..case }));
            if memory == LitmusMemory::OfReader {
                cases.extend(orders(test).map(|fence| LitmusCase { fence, scope: MemoryScope::Device, ..case }));
            }
            if memory == LitmusMemory::OfReader && test.has_payload && !emulated {
                let roles = [Executor::Bulk, Executor::Thread, Executor::Thread, Executor::Thread];
                cases.extend(bulk_orders().map(|fence| LitmusCase { roles, fence, ..case }));
            }
        }
    }
    cases
}

/// Value of a column of a case.
type Column = fn(&LitmusCase) -> &'static str;

/// Returns the cases that the options select.
pub fn cases(args: &LitmusArgs, emulated: bool, pes: usize, placement: Placement) -> Result<Vec<LitmusCase>, Failure> {
    let all = if pes == 1 { on_one(emulated) } else { on_several(emulated, placement) };
    let lists: [(&str, &[String], Column); 5] = [
        ("--test", &args.test, |case| case.test.name),
        ("--scope", &args.scope, LitmusCase::scope_name),
        ("--writer", &args.writer, LitmusCase::writer),
        ("--fence", &args.fence, |case| case.fence.name()),
        ("--placement", &args.placement, |case| case.placement.into()),
    ];
    for (option, list, value) in lists {
        let mut known = Vec::new();
        for case in &all {
            if !known.contains(&value(case)) {
                known.push(value(case));
            }
        }
        check_list(option, list, &known)?;
    }
    let kept = |case: &LitmusCase| lists.iter().all(|(_, list, value)| keeps(list, value(case)));
    let kept: Vec<LitmusCase> = all.into_iter().filter(kept).collect();
    if kept.is_empty() {
        return Err(Failure::Usage(
            "--test, --scope, --writer, --fence, --placement: no combination has all of these values".into(),
        ));
    }
    Ok(kept)
}
