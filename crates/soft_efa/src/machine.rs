//! The machine that this process sees: which cards it has, and where sysfs would show them.

use crate::abi::{self, ibv_device};
use crate::address::Gid;
use crate::late::Late;
use card_model::{Fault, Figures, Spec};
use std::ffi::{OsString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The variable that describes the cards.
const VARIABLE: &str = "SOFT_EFA";
/// The variable by which rdma-core and libfabric find sysfs.
const SYSFS: &str = "SYSFS_PATH";

/// Everything that stays the same while the process lives.
pub struct Machine {
    /// The description.
    pub spec: Spec,
    /// Whether reads and writes move their bytes now.
    pub moves: AtomicBool,
    /// Requests that were posted, and registrations that were asked for, on all its cards.
    pub posted: AtomicU64,
    registered: AtomicU64,
    /// How long its cards have waited for this machine.
    pub late: Vec<Late>,
    /// Which machine this is, among those that peers are on.
    host: u64,
    devices: Vec<&'static Device>,
    folder: Mutex<Option<Folder>>,
}

/// A card. What C sees comes first.
#[repr(C)]
pub struct Device {
    /// As C sees it.
    pub verbs: ibv_device,
    /// Its number on this machine.
    pub card: usize,
    /// Its address.
    pub gid: Gid,
}

// SAFETY: written before it is shared, and never after.
unsafe impl Sync for Device {}

/// What stands in for sysfs while devices are listed.
struct Folder {
    path: PathBuf,
    before: Option<OsString>,
    lists: usize,
}

/// A number of a text: FNV-1a.
fn number_of(text: &[u8]) -> u64 {
    text.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// This machine, or this node of a lab: each network namespace is a machine of its own.
fn host() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
    number_of(&boot) ^ network.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn text<const N: usize>(value: &[u8]) -> [c_char; N] {
    std::array::from_fn(|index| if index + 1 < N { value.get(index).map_or(0, |byte| *byte as c_char) } else { 0 })
}

impl Machine {
    /// This process's; the error is one line.
    pub fn get() -> Result<&'static Machine, &'static str> {
        static MACHINE: OnceLock<Result<Machine, String>> = OnceLock::new();
        let machine = MACHINE.get_or_init(|| {
            let made = Machine::new(&std::env::var(VARIABLE).unwrap_or_default());
            if let Err(error) = &made {
                eprintln!("soft_efa: {VARIABLE}: {error}");
            }
            made
        });
        machine.as_ref().map_err(String::as_str)
    }

    /// One of its own, as it is described.
    pub fn new(description: &str) -> Result<Machine, String> {
        let spec = Spec::parse(description)?;
        crate::share::sweep();
        let path = std::env::temp_dir().join(format!("soft-efa-{}", std::process::id()));
        // A small number does not reach all of an address.
        let host = spec.host.map_or_else(host, |number| number_of(&number.to_ne_bytes()));
        let devices = (0..spec.cards).map(|card| &*Box::leak(Box::new(Device::new(host, card, &path)))).collect();
        let moves = AtomicBool::new(spec.moves);
        // Peers reach into this process's registered memory: it agrees, also where the system asks for that (Yama).
        // SAFETY: sets an attribute of this process.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        let late = (0..spec.cards).map(|_| Late::default()).collect();
        let [posted, registered] = [0, 0].map(AtomicU64::new);
        Ok(Machine { spec, moves, posted, registered, late, host, devices, folder: Mutex::new(None) })
    }

    /// Its cards.
    pub fn devices(&self) -> &[&'static Device] {
        &self.devices
    }

    /// The figures of a card; none where cards have no times.
    pub fn figures(&self, card: usize) -> Option<Figures> {
        let slow = if card == 0 { self.spec.slow } else { 1.0 };
        self.spec.figures.map(|figures| Figures {
            line_rate_gbps: figures.line_rate_gbps / slow,
            rate_per_rail_mops: figures.rate_per_rail_mops / slow,
            one_way_us: figures.one_way_us * slow,
            ..figures
        })
    }

    /// Whether queues are full from now on, as the description has it.
    pub fn is_full(&self) -> bool {
        let first = self.posted.load(Ordering::Relaxed) + 1;
        self.spec.faults.iter().any(|fault| matches!(fault, Fault::Full(at) if first >= *at))
    }

    /// Whether the registration that is asked for now is refused, as the description has it.
    pub fn refuses_memory(&self) -> bool {
        let number = self.registered.fetch_add(1, Ordering::Relaxed) + 1;
        self.spec.faults.iter().any(|fault| matches!(fault, Fault::Refuse(at) if number >= *at))
    }

    /// Whether the next request finds its queue pair in error, as the description has it: then it counts as posted.
    pub fn breaks(&self) -> bool {
        if !self.spec.faults.iter().any(|fault| matches!(fault, Fault::Break(_))) {
            return false;
        }
        let next = self.posted.load(Ordering::Relaxed) + 1;
        let breaks = self.spec.faults.contains(&Fault::Break(next));
        self.posted.fetch_add(u64::from(breaks), Ordering::Relaxed);
        breaks
    }

    /// Lays out what stands in for sysfs; while it is there, [`SYSFS`] names it.
    pub fn show(&self) -> io::Result<()> {
        let mut folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = folder.as_mut() {
            folder.lists += 1;
            return Ok(());
        }
        let path = std::env::temp_dir().join(format!("soft-efa-{}", std::process::id()));
        // Of a killed process of the same number.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path)?;
        let before = std::env::var_os(SYSFS);
        self.lay_out(&path).inspect_err(|_| drop(std::fs::remove_dir_all(&path)))?;
        set(SYSFS, Some(path.as_os_str()));
        *folder = Some(Folder { path, before, lists: 1 });
        Ok(())
    }

    /// Takes it away again, when the last list is.
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

    fn lay_out(&self, path: &Path) -> io::Result<()> {
        let driver = path.join("bus/pci/drivers/efa");
        let class = path.join("class/infiniband_verbs");
        std::fs::create_dir_all(&driver)?;
        std::fs::create_dir_all(&class)?;
        // What the driver of a p5 says.
        std::fs::write(class.join("abi_version"), "6\n")?;
        for card in 0..self.spec.cards {
            let address = format!("0000:{:02x}:00.0", Spec::bus(card));
            let device = path.join("devices").join(format!("pci{}", &address[..7])).join(&address);
            std::fs::create_dir_all(&device)?;
            symlink(&driver, device.join("driver"))?;
            let named = path.join("class/infiniband").join(name_of(card));
            std::fs::create_dir_all(&named)?;
            symlink(&device, named.join("device"))?;
        }
        Ok(())
    }

    /// A number that differs by machine, process and use.
    pub fn random(&self, more: u64) -> u64 {
        let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
        number_of(&[self.host, u64::from(std::process::id()), time, more].map(u64::to_ne_bytes).concat())
    }
}

/// As the system names such a card: by its bus, in decimal.
fn name_of(card: usize) -> String {
    format!("rdmap{}s0", Spec::bus(card))
}

impl Device {
    fn new(host: u64, card: usize, sysfs: &Path) -> Device {
        let name = name_of(card);
        let path = sysfs.join("class/infiniband").join(&name);
        let [a, b, c, d, e, ..] = host.to_ne_bytes();
        // A link-local address as a card makes it of its MAC; the last byte is the card's number.
        let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a & 0xfc | 2, b, c, 0xff, 0xfe, d, e, card as u8];
        let null = std::ptr::null_mut();
        Device {
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

/// Sets a variable of the process, or takes it away.
fn set(name: &str, value: Option<&std::ffi::OsStr>) {
    match value {
        // SAFETY: devices are listed when libfabric is first asked for anything; a program that changes its environment in
        // another thread at that moment would have the same trouble with libfabric's own reads of it.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_boot_and_its_network() {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        assert_eq!(host(), host());
        // The network's number is not 0: the same boot in another namespace is another machine.
        assert_ne!(host(), number_of(&boot));
        assert!(host() > u64::from(u16::MAX), "no number that somebody would give");
    }
}
