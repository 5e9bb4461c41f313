//! Random shapes of `ginlab collective`: operation, element type and size.

use super::args::{Args, Launch, Mode, Route, Tuple};
use super::shape::{Element, Operation, Place};
use crate::random::Random;
use crate::world::Scope;
use ginlab::report::each_once;

const OPERATIONS: [Operation; 5] =
    [Operation::AllToAll, Operation::AllGather, Operation::ReduceScatter, Operation::AllReduce, Operation::Broadcast];
const ELEMENTS: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

/// Returns the random shapes that the options select, or `None` without `--random`.
pub fn tuples(args: &Args) -> Option<Vec<Tuple>> {
    Some(each_once(args.random.generators()?.map(|random| shape(args, random))))
}

fn shape(args: &Args, mut random: Random) -> Tuple {
    Tuple {
        operation: random.one(&OPERATIONS),
        ours: true,
        nccl: true,
        window: false,
        element: random.one(&ELEMENTS),
        place: Place::OutOfPlace,
        launch: Launch::Graph,
        overlap: true,
        mode: Mode::Nbi,
        scope: Scope::Block,
        route: Route::Direct,
        size: random.size_within(args.sizes.begin, args.sizes.end),
        packet: 0,
        grid: 0,
    }
}
