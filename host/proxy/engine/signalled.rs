//! Puts with signals in the engine, ordered by a rule ([`signal_order`](crate::signal_order)), and values inline in
//! commands.

use super::waiting::{After, Draining, NO_TICKET, SignalRule, Signals};
use super::{Engine, EngineError, Queued, Route};
use crate::signal_order::{Immediate, Lacks, MOST_RANKS, Rule, head, part};
use ginlab_fabric::{Access, MemoryRange, Rail};
use kernels::command::{Command, Opcode, signal_of};

/// Value of [`Queued::local_region`] for values inline in commands.
pub(super) const VALUES: u16 = u16::MAX;

/// Registered buffer for values inline in commands, one word per ticket in flight. The NIC reads the values from here.
pub(super) struct Values<R: Rail> {
    pub on_rail: Vec<R::Region>,
    pub words: Box<[u64]>,
}

impl<R: Rail> Engine<R> {
    /// Sets the rule by which signals are ordered and counted. Must be called before the first command.
    ///
    /// # Errors
    /// Returns [`EngineError::Refused`] if there are more ranks than immediates can distinguish, or if `me` is not one
    /// of them.
    pub fn set_signals(&mut self, rule: SignalRule) -> Result<(), EngineError> {
        if rule.ranks > MOST_RANKS {
            return Err(EngineError::Refused(format!(
                "signals between {} ranks: at most {MOST_RANKS} are supported",
                rule.ranks
            )));
        }
        if rule.me >= rule.ranks.max(1) {
            return Err(EngineError::Refused(format!("signals of rank {} of {} ranks", rule.me, rule.ranks)));
        }
        self.signals = Signals::new(rule, self.window);
        Ok(())
    }

    /// Enables puts of inline values: registers the buffer from which they are sent.
    ///
    /// # Errors
    /// Returns the provider's error if the registration fails on a rail.
    pub fn accept_values(&mut self) -> Result<(), EngineError> {
        let words: Box<[u64]> = vec![0; self.window.next_power_of_two()].into();
        let memory =
            MemoryRange { address: words.as_ptr() as u64, bytes: size_of_val::<[u64]>(&words), cuda_device: None };
        let mut on_rail = Vec::with_capacity(self.queues.len());
        for rail in self.rails_mut() {
            // SAFETY: the words do not move, because they are boxed. They are dropped together with the regions, once
            // nothing is posted.
            on_rail.push(unsafe { rail.register(memory, Access::SOURCE) }?);
        }
        self.values = Some(Values { on_rail, words });
        Ok(())
    }

    /// Returns the value of each signal of this rank: the sum of all arrivals.
    pub fn signals(&self) -> Vec<u64> {
        self.signals.words.values()
    }

    /// Returns whether the command's signal or value is valid and can be sent to its peer.
    pub(super) fn signal_fits(&self, command: &Command) -> bool {
        match command.opcode {
            Opcode::Signal | Opcode::PutSignal => {
                signal_of(command.immediate).is_some() && self.signals.accounts.has(command.peer as usize)
            }
            Opcode::PutValue => (1..=8).contains(&command.bytes) && self.values.is_some(),
            Opcode::Put | Opcode::Get => true,
        }
    }

    /// Queues a command on the rails, or defers it if it lacks a resource or commands to the same peer are already
    /// waiting.
    pub(super) fn place(&mut self, ticket: u64, route: Route, command: &Command) {
        if self.signals.defer(command.peer) {
            self.signals.hold(ticket, route, command, None);
        } else if let Err(lacks) = self.spread(ticket, route, command) {
            self.signals.hold(ticket, route, command, Some(lacks));
        }
    }

