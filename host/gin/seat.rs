//! Resources of a rank on its machine, opened in one place: device, share of its GPU, memory, rails, and cores.

use super::GinError;
use ginlab_base::{memory, size};
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Device, DeviceChoice};
use ginlab_fabric::libfabric::RailOptions;
use ginlab_fabric::same_host::Stores;
use ginlab_fabric::{Fabric, RailPlan};
use ginlab_proxy::{Cores, choose_cores, choose_rails};
use ginlab_sharing::Sharing;
use ginlab_topology::cores::{self, Pin};

/// Resources that a rank requests. All ranks must request the same kinds of resources, because they choose together.
#[derive(Clone, Debug)]
pub struct Wants<'a> {
    /// Device of the rank.
    pub device: DeviceChoice,
    /// Whether the rank launches kernels and therefore needs a share of its GPU.
    pub launches: bool,
    /// Memory of each rank. `None` to skip the check.
    pub memory: Option<MemoryWants<'a>>,
    /// Rails to choose; `None` if there are none, or if the caller chooses them later.
    pub rails: Option<RailWants<'a>>,
    /// Cores to choose; `None` if no thread is pinned, or if the caller chooses them later.
    pub cores: Option<CoreWants<'a>>,
    /// Notes that precede those of the opened resources.
    pub notes: Vec<String>,
}

/// Memory that each rank needs.
#[derive(Clone, Copy, Debug)]
pub struct MemoryWants<'a> {
    /// Size in bytes.
    pub bytes: u64,
    /// Use of the memory, for messages: "payloads".
    pub purpose: &'a str,
    /// Advice for the error if there is too little memory.
    pub advice: &'a str,
}

/// Rails that a rank requests.
#[derive(Clone, Debug)]
pub struct RailWants<'a> {
    /// Fabric of the rails.
    pub fabric: &'a Fabric,
    /// Number of rails.
    pub count: usize,
    /// Options for opening them.
    pub options: RailOptions,
}

/// Cores that a rank requests.
#[derive(Clone, Copy, Debug)]
pub struct CoreWants<'a> {
    /// Cores requested by the user.
    pub pin: &'a Pin,
    /// Number of threads to pin.
    pub threads: usize,
    /// Number of busy threads of all ranks on this machine.
    pub busy: usize,
}

impl Wants<'_> {
    /// Returns the requests of a rank that only launches kernels on `device`.
    pub fn new(device: DeviceChoice) -> Self {
        Wants { device, launches: true, memory: None, rails: None, cores: None, notes: Vec::new() }
    }
}

impl MemoryWants<'_> {
    /// Checks whether this machine has the memory for all of its ranks. Without the check, a lazy allocation would
    /// succeed, and the process would be killed later.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if the machine has too little memory.
    pub fn check(&self, ranks: &Bootstrap) -> Result<(), GinError> {
        self.refused(ranks.local_size(), memory::available()).map_or(Ok(()), |text| Err(GinError::Usage(text)))
    }

    fn refused(&self, ranks: usize, available: Option<u64>) -> Option<String> {
        let MemoryWants { bytes, purpose, advice } = self;
        let needed = bytes.saturating_mul(ranks as u64);
        let available = available.filter(|available| needed > *available)?;
        let whose =
            if ranks == 1 { "this rank requires".into() } else { format!("the {ranks} ranks on this machine require") };
        let (needed, available) = (size::human(needed), size::human(available));
        Some(format!("{whose} {needed} for {purpose}, but only {available} is available: {advice}"))
    }
}

/// Resources of a rank.
#[derive(Debug)]
pub struct Seat {
    /// The opened device.
    pub device: Device,
    /// Reason why [`DeviceChoice::Auto`] selected the emulated device.
    pub why_emulated: Option<String>,
    /// Ranks that share a GPU, and how their kernels run on it.
    pub sharing: Sharing,
    /// The chosen rails; `None` until they are chosen.
    pub rails: Option<RailPlan>,
    /// The chosen cores; empty until they are chosen.
    pub cores: Cores,
    /// Notes for headers.
    pub notes: Vec<String>,
}

