//! Puts with signals in the engine: the rule that orders them ([`signal_order`](crate::signal_order)), and values that stand in commands.

use super::waiting::{After, Draining, NO_TICKET, SignalRule, Signals};
use super::{Engine, EngineError, Queued, Route};
use crate::signal_order::{Immediate, Lacks, MOST_RANKS, Rule, head, part};
use ginlab_fabric::{Access, Memory, Rail};
use kernels::command::{Command, Opcode, signal_of};

/// As [`Queued::local_region`]: the values of commands.
pub(super) const VALUES: u16 = u16::MAX;

/// The buffer of the values that stand in commands, one word for each ticket in flight; it is registered, and the NIC reads it.
pub(super) struct Values<R: Rail> {
    pub on_rail: Vec<R::Region>,
    pub words: Box<[u64]>,
}

impl<R: Rail> Engine<R> {
    /// Orders and counts signals in this way from now on. Call it before the first command.
    ///
    /// # Errors
    /// [`EngineError::Refused`] for more ranks than immediates can tell apart.
    pub fn set_signals(&mut self, rule: SignalRule) -> Result<(), EngineError> {
        if rule.ranks > MOST_RANKS {
            return Err(EngineError::Refused(format!("signals between {} ranks: at most {MOST_RANKS}", rule.ranks)));
        }
        if rule.me >= rule.ranks.max(1) {
            return Err(EngineError::Refused(format!("signals of rank {} of {} ranks", rule.me, rule.ranks)));
        }
        self.signals = Signals::new(rule, self.window);
        Ok(())
    }

    /// Accepts puts of values from now on: registers the memory that they are sent from.
    ///
    /// # Errors
    /// The provider's.
    pub fn accept_values(&mut self) -> Result<(), EngineError> {
        let words: Box<[u64]> = vec![0; self.window.next_power_of_two()].into();
        let memory = Memory { address: words.as_ptr() as u64, bytes: size_of_val::<[u64]>(&words), cuda_device: None };
        let mut on_rail = Vec::with_capacity(self.lanes.len());
        for rail in self.rails_mut() {
            // SAFETY: the words stay in place behind their box, and are dropped with the regions, once nothing is posted.
            on_rail.push(unsafe { rail.register(memory, Access::SOURCE) }?);
        }
        self.values = Some(Values { on_rail, words });
        Ok(())
    }

    /// How often each signal has arrived here, times what it added.
    pub fn signals(&self) -> Vec<u64> {
        self.signals.words.values()
    }

    /// Whether a command's signal or value is one, and may be sent to its peer.
    pub(super) fn signal_fits(&self, command: &Command) -> bool {
        match command.opcode {
            Opcode::Signal | Opcode::PutSignal => {
                signal_of(command.immediate).is_some() && self.signals.accounts.has(command.peer as usize)
            }
            Opcode::PutValue => (1..=8).contains(&command.bytes) && self.values.is_some(),
            Opcode::Put | Opcode::Get => true,
        }
    }

    /// Lays a command over the rails' queues, or holds it back behind others that wait.
    #[inline]
    pub(super) fn place(&mut self, ticket: u64, route: Route, command: &Command) {
        if self.signals.hold_back(command.peer) || !self.spreads(ticket, route, command) {
            self.signals.hold(ticket, route, command);
        }
    }

    /// Goes on with commands that were held back, and with what follows complete ones. Out of the loop of puts that carry no signal.
    #[cold]
    pub(super) fn follow_up(&mut self) {
        while let Some(ticket) = self.signals.ready.pop() {
            if let Some(After { route, peer, immediates, .. }) = self.signals.after.remove(&ticket) {
                for immediate in immediates.into_iter().flatten() {
                    self.lay_signal(ticket, route, peer, immediate);
                }
            }
        }
        for (peer, immediate) in self.signals.accounts.take_words() {
            if let Some(remote) = self.peers.first_entry(peer, 0) {
                self.lay_signal(NO_TICKET, Route { local: 0, remote }, peer as u32, immediate);
            }
        }
        let mut index = 0;
        while let Some(&peer) = self.signals.waiting.get(index) {
            if self.go_on(peer) {
                index += 1;
            } else {
                self.signals.waiting.swap_remove(index);
                self.signals.peers[peer as usize].is_listed = false;
            }
        }
    }

