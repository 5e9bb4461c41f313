//! State of deferred commands and signals, and the resources that they wait for.

use super::route::Route;
use crate::signal_order::{Accounts, Lacks, Rule, SignalWords};
use kernels::command::Command;
use std::collections::{HashMap, VecDeque};

/// Token of transfers that do not belong to a command. Tickets have 63 bits.
pub(super) const NO_TICKET: u64 = u64::MAX;

/// Immediates to send after the transfers of a put are complete.
pub(super) struct After {
    pub left: usize,
    pub route: Route,
    pub peer: u32,
    pub immediates: [Option<u32>; 2],
}

/// A signal that waits until no transfer to its peer is in flight, under [`Rule::Drain`].
pub(super) struct Draining {
    pub ticket: u64,
    pub route: Route,
    pub immediate: u32,
}

/// Deferred commands to one peer. Commands to other peers are not affected.
#[derive(Default)]
pub(super) struct Waiting {
    /// Signal for which all commands to this peer wait.
    pub draining: Option<Draining>,
    /// Commands that are waiting for credits, a slot or the drain, in order.
    pub held: VecDeque<(u64, Route, Command)>,
    /// Resource that the first of these commands lacks.
    pub lacks: Option<Lacks>,
    /// Number of transfers in flight. Maintained only under [`Rule::Drain`].
    pub flights: u64,
    /// Whether this peer is listed in [`Signals::waiting`].
    pub is_listed: bool,
}

pub(super) struct Signals {
    pub rule: Rule,
    pub early: bool,
    pub words: SignalWords,
    pub accounts: Accounts,
    pub after: HashMap<u64, After>,
    /// State per peer, and the peers that have deferred commands.
    pub peers: Vec<Waiting>,
    pub waiting: Vec<u32>,
    /// Peer of each ticket. Used only under [`Rule::Drain`].
    peer_of: Vec<u32>,
    /// Tickets whose signals can be sent.
    pub ready: Vec<u64>,
}

/// Order of an engine's signals, and the words in which they are counted. The default allows no signals: each needs an
/// account with its target, and with 0 ranks there is none.
#[derive(Debug, Default)]
pub struct SignalRule {
    /// Rule by which signals are ordered.
    pub rule: Rule,
    /// Index of this rank in the numbering of its peers, below `ranks`.
    pub me: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Fault for tests: signals do not wait for the condition of their rule.
    pub early: bool,
    /// Counters of this rank's signals: the engine's own words, unless the device reads them.
    pub words: SignalWords,
}

impl Signals {
    pub fn new(rule: SignalRule, window: usize) -> Signals {
        let drains = rule.rule == Rule::Drain;
        Signals {
            rule: rule.rule,
            early: rule.early,
            words: rule.words,
            accounts: Accounts::new(rule.rule, rule.me, rule.ranks, rule.early),
            after: HashMap::new(),
            peers: (0..rule.ranks).map(|_| Waiting::default()).collect(),
            waiting: Vec::new(),
            peer_of: vec![0; if drains { window.next_power_of_two() } else { 0 }],
            ready: Vec::new(),
        }
    }

    /// Returns whether `Engine::run_deferred` has anything to do.
    #[inline]
    pub fn has_more(&self) -> bool {
        !self.ready.is_empty() || !self.waiting.is_empty() || self.accounts.has_words()
    }

    /// Returns whether commands to `peer` are deferred, so that further commands must also be deferred.
    #[inline]
    pub fn defer(&self, peer: u32) -> bool {
        !self.waiting.is_empty() && self.peers.get(peer as usize).is_some_and(|waiting| waiting.is_listed)
    }

    /// Defers a command that `lacks` this resource or follows deferred ones.
    pub fn hold(&mut self, ticket: u64, route: Route, command: &Command, lacks: Option<Lacks>) {
        self.wait_for(command.peer, |waiting| {
            waiting.held.push_back((ticket, route, *command));
            waiting.lacks = lacks.or(waiting.lacks);
        });
    }

    /// Sends this signal once no transfer to its peer is in flight.
    pub fn drain(&mut self, peer: u32, draining: Draining) {
        self.wait_for(peer, |waiting| waiting.draining = Some(draining));
    }

    /// Drops the deferred commands and the deferred signal of a peer. Returns their tickets.
    pub fn forget(&mut self, peer: u32) -> Vec<u64> {
        let Some(waiting) = self.peers.get_mut(peer as usize) else { return Vec::new() };
        // The peer stays in `waiting` until the next `run_deferred` removes it.
        let draining = waiting.draining.take().map(|draining| draining.ticket);
        waiting.held.drain(..).map(|(ticket, ..)| ticket).chain(draining).collect()
    }

    /// Adds to the deferred work of a peer and lists the peer. A peer without an entry is not a rank and cannot have
    /// deferred work: only ranks have credits, slots or flights.
    fn wait_for(&mut self, peer: u32, wait: impl FnOnce(&mut Waiting)) {
        if let Some(waiting) = self.peers.get_mut(peer as usize) {
            if !waiting.is_listed {
                waiting.is_listed = true;
                self.waiting.push(peer);
            }
            wait(waiting);
        }
    }

    /// Processes a received immediate.
    #[inline]
    pub fn arrive(&mut self, bits: u32) {
        self.accounts.arrive(bits, &self.words);
    }

    /// Records the completion of one transfer of `ticket`.
    #[inline]
    pub fn landed(&mut self, ticket: u64) {
        if !self.peer_of.is_empty() && ticket != NO_TICKET {
            let mask = self.peer_of.len() as u64 - 1;
            let peer = self.peer_of[(ticket & mask) as usize];
            if let Some(waiting) = self.peers.get_mut(peer as usize) {
                waiting.flights = waiting.flights.saturating_sub(1);
            }
        }
        if !self.after.is_empty()
            && let Some(after) = self.after.get_mut(&ticket)
        {
            after.left = after.left.saturating_sub(1);
            if after.left == 0 {
                self.ready.push(ticket);
            }
        }
    }

    /// Records that `transfers` transfers of `ticket` were queued.
    #[inline]
    pub fn launched(&mut self, ticket: u64, peer: u32, transfers: usize) {
        if self.peer_of.is_empty() || ticket == NO_TICKET {
            return;
        }
        let mask = self.peer_of.len() as u64 - 1;
        self.peer_of[(ticket & mask) as usize] = peer;
        if let Some(waiting) = self.peers.get_mut(peer as usize) {
            waiting.flights += transfers as u64;
        }
    }

    /// Describes the deferred commands and their missing resources, for messages. `None` if there are none.
    pub fn state(&self) -> Option<String> {
        let &peer = self.waiting.first()?;
        let first = &self.peers[peer as usize];
        let what = match (&first.draining, first.lacks) {
            (Some(_), _) => "its puts to drain",
            (None, Some(Lacks::Slots)) => "it to report that it has finished earlier puts",
            (None, _) => "it to poll earlier signals (no credits are left)",
        };
        let mut text =
            format!("{} commands wait for a signal to peer {peer}, which waits for {what}", first.held.len());
        let others: usize = self.waiting[1..].iter().map(|peer| self.peers[*peer as usize].held.len()).sum();
        if others > 0 {
            text += &format!("; {others} more wait for signals to other peers");
        }
        Some(text)
    }
}
