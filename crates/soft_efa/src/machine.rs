//! The machine that this process sees: its EFA devices, and its substitute for sysfs.

use crate::abi::{self, ibv_device};
use crate::address::Gid;
use crate::late::Late;
use card_model::{MachineSpec, NicFault, NicTimings};
use std::ffi::{CString, OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Environment variable that describes the devices.
const VARIABLE: &str = "SOFT_EFA";
/// Environment variable in which rdma-core and libfabric find the path of sysfs.
const SYSFS: &str = "SYSFS_PATH";

/// Process-wide state.
pub struct SoftMachine {
    /// Description of the machine.
    pub spec: MachineSpec,
    /// Whether reads and writes currently copy their bytes.
    pub moves: AtomicBool,
    /// Number of requests posted on all devices.
    pub posted: AtomicU64,
    registered: AtomicU64,
    /// Whether each device is dead, by an injected fault: it drops the requests posted to all its queues.
    pub dead: Vec<AtomicBool>,
    /// Delay of each timed device that this machine caused.
    pub late: Vec<Late>,
    /// Identifies this machine among those of the peers.
    host: u64,
    devices: Vec<&'static SoftDevice>,
    folder: Mutex<Option<Folder>>,
}

/// An EFA device. The part visible to C comes first.
#[repr(C)]
pub struct SoftDevice {
    /// The part visible to C.
    pub verbs: ibv_device,
    /// Index on this machine.
    pub card: usize,
    /// Address of the device.
    pub gid: Gid,
}

// SAFETY: written before it is shared, and never afterwards.
unsafe impl Sync for SoftDevice {}

/// The substitute for sysfs, which exists while device lists do.
struct Folder {
    path: PathBuf,
    before: Option<OsString>,
    lists: usize,
}

/// Returns the FNV-1a hash of `text`.
fn number_of(text: &[u8]) -> u64 {
    text.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// Returns an ID of this machine, or of this node of a lab: each network namespace counts as a separate machine.
fn host() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
    number_of(&boot) ^ network.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn text<const N: usize>(value: &[u8]) -> [c_char; N] {
    std::array::from_fn(|index| if index + 1 < N { value.get(index).map_or(0, |byte| *byte as c_char) } else { 0 })
}

/// Returns the directory of this process: in the system's temporary directory, or in /dev/shm if that is not writable,
/// as with a read-only root.
fn scratch() -> PathBuf {
    static BASE: OnceLock<PathBuf> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let writable = |path: &PathBuf| {
            let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
            // SAFETY: `path` ends in a zero byte and lives until the call returns.
            unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) == 0 }
        };
        [std::env::temp_dir(), "/dev/shm".into()].into_iter().find(writable).unwrap_or_else(std::env::temp_dir)
    });
    base.join(format!("soft-efa-sysfs-{}", std::process::id()))
}

impl SoftMachine {
    /// Returns the machine of this process.
    ///
    /// # Errors
    /// Returns a message of one line if the description is invalid.
    pub fn get() -> Result<&'static SoftMachine, &'static str> {
        static MACHINE: OnceLock<Result<SoftMachine, String>> = OnceLock::new();
        let machine = MACHINE.get_or_init(|| {
            let made = SoftMachine::new(&std::env::var(VARIABLE).unwrap_or_default());
            if let Err(error) = &made {
                eprintln!("soft_efa: {VARIABLE}: {error}");
            }
            made
        });
        machine.as_ref().map_err(String::as_str)
    }

    /// Creates a machine from its description.
    pub fn new(description: &str) -> Result<SoftMachine, String> {
        let spec = MachineSpec::parse(description)?;
        crate::share::sweep();
        let path = scratch();
        // The number is hashed, because a small number would not affect all bytes of an address.
        let host = spec.host.map_or_else(host, |number| number_of(&number.to_ne_bytes()));
        let devices = (0..spec.cards).map(|card| &*Box::leak(Box::new(SoftDevice::new(host, card, &path)))).collect();
        let moves = AtomicBool::new(spec.moves);
        // SAFETY: the call sets an attribute of this process. The attribute allows peers to access this process's
        // registered memory, which Yama otherwise restricts.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        let late = (0..spec.cards).map(|_| Late::default()).collect();
        let dead = (0..spec.cards).map(|_| AtomicBool::new(false)).collect();
        let [posted, registered] = [0, 0].map(AtomicU64::new);
        Ok(SoftMachine { spec, moves, posted, registered, dead, late, host, devices, folder: Mutex::new(None) })
    }

    /// Returns the devices.
    pub fn devices(&self) -> &[&'static SoftDevice] {
        &self.devices
    }

    /// Returns the timing figures of a device, or `None` if devices are not timed.
    pub fn figures(&self, card: usize) -> Option<NicTimings> {
        let slow = if card == 0 { self.spec.slow } else { 1.0 };
        self.spec.figures.map(|figures| NicTimings {
            line_rate_gbps: figures.line_rate_gbps / slow,
            rate_per_rail_mops: figures.rate_per_rail_mops / slow,
            one_way_us: figures.one_way_us * slow,
            ..figures
        })
    }

    /// Returns whether a fault of the description makes all queues appear full from this request on.
    pub fn is_full(&self) -> bool {
        let first = self.posted.load(Ordering::Relaxed) + 1;
        self.spec.faults.iter().any(|fault| matches!(fault, NicFault::Full(at) if first >= *at))
    }