    /// Goes on with what waits on the way to this peer, as far as it goes; whether something still waits.
    fn go_on(&mut self, peer: u32) -> bool {
        loop {
            let waiting = &mut self.signals.peers[peer as usize];
            if waiting.draining.is_some() && waiting.flights > 0 {
                return true;
            }
            if let Some(Draining { ticket, route, immediate }) = waiting.draining.take() {
                self.lay_signal(ticket, route, peer, immediate);
                continue;
            }
            let Some((ticket, route, command)) = waiting.held.pop_front() else { return false };
            if !self.spreads(ticket, route, &command) {
                self.signals.peers[peer as usize].held.push_front((ticket, route, command));
                return true;
            }
        }
    }

    /// As [`spread`](Engine::spread): false when it has to wait, which is noted.
    #[inline]
    fn spreads(&mut self, ticket: u64, route: Route, command: &Command) -> bool {
        let spread = self.spread(ticket, route, command);
        if let (Err(lacks), Some(waiting)) = (&spread, self.signals.peers.get_mut(command.peer as usize)) {
            waiting.lacks = Some(*lacks);
        }
        spread.is_ok()
    }

    /// Lays a command over the rails' queues, or says what it has to wait for. Credits are taken for all immediates of a command, also
    /// for those that follow its completion: these wait for nothing else then.
    #[inline]
    fn spread(&mut self, ticket: u64, route: Route, command: &Command) -> Result<(), Lacks> {
        match command.opcode {
            Opcode::Put | Opcode::Get => self.lay_all(ticket, route, command, |_| None),
            Opcode::PutValue => {
                let mut at = *command;
                at.source_offset = self.keep_value(ticket, command);
                self.lay_all(ticket, route, &at, |_| None);
            }
            Opcode::Signal => {
                self.signals.accounts.take(command.peer as usize, 1)?;
                self.lay_signal(ticket, route, command.peer, Immediate::Signal(command.immediate).encode());
            }
            Opcode::PutSignal => return self.spread_signalled(ticket, route, command),
        }
        Ok(())
    }

    /// As [`lay`](Engine::lay), and counts the transfers for the ticket, of which one was expected.
    #[inline]
    fn lay_all(&mut self, ticket: u64, route: Route, command: &Command, immediate: impl Fn(usize) -> Option<u32>) {
        let pieces = self.lay(ticket, route, command, immediate);
        if pieces > 1 {
            self.tracker.add(ticket, pieces as u32 - 1);
        }
    }

    /// A put with its signal, by the rule.
    fn spread_signalled(&mut self, ticket: u64, route: Route, command: &Command) -> Result<(), Lacks> {
        let peer = command.peer;
        let signal = Immediate::Signal(command.immediate).encode();
        let rule = self.signals.rule;
        // Nobody's turn yet: the put may have to wait.
        let pieces = self.scheduler.clone().schedule(command.bytes, self.longest, false, |_| ());
        let parts = pieces + usize::from(rule == Rule::Sequence);
        let accounts = &mut self.signals.accounts;
        let most_parts = accounts.most_parts();
        let slot = match rule {
            Rule::Count if (2..=most_parts).contains(&parts) => Some(accounts.take_slot(peer as usize, parts)?),
            // More transfers than the account has numbers for: two immediates behind them.
            Rule::Sequence => Some(accounts.take_slot(peer as usize, if parts <= most_parts { parts } else { 2 })?),
            Rule::Count | Rule::Own | Rule::Drain => {
                accounts.take(peer as usize, 1)?;
                None
            }
        };
        let number = command.immediate;
        if command.bytes == 0 && slot.is_none() {
            // Rails refuse empty transfers that say nothing: the signal alone, behind whatever its rule names.
            if rule == Rule::Drain && !self.signals.early {
                self.signals.drain(peer, Draining { ticket, route, immediate: signal });
            } else {
                self.lay_signal(ticket, route, peer, signal);
            }
            return Ok(());
        }
        match (rule, slot) {
            (Rule::Count, None) if pieces == 1 => self.lay_all(ticket, route, command, |_| Some(signal)),
            (Rule::Count, Some(slot)) => self.lay_all(ticket, route, command, |index| {
                Some(if index == 0 { head(slot, number) } else { part(slot, parts, number) })
            }),
            (Rule::Sequence, Some(slot)) if parts <= most_parts => {
                self.tracker.add(ticket, 1);
                self.lay_all(ticket, route, command, |_| Some(part(slot, parts, number)));
                self.lay_signal(ticket, route, peer, head(slot, number));
            }
            // Behind their completion two that carry nothing else.
            (Rule::Sequence, Some(slot)) => {
                let behind = [Some(part(slot, 2, number)), Some(head(slot, number))];
                self.lay_before(ticket, route, command, behind);
            }
            (Rule::Drain, _) => {
                self.tracker.add(ticket, 1);
                self.lay_all(ticket, route, command, |_| None);
                if self.signals.early {
                    self.lay_signal(ticket, route, peer, signal);
                } else {
                    self.signals.drain(peer, Draining { ticket, route, immediate: signal });
                }
            }
            (Rule::Own | Rule::Count | Rule::Sequence, _) => {
                self.lay_before(ticket, route, command, [Some(signal), None]);
            }
        }
        Ok(())
    }

