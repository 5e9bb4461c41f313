//! CUDA's Multi-Process Service (MPS) for ranks that share a GPU.
//!
//! Kernels of two processes are time-sliced on a GPU, with slices of about 2 ms, unless an MPS server runs them
//! concurrently. If ginlab starts more ranks on a machine than there are GPUs, and no server exists, it starts a server
//! for them ([`before_ranks`]). The server uses private directories, changes no settings of the GPU, and is stopped at
//! the end of the run.
//!
//! CUDA finds a server through environment variables when it is initialized. Therefore, the run is moved to a new
//! process with these variables. This process does not use CUDA. It waits, and stops the server after all its users
//! have ended.

mod again;
mod existing;
mod gpus;
mod processes;
mod server;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::unistd::getppid;

use existing::Existing;
use ginlab_bootstrap as bootstrap;
use ginlab_cuda::{self as cuda, Device, MemoryLocation};
use ginlab_topology as topology;
use server::MpsLocation;

pub use existing::{DEFAULT, PIPE};
pub use server::PROGRAM;

/// Whether ginlab may start a server.
///
/// The first paragraph of each variant is its `--help` text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MpsChoice {
    /// If ranks share a GPU and there is no server
    #[default]
    Auto,
    /// Never; ranks use an existing server if there is one
    Off,
}

/// MPS service for the ranks of this machine that share a GPU, if this process knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// ginlab did not start the ranks, or no two of them share a GPU.
    Unknown,
    /// The user has disabled it.
    Off,
    /// An existing server, in this directory.
    Existing(PathBuf),
    /// A server that was started for this run, in this directory.
    Started(PathBuf),
    /// None, with the reason.
    Missing(String),
}

/// Result of [`before_ranks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpsStep {
    /// This process continues and starts the ranks.
    Here,
    /// Another process ran the whole run, including its output, and exited with this code.
    Ended(u8),
}

/// A run whose ranks ginlab starts on this machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalRun {
    /// Whether a server may be started.
    pub choice: MpsChoice,
    /// Device on which kernels run.
    pub device: cuda::DeviceChoice,
    /// Number of ranks that launch kernels, starting with rank 0.
    pub ranks: usize,
    /// Number of GPUs to assume, for tests. `None` to query the driver.
    pub gpus: Option<usize>,
}

/// Environment variable that passes the server to the run's process: the ID of the process that started it, and its
/// directory.
const TOLD: &str = "GINLAB_MPS";
/// Environment variable that makes a process only test the GPU and exit.
const TRY: &str = "GINLAB_MPS_TRY";

static SERVICE: OnceLock<Service> = OnceLock::new();

/// Returns the MPS service of this process's ranks, which is known only on the rank that called [`before_ranks`].
pub fn service() -> Service {
    SERVICE.get().cloned().unwrap_or(Service::Unknown)
}

/// Starts a server if one is needed. Must be called before any rank of this machine is started and before this process
/// initializes CUDA.
///
/// If a server is started, the rest of the run takes place in another process. This call waits for the end of that
/// process and then returns [`MpsStep::Ended`]. A failure to start a server is not an error: [`service`] then returns
/// the reason.
pub fn before_ranks(asked: &LocalRun) -> MpsStep {
    let decided = |service: Service| {
        // The result is ignored, because the service may already be set: a process has only one run.
        let _ = SERVICE.set(service);
        MpsStep::Here
    };
    if let Some(pipe) = bootstrap::process_env(TOLD).and_then(|told| told_by_parent(&told)) {
        return decided(Service::Started(pipe));
    }
    if asked.ranks < 2 || asked.device == cuda::DeviceChoice::Emulated {
        return MpsStep::Here;
    }
    // Without PTX, kernels run on the CPU in any case.
    let count = || if cuda::ptx().modules.is_empty() { 0 } else { gpu_count() };
    let gpus = asked.gpus.unwrap_or_else(count);
    let place = MpsLocation::usual();
    if gpus > 0 {
        place.sweep();
    }
    if gpus::most_on_one(asked.ranks, gpus) < 2 {
        return MpsStep::Here;
    }
    let named = bootstrap::process_env(existing::PIPE).map(PathBuf::from);
    match existing::existing(named, Path::new(existing::DEFAULT)) {
        Existing::Answers(folder) => return decided(Service::Existing(folder)),
        Existing::Silent(folder) => {
            let text = format!("{} is {}, where no server answers; unset it", existing::PIPE, folder.display());
            return decided(Service::Missing(text));
        }
        Existing::None if asked.choice == MpsChoice::Off => return decided(Service::Off),
        Existing::None => {}
    }
    let probe = |variables: &server::Variables| match asked.gpus {
        Some(_) => Ok(()),
        None => server::try_out(variables, TRY.as_ref(), place.limits.probe),
    };
    let server = match place.start(probe) {
        Ok(server) => server,
        Err(why) => return decided(Service::Missing(why)),
    };
    let variables = server.variables();
    let told = OsString::from(format!("{}:{}", std::process::id(), server.pipe().display()));
    let all = variables.iter().map(|(name, value)| (*name, value.as_os_str())).chain([(TOLD, told.as_os_str())]);
    match again::run(all) {
        Ok(code) => MpsStep::Ended(code),
        Err(error) => decided(Service::Missing(format!("cannot start the run with it: {error}"))),
    }
}

/// Returns the directory, if the variable was set by the parent process and not inherited from an earlier one.
fn told_by_parent(told: &str) -> Option<PathBuf> {
    let (pid, pipe) = told.split_once(':')?;
    (pid.parse() == Ok(getppid().as_raw())).then(|| PathBuf::from(pipe))
}

/// Tests whether the GPU can be used, if this process was started only for this purpose. Otherwise, returns `None`.
pub fn tried() -> Option<Result<(), String>> {
    bootstrap::process_env(TRY)?;
    let tried = Device::open(cuda::DeviceChoice::Gpu, 0)
        .and_then(|(device, _)| device.allocate(MemoryLocation::Device, 4096).map(|_| device.is_served_by_mps()));
    Some(match tried {
        Ok(Some(false)) => Err("the driver does not use it".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    })
}

/// Returns the number of GPUs that CUDA will show to this process, without initializing CUDA, or 0 without a driver.
pub fn gpu_count() -> usize {
    if cuda::driver_version().is_none() {
        return 0;
    }
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
    gpus::count(Path::new("/"), visible.as_deref(), topology::nvml::gpu_count)
}

/// Returns whether a server responds where CUDA searches for one. Used for drivers that do not report this.
pub fn is_there() -> bool {
    let named = bootstrap::process_env(existing::PIPE).map(PathBuf::from);
    matches!(existing::existing(named, Path::new(existing::DEFAULT)), Existing::Answers(_))
}

/// Returns the path of NVIDIA's control program, if it is on PATH.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(server::PROGRAM)).find(|file| file.is_file())
}