    /// Dispatches deferred commands, and the immediates that follow completed puts. Not inlined, because puts without
    /// signals do not need it.
    #[cold]
    pub(super) fn run_deferred(&mut self) {
        while let Some(ticket) = self.signals.ready.pop() {
            if let Some(After { route, peer, immediates, .. }) = self.signals.after.remove(&ticket) {
                for immediate in immediates.into_iter().flatten() {
                    self.enqueue_signal(ticket, route, peer, immediate);
                }
            }
        }
        for (peer, immediate) in self.signals.accounts.take_words() {
            if let Some(remote) = self.peers.first_entry(peer, 0) {
                self.enqueue_signal(NO_TICKET, Route { local: 0, remote }, peer as u32, immediate);
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

    /// Dispatches deferred commands to `peer` until one must wait. Returns whether any remain deferred.
    fn go_on(&mut self, peer: u32) -> bool {
        loop {
            let waiting = &mut self.signals.peers[peer as usize];
            if waiting.draining.is_some() && waiting.flights > 0 {
                return true;
            }
            if let Some(Draining { ticket, route, immediate }) = waiting.draining.take() {
                self.enqueue_signal(ticket, route, peer, immediate);
                continue;
            }
            let Some((ticket, route, command)) = waiting.held.pop_front() else { return false };
            if let Err(lacks) = self.spread(ticket, route, &command) {
                let waiting = &mut self.signals.peers[peer as usize];
                waiting.held.push_front((ticket, route, command));
                waiting.lacks = Some(lacks);
                return true;
            }
        }
    }

    /// Queues a command on the rails, or returns the resource for which it must wait. Takes credits for all immediates
    /// of the command, including those sent after its completion, so that these need not wait again.
    fn spread(&mut self, ticket: u64, route: Route, command: &Command) -> Result<(), Lacks> {
        match command.opcode {
            Opcode::Put | Opcode::Get => {
                self.enqueue(ticket, route, command, |_| None);
            }
            Opcode::PutValue => {
                let mut at = *command;
                at.source_offset = self.keep_value(ticket, command);
                self.enqueue(ticket, route, &at, |_| None);
            }
            Opcode::Signal => {
                self.signals.accounts.take(command.peer as usize, 1)?;
                self.enqueue_signal(ticket, route, command.peer, Immediate::Signal(command.immediate).encode());
            }
            Opcode::PutSignal => return self.spread_signalled(ticket, route, command),
        }
        Ok(())
    }

    /// Queues a put and its signal as the rule requires.
    fn spread_signalled(&mut self, ticket: u64, route: Route, command: &Command) -> Result<(), Lacks> {
        let peer = command.peer;
        let signal = Immediate::Signal(command.immediate).encode();
        let rule = self.signals.rule;
        // Schedules on a clone: a put that has to wait must not advance the round robin.
        let pieces = self.scheduler.clone().schedule(command.bytes, self.longest, false, |_| ());
        let parts = pieces + usize::from(rule == Rule::Sequence);
        let accounts = &mut self.signals.accounts;
        let most_parts = accounts.most_parts();
        let slot = match rule {
            Rule::Count if (2..=most_parts).contains(&parts) => Some(accounts.take_slot(peer as usize, parts)?),
            // If the put has more transfers than the account can number, only two immediates that follow them are
            // counted.
            Rule::Sequence => Some(accounts.take_slot(peer as usize, if parts <= most_parts { parts } else { 2 })?),
            Rule::Count | Rule::Own | Rule::Drain => {
                accounts.take(peer as usize, 1)?;
                None
            }
        };
        let number = command.immediate;
        if command.bytes == 0 && slot.is_none() {
            // Rails reject empty transfers without an immediate. Only the signal is sent, after the transfers for which
            // its rule waits.
            if rule == Rule::Drain && !self.signals.early {
                self.signals.drain(peer, Draining { ticket, route, immediate: signal });
            } else {
                self.enqueue_signal(ticket, route, peer, signal);
            }
            return Ok(());
        }
        match (rule, slot) {
            (Rule::Count, None) if pieces == 1 => {
                self.enqueue(ticket, route, command, |_| Some(signal));
            }
            (Rule::Count, Some(slot)) => {
                self.enqueue(ticket, route, command, |index| {
                    Some(if index == 0 { head(slot, number) } else { part(slot, parts, number) })
                });
            }
            (Rule::Sequence, Some(slot)) if parts <= most_parts => {
                self.tracker.add(ticket, 1);
                self.enqueue(ticket, route, command, |_| Some(part(slot, parts, number)));
                self.enqueue_signal(ticket, route, peer, head(slot, number));
            }
            // The two transfers after the completion of the put carry only immediates.
            (Rule::Sequence, Some(slot)) => {
                let behind = [Some(part(slot, 2, number)), Some(head(slot, number))];
                self.enqueue_then_signal(ticket, route, command, behind);
            }
            (Rule::Drain, _) => {
                self.tracker.add(ticket, 1);
                self.enqueue(ticket, route, command, |_| None);
                if self.signals.early {
                    self.enqueue_signal(ticket, route, peer, signal);
                } else {
                    self.signals.drain(peer, Draining { ticket, route, immediate: signal });
                }
            }
            (Rule::Own | Rule::Count | Rule::Sequence, _) => {
                self.enqueue_then_signal(ticket, route, command, [Some(signal), None]);
            }
        }
        Ok(())
    }

    /// Queues a put, and records the immediates to send after its completion.
    fn enqueue_then_signal(&mut self, ticket: u64, route: Route, command: &Command, immediates: [Option<u32>; 2]) {
        let followers = immediates.iter().flatten().count();
        self.tracker.add(ticket, followers as u32);
        let pieces = self.enqueue(ticket, route, command, |_| None);
        let after = After { left: pieces, route, peer: command.peer, immediates };
        self.signals.after.insert(ticket, after);
        if self.signals.early {
            self.signals.ready.push(ticket);
        }
    }

    /// Queues the transfers of a command and adds them to the ticket, which already counts one transfer. Returns their
    /// number.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        ticket: u64,
        route: Route,
        command: &Command,
        immediate: impl Fn(usize) -> Option<u32>,
    ) -> usize {
        let read = command.opcode == Opcode::Get;
        let (local_offset, remote_offset) = if read {
            (command.destination_offset, command.source_offset)
        } else {
            (command.source_offset, command.destination_offset)
        };
        let local_region = if command.opcode == Opcode::PutValue { VALUES } else { route.local as u16 };
        let queues = &mut self.queues;
        let mut index = 0;
        let pieces = self.scheduler.schedule(command.bytes, self.longest, false, |piece| {
            queues[piece.rail].push(Queued {
                ticket,
                local_offset: local_offset + piece.offset,
                remote_offset: remote_offset + piece.offset,
                bytes: piece.bytes,
                // The casts are lossless: `check` found the indices in tables whose size is limited by the command's
                // fields.
                peer: command.peer as u16,
                local_region,
                remote: route.remote as u32,
                read,
                immediate: immediate(index),
            });
            index += 1;
        });
        if pieces > 1 {
            self.tracker.add(ticket, pieces as u32 - 1);
        }
        self.queued += pieces;
        self.signals.launched(ticket, command.peer, pieces);
        pieces
    }

    /// Queues a transfer without bytes that carries `immediate`.
    #[inline]
    fn enqueue_signal(&mut self, ticket: u64, route: Route, peer: u32, immediate: u32) {
        let queues = &mut self.queues;
        self.queued += self.scheduler.schedule(0, self.longest, true, |piece| {
            queues[piece.rail].push(Queued {
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

    /// Stores a command's value in the registered buffer. Returns its offset. The previous ticket that used this word
    /// is complete, because the number of tickets in flight does not exceed the number of words.
    fn keep_value(&mut self, ticket: u64, command: &Command) -> u64 {
        let Some(values) = &mut self.values else { return 0 };
        let at = ticket as usize & (values.words.len() - 1);
        values.words[at] = command.value();
        at as u64 * 8
    }
}