    /// Lays a put, and notes what follows its completion.
    fn lay_before(&mut self, ticket: u64, route: Route, command: &Command, immediates: [Option<u32>; 2]) {
        let followers = immediates.iter().flatten().count();
        self.tracker.add(ticket, followers as u32);
        let pieces = self.lay(ticket, route, command, |_| None);
        self.tracker.add(ticket, pieces as u32 - 1);
        let after = After { left: pieces, route, peer: command.peer, immediates };
        self.signals.after.insert(ticket, after);
        if self.signals.early {
            self.signals.ready.push(ticket);
        }
    }

    /// Queues a command's transfers; returns how many.
    #[inline]
    fn lay(&mut self, ticket: u64, route: Route, command: &Command, immediate: impl Fn(usize) -> Option<u32>) -> usize {
        let read = command.opcode == Opcode::Get;
        let (local_offset, remote_offset) = if read {
            (command.destination_offset, command.source_offset)
        } else {
            (command.source_offset, command.destination_offset)
        };
        let local_region = if command.opcode == Opcode::PutValue { VALUES } else { route.local as u16 };
        let lanes = &mut self.lanes;
        let mut index = 0;
        let pieces = self.scheduler.schedule(command.bytes, self.longest, false, |piece| {
            lanes[piece.rail].push(Queued {
                ticket,
                local_offset: local_offset + piece.offset,
                remote_offset: remote_offset + piece.offset,
                bytes: piece.bytes,
                // `check` has found them in tables that are smaller than these types: the command's fields are.
                peer: command.peer as u16,
                local_region,
                remote: route.remote as u32,
                read,
                immediate: immediate(index),
            });
            index += 1;
        });
        self.queued += pieces;
        self.signals.launched(ticket, command.peer, pieces);
        pieces
    }

    /// Queues a transfer without bytes.
    #[inline]
    fn lay_signal(&mut self, ticket: u64, route: Route, peer: u32, immediate: u32) {
        let lanes = &mut self.lanes;
        self.queued += self.scheduler.schedule(0, self.longest, true, |piece| {
            lanes[piece.rail].push(Queued {
                ticket,
                local_offset: 0,
                remote_offset: 0,
                bytes: 0,
                peer: peer as u16,
                local_region: route.local as u16,
                remote: route.remote as u32,
                read: false,
                immediate: Some(immediate),
            });
        });
        self.signals.launched(ticket, peer, 1);
    }

    /// Stores a command's value where the rails read it; returns its offset. The ticket that had this word before is complete: no
    /// more tickets than words are in flight.
    fn keep_value(&mut self, ticket: u64, command: &Command) -> u64 {
        let Some(values) = &mut self.values else { return 0 };
        let at = ticket as usize & (values.words.len() - 1);
        values.words[at] = command.value();
        at as u64 * 8
    }
}