impl Seat {
    /// Opens the device, and chooses rails and cores with the other ranks. This is a collective call.
    ///
    /// # Errors
    /// Returns an error if the device does not exist or the memory or rails are not available, and an error that names
    /// the ranks if they disagree or one has disconnected.
    pub fn open(ranks: &mut Bootstrap, wants: Wants<'_>) -> Result<Seat, GinError> {
        let (device, why_emulated) = Device::open(wants.device, ranks.local_rank())?;
        let sharing = Sharing::find(&device, wants.launches, ranks)?;
        let mut notes = wants.notes;
        if let Some(why) = why_emulated.as_ref().filter(|_| wants.launches) {
            notes.push(format!("emulated device, whose times are not representative of a GPU: {why}"));
        }
        notes.extend(sharing.notes().iter().cloned());
        wants.memory.map_or(Ok(()), |memory| memory.check(ranks))?;
        let mut seat = Seat { device, why_emulated, sharing, rails: None, cores: Cores::default(), notes };
        if let Some(rails) = wants.rails {
            seat.choose_rails(ranks, rails)?;
        }
        if let Some(cores) = wants.cores {
            seat.choose_cores(ranks, cores)?;
        }
        Ok(seat)
    }

    /// Chooses rails with the other ranks, and adds notes about them. This is a collective call.
    ///
    /// # Errors
    /// Returns an error if the rails are not available, or the ranks disagree or one has disconnected.
    pub fn choose_rails(&mut self, ranks: &mut Bootstrap, wants: RailWants<'_>) -> Result<&mut RailPlan, GinError> {
        let chosen = choose_rails(wants.fabric, wants.count, wants.options, ranks, &self.device)?;
        self.notes.extend(chosen.notes().iter().cloned());
        Ok(self.rails.insert(chosen))
    }

    /// Chooses cores for busy threads with the other ranks, near the GPU or the NICs. If there are too few, adds a note
    /// and pins no thread. This is a collective call.
    ///
    /// # Errors
    /// Returns an error if another rank has disconnected.
    pub fn choose_cores(&mut self, ranks: &mut Bootstrap, wants: CoreWants<'_>) -> Result<(), GinError> {
        let CoreWants { pin, threads, busy } = wants;
        let domains = self.rails.as_ref().map_or(&[][..], RailPlan::domains);
        self.cores = choose_cores(pin, threads, busy, ranks, &self.device, domains)?;
        if self.cores.shared {
            let cores = cores::usable();
            self.notes.push(format!(
                "{busy} busy threads share {cores} cores: idle threads yield, and times include the scheduler"
            ));
        }
        Ok(())
    }

    /// Starts up to `threads` threads that copy the bytes of rails without a NIC, and adds notes about them. The call
    /// has no effect on other rails.
    ///
    /// # Errors
    /// Returns [`GinError::Threads`] if a thread cannot be started.
    pub fn start_movers(&mut self, threads: usize) -> Result<(), GinError> {
        let Some(rails) = &mut self.rails else { return Ok(()) };
        let before = rails.notes().len();
        rails.start_movers(threads, Stores::Cached).map_err(|error| GinError::Threads(error.to_string()))?;
        self.notes.extend(rails.notes()[before..].iter().cloned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_refused_in_one_line() {
        let wants = MemoryWants { bytes: 3 << 20, purpose: "heaps", advice: "use a smaller heap" };
        assert_eq!(wants.refused(4, Some(12 << 20)), None);
        assert_eq!(wants.refused(4, None), None);
        let text =
            "the 4 ranks on this machine require 12 MiB for heaps, but only 11 MiB is available: use a smaller heap";
        assert_eq!(wants.refused(4, Some(11 << 20)).as_deref(), Some(text));
        let huge = MemoryWants { bytes: u64::MAX, ..wants };
        assert!(huge.refused(2, Some(u64::MAX - 1)).is_some_and(|text| text.starts_with("the 2 ranks")));
    }
}
