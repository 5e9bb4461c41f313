//! PEs that share a GPU, and the execution of their kernels: concurrent (as threads of one process, or under MPS) or
//! time-sliced.

pub mod mps;

use ginlab_bootstrap::{Bootstrap, BootstrapError, Member};
use ginlab_cuda::Device;
use mps::Service;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// Name in result rows for the path between PEs on one GPU.
pub const SAME_GPU: &str = "same-gpu";

/// Execution of the kernels of PEs that share a GPU. If this differs between GPUs, the last applicable variant is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum SharingMode {
    /// Each PE has its own GPU.
    None,
    /// Concurrent: the PEs are threads of one process and share one context.
    OneProcess,
    /// Concurrently, through an MPS server.
    Mps,
    /// Time-sliced by the driver, with slices of about 2 ms.
    TimeSlices,
}

/// Information about its GPU that a rank sends to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GpuPlacement {
    uuid: String,
    /// PCI address, for messages.
    address: String,
    /// Identifier of the rank's process.
    process: u64,
    /// Whether an MPS server runs the rank's kernels.
    by_mps: bool,
}

/// Returns an identifier of this process that is unique in the job. Process IDs are not unique, because containers
/// reuse them.
fn this_process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// PEs that share GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    way: Option<SharingMode>,
    here: Vec<usize>,
    /// Maximum number of PEs on a GPU.
    most: usize,
    gpus: Vec<String>,
    notes: Vec<String>,
}

impl Sharing {
    /// Exchanges the ranks' GPUs. Sets the maximum number of PEs per GPU as the number of sharers of the device
    /// ([`Device::share_among`]). The maximum is used on every GPU because all PEs launch the same grid. Otherwise, a
    /// PE with its own GPU would allow a grid that is too large for the others. This is a collective call. A rank that
    /// launches no kernels needs no share and is not counted.
    ///
    /// # Errors
    /// Returns an error that names the missing ranks.
    pub fn find(device: &Device, launches: bool, ranks: &mut Bootstrap) -> Result<Sharing, BootstrapError> {
        let seat = device.uuid().filter(|_| launches).map(|uuid| GpuPlacement {
            uuid,
            address: device.pci_address().unwrap_or_default(),
            process: this_process(),
            by_mps: device.is_served_by_mps().unwrap_or_else(mps::is_there),
        });
        let seats: Vec<Option<GpuPlacement>> = ranks.all_gather_values(&seat, "PEs that share a GPU")?;
        let machines: Vec<&str> = ranks.members().iter().map(Member::machine).collect();
        let sharing = Sharing::of(&seats, &machines, ranks.rank(), &mps::service());
        device.share_among(sharing.most as u32);
        Ok(sharing)
    }

    fn of(seats: &[Option<GpuPlacement>], machines: &[&str], me: usize, service: &Service) -> Sharing {
        let mut of_gpu: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (rank, (seat, machine)) in seats.iter().zip(machines).enumerate() {
            if let Some(seat) = seat {
                of_gpu.entry((machine, &seat.uuid)).or_default().push(rank);
            }
        }
        let here = of_gpu.values().find(|ranks| ranks.contains(&me)).cloned().unwrap_or_else(|| vec![me]);
        let most = of_gpu.values().map(Vec::len).max().unwrap_or(1);
        let mut sharing = Sharing { way: None, here, most, gpus: Vec::new(), notes: Vec::new() };
        if of_gpu.is_empty() {
            return sharing;
        }
        let mut way = SharingMode::None;
        // Ordered by their first ranks.
        let mut shared: Vec<&Vec<usize>> = of_gpu.values().filter(|ranks| ranks.len() > 1).collect();
        shared.sort();
        for ranks in shared {
            let seats: Vec<&GpuPlacement> = ranks.iter().filter_map(|rank| seats[*rank].as_ref()).collect();
            let Some(first) = seats.first() else { continue };
            let how = if seats.iter().all(|seat| seat.process == first.process) {
                SharingMode::OneProcess
            } else if seats.iter().all(|seat| seat.by_mps) {
                SharingMode::Mps
            } else {
                SharingMode::TimeSlices
            };
            way = way.max(how);
            let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
            let who = format!("PEs {} share GPU {}", list.join(", "), first.address);
            sharing.gpus.push(format!("{how}: {who}"));
            sharing.notes.push(match how {
                SharingMode::OneProcess => format!("{who} as threads of one process, whose kernels run concurrently"),
                SharingMode::Mps => format!("{who} by MPS{}", served_by(service)),
                SharingMode::None | SharingMode::TimeSlices => format!(
                    "{who} without MPS: kernels that wait for each other are time-sliced in slices of about 2 ms, \
                     which dominate their times ({})",
                    why_not(service)
                ),
            });
        }
        sharing.way = Some(way);
        sharing
    }

