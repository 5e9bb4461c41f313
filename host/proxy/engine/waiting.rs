//! What of an engine's signals waits, and for what.

use super::route::Route;
use crate::signal_order::{Accounts, Lacks, Rule, SignalWords};
use kernels::command::Command;
use std::collections::{HashMap, VecDeque};

/// Tickets have 63 bits: the token of what no command asked for.
pub(super) const NO_TICKET: u64 = u64::MAX;

/// What follows a put once its transfers are complete.
pub(super) struct After {
    pub left: usize,
    pub route: Route,
    pub peer: u32,
    pub immediates: [Option<u32>; 2],
}

/// A signal that waits for what is under way to its peer, under [`Rule::Drain`].
pub(super) struct Draining {
    pub ticket: u64,
    pub route: Route,
    pub immediate: u32,
}

/// What waits on the way to a peer. Commands to other peers pass it.
#[derive(Default)]
pub(super) struct Waiting {
    /// The signal that everything to this peer waits for.
    pub draining: Option<Draining>,
    /// Commands that wait for credits, for a slot or for the drain, in order.
    pub held: VecDeque<(u64, Route, Command)>,
    /// What the first of them lacked.
    pub lacks: Option<Lacks>,
    /// Transfers under way: under [`Rule::Drain`] alone.
    pub flights: u64,
    /// Whether anything waits: it stands in [`Signals::waiting`].
    pub is_listed: bool,
}

/// An engine's signals.
pub(super) struct Signals {
    pub rule: Rule,
    pub early: bool,
    pub words: SignalWords,
    pub accounts: Accounts,
    pub after: HashMap<u64, After>,
    /// By peer, and who of them waits.
    pub peers: Vec<Waiting>,
    pub waiting: Vec<u32>,
    /// Each ticket's peer: under [`Rule::Drain`] alone.
    peer_of: Vec<u32>,
    /// Tickets whose signals can go out.
    pub ready: Vec<u64>,
}

/// How an engine's signals are ordered and where they are counted. By default there are none: a signal needs an account with its target,
/// and with 0 ranks there is no account.
#[derive(Debug, Default)]
pub struct SignalRule {
    /// The rule.
    pub rule: Rule,
    /// This rank, as its peers number it, and how many there are.
    pub me: usize,
    /// See `me`.
    pub ranks: usize,
    /// A fault, for tests: the rule does not wait for what it should wait for.
    pub early: bool,
    /// Where signals of this rank are counted; the engine's own words unless the device reads them.
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

    /// Whether `Engine::follow_up` has anything to do.
    #[inline]
    pub fn has_more(&self) -> bool {
        !self.ready.is_empty() || !self.waiting.is_empty() || self.accounts.has_words()
    }

    /// Whether commands to this peer wait: then others to it wait behind them.
    #[inline]
    pub fn hold_back(&self, peer: u32) -> bool {
        !self.waiting.is_empty() && self.peers.get(peer as usize).is_some_and(|waiting| waiting.is_listed)
    }

    /// Holds a command back.
    pub fn hold(&mut self, ticket: u64, route: Route, command: &Command) {
        self.wait_for(command.peer, |waiting| waiting.held.push_back((ticket, route, *command)));
    }

    /// Sends this signal once nothing is under way to its peer.
    pub fn drain(&mut self, peer: u32, draining: Draining) {
        self.wait_for(peer, |waiting| waiting.draining = Some(draining));
    }

    /// A peer whose commands wait from now on. One that waits is a rank: nobody else has credits, slots or flights.
    fn wait_for(&mut self, peer: u32, wait: impl FnOnce(&mut Waiting)) {
        if let Some(waiting) = self.peers.get_mut(peer as usize) {
            if !waiting.is_listed {
                waiting.is_listed = true;
                self.waiting.push(peer);
            }
            wait(waiting);
        }
    }

    /// An immediate has come.
    #[inline]
    pub fn arrive(&mut self, bits: u32) {
        self.accounts.arrive(bits, &self.words);
    }

    /// A transfer of this ticket is complete.
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

    /// So many transfers of this ticket are on their way.
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

    /// Commands that wait, and for what, for messages.
    pub fn state(&self) -> Option<String> {
        let &peer = self.waiting.first()?;
        let first = &self.peers[peer as usize];
        let what = match (&first.draining, first.lacks) {
            (Some(_), _) => "its puts to drain",
            (None, Some(Lacks::Slots)) => "it to say that it is done with earlier puts",
            (None, _) => "it to poll earlier signals (no credits are left)",
        };
        let mut text =
            format!("{} commands wait behind a signal for peer {peer}, and that for {what}", first.held.len());
        let others: usize = self.waiting[1..].iter().map(|peer| self.peers[*peer as usize].held.len()).sum();
        if others > 0 {
            text += &format!("; {others} more behind signals for other peers");
        }
        Some(text)
    }
}
