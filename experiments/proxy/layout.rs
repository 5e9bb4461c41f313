//! Memory layout of the slots of a parameter combination.

use super::args::{ProxyArgs, ProxyConfig, PutScope};
use ginlab::cuda::{Buffer, Device};
use ginlab::fabric::MemoryRange;
use ginlab::measure::size;

/// Region numbers, the same on every rank. With random shapes there is a pair of regions per alignment.
const SOURCE: u32 = 0;
const DESTINATION: u32 = 1;
const REGIONS: u32 = 2;
/// Bytes that a rank registers for a region that it does not use, to keep the region numbers.
pub const PLACEHOLDER: u64 = 4096;

/// Alignment of slots: the largest store of a kernel, and whole cache lines.
const SLOT_ALIGNMENT: u64 = 256;

/// Default number of slots per producer: as many as fit in 64 MiB, between 16 and 64. They limit the puts in flight of
/// a kernel that rewrites its slots, while CPU-initiated writes use the proxy's whole window. With fewer slots, the
/// comparison would disadvantage the kernel.
const MOST_WINDOW: u64 = 64;
const LEAST_WINDOW: u64 = 16;
const MOST_WINDOW_BYTES: u64 = 64 << 20;

/// Maximum number of payloads, and of their bytes, that a block of the emulated device writes between two barriers.
/// More payloads amortize the barrier, and fewer bytes are more likely to be cached when they are sent. On a GPU the
/// kernel writes one payload at a time.
const MOST_AHEAD: u64 = 16;
const MOST_BYTES_AHEAD: u64 = 1 << 20;

impl ProxyConfig {
    /// Returns the remainder by 16 of the addresses of sources or targets.
    pub fn aligned_at(&self, is_source: bool) -> usize {
        self.drawn.map_or(0, |drawn| if is_source { drawn.from_at } else { drawn.to_at }) as usize
    }

    /// Returns the number of the region of sources.
    pub fn source(&self) -> u32 {
        SOURCE + REGIONS * self.aligned_at(true) as u32
    }

    /// Returns the number of the region of targets.
    pub fn destination(&self) -> u32 {
        DESTINATION + REGIONS * self.aligned_at(false) as u32
    }
}

/// Memory layout of a parameter combination, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyLayout {
    /// Number of producers in the grid.
    pub producers: u64,
    /// Slots per producer.
    pub window: u64,
    /// Distance in bytes between consecutive slots.
    pub stride: u64,
    /// Payloads that a block writes between two barriers if it does not wait for each put.
    pub ahead: u64,
    /// Timed puts per producer and repeat.
    pub iterations: u64,
    /// Untimed puts per producer before the first repeat.
    pub warmup: u64,
}

impl ProxyLayout {
    /// Returns the layout of a parameter combination. The error is the reason if it does not fit.
    pub fn new(args: &ProxyArgs, tuple: &ProxyConfig, device: &Device) -> Result<ProxyLayout, String> {
        let producers = match args.scope {
            PutScope::Block => u64::from(tuple.grid),
            PutScope::Thread => u64::from(tuple.grid) * u64::from(tuple.block),
        };
        let stride = tuple.bytes.next_multiple_of(SLOT_ALIGNMENT);
        let one_slot_each = producers.checked_mul(stride).filter(|bytes| *bytes <= args.memory_limit());
        let Some(one_slot_each) = one_slot_each else {
            return Err(format!(
                "{producers} producers with {} each exceed --memory-limit {}",
                size::human(tuple.bytes),
                size::human(args.memory_limit())
            ));
        };
        let usual = (MOST_WINDOW_BYTES / stride).clamp(LEAST_WINDOW, MOST_WINDOW);
        let most = (args.volume / (producers * tuple.bytes)).max(1);
        // No repeat has more puts than `most`, and the verification pass has two per slot.
        let asked = tuple.drawn.map(|drawn| drawn.window).or(args.window);
        let window = asked.map_or(usual, u64::from).min(args.memory_limit() / one_slot_each).min(most);
        let ahead = match device {
            Device::Emulated => args.fill_ahead.map_or((MOST_BYTES_AHEAD / tuple.bytes).min(MOST_AHEAD), u64::from),
            Device::Gpu(_) => 1,
        };
        let iterations = u64::from(args.iterations).min(most);
        Ok(ProxyLayout {
            producers,
            window,
            stride,
            ahead: ahead.min(window / 2).max(1),
            iterations,
            warmup: u64::from(args.warmup) * iterations / u64::from(args.iterations),
        })
    }

    /// Returns the bytes of the source, which are those of the destination.
    pub fn bytes(&self) -> u64 {
        self.producers * self.window * self.stride
    }

    /// Returns the last iteration that wrote this slot in a pass of `iterations`. `None` if none did.
    pub fn last_writer(&self, slot: u64, iterations: u64) -> Option<u64> {
        let in_window = slot % self.window;
        (in_window < iterations).then(|| in_window + (iterations - 1 - in_window) / self.window * self.window)
    }
}

/// Returns a buffer as a rail registers it.
pub fn memory_of(buffer: &Buffer, device: &Device, in_device: bool) -> MemoryRange {
    MemoryRange {
        address: buffer.address(),
        bytes: buffer.bytes(),
        cuda_device: if in_device { device.cuda_ordinal() } else { None },
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::parsed;
    use super::*;
    use ginlab::rails::strategy::Strategy;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn layout_respects_limits_and_separates_slots(
            bytes in 1u64..1 << 26, grid in 1u32..200, block in 1u32..64, thread in proptest::bool::ANY, window in 1u32..64,
        ) {
            let scope = if thread { "thread" } else { "block" };
            let args = parsed(&format!("--scope {scope} --window {window} --memory-limit 256M --volume 64M")).expect("good");
            let tuple = ProxyConfig { bytes, rails: 1, strategy: Strategy::Single, grid, block, drawn: None };
            match ProxyLayout::new(&args, &tuple, &Device::Emulated) {
                Err(why) => prop_assert!(why.contains("--memory-limit")),
                Ok(layout) => {
                    prop_assert!(layout.bytes() <= 256 << 20);
                    prop_assert!(layout.stride >= bytes && layout.stride % 16 == 0);
                    prop_assert!(layout.window >= 1 && layout.iterations >= 1);
                    prop_assert!(layout.ahead >= 1 && (layout.ahead == 1 || layout.ahead * 2 <= layout.window));
                    let moved = layout.iterations * layout.producers * bytes;
                    prop_assert!(layout.iterations == 1 || moved <= 64 << 20);
                }
            }
        }

        #[test]
        fn last_writer_of_slot_is_known(window in 1u64..20, iterations in 0u64..100, slot in 0u64..20) {
            let layout = ProxyLayout { producers: 1, window, stride: 16, ahead: 1, iterations: 1, warmup: 0 };
            let expected = (0..iterations).filter(|iteration| iteration % window == slot % window).max();
            prop_assert_eq!(layout.last_writer(slot, iterations), expected);
        }
    }
}