    /// Counts a registration. Returns whether a fault of the description refuses it.
    pub fn refuses_memory(&self) -> bool {
        let number = self.registered.fetch_add(1, Ordering::Relaxed) + 1;
        self.spec.faults.iter().any(|fault| matches!(fault, NicFault::Refuse(at) if number >= *at))
    }

    /// Returns whether a fault of the description puts the queue pair in error at the next request, which then counts
    /// as posted.
    pub fn breaks(&self) -> bool {
        if !self.spec.faults.iter().any(|fault| matches!(fault, NicFault::Break(_))) {
            return false;
        }
        let next = self.posted.load(Ordering::Relaxed) + 1;
        let breaks = self.spec.faults.contains(&NicFault::Break(next));
        self.posted.fetch_add(u64::from(breaks), Ordering::Relaxed);
        breaks
    }

    /// Creates the substitute for sysfs, if none exists, and sets [`SYSFS`] to it.
    pub fn show(&self) -> io::Result<()> {
        let mut folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = folder.as_mut() {
            folder.lists += 1;
            return Ok(());
        }
        let path = scratch();
        // Removes the directory of a killed process with the same ID.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        let before = std::env::var_os(SYSFS);
        self.lay_out(&path).inspect_err(|_| drop(std::fs::remove_dir_all(&path)))?;
        set(SYSFS, Some(path.as_os_str()));
        *folder = Some(Folder { path, before, lists: 1 });
        Ok(())
    }

    /// Removes the substitute for sysfs with the last device list.
    pub fn hide(&self) {
        let mut folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        let last = folder.take_if(|folder| {
            folder.lists -= 1;
            folder.lists == 0
        });
        if let Some(folder) = last {
            set(SYSFS, folder.before.as_deref());
            let _ = std::fs::remove_dir_all(&folder.path);
        }
    }

    /// Returns the substitute for sysfs while it exists.
    pub fn sysfs(&self) -> Option<PathBuf> {
        let folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        folder.as_ref().map(|folder| folder.path.clone())
    }

    fn lay_out(&self, path: &Path) -> io::Result<()> {
        let driver = path.join("bus/pci/drivers/efa");
        let (verbs, class) = (path.join("class/infiniband_verbs"), path.join("class/infiniband"));
        for folder in [&driver, &verbs, &class] {
            std::fs::create_dir_all(folder)?;
        }
        // ABI version of the driver on a p5.
        std::fs::write(verbs.join("abi_version"), "6\n")?;
        for card in 0..self.spec.cards {
            let address = self.spec.address(card);
            let device = path.join("devices").join(format!("pci{}", &address[..7])).join(&address);
            let named = device.join("infiniband").join(name_of(card));
            std::fs::create_dir_all(&named)?;
            symlink(&device, named.join("device"))?;
            // Devices with one address share its directory.
            if !device.join("driver").exists() {
                symlink(&driver, device.join("driver"))?;
            }
            symlink(&named, class.join(name_of(card)))?;
        }
        Ok(())
    }

    /// Returns a number that differs by machine, process, time and `more`.
    pub fn random(&self, more: u64) -> u64 {
        let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
        number_of(&[self.host, u64::from(std::process::id()), time, more].map(u64::to_ne_bytes).concat())
    }
}

/// Returns the name of a device as the system derives it: from its bus, in decimal.
fn name_of(card: usize) -> String {
    format!("rdmap{}s0", MachineSpec::bus(card))
}

impl SoftDevice {
    fn new(host: u64, card: usize, sysfs: &Path) -> SoftDevice {
        let name = name_of(card);
        let path = sysfs.join("class/infiniband").join(&name);
        let [a, b, c, d, e, ..] = host.to_ne_bytes();
        // A link-local address, in the form that a device derives from its MAC; the last byte is the index of the
        // device.
        let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a & 0xfc | 2, b, c, 0xff, 0xfe, d, e, card as u8];
        let null = std::ptr::null_mut();
        SoftDevice {
            verbs: ibv_device {
                _ops: abi::_ibv_device_ops { _dummy1: null, _dummy2: null },
                node_type: abi::IBV_NODE_UNSPECIFIED,
                transport_type: abi::IBV_TRANSPORT_UNSPECIFIED,
                name: text(name.as_bytes()),
                dev_name: text(format!("uverbs{card}").as_bytes()),
                dev_path: text(b""),
                ibdev_path: text(path.as_os_str().as_bytes()),
            },
            card,
            gid,
        }
    }
}

/// Sets or removes an environment variable of the process.
fn set(name: &str, value: Option<&std::ffi::OsStr>) {
    match value {
        // SAFETY: devices are listed when libfabric is first called. A program that changes its environment in another
        // thread at that moment would also conflict with libfabric's own reads of it.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: the requirements are the same as for `set_var` above.
        None => unsafe { std::env::remove_var(name) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_identified_by_boot_and_network() {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        assert_eq!(host(), host());
        // The namespace number is not 0: the same boot in another namespace is another machine.
        assert_ne!(host(), number_of(&boot));
        assert!(host() > u64::from(u16::MAX), "no number that somebody would give");
    }
}
