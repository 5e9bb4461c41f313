//! ginlab's implementation: the world, and launches of its kernels.

use super::args::{ChunkRoute, CollectiveArgs, CollectiveConfig, CollectiveMode, StartMethod};
use super::shape::{ResultPlacement, Shape};
use crate::agreed::{self, Agreed};
use crate::error::Failure;
use crate::world;
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::collective::{self, Collective, CollectiveRequest, Tuning};
use ginlab::gin::{GinError, PePath, World};
use std::ops::{Deref, DerefMut};

pub use ginlab::gin::collective::Prepared;

/// Memory, signals and kernels of a rank.
pub struct Ours {
    collective: Collective,
    pub agreed: Agreed,
    args: CollectiveArgs,
}

/// Bytes and puts that a rank has moved.
pub struct RankTotals {
    pub mapped: u64,
    pub puts: u64,
    pub rails: Vec<u64>,
}

impl Deref for Ours {
    type Target = Collective;

    fn deref(&self) -> &Collective {
        &self.collective
    }
}

impl DerefMut for Ours {
    fn deref_mut(&mut self) -> &mut Collective {
        &mut self.collective
    }
}

/// Returns the thresholds that the options replace.
fn tuning(args: &CollectiveArgs) -> Tuning {
    let CollectiveArgs { message_limit, stores_from, piece, block, .. } = *args;
    Tuning { message_limit, stores_from, piece, block }
}

/// Returns the operation that these parameters select for rank `rank`.
fn request(args: &CollectiveArgs, tuple: &CollectiveConfig, shape: Shape, rank: u32) -> CollectiveRequest {
    CollectiveRequest {
        shape,
        element: tuple.element,
        place: tuple.place,
        scope: tuple.scope,
        blocking: tuple.mode == CollectiveMode::Blocking,
        gathered: tuple.route == ChunkRoute::Gathered,
        overlap: tuple.overlap && tuple.launch != StartMethod::Persistent,
        packet: tuple.packet,
        grid: tuple.grid,
        root: args.root,
        mute: args.mute == Some(rank),
    }
}

fn requests(args: &CollectiveArgs, tuples: &[CollectiveConfig], ranks: &Bootstrap) -> Vec<CollectiveRequest> {
    let (size, rank) = (ranks.size() as u64, ranks.rank() as u32);
    tuples.iter().map(|tuple| request(args, tuple, tuple.shape(size), rank)).collect()
}

/// Returns an upper bound of the heap size. Called before the world is opened, when it is not yet known whether rails
/// are needed.
pub fn heap_bytes(args: &CollectiveArgs, tuples: &[CollectiveConfig], ranks: &Bootstrap) -> u64 {
    let several = args.node_size.is_some() || matches!(args.path, PePath::Rails | PePath::Direct) || !ranks.same_host();
    collective::heap_bytes(&tuning(args), &requests(args, tuples, ranks), ranks.size() as u64, several)
}

impl Ours {
    pub fn open(
        args: &CollectiveArgs,
        world: World,
        tuples: &[CollectiveConfig],
        ranks: &mut Bootstrap,
    ) -> Result<Ours, Failure> {
        // Ranks whose heaps are mapped.
        let mapped: Vec<u32> = (0..world.n_pes()).filter(|pe| world.is_mapped(*pe)).collect();
        let local = agreed::node_size(&mapped, ranks)?;
        let agreed = Agreed::of_all(&world, ranks)?;
        let requests = requests(args, tuples, ranks);
        let collective = Collective::open(world, local, &requests, tuning(args), ranks)?;
        Ok(Ours { collective, agreed, args: args.clone() })
    }

    /// Returns the launch parameters of a parameter combination. The inner error is a one-line reason if it is not
    /// supported.
    pub fn prepare(
        &self,
        tuple: &CollectiveConfig,
        shape: &Shape,
        ranks: &mut Bootstrap,
    ) -> Result<Result<Prepared, String>, Failure> {
        if tuple.place == ResultPlacement::InPlace && self.memory(tuple.place, shape).is_none() {
            return Ok(Err(format!("{} does not support --place in-place", shape.operation.name())));
        }
        let request = request(&self.args, tuple, *shape, self.world.my_pe());
        Ok(self.collective.prepare(&request, ranks)?)
    }

    /// Returns the totals so far: bytes over mappings and puts as counted by the kernels, and bytes per rail as counted
    /// by the proxies.
    pub fn moved(&self) -> Result<RankTotals, Failure> {
        let collective::KernelTotals { mapped, puts } = self.collective.moved()?;
        Ok(RankTotals { mapped, puts, rails: world::rail_bytes(&self.world)? })
    }

    /// Checks that every signal was raised as often as kernels have waited for it.
    ///
    /// # Errors
    /// Returns [`Failure::Run`] with the block and signal if a signal does not reach its count within the timeout of
    /// the job.
    pub fn check_signals(&self) -> Result<(), Failure> {
        self.collective
            .check_signals(self.args.world.meet.timeout)?
            .map_err(|text| Failure::Run(format!("bug in the collective's kernels: {text}")))
    }

    /// Closes the world. This is a collective call.
    pub fn close(self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        self.collective.close(ranks)
    }
}
