//! Tests of channels over software NICs that round the depth of send queues up, as libefa does. They are a separate
//! test binary, because software NICs can be loaded only once per process.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use cuda_std::{Kernel, args};
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Device, DeviceError, MemoryLocation};
use ginlab_fabric::verbs::cards;
use ginlab_fabric::{MemoryRange, soft};
use ginlab_gin::direct::{ChannelError, ChannelOptions, Channels, staging_bytes};
use kernels::direct::{self, ChannelHandle};
use kernels::put_kernel::{Put, PutChannel};
use std::sync::OnceLock;
use std::time::Duration;

/// Minimum number of slots of every send queue.
const SLOTS: u32 = 64;
const HEAP: u64 = 4096;
/// Offset in the heap of the puts' destinations.
const TARGET: u64 = HEAP / 2;
/// Number of puts in flight. It exceeds the number of entries of a completion queue of the requested depth.
const PUTS: u32 = 60;

fn names() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        soft::load("efa-verbs/soft:fast,cards=2,reorder=5,min-depth=64").unwrap();
        cards().unwrap().into_iter().map(|card| card.name).collect()
    })
}

/// Opens channels of depth 4 on these NICs. The heap is followed by `staging` bytes.
fn open(
    cards: &[&str],
    counted: u32,
    (heap, staging): (&Buffer, u64),
    abort: &Buffer,
) -> Result<Channels, ChannelError> {
    let device = Device::Emulated;
    let memory = MemoryRange { address: heap.address(), bytes: (HEAP + staging) as usize, cuda_device: None };
    let options = ChannelOptions {
        device: &device,
        cards,
        memory,
        heap_bytes: HEAP,
        depth: 4,
        arrivals: 64,
        counted_signals: counted,
        abort,
        timeout_ns: Duration::from_secs(5).as_nanos() as u64,
    };
    // SAFETY: the heap outlives the channels in every test.
    unsafe { Channels::open(&mut Bootstrap::alone().unwrap(), &options) }
}

fn memory() -> (Buffer, Buffer) {
    let device = Device::Emulated;
    let bytes = HEAP as usize + staging_bytes(2, SLOTS) as usize;
    (device.allocate(MemoryLocation::Host, bytes).unwrap(), device.allocate(MemoryLocation::Host, 8).unwrap())
}

#[args]
struct PutArgs {
    channel: *const direct::Channel,
    stop: *mut u64,
}

/// Posts all puts to this PE before it waits for the last one.
unsafe fn put_many(args: PutArgs) {
    // SAFETY: the test keeps both while the grid runs.
    let (channel, stop) = unsafe { (ChannelHandle::new(args.channel), &mut *args.stop) };
    let mut channel = PutChannel::new(channel);
    let put = |number: u32| Put {
        source_region: 0,
        source_offset: u64::from(number) * 8,
        destination_region: 0,
        destination_offset: TARGET + u64::from(number) * 8,
        bytes: 8,
        peer: 0,
    };
    for number in 0..PUTS {
        if let Err(status) = channel.put_nbi(&put(number)) {
            *stop = status.0;
            return;
        }
    }
    if let Err(status) = channel.quiet() {
        *stop = status.0;
    }
}

#[test]
fn shallow_queue_has_completions_for_rounded_up_slots() {
    let (heap, abort) = memory();
    let channels = open(&[&names()[0]], 0, (&heap, staging_bytes(1, SLOTS)), &abort).unwrap();
    let values: Vec<u64> = (1..=u64::from(PUTS)).collect();
    heap.write(0, &values).unwrap();
    let device = Device::Emulated;
    let stop = device.allocate(MemoryLocation::Host, 8).unwrap();
    let args = PutArgs { channel: channels.table(), stop: stop.pointer() };
    // SAFETY: the arguments outlive the launch.
    let launch = unsafe { device.launch(&Kernel::new("put_many", put_many), 1, 1, args) }.unwrap();
    launch.wait::<DeviceError>(|| Ok(())).unwrap();
    assert_eq!(channels.failures().unwrap(), Vec::<String>::new());
    let mut said = [0u64];
    stop.read(0, &mut said).unwrap();
    assert_eq!(said, [0]);
    let mut words = vec![0u64; PUTS as usize];
    heap.read(TARGET as usize, &mut words).unwrap();
    assert_eq!(words, values);
}

#[test]
fn staging_shorter_than_rounded_up_queue_is_refused() {
    let (heap, abort) = memory();
    let refused = open(&[&names()[0]], 0, (&heap, staging_bytes(1, 4)), &abort).unwrap_err().to_string();
    assert!(refused.ends_with("(depth 4 was requested); request depth 64") && !refused.contains('\n'), "{refused}");
    open(&[&names()[0]], 0, (&heap, 0), &abort).map(drop).unwrap();
}

#[test]
fn counted_signals_of_several_cards_are_refused() {
    let (heap, abort) = memory();
    let (first, second) = (names()[0].as_str(), names()[1].as_str());
    let staging = staging_bytes(2, SLOTS);
    let refused = open(&[first, second], 2, (&heap, staging), &abort).unwrap_err().to_string();
    assert!(refused.contains(&format!("there are several ({first}, {second}); name one device")), "{refused}");
    assert!(!refused.contains('\n'), "{refused}");
    let none = open(&[], 0, (&heap, staging), &abort).unwrap_err().to_string();
    assert_eq!(none, "no EFA device is named; name at least one");
    open(&[first, first], 2, (&heap, staging), &abort).map(drop).unwrap();
    open(&[first, second], 0, (&heap, staging), &abort).map(drop).unwrap();
}
