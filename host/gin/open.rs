//! How a world is opened: heap, mappings, rails, and the description that kernels get.

use super::cards::{self, Cards, Opening};
use super::heap::{Space, for_rails};
use super::mapped::{by_cards, map, reachable};
use super::{BARRIER_BYTES, GinError, Options, Path, Rule, World, mapping_name, mapping_names};
use ginlab_base::memory;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Device, Flush, OpenedMemory, Place};
use ginlab_fabric::libfabric::RailOptions;
use ginlab_fabric::same_host::Stores;
use ginlab_fabric::{Access, Chosen, Fabric};
use ginlab_proxy::engine::SignalRule;
use ginlab_proxy::ring::{RingPlace, RingTable};
use ginlab_proxy::signal_order::{self, SignalWords, unpolled};
use ginlab_proxy::{Bytes, GroupOptions, GroupRegion, ProxyGroup, choose_cores, choose_rails, device_timeout};
use ginlab_sharing::{SAME_GPU, Sharing};
use ginlab_topology::cores;
use kernels::gin::{Peer, RESERVED_BYTES, Report, SENT_WORDS, SIGNALS, Team};

pub(super) fn open(ranks: &mut Bootstrap, options: &Options) -> Result<World, GinError> {
    let mut notes = Vec::new();
    ranks.compare(fingerprint(options))?;
    let (device, why_emulated) = Device::open(options.device, ranks.local_rank())?;
    if let Some(why) = why_emulated {
        notes.push(format!("emulated device, whose times say nothing about a GPU: {why}"));
    }
    let sharing = Sharing::find(&device, true, ranks)?;
    notes.extend(sharing.notes().iter().cloned());
    let bytes = (RESERVED_BYTES + options.heap_bytes).next_multiple_of(4096);
    check_memory(ranks, bytes)?;

    check_nodes(ranks, options)?;
    let by_card = options.path == Path::Direct;
    let by_kernel = matches!(options.rule, Rule::Kernel | Rule::Counter);
    let rule = match options.rule {
        Rule::Proxies(rule) => rule,
        Rule::Kernel | Rule::Counter if by_card => signal_order::Rule::Count,
        Rule::Kernel | Rule::Counter => {
            let text = format!("rule {}: kernels read a card's queues by path direct alone", options.rule);
            return Err(GinError::Usage(text));
        }
    };
    let (me, size) = (ranks.rank(), ranks.size());
    let (mapped, mut chosen) = if by_card {
        check_direct(options)?;
        let mut chosen = if size > 1 { Some(choose(ranks, &device, options)?) } else { None };
        let bytes = (bytes + cards::staging_bytes(options.proxies)) as usize;
        (by_cards(ranks, &device, bytes, chosen.as_mut(), &mut notes)?, chosen)
    } else {
        let mut mapped = map(ranks, &device, bytes, options, &mut notes)?;
        let missing = (0..size).any(|rank| rank != me && mapped.opened[rank].is_none());
        let mut chosen = None;
        if ranks.all_gather_values(&missing, "ranks that need rails")?.contains(&true) {
            let mut rails = choose(ranks, &device, options)?;
            mapped = reachable(ranks, &device, bytes, mapped, &mut rails, &mut notes)?;
            chosen = Some(rails);
        }
        (mapped, chosen)
    };

    let far = device.allocate(if by_kernel { Place::Device } else { Place::Host }, SIGNALS as usize * 8)?;
    let abort = device.allocate(Place::Host, 8)?;
    let timeout_ns = device_timeout(options.timeout).as_nanos() as u64;
    // By path direct there are a thread that counts signals and, over cards in software, one that is the card.
    let threads = if by_card { 2 - usize::from(by_kernel) } else { options.proxies.max(1) };
    let busy = ranks.local_size() * (threads + 1);
    let mut shares_core = busy > cores::allowed().len();
    let (mut group, mut queues) = (None, None);
    if let Some(chosen) = chosen.as_ref().filter(|_| by_card) {
        let pins = choose_cores(&options.pin, 1, busy, ranks, &device, chosen.domains())?;
        shares_core = pins.shared;
        notes.extend(chosen.notes().iter().cloned());
        notes.push(if by_kernel { cards::NOTE_BY_KERNEL } else { cards::NOTE }.into());
        notes.extend((options.rule == Rule::Counter).then(cards::note_of_counters));
        let opening = Opening {
            device: &device,
            card: chosen.domains().first().map_or("", |domain| &domain.name),
            heap: &mapped.heap,
            heap_bytes: bytes,
            queues: options.proxies,
            abort: &abort,
            timeout_ns,
            cores: &pins,
            by_kernel,
            counts: options.rule == Rule::Counter,
            signals: &far,
        };
        queues = Some(Cards::open(ranks, opening)?);
    } else if let Some(chosen) = &mut chosen {
        let pins = choose_cores(&options.pin, options.proxies.max(1), busy, ranks, &device, chosen.domains())?;
        shares_core = pins.shared;
        let started = chosen.start_movers(pins.spare / ranks.local_size(), Stores::Cached);
        started.map_err(|error| GinError::Usage(format!("starting threads that copy: {error}")))?;
        notes.extend(chosen.notes().iter().cloned());
        let signals = || SignalRule {
            rule,
            me,
            ranks: size,
            early: options.early_signals,
            // SAFETY: the world keeps the words longer than its proxies.
            words: unsafe { SignalWords::at(far.pointer()) },
        };
        let heap = GroupRegion { bytes: Bytes::Here(for_rails(&mapped.heap)), access: Access::ALL };
        let how = GroupOptions {
            threads: options.proxies,
            ring_place: RingPlace::Pinned,
            ring_slots: options.ring_slots,
            timeout: options.timeout,
            fault: options.fault,
            cores: &pins,
            signals: Some(&signals),
            flush: &|| flush_of(&device, &mapped.heap),
        };
        // SAFETY: the world keeps heap and words longer than its proxies.
        let started = unsafe { ProxyGroup::start::<GinError>(&device, chosen, &[heap], &how) }?;
        started.connect::<GinError>(ranks)?;
        started.configure(options.rails, options.strategy)?;
        group = Some(started);
    }

    let own = mapped.heap.address();
    let entry = |rank: usize| Peer {
        heap: if rank == me { own } else { mapped.opened[rank].as_ref().map_or(0, OpenedMemory::address) },
    };
    let entries: Vec<Peer> = (0..size).map(entry).collect();
    let peers = device.allocate(Place::Device, size_of_val(&entries[..]))?;
    peers.write(0, &entries)?;
    let (teams, members) = teams(ranks, options);
    let team_pes = device.allocate(Place::Device, size_of_val(&members[..]))?;
    team_pes.write(0, &members)?;
    let barriers = device.allocate(Place::Device, BARRIER_BYTES)?;
    // Without rails nobody looks at it.
    let has_rails = group.is_some() || queues.is_some();
    let sent = device.allocate(Place::Device, if has_rails { SENT_WORDS * 8 } else { 8 })?;
    let report = device.allocate(Place::Device, size_of::<Report>())?;

    let table = group.as_ref().map(ProxyGroup::table);
    let by_rails = if chosen.is_some() { kernels::gin::World::BY_RAILS } else { 0 };
    let by_mapping = if mapped.by_others { kernels::gin::World::BY_MAPPING } else { 0 };
    let description = kernels::gin::World {
        me: me as u32,
        pes: size as u32,
        paths: by_rails | by_mapping,
        ring_count: table.map(RingTable::count).or(queues.as_ref().map(Cards::count)).unwrap_or(0),
        heap: own as *mut u8,
        heap_bytes: bytes,
        peers: peers.pointer(),
        rings: table.map(RingTable::pointer).or(queues.as_ref().map(Cards::rings)).unwrap_or(std::ptr::null()),
        far: far.pointer(),
        arrivals: queues.as_ref().map_or(std::ptr::null(), Cards::arrivals),
        team_pes: team_pes.pointer(),
        teams,
        barriers: barriers.pointer(),
        sent: sent.pointer(),
        report: report.pointer(),
        abort: abort.pointer(),
        timeout_ns,
    };
    let mapped_pes = (0..size).filter(|rank| mapped.opened[*rank].is_some());
    let mapping = mapping_names(&device, &sharing, mapped_pes.clone());
    if mapped_pes.into_iter().any(|pe| mapping_name(&device, &sharing, pe) == SAME_GPU) {
        notes.push(format!("{SAME_GPU}: bytes between PEs of one GPU stay in its memory; no link is crossed"));
    }
    let fabric = chosen.as_ref().map_or(mapping, |chosen| match &queues {
        Some(_) => format!("{}/direct", chosen.name()),
        None => chosen.name(),
    });
    let line_rate = match &queues {
        Some(cards) => cards.line_rate(),
        None => chosen.as_ref().and_then(|chosen| chosen.line_rate(options.rails)),
    };
    ranks.barrier("world opened")?;
    Ok(World {
        group,
        cards: queues,
        opened: mapped.opened,
        heap: mapped.heap,
        place: mapped.place,
        space: Space::new(bytes),
        signals: 0,
        far,
        _tables: [peers, team_pes, barriers, sent],
        report,
        abort,
        device,
        sharing,
        description,
        fabric,
        line_rate,
        notes,
        shares_core,
    })
}

