//! An MPS server for this run: started in a private directory, stopped at the end of the run, or cleaned up by the next
//! run if this one was killed.
//!
//! ```text
//!   /tmp/ginlab-mps-UID/        0700, this user's
//! PID-RANDOM/               a run; `owner` is locked for the duration of the run
//!       owner  pipe/  log/  said.txt
//! ```

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use super::existing::{LOG, PIPE, answers};
use super::processes::servers_of;

/// NVIDIA's program to start, query and stop servers.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";

/// Names and values of the environment variables for the ranks.
pub type Variables = [(&'static str, OsString); 2];

/// Maximum length of a run's directory path: addresses of sockets in it have at most 107 bytes.
const LONGEST: usize = 80;

/// Polling interval of bounded waits.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Time limits for NVIDIA's program.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time until the control daemon must respond.
    pub start: Duration,
    /// Time within which a first process must have used the server.
    pub probe: Duration,
    /// Time until `quit` must have been processed.
    pub quit: Duration,
    /// Time within which the server must exit after `quit`, and also after SIGTERM and after SIGKILL.
    pub leave: Duration,
}

impl Limits {
    /// Limits of a normal run.
    pub const USUAL: Limits = Limits {
        start: Duration::from_secs(10),
        probe: Duration::from_secs(30),
        quit: Duration::from_secs(5),
        leave: Duration::from_secs(3),
    };
}

/// Location of servers, and the program that starts them.
#[derive(Clone, Debug)]
pub struct MpsLocation {
    /// Directory of this user's runs.
    pub base: PathBuf,
    /// [`PROGRAM`], or a test double.
    pub program: OsString,
    /// Time limits.
    pub limits: Limits,
}

impl MpsLocation {
    /// Returns the default location: below the directory for temporary files, or in /tmp if that path is too long for a
    /// socket.
    pub fn usual() -> MpsLocation {
        let name = format!("ginlab-mps-{}", geteuid());
        let mut base = ginlab_base::scratch::folder().join(&name);
        if base.as_os_str().len() + 24 > LONGEST {
            base = Path::new("/tmp").join(name);
        }
        MpsLocation { base, program: PROGRAM.into(), limits: Limits::USUAL }
    }

    /// Starts a server. `probe` receives the environment variables and tests whether a process can use the server.
    ///
    /// # Errors
    /// Returns the reason in one line if there is no usable server. In this case, nothing of the server remains.
    pub fn start(&self, probe: impl FnOnce(&Variables) -> Result<(), String>) -> Result<MpsServer, String> {
        let (folder, lock) = self.folder().map_err(|error| format!("{}: {error}", self.base.display()))?;
        let server = MpsServer { place: self.clone(), folder, _lock: Some(lock) };
        // If a later step fails, dropping `server` stops everything that was started.
        self.launch(&server.folder)?;
        probe(&server.variables()).map_err(|why| match last_line(&server.folder.join("log/server.log")) {
            Some(line) => format!("{why}; its log ends with: {line}"),
            None => why,
        })?;
        Ok(server)
    }

    /// Creates a directory for this run, and the lock that marks the run as alive.
    fn folder(&self) -> io::Result<(PathBuf, Flock<File>)> {
        // Another run that ends may remove the base directory in between, if it is empty.
        let mut tries = 5;
        loop {
            match self.new_folder() {
                Err(error) if error.kind() == ErrorKind::NotFound && tries > 0 => tries -= 1,
                made => return made,
            }
        }
    }

    fn new_folder(&self) -> io::Result<(PathBuf, Flock<File>)> {
        match DirBuilder::new().mode(0o700).create(&self.base) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => check_own(&self.base)?,
        }
        let mut random = [0u8; 4];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let folder = self.base.join(format!("{}-{:08x}", std::process::id(), u32::from_ne_bytes(random)));
        let create = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        create(&folder)?;
        // The directory is renamed only after it is locked, because other runs regard an unlocked `owner` as that of a
        // dead run.
        let new = folder.join("owner.new");
        let lock = Flock::lock(File::create(&new)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
        fs::rename(new, folder.join("owner"))?;
        create(&folder.join("pipe"))?;
        create(&folder.join("log"))?;
        Ok((folder, lock))
    }

    fn launch(&self, folder: &Path) -> Result<(), String> {
        let limit = self.limits.start;
        let deadline = Instant::now() + limit;
        let program = self.program.to_string_lossy().into_owned();
        let said = folder.join("said.txt");
        let output = || File::create(&said).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = output().map_err(|error| format!("{}: {error}", said.display()))?;
        let mut command = self.command(folder);
        // Files instead of pipes, because the daemon keeps the descriptors open.
        command.arg("-d").stdin(Stdio::null()).stdout(out).stderr(err);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                format!("{program} is not on PATH; it belongs to the driver, and must also be in the container")
            }
            _ => format!("{program}: {error}"),
        })?;
        match await_end(&mut child, deadline) {
            Some(status) if status.success() => {}
            Some(status) => {
                let why = last_line(&said).map_or_else(String::new, |line| format!(": {line}"));
                return Err(format!("{program} -d failed with {status}{why}"));
            }
            None => {
                return Err(format!("{program} -d did not return within {}", humantime::format_duration(limit)));
            }
        }
        let pipe = folder.join("pipe");
        if !until(deadline, || answers(&pipe)) {
            return Err(format!("{program} -d returned, but no server answers in {}", pipe.display()));
        }
        Ok(())
    }

    /// Returns the program's command line for the server of this directory.
    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(variables(folder)).current_dir("/");
        // A server renumbers the GPUs that it sees, and its clients renumber them again, so the server must see all.
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// Stops the server of this directory, by force if necessary, and removes the directory. All waits are bounded.
    fn end(&self, folder: &Path) {
        let pipe = folder.join("pipe");
        let servers = || servers_of(Path::new("/proc"), geteuid().as_raw(), &pipe);
        if answers(&pipe) || !servers().is_empty() {
            // The outcome is ignored, because the remaining processes are checked below.
            let _ = self.quit(folder);
            let gone = || servers().is_empty();
            let leave = || Instant::now() + self.limits.leave;
            if !until(leave(), gone) {
                for signal in [Signal::SIGTERM, Signal::SIGKILL] {
                    for pid in servers() {
                        let _ = kill(Pid::from_raw(pid), signal);
                    }
                    if until(leave(), gone) {
                        break;
                    }
                }
            }
        }
        // If this fails, the next run tries again. The base directory is removed with the last run.
        let _ = fs::remove_dir_all(folder);
        let _ = fs::remove_dir(&self.base);
    }

    fn quit(&self, folder: &Path) -> io::Result<()> {
        let mut command = self.command(folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        if let Some(mut words) = child.stdin.take() {
            // The text fits into the pipe's buffer, so the write does not block.
            words.write_all(b"quit\n")?;
        }
        await_end(&mut child, Instant::now() + self.limits.quit);
        Ok(())
    }

    /// Stops and removes what this user's dead runs have left. Live runs and other users' servers are not affected.
    pub fn sweep(&self) {
        if check_own(&self.base).is_err() {
            return;
        }
        let Ok(entries) = fs::read_dir(&self.base) else { return };
        for folder in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let Ok(owner) = File::open(folder.join("owner")) else { continue };
            // The lock is held until the directory is removed, because two runs may clean up at the same time.
            if let Ok(_lock) = Flock::lock(owner, FlockArg::LockExclusiveNonblock) {
                self.end(&folder);
            }
        }
    }
}

