//! Cases to run. Each combines executors of the roles, their placement, a scope and an order.

use super::super::{Args, check_list, keeps};
use super::tests::{TESTS, Test};
use crate::error::Failure;
use cuda_std::litmus::{Order, Scope};
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
pub enum Memory {
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
pub enum Fence {
    /// Order within the pairs of all roles.
    Pairs(Order),
    /// Order between a bulk store and its signal. The reader uses acquire loads.
    Bulk(BulkOrder),
    /// Two copies by copy engines, in one stream or in two. The reader uses acquire loads.
    Copies { one_stream: bool },
}

impl Fence {
    /// Returns the value of the column.
    pub fn name(self) -> &'static str {
        match self {
            Fence::Pairs(Order::Nothing) | Fence::Bulk(BulkOrder::Nothing) | Fence::Copies { one_stream: false } => {
                "none"
            }
            Fence::Pairs(Order::ReleaseAcquire) => "release-acquire",
            Fence::Pairs(Order::AcquireRelease) => "fence-acq-rel",
            Fence::Pairs(Order::Sequential) => "fence-sc",
            Fence::Pairs(Order::ReadBack) => "read-back",
            Fence::Bulk(BulkOrder::SourceRead) => "bulk-source-read",
            Fence::Bulk(BulkOrder::Complete) => "bulk-complete",
            Fence::Bulk(BulkOrder::CompleteFence) => "bulk-complete-proxy-fence",
            Fence::Bulk(BulkOrder::Unfenced) => "bulk-source-unfenced",
            Fence::Copies { one_stream: true } => "stream-order",
        }
    }
}

/// A combination.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub test: &'static Test,
    pub scope: Scope,
    /// Executor of each role.
    pub roles: [Executor; 4],
    pub fence: Fence,
    pub placement: Placement,
    pub memory: Memory,
}

const ORDERS: [Order; 5] =
    [Order::Nothing, Order::ReleaseAcquire, Order::AcquireRelease, Order::Sequential, Order::ReadBack];
const THREADS: [Executor; 4] = [Executor::Thread; 4];

impl Case {
    /// Returns whether the memory model permits the weak outcome. If the scope does not include the other roles, a
    /// fence of that scope does not order the accesses.
    pub fn is_allowed(&self) -> bool {
        let needed = match self.placement {
            Placement::Block => Scope::Block,
            Placement::Device => Scope::Device,
            Placement::Host | Placement::Peer | Placement::SameGpu => Scope::System,
        };
        let is_narrow = (self.scope as u32) < needed as u32;
        is_narrow
            || match self.fence {
                Fence::Pairs(order) => self.test.allowed_with(order),
                Fence::Bulk(order) => !matches!(order, BulkOrder::Complete | BulkOrder::CompleteFence),
                Fence::Copies { one_stream } => !one_stream,
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
            Scope::Block => "block",
            Scope::Device => "device",
            Scope::System => "system",
        }
    }
}

/// Returns all orders of a test of pairs.
fn orders(test: &'static Test) -> impl Iterator<Item = Fence> {
    ORDERS.into_iter().filter(|order| *order != Order::ReadBack || test.reads_back).map(Fence::Pairs)
}

/// Returns the cases on one GPU and the CPU.
fn on_one(emulated: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let scopes = [Scope::Block, Scope::Device, Scope::System];
    for test in &TESTS {
        for placement in [Placement::Block, Placement::Device] {
            for scope in scopes {
                let is_wide = scope == Scope::System && placement == Placement::Device;
                let memories = if is_wide { &[Memory::Device, Memory::Host][..] } else { &[Memory::Device] };
                for &memory in memories {
                    cases.extend(orders(test).map(|fence| Case {
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
            cases.extend(orders(test).map(|fence| Case {
                test,
                scope: Scope::System,
                roles,
                fence,
                placement: Placement::Host,
                memory: Memory::Host,
            }));
        }
    }
    let bytes = Case {
        test: Test::named("signal-after-bytes"),
        scope: Scope::System,
        roles: THREADS,
        fence: Fence::Copies { one_stream: false },
        placement: Placement::Device,
        memory: Memory::Device,
    };
    for one_stream in [false, true] {
        let roles = [Executor::CopyEngine, Executor::Thread, Executor::Thread, Executor::Thread];
        cases.push(Case { roles, fence: Fence::Copies { one_stream }, ..bytes });
    }
    if !emulated {
        for (reader, placement, memory) in [
            (Executor::Thread, Placement::Device, Memory::Device),
            (Executor::Thread, Placement::Device, Memory::Host),
            (Executor::Cpu, Placement::Host, Memory::Host),
        ] {
            let roles = [Executor::Bulk, reader, reader, reader];
            cases.extend(bulk_orders().map(|fence| Case { roles, fence, placement, memory, ..bytes }));
        }
    }
    cases
}

fn bulk_orders() -> impl Iterator<Item = Fence> {
    use BulkOrder::{Complete, CompleteFence, Nothing, SourceRead, Unfenced};
    [Nothing, SourceRead, Complete, CompleteFence, Unfenced].into_iter().map(Fence::Bulk)
}

/// Returns the executors of a test in which some roles are run by the CPU.
fn with_cpu(test: &Test) -> Vec<[Executor; 4]> {
    use Executor::{Cpu, Thread};
    match test.name {
        "message-passing" | "signal-after-bytes" => vec![[Thread, Cpu, Thread, Thread], [Cpu, Thread, Thread, Thread]],
        "store-buffering" | "load-buffering" | "2+2w" | "wrc" | "isa2" => vec![[Thread, Cpu, Thread, Thread]],
        _ => vec![],
    }
}

/// Returns the cases on several PEs.
fn on_several(emulated: bool, placement: Placement) -> Vec<Case> {
    let mut cases = Vec::new();
    for test in &TESTS {
        for memory in [Memory::OfReader, Memory::OfWriter, Memory::Split] {
            let case = Case {
                test,
                scope: Scope::System,
                roles: THREADS,
                fence: Fence::Pairs(Order::Nothing),
                placement,
                memory,
            };
            cases.extend(orders(test).map(|fence| Case { fence, ..case }));
            if memory == Memory::OfReader {
                cases.extend(orders(test).map(|fence| Case { fence, scope: Scope::Device, ..case }));
            }
            if memory == Memory::OfReader && test.has_payload && !emulated {
                let roles = [Executor::Bulk, Executor::Thread, Executor::Thread, Executor::Thread];
                cases.extend(bulk_orders().map(|fence| Case { roles, fence, ..case }));
            }
        }
    }
    cases
}

/// Value of a column of a case.
type Column = fn(&Case) -> &'static str;

/// Returns the cases that the options select.
pub fn cases(args: &Args, emulated: bool, pes: usize, placement: Placement) -> Result<Vec<Case>, Failure> {
    let all = if pes == 1 { on_one(emulated) } else { on_several(emulated, placement) };
    let lists: [(&str, &[String], Column); 5] = [
        ("--test", &args.test, |case| case.test.name),
        ("--scope", &args.scope, Case::scope_name),
        ("--writer", &args.writer, Case::writer),
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
    let kept = |case: &Case| lists.iter().all(|(_, list, value)| keeps(list, value(case)));
    let kept: Vec<Case> = all.into_iter().filter(kept).collect();
    if kept.is_empty() {
        return Err(Failure::Usage(
            "--test, --scope, --writer, --fence, --placement: no combination has all of these values".into(),
        ));
    }
    Ok(kept)
}
