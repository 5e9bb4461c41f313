//! Opening of a world: heap, mappings, rails, and the description for kernels.

use super::cards::{self, Cards, Opening};
use super::heap::{Space, for_rails};
use super::mapped::{Mapped, by_cards, map, reachable};
use super::seat::{CoreWants, MemoryWants, RailWants, Seat, Wants};
use super::{BARRIER_BYTES, GinError, PePath, PutSignalRule, World, WorldOptions, mapping_name, mapping_names};
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Device, Flush, MemoryLocation, OpenedMemory};
use ginlab_fabric::libfabric::RailOptions;
use ginlab_fabric::{Access, Fabric, RailPlan};
use ginlab_proxy::engine::SignalRule;
use ginlab_proxy::ring::RingPlace;
use ginlab_proxy::signal_order::{self, SignalWords, unpolled};
use ginlab_proxy::{GroupOptions, GroupRegion, ProxyGroup, RegionMemory, device_timeout};
use ginlab_sharing::SAME_GPU;
use ginlab_topology::cores;
use kernels::gin::{Arrivals, Control, FailureReport, PeView, RESERVED_BYTES, SENT_WORDS, SIGNALS, Team};
use kernels::outlet::Outlets;
use std::sync::OnceLock;

pub(super) fn open(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<World, GinError> {
    ranks.compare(fingerprint(options))?;
    check_nodes(ranks, options)?;
    let order = check_rule(options)?;
    let mut parts = Parts::open(ranks, options)?;
    let (mut group, mut cards) = (None, None);
    match options.path {
        _ if parts.seat.rails.is_none() => {}
        PePath::Direct => cards = Some(parts.start_cards(ranks, options)?),
        _ => group = Some(parts.start_proxies(ranks, options, order)?),
    }
    parts.note_same_gpu();
    let outlets = match (&group, &cards) {
        (Some(group), _) => Outlets::of_rings(group.table().pointer(), group.table().count()),
        (None, Some(cards)) => cards.outlets(),
        (None, None) => Outlets::NONE,
    };
    let arrivals = cards.as_ref().map_or(std::ptr::null(), Cards::arrivals);
    let tables = parts.tables(ranks, options)?;
    let description = parts.description(ranks, outlets, arrivals, &tables);
    let (fabric, line_rate) = (parts.fabric(cards.is_some()), parts.line_rate(options, cards.as_ref()));
    ranks.barrier("world opened")?;
    let Parts { seat, bytes, mapped, far, abort, busy, .. } = parts;
    Ok(World {
        group,
        cards,
        opened: mapped.opened,
        heap: mapped.heap,
        place: mapped.place,
        space: Space::new(bytes),
        signals: 0,
        inboxes: Vec::new(),
        far,
        _tables: tables.buffers,
        report: tables.report,
        abort,
        failed: OnceLock::new(),
        device: seat.device,
        sharing: seat.sharing,
        description,
        fabric,
        line_rate,
        notes: seat.notes,
        shares_core: busy > cores::usable(),
        fault: options.fault,
    })
}

/// Resources that proxies, queues of NICs and kernels use together.
struct Parts {
    seat: Seat,
    /// Size of the heap in bytes.
    bytes: u64,
    mapped: Mapped,
    /// Memory words of the signals that arrive over rails.
    far: Buffer,
    abort: Buffer,
    /// Number of busy threads of all ranks on this machine.
    busy: usize,
    timeout_ns: u64,
}

/// Tables to which the description points.
struct Tables {
    /// Peers, PEs of the teams, barriers, and sent rounds.
    buffers: [Buffer; 4],
    teams: [Team; kernels::gin::TEAMS],
    report: Buffer,
}

impl Parts {
    /// Opens the device and the heap, and chooses rails if any rank needs them.
    fn open(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<Parts, GinError> {
        let bytes = (RESERVED_BYTES + options.heap_bytes).next_multiple_of(4096);
        let memory = MemoryWants { bytes, purpose: "heaps", advice: "open the world with a smaller heap" };
        let mut seat = Seat::open(ranks, Wants { memory: Some(memory), ..Wants::new(options.device) })?;
        let kind = if matches!(seat.device, Device::Emulated) { "emulated" } else { "gpu" };
        ranks.compare(vec![("device".into(), kind.into())])?;
        let mapped = map_heaps(ranks, options, &mut seat, bytes)?;
        let far = if options.rule.is_by_kernel() { MemoryLocation::Device } else { MemoryLocation::Host };
        // Path `direct` has a thread that counts signals (unless kernels do) and, for software NICs, a thread that
        // emulates the NIC.
        let threads = match options.path {
            PePath::Direct => 2 - usize::from(options.rule.is_by_kernel()),
            _ => options.proxies.max(1),
        };
        Ok(Parts {
            far: seat.device.allocate(far, SIGNALS as usize * 8)?,
            abort: seat.device.allocate(MemoryLocation::Host, size_of::<Control>())?,
            seat,
            bytes,
            mapped,
            busy: ranks.local_size() * (threads + 1),
            timeout_ns: device_timeout(options.timeout).as_nanos() as u64,
        })
    }

    /// Opens the queues of path `direct`.
    fn start_cards(&mut self, ranks: &mut Bootstrap, options: &WorldOptions) -> Result<Cards, GinError> {
        self.seat.choose_cores(ranks, CoreWants { pin: &options.pin, threads: 1, busy: self.busy })?;
        let by_kernel = options.rule.is_by_kernel();
        self.seat.notes.push(if by_kernel { cards::NOTE_BY_KERNEL } else { cards::NOTE }.into());
        self.seat.notes.extend((options.rule == PutSignalRule::Counter).then(cards::note_of_counters));
        let domains = self.seat.rails.as_ref().map_or(&[][..], RailPlan::domains);
        let opening = Opening {
            device: &self.seat.device,
            card: domains.first().map_or("", |domain| &domain.name),
            heap: &self.mapped.heap,
            heap_bytes: self.bytes,
            queues: options.proxies,
            abort: &self.abort,
            timeout_ns: self.timeout_ns,
            cores: &self.seat.cores,
            by_kernel,
            counts: options.rule == PutSignalRule::Counter,
            signals: &self.far,
        };
        Cards::open(ranks, opening)
    }

    /// Starts the proxies over the chosen rails and connects them.
    fn start_proxies(
        &mut self,
        ranks: &mut Bootstrap,
        options: &WorldOptions,
        rule: signal_order::Rule,
    ) -> Result<ProxyGroup, GinError> {
        let wants = CoreWants { pin: &options.pin, threads: options.proxies.max(1), busy: self.busy };
        self.seat.choose_cores(ranks, wants)?;
        self.seat.start_movers(self.seat.cores.spare / ranks.local_size())?;
        let Parts { seat, mapped, far, .. } = self;
        let Some(chosen) = &seat.rails else { return Err(GinError::Usage("no rails were chosen".into())) };
        let (me, size) = (ranks.rank(), ranks.size());
        let signals = || SignalRule {
            rule,
            me,
            ranks: size,
            early: options.early_signals,
            // SAFETY: the world keeps the words for longer than its proxies.
            words: unsafe { SignalWords::at(far.pointer()) },
        };
        let heap = GroupRegion { bytes: RegionMemory::Here(for_rails(&mapped.heap)), access: Access::ALL };
        let how = GroupOptions {
            threads: options.proxies,
            own_rails: false,
            ring_place: RingPlace::Pinned,
            ring_slots: options.ring_slots,
            timeout: options.timeout,
            fault: options.fault,
            cores: &seat.cores,
            signals: Some(&signals),
            flush: &|| flush_of(&seat.device, &mapped.heap),
        };
        // SAFETY: the world keeps the heap and the words for longer than its proxies.
        let started = unsafe { ProxyGroup::start::<GinError>(&seat.device, chosen, &[heap], &how) }?;
        started.connect::<GinError>(ranks)?;
        started.configure(options.rails, options.strategy)?;
        Ok(started)
    }

    /// Allocates the tables for kernels.
    fn tables(&self, ranks: &Bootstrap, options: &WorldOptions) -> Result<Tables, GinError> {
        let device = &self.seat.device;
        let entry = |(rank, opened): (usize, &Option<OpenedMemory>)| PeView {
            heap: match opened {
                _ if rank == ranks.rank() => self.mapped.heap.address(),
                opened => opened.as_ref().map_or(0, OpenedMemory::address),
            },
        };
        let entries: Vec<PeView> = self.mapped.opened.iter().enumerate().map(entry).collect();
        let peers = device.allocate(MemoryLocation::Device, size_of_val(&entries[..]))?;
        peers.write(0, &entries)?;
        let (teams, members) = teams(ranks, options);
        let team_pes = device.allocate(MemoryLocation::Device, size_of_val(&members[..]))?;
        team_pes.write(0, &members)?;
        let barriers = device.allocate(MemoryLocation::Device, BARRIER_BYTES)?;
        // Kernels use these words only with rails; otherwise a single word suffices.
        let words = if self.seat.rails.is_some() { SENT_WORDS } else { 1 };
        let sent = device.allocate(MemoryLocation::Device, words * 8)?;
        let report = device.allocate(MemoryLocation::Device, size_of::<FailureReport>())?;
        Ok(Tables { buffers: [peers, team_pes, barriers, sent], teams, report })
    }

    /// Returns the description for kernels.
    fn description(
        &self,
        ranks: &Bootstrap,
        outlets: Outlets,
        arrivals: *const Arrivals,
        tables: &Tables,
    ) -> kernels::gin::WorldView {
        let [peers, team_pes, barriers, sent] = &tables.buffers;
        let by_rails = if self.seat.rails.is_some() { kernels::gin::WorldView::BY_RAILS } else { 0 };
        let by_mapping = if self.mapped.by_others { kernels::gin::WorldView::BY_MAPPING } else { 0 };
        kernels::gin::WorldView {
            me: ranks.rank() as u32,
            pes: ranks.size() as u32,
            paths: by_rails | by_mapping,
            outlet_count: outlets.count,
            heap: self.mapped.heap.address() as *mut u8,
            heap_bytes: self.bytes,
            peers: peers.pointer(),
            rings: outlets.rings,
            far: self.far.pointer(),
            arrivals,
            team_pes: team_pes.pointer(),
            teams: tables.teams,
            barriers: barriers.pointer(),
            sent: sent.pointer(),
            report: tables.report.pointer(),
            abort: self.abort.pointer(),
            timeout_ns: self.timeout_ns,
            channels: outlets.channels,
        }
    }

    /// Returns the PEs whose heaps are mapped here.
    fn mapped_pes(&self) -> impl Iterator<Item = usize> {
        (0..self.mapped.opened.len()).filter(|rank| self.mapped.opened[*rank].is_some())
    }

    fn note_same_gpu(&mut self) {
        if self.mapped_pes().any(|pe| mapping_name(&self.seat.device, &self.seat.sharing, pe) == SAME_GPU) {
            let note = format!("{SAME_GPU}: bytes between PEs of one GPU stay in its memory and cross no link");
            self.seat.notes.push(note);
        }
    }

    /// Returns the fabric name for result rows.
    fn fabric(&self, by_cards: bool) -> String {
        match &self.seat.rails {
            Some(rails) if by_cards => format!("{}/direct", rails.name()),
            Some(rails) => rails.name(),
            None => mapping_names(&self.seat.device, &self.seat.sharing, self.mapped_pes()),
        }
    }

    fn line_rate(&self, options: &WorldOptions, cards: Option<&Cards>) -> Option<u64> {
        match cards {
            Some(cards) => cards.line_rate(),
            None => self.seat.rails.as_ref().and_then(|chosen| chosen.line_rate(options.rails)),
        }
    }
}

/// Allocates the heap and maps those of other ranks. Chooses rails if any rank needs them.
fn map_heaps(ranks: &mut Bootstrap, options: &WorldOptions, seat: &mut Seat, bytes: u64) -> Result<Mapped, GinError> {
    let (me, size) = (ranks.rank(), ranks.size());
    let immediates = Some(unpolled(size));
    let rails = || RailWants {
        fabric: &options.fabric,
        count: options.rails,
        options: RailOptions { level: options.level, immediates, ..RailOptions::default() },
    };
    if options.path == PePath::Direct {
        if size > 1 {
            seat.choose_rails(ranks, rails())?;
        }
        let bytes = (bytes + cards::staging_bytes(options.proxies)) as usize;
        return by_cards(ranks, &seat.device, bytes, seat.rails.as_mut(), &mut seat.notes);
    }
    let mapped = map(ranks, &seat.device, bytes, options, &mut seat.notes)?;
    let missing = (0..size).any(|rank| rank != me && mapped.opened[rank].is_none());
    if !ranks.all_gather_values(&missing, "ranks that need rails")?.contains(&true) {
        return Ok(mapped);
    }
    seat.choose_rails(ranks, rails())?;
    reachable(ranks, bytes, mapped, seat)
}

/// Returns the flush that proxies must run before they report writes of NICs into the heap. `None` if no flush is
/// needed.
fn flush_of(device: &Device, heap: &Buffer) -> Option<Flush> {
    heap.cuda_device().and_then(|_| device.card_flush())
}

/// Returns the options that must be the same on every rank. Every field is named, so that a new field is not forgotten.
fn fingerprint(options: &WorldOptions) -> Vec<(String, String)> {
    let WorldOptions {
        // Ranks may request a device differently, so the opened devices are compared instead.
        device: _,
        heap_bytes,
        path,
        node_size,
        fabric,
        level,
        // A rank's cores and the slots of its rings do not affect other ranks.
        pin: _,
        rails,
        strategy,
        rule,
        proxies,
        ring_slots: _,
        timeout,
        fault,
        early_signals,
    } = options;
    let of = |name: &str, value: String| (name.to_owned(), value);
    vec![
        of("heap", heap_bytes.to_string()),
        of("path", path.to_string()),
        of("ranks of a node", format!("{node_size:?}")),
        of("rails' fabric", fabric.to_string()),
        of("completion level", format!("{level:?}").to_lowercase()),
        of("rails", rails.to_string()),
        of("strategy", strategy.to_string()),
        of("rule of signals", rule.to_string()),
        of("proxy threads", proxies.to_string()),
        of("timeout", format!("{timeout:?}")),
        of("injected fault", format!("{fault:?}")),
        of("early signals", early_signals.to_string()),
    ]
}

/// Returns the proxies' rule.
///
/// # Errors
/// Returns [`GinError::Usage`] if the path does not support the options.
fn check_rule(options: &WorldOptions) -> Result<signal_order::Rule, GinError> {
    let by_card = options.path == PePath::Direct;
    if by_card {
        check_direct(options)?;
    }
    match options.rule {
        PutSignalRule::Proxies(rule) => Ok(rule),
        PutSignalRule::Kernel | PutSignalRule::Counter if by_card => Ok(signal_order::Rule::Count),
        PutSignalRule::Kernel | PutSignalRule::Counter => {
            let text = format!("rule {}: kernels read the queues of an EFA device only on path direct", options.rule);
            Err(GinError::Usage(text))
        }
    }
}

/// Returns a one-line error if path `direct` does not support the options.
fn check_direct(options: &WorldOptions) -> Result<(), GinError> {
    let refused = |text: String| Err(GinError::Usage(format!("path direct: {text}")));
    if !matches!(options.fabric, Fabric::Verbs { .. }) {
        return refused(format!(
            "provider {}: kernels can drive only EFA devices of efa-verbs, or software NICs of efa-verbs/soft:p5",
            options.fabric
        ));
    }
    let is_carried = matches!(
        options.rule,
        PutSignalRule::Kernel | PutSignalRule::Counter | PutSignalRule::Proxies(signal_order::Rule::Count)
    );
    if !is_carried || options.rails != 1 {
        return refused(
            "a put is one request on one rail and carries its signal; use rule count, kernel or counter, and one rail"
                .into(),
        );
    }
    if options.fault.is_some() || options.early_signals {
        return refused("no proxy can fail, because there is none".into());
    }
    Ok(())
}

fn check_nodes(ranks: &Bootstrap, options: &WorldOptions) -> Result<(), GinError> {
    match options.node_size {
        Some(size) if size == 0 || !ranks.size().is_multiple_of(size) => Err(GinError::Usage(format!(
            "{} ranks do not form nodes of {size}: all nodes must have the same number of ranks",
            ranks.size()
        ))),
        _ => Ok(()),
    }
}

/// Returns the teams world, node and rail, and the concatenated lists of their PEs.
fn teams(ranks: &Bootstrap, options: &WorldOptions) -> ([Team; kernels::gin::TEAMS], Vec<u32>) {
    let (me, size) = (ranks.rank(), ranks.size());
    let host = |rank: usize| (&ranks.members()[rank].identity, options.node_of(rank));
    let on = |rank: usize| (0..size).filter(|other| host(*other) == host(rank)).collect::<Vec<_>>();
    let place = |rank: usize| on(rank).iter().position(|other| *other == rank);
    let node = on(me);
    let rail: Vec<usize> = (0..size).filter(|rank| place(*rank) == place(me)).collect();
    let mut members: Vec<u32> = Vec::new();
    let teams = [(0..size).collect(), node, rail].map(|team: Vec<usize>| {
        let first = members.len() as u32;
        members.extend(team.iter().map(|rank| *rank as u32));
        let position = team.iter().position(|rank| *rank == me).unwrap_or(0);
        Team { first, pes: team.len() as u32, me: position as u32 }
    });
    (teams, members)
}