/// What the proxies run before they tell of what cards have written into the heap.
fn flush_of(device: &Device, heap: &Buffer) -> Option<Flush> {
    heap.cuda_device().and_then(|_| device.card_flush())
}

/// What must be the same on every rank.
fn fingerprint(options: &Options) -> Vec<(String, String)> {
    let of = |name: &str, value: String| (name.to_owned(), value);
    vec![
        of("heap", options.heap_bytes.to_string()),
        of("path", options.path.to_string()),
        of("ranks of a node", format!("{:?}", options.node_size)),
        of("rails' fabric", options.fabric.to_string()),
        of("rails", options.rails.to_string()),
        of("strategy", options.strategy.to_string()),
        of("rule of signals", options.rule.to_string()),
        of("proxy threads", options.proxies.to_string()),
    ]
}

/// What path direct cannot do, in one line.
fn check_direct(options: &Options) -> Result<(), GinError> {
    let refused = |text: String| Err(GinError::Usage(format!("path direct: {text}")));
    if !matches!(options.fabric, Fabric::Verbs { .. }) {
        return refused(format!(
            "provider {}: kernels drive cards of efa-verbs, or efa-verbs/soft:p5 in software",
            options.fabric
        ));
    }
    let is_carried = matches!(options.rule, Rule::Kernel | Rule::Counter | Rule::Proxies(signal_order::Rule::Count));
    if !is_carried || options.rails != 1 {
        return refused(
            "a put is one request of one rail, and its signal arrives with it: rule count, kernel or counter, and one rail"
                .into(),
        );
    }
    if options.fault.is_some() || options.early_signals {
        return refused("there is no proxy that could fail".into());
    }
    Ok(())
}

