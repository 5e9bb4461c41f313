//! Random shapes of `ginlab collective`: operation, element type and size.

use super::args::{ChunkRoute, CollectiveArgs, CollectiveConfig, CollectiveMode, StartMethod};
use super::shape::{CollectiveOperation, Element, ResultPlacement};
use crate::random::SeededChoices;
use crate::world::CallScope;
use ginlab::report::each_once;

const OPERATIONS: [CollectiveOperation; 5] = [
    CollectiveOperation::AllToAll,
    CollectiveOperation::AllGather,
    CollectiveOperation::ReduceScatter,
    CollectiveOperation::AllReduce,
    CollectiveOperation::Broadcast,
];
const ELEMENTS: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

/// Returns the random shapes that the options select, or `None` without `--random`.
pub fn tuples(args: &CollectiveArgs) -> Option<Vec<CollectiveConfig>> {
    Some(each_once(args.random.generators()?.map(|random| shape(args, random))))
}

fn shape(args: &CollectiveArgs, mut random: SeededChoices) -> CollectiveConfig {
    CollectiveConfig {
        operation: random.one(&OPERATIONS),
        ours: true,
        nccl: true,
        window: false,
        element: random.one(&ELEMENTS),
        place: ResultPlacement::OutOfPlace,
        launch: StartMethod::Graph,
        overlap: true,
        mode: CollectiveMode::Nbi,
        scope: CallScope::Block,
        route: ChunkRoute::Direct,
        size: random.size_within(args.sizes.begin, args.sizes.end),
        packet: 0,
        grid: 0,
    }
}