/// A server of this run. Dropping it stops the server.
#[derive(Debug)]
pub struct MpsServer {
    place: MpsLocation,
    folder: PathBuf,
    /// Released after the directory has been removed.
    _lock: Option<Flock<File>>,
}

impl MpsServer {
    /// Returns the environment variables that CUDA needs in the ranks.
    pub fn variables(&self) -> Variables {
        variables(&self.folder)
    }

    /// Leaves the server running, as if the run had been killed.
    #[cfg(test)]
    pub fn forget(mut self) {
        self._lock = None;
        std::mem::forget(self);
    }

    /// Returns the directory in which the server listens.
    pub fn pipe(&self) -> PathBuf {
        self.folder.join("pipe")
    }
}

impl Drop for MpsServer {
    fn drop(&mut self) {
        self.place.end(&self.folder);
    }
}

fn variables(folder: &Path) -> Variables {
    [(PIPE, folder.join("pipe").into()), (LOG, folder.join("log").into())]
}

/// Returns an error if other users may write to the directory, because they could place their own server there.
fn check_own(base: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(base)?;
    let own = found.is_dir() && found.uid() == geteuid().as_raw() && found.permissions().mode() & 0o077 == 0;
    if own { Ok(()) } else { Err(io::Error::other("it is accessible to other users (mode 0700 required)")) }
}

fn last_line(path: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(path).ok()?).into_owned();
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(ginlab_base::text::printable(line))
}

/// Polls `done` until it returns `true` or the deadline has passed. Returns whether it returned `true`.
fn until(deadline: Instant, mut done: impl FnMut() -> bool) -> bool {
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits for a child and returns its exit status. A child that is still running at `deadline` is killed.
pub(super) fn await_end(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let mut status = None;
    until(deadline, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    if status.is_none() {
        // The child has not been reaped, so its process ID is still valid.
        let _ = child.kill();
        let _ = child.wait();
    }
    status
}

/// Runs this executable once with these environment variables, to test whether a rank could use a GPU.
pub(super) fn try_out(variables: &Variables, asked: &OsStr, limit: Duration) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot test it: {error}");
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    let said = tempfile::tempfile().map_err(failed)?;
    command.envs(variables.iter().map(|(name, value)| (name, value))).env(asked, "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    match await_end(&mut child, Instant::now() + limit) {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let mut text = String::new();
            let mut said = said;
            let _ = io::Seek::rewind(&mut said).and_then(|()| io::Read::read_to_string(&mut said, &mut text));
            let line = text.lines().rev().find(|line| !line.trim().is_empty()).map(ginlab_base::text::printable);
            Err(format!("a test process cannot use it: {}", line.unwrap_or_else(|| status.to_string())))
        }
        None => Err(format!("a test process could not use it within {}", humantime::format_duration(limit))),
    }
}
