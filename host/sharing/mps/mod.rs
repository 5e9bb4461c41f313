//! CUDA's Multi-Process Service (MPS) for ranks that share a GPU.
//!
//! Kernels of two processes take turns on a GPU, of about 2 ms, unless an MPS server runs them side by side. Where ginlab starts the ranks
//! of a machine itself, more of them than GPUs, and nobody serves them, it starts a server of their own ([`before_ranks`]): private folders,
//! nothing of the GPU's settings changes, and the server ends with the run.
//!
//! CUDA looks for a server when it is initialised, and by environment variables. So the run itself is a new process, which finds them
//! set; this one stays behind, without CUDA, and ends the server once all that used it has ended.

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
use ginlab_cuda::{self as cuda, Device, Place as Memory};
use ginlab_topology as topology;
use server::Place;

pub use existing::{DEFAULT, PIPE};
pub use server::PROGRAM;

/// Whether ginlab may start a server.
///
/// Of each value the first paragraph is what `--help` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// Where ranks share a GPU and no server serves them.
    #[default]
    Auto,
    /// Never: ranks use a server that is there.
    Off,
}

/// What serves the ranks of this machine that share a GPU, as far as this process knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// It was not ginlab that started the ranks, or no two of them share a GPU.
    Unknown,
    /// None is wanted.
    Off,
    /// The server that was there, in this folder.
    Existing(PathBuf),
    /// A server of this run's own, in this folder.
    Started(PathBuf),
    /// None: why.
    Missing(String),
}

/// What became of [`before_ranks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This process goes on to start the ranks.
    Here,
    /// Another process was the run, and has ended with this code. It has said everything.
    Ended(u8),
}

/// A run whose ranks ginlab starts on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// See there.
    pub choice: Choice,
    /// Where kernels run.
    pub device: cuda::Choice,
    /// Ranks that launch kernels: those from 0 on.
    pub ranks: usize,
    /// GPUs that are taken to be here, for tests: then nothing is asked of a driver.
    pub gpus: Option<usize>,
}

/// Tells the run's process which server it has: who has started it, and where.
const TOLD: &str = "GINLAB_MPS";
/// Asks a process for nothing but a try of the GPU.
const TRY: &str = "GINLAB_MPS_TRY";

static SERVICE: OnceLock<Service> = OnceLock::new();

/// What serves this process's ranks. Known on the rank that has called [`before_ranks`].
pub fn service() -> Service {
    SERVICE.get().cloned().unwrap_or(Service::Unknown)
}

/// Sees to a server before any rank of this machine is started, and before this process initialises CUDA.
///
/// Where one is to be started, the rest of the run happens in another process, for whose end this call waits: [`Step::Ended`]. What cannot be
/// started is no error: [`service`] then says why.
pub fn before_ranks(asked: &Asked) -> Step {
    let decided = |service: Service| {
        // The first run of a process decides; there is one.
        let _ = SERVICE.set(service);
        Step::Here
    };
    if let Some(pipe) = bootstrap::process_env(TOLD).and_then(|told| told_by_parent(&told)) {
        return decided(Service::Started(pipe));
    }
    if asked.ranks < 2 || asked.device == cuda::Choice::Emulated {
        return Step::Here;
    }
    // Without PTX kernels run on the CPU in any case.
    let count = || if cuda::ptx().modules.is_empty() { 0 } else { gpu_count() };
    let gpus = asked.gpus.unwrap_or_else(count);
    let place = Place::usual();
    if gpus > 0 {
        place.sweep();
    }
    if gpus::most_on_one(asked.ranks, gpus) < 2 {
        return Step::Here;
    }
    let named = bootstrap::process_env(existing::PIPE).map(PathBuf::from);
    match existing::existing(named, Path::new(existing::DEFAULT)) {
        Existing::Answers(folder) => return decided(Service::Existing(folder)),
        Existing::Silent(folder) => {
            let text = format!("{} is {}, where nobody answers: unset it", existing::PIPE, folder.display());
            return decided(Service::Missing(text));
        }
        Existing::None if asked.choice == Choice::Off => return decided(Service::Off),
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
        Ok(code) => Step::Ended(code),
        Err(error) => decided(Service::Missing(format!("starting the run with it: {error}"))),
    }
}

/// The folder, where the variable is this process's own and not inherited further.
fn told_by_parent(told: &str) -> Option<PathBuf> {
    let (pid, pipe) = told.split_once(':')?;
    (pid.parse() == Ok(getppid().as_raw())).then(|| PathBuf::from(pipe))
}

/// Tries the GPU where this process was started for that alone: whether it can be used. `None` where it was not.
pub fn tried() -> Option<Result<(), String>> {
    bootstrap::process_env(TRY)?;
    let tried = Device::open(cuda::Choice::Gpu, 0)
        .and_then(|(device, _)| device.allocate(Memory::Device, 4096).map(|_| device.is_served_by_mps()));
    Some(match tried {
        Ok(Some(false)) => Err("the driver does not use it".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    })
}

/// GPUs that CUDA will show this process, counted without initialising it; 0 without a driver.
pub fn gpu_count() -> usize {
    if cuda::driver_version().is_none() {
        return 0;
    }
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
    gpus::count(Path::new("/"), visible.as_deref(), topology::nvml::gpu_count)
}

/// Whether a server answers where CUDA looks for one; for drivers that do not say it themselves.
pub fn is_there() -> bool {
    let named = bootstrap::process_env(existing::PIPE).map(PathBuf::from);
    matches!(existing::existing(named, Path::new(existing::DEFAULT)), Existing::Answers(_))
}

/// NVIDIA's program, where it is on PATH.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(server::PROGRAM)).find(|file| file.is_file())
}
