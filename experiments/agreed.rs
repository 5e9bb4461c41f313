//! Facts on which all ranks of a job agree, because ranks must share them or because a row shows them for the job.
//!
//! A rank knows only its own view: the PEs that it reaches by a mapping, its device, its memory. Views differ on hosts
//! with unequal or interleaved ranks and on machines with different devices. Code that branches on a view, or shows it
//! in a column, takes it from here.

use crate::error::Failure;
use crate::mps;
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::World;
use ginlab::report::{Row, each_once};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct View {
    device: String,
    memory: String,
    line_rate: Option<u64>,
    /// Paths to the PEs with which this rank communicates: whether a mapping is used, and the name shown in rows.
    paths: Vec<(bool, String)>,
}

/// Columns of a row that describe all ranks. Different values are joined by `+`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Devices of all ranks.
    pub device: String,
    /// Locations of all heaps.
    pub memory: String,
    /// Paths between communicating PEs, mappings first.
    pub fabric: String,
    /// Whether any of these paths uses a mapping.
    pub by_mapping: bool,
    /// Whether any of these paths uses rails.
    pub by_rails: bool,
    /// Line rate of one rank's NICs in bits per second. `None` if it is unknown or differs between ranks.
    pub line_rate: Option<u64>,
}

impl Agreed {
    /// Gathers the views of all ranks. This rank communicates with the PEs `to`. This is a collective call.
    ///
    /// # Errors
    /// Returns [`Failure`] if a rank is missing.
    pub fn of(world: &World, to: impl IntoIterator<Item = u32>, ranks: &mut Bootstrap) -> Result<Agreed, Failure> {
        let others = to.into_iter().filter(|pe| *pe != world.my_pe() && *pe < world.n_pes());
        let mine = View {
            device: world.device().name(),
            memory: world.memory().to_owned(),
            line_rate: world.line_rate(),
            paths: each_once(others.map(|pe| (world.is_mapped(pe), world.path_to(pe).to_owned()))),
        };
        Ok(Agreed::on(&ranks.all_gather_values(&mine, "views of the ranks")?))
    }

    /// Gathers the views of ranks that communicate with all others. This is a collective call.
    ///
    /// # Errors
    /// Returns [`Failure`] if a rank is missing.
    pub fn of_all(world: &World, ranks: &mut Bootstrap) -> Result<Agreed, Failure> {
        Agreed::of(world, 0..world.n_pes(), ranks)
    }

    fn on(views: &[View]) -> Agreed {
        let joined = |of: fn(&View) -> &str| each_once(views.iter().map(of)).join("+");
        let mut paths = each_once(views.iter().flat_map(|view| view.paths.iter().cloned()));
        paths.sort_by_key(|(is_mapped, _)| !is_mapped);
        let rates = each_once(views.iter().map(|view| view.line_rate));
        let fabric = each_once(paths.iter().map(|(_, name)| name.as_str())).join("+");
        Agreed {
            device: joined(|view| &view.device),
            memory: joined(|view| &view.memory),
            by_mapping: paths.iter().any(|(is_mapped, _)| *is_mapped),
            by_rails: paths.iter().any(|(is_mapped, _)| !is_mapped),
            // The list of paths is empty, because every PE communicates only with itself.
            fabric: if fabric.is_empty() { "self".into() } else { fabric },
            line_rate: if let [rate] = rates[..] { rate } else { None },
        }
    }

    /// Returns a row of `experiment` with the columns that describe the ranks.
    pub fn row(&self, experiment: &str, case: impl Into<String>, world: &World) -> Row {
        let mut row = Row::new(experiment, case, self.device.as_str(), self.fabric.as_str());
        row.ranks = world.n_pes();
        row.memory = Some(self.memory.clone());
        mps::mark(&mut row, world.sharing());
        row
    }
}

/// Returns the number of ranks per node, given the ranks `mine` of this rank's node. Returns 1 on all ranks unless all
/// nodes are equally large runs of consecutive ranks. This is a collective call.
///
/// # Errors
/// Returns [`Failure`] if a rank is missing.
pub fn node_size(mine: &[u32], ranks: &mut Bootstrap) -> Result<u32, Failure> {
    Ok(even(&ranks.all_gather_values(&mine.to_vec(), "nodes")?))
}

/// Returns the minimum of `mine` over all ranks, for example the number of blocks that are resident on every device at
/// the same time. This is a collective call.
///
/// # Errors
/// Returns [`Failure`] if a rank is missing.
pub fn least(mine: u32, what: &str, ranks: &mut Bootstrap) -> Result<u32, Failure> {
    Ok(ranks.all_gather_values(&mine, what)?.into_iter().min().unwrap_or(mine))
}

/// Returns the number of ranks per node, given the members of each rank's node, or 1 if nodes are unequal.
fn even(nodes: &[Vec<u32>]) -> u32 {
    let size = nodes.first().map_or(1, Vec::len).max(1);
    let is_run = |(rank, node): (usize, &Vec<u32>)| {
        let first = (rank / size * size) as u32;
        node.iter().copied().eq(first..first + size as u32)
    };
    if nodes.len().is_multiple_of(size) && nodes.iter().enumerate().all(is_run) { size as u32 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Members of each rank's node, given the host of each rank.
    fn nodes(hosts: &[u8]) -> Vec<Vec<u32>> {
        let on = |host: u8| (0..).zip(hosts).filter(|(_, other)| **other == host).map(|(rank, _)| rank).collect();
        hosts.iter().map(|host| on(*host)).collect()
    }

    #[test]
    fn interleaved_or_unequal_hosts_form_single_rank_nodes() {
        for (hosts, size) in [
            (&[0, 0, 1, 1][..], 2),
            (&[0, 1, 0, 1], 1),
            (&[0, 0, 1, 2], 1),
            (&[0, 0, 0, 1, 1], 1),
            (&[0, 0, 0, 0], 4),
            (&[0, 1, 1, 0], 1),
            (&[0], 1),
        ] {
            assert_eq!(even(&nodes(hosts)), size, "{hosts:?}");
        }
    }

    #[test]
    fn columns_join_values_that_differ_between_ranks() {
        let view = |paths: &[(bool, &str)], line_rate| View {
            device: "gpu:A".into(),
            memory: "device".into(),
            line_rate,
            paths: paths.iter().map(|(is_mapped, name)| (*is_mapped, (*name).to_owned())).collect(),
        };
        let agreed =
            Agreed::on(&[view(&[(false, "tcp")], Some(1)), view(&[(true, "memory"), (false, "tcp")], Some(1))]);
        assert_eq!((agreed.fabric.as_str(), agreed.by_mapping, agreed.by_rails), ("memory+tcp", true, true));
        assert_eq!((agreed.device.as_str(), agreed.line_rate), ("gpu:A", Some(1)));
        let other = View { device: "gpu:B".into(), ..view(&[(false, "tcp")], Some(2)) };
        let agreed = Agreed::on(&[view(&[(false, "tcp")], Some(1)), other]);
        assert_eq!((agreed.device.as_str(), agreed.line_rate, agreed.by_mapping), ("gpu:A+gpu:B", None, false));
    }

    proptest! {
        #[test]
        fn nodes_are_equal_ranges_of_ranks(hosts in prop::collection::vec(0u8..4, 1..12)) {
            let nodes = nodes(&hosts);
            let size = even(&nodes) as usize;
            prop_assert_eq!(hosts.len() % size, 0);
            if size > 1 {
                prop_assert!(hosts.chunks(size).all(|run| run.iter().all(|host| *host == run[0])));
                prop_assert!(nodes.iter().all(|node| node.len() == size));
            }
        }
    }
}