fn check_nodes(ranks: &Bootstrap, options: &Options) -> Result<(), GinError> {
    match options.node_size {
        Some(size) if size == 0 || !ranks.size().is_multiple_of(size) => Err(GinError::Usage(format!(
            "{} ranks are no nodes of {size} each: all nodes have as many ranks",
            ranks.size()
        ))),
        _ => Ok(()),
    }
}

fn check_memory(ranks: &Bootstrap, bytes: u64) -> Result<(), GinError> {
    let here = bytes.saturating_mul(ranks.local_size() as u64);
    match memory::available() {
        Some(available) if here > available => Err(GinError::Usage(format!(
            "the {} ranks on this machine need {here} B for their heaps, and {available} B are available: open the world with a \
             smaller heap",
            ranks.local_size()
        ))),
        _ => Ok(()),
    }
}

fn choose(ranks: &mut Bootstrap, device: &Device, options: &Options) -> Result<Chosen, GinError> {
    let how = RailOptions { level: options.level, immediates: Some(unpolled(ranks.size())), ..RailOptions::default() };
    Ok(choose_rails(&options.fabric, options.rails, how, ranks, device)?)
}

/// World, node and rail, with the PEs of each behind one another.
fn teams(ranks: &Bootstrap, options: &Options) -> ([Team; kernels::gin::TEAMS], Vec<u32>) {
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