    /// Returns the name for result rows; `None` on the emulated device.
    pub fn name(&self) -> Option<&'static str> {
        self.way.map(Into::into)
    }

    /// Returns the value for headers: each GPU that several PEs share, or `none` if each PE has its own. `None` on the
    /// emulated device.
    pub fn header(&self) -> Option<String> {
        let way = self.way?;
        Some(if self.gpus.is_empty() { way.to_string() } else { self.gpus.join("; ") })
    }

    /// Returns whether several PEs share any GPU, not necessarily this PE's GPU.
    pub fn is_shared(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// Returns the PEs on this PE's GPU, including this one.
    pub fn here(&self) -> &[usize] {
        &self.here
    }

    /// Returns notes for headers.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

fn served_by(service: &Service) -> String {
    match service {
        Service::Started(_) => ", which ginlab started for this run".into(),
        Service::Existing(folder) => format!(", by the existing server in {}", folder.display()),
        Service::Unknown | Service::Off | Service::Missing(_) => String::new(),
    }
}

fn why_not(service: &Service) -> String {
    match service {
        Service::Off => "MPS is switched off".into(),
        Service::Missing(why) => why.clone(),
        Service::Existing(folder) => format!("the driver does not use the server in {}", folder.display()),
        Service::Started(_) => "the driver does not use the server that was started".into(),
        Service::Unknown => {
            "ginlab starts a server for ranks that it starts itself; otherwise start one before the ranks: \
             nvidia-cuda-mps-control -d"
                .into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Returns a seat in a new process.
    fn seat(uuid: &str, by_mps: bool) -> Option<GpuPlacement> {
        static PROCESSES: AtomicU64 = AtomicU64::new(100);
        seat_in(PROCESSES.fetch_add(1, Ordering::Relaxed), uuid, by_mps)
    }

    fn seat_in(process: u64, uuid: &str, by_mps: bool) -> Option<GpuPlacement> {
        Some(GpuPlacement { uuid: uuid.into(), address: format!("0000:{uuid}:00.0"), process, by_mps })
    }

    #[test]
    fn pes_sharing_gpu_are_reported() {
        let of = |seats: &[Option<GpuPlacement>], me, service| Sharing::of(seats, &["m"; 8], me, &service);
        let emulated = of(&[None, None], 1, Service::Unknown);
        assert_eq!((emulated.name(), emulated.header(), emulated.here()), (None, None, &[1][..]));
        let apart = of(&[seat("18", false), seat("2a", false)], 1, Service::Unknown);
        assert_eq!((apart.name(), apart.header().as_deref(), apart.here()), (Some("none"), Some("none"), &[1][..]));
        assert!(apart.notes().is_empty() && !apart.is_shared());

        let two = [seat("18", true), seat("2a", true), seat("18", true), seat("2a", true)];
        let by_mps = of(&two, 3, Service::Started("/t".into()));
        assert_eq!((by_mps.name(), by_mps.here()), (Some("mps"), &[1, 3][..]));
        let header = "mps: PEs 0, 2 share GPU 0000:18:00.0; mps: PEs 1, 3 share GPU 0000:2a:00.0";
        assert_eq!(by_mps.header().as_deref(), Some(header));
        assert_eq!(by_mps.notes()[0], "PEs 0, 2 share GPU 0000:18:00.0 by MPS, which ginlab started for this run");

        // A PE with its own GPU uses no more of it than the PEs that share one.
        let uneven = [seat("18", true), seat("2a", true), seat("18", true)];
        assert_eq!([0, 1, 2].map(|me| of(&uneven, me, Service::Unknown).most), [2; 3]);
        assert_eq!((by_mps.most, apart.most, emulated.most), (2, 1, 1));

        // A single PE without MPS suffices, on any GPU.
        let one = [seat("18", false), seat("2a", true), seat("18", true), seat("2a", true)];
        let in_turns = of(&one, 0, Service::Missing("no program".into()));
        assert_eq!(in_turns.name(), Some("time-slices"));
        let note = &in_turns.notes()[0];
        assert!(note.starts_with(
            "PEs 0, 2 share GPU 0000:18:00.0 without MPS: kernels that wait for each other are time-sliced in slices \
             of about 2 ms"
        ));
        assert!(note.ends_with("(no program)") && in_turns.notes()[1].ends_with("by MPS"), "{:?}", in_turns.notes());
    }

    #[test]
    fn threads_of_one_process_run_concurrently() {
        let of = |seats: &[Option<GpuPlacement>]| Sharing::of(seats, &["m"; 8], 0, &Service::Unknown);
        let threads = of(&[seat_in(7, "18", false), seat_in(7, "18", false)]);
        assert_eq!((threads.name(), threads.here()), (Some("one-process"), &[0, 1][..]));
        assert_eq!(threads.header().as_deref(), Some("one-process: PEs 0, 1 share GPU 0000:18:00.0"));
        assert!(threads.notes()[0].ends_with("as threads of one process, whose kernels run concurrently"));
        // A third PE in another process is time-sliced with them, even if this affects only one of two GPUs.
        let turns = of(&[seat_in(7, "18", false), seat_in(7, "18", false), seat_in(8, "18", false)]);
        assert_eq!(turns.name(), Some("time-slices"));
        let both =
            of(&[seat_in(7, "18", true), seat_in(7, "18", true), seat_in(7, "2a", true), seat_in(8, "2a", true)]);
        assert_eq!(both.name(), Some("mps"));
        assert_eq!(this_process(), this_process());
    }

    #[test]
    fn gpus_of_different_machines_are_distinct() {
        // The GPUs of two cloned machines may have equal identifiers.
        let seats = [seat("18", false), seat("18", false)];
        let sharing = Sharing::of(&seats, &["m", "n"], 0, &Service::Unknown);
        assert_eq!((sharing.name(), sharing.here()), (Some("none"), &[0][..]));
    }
}
