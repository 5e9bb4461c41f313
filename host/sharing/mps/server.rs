//! A server of this run's own: started in a folder that nobody else reads, ended with the run, and swept up by the next one where
//! somebody has killed the run.
//!
//! ```text
//!   /tmp/ginlab-mps-UID/        0700, this user's
//!     PID-RANDOM/               a run; `owner` is locked as long as the run lives
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

/// NVIDIA's program that starts, asks and ends servers.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";

/// What a variable is set to, for the ranks.
pub type Variables = [(&'static str, OsString); 2];

/// The longest path of a folder of a run: sockets in it have names of at most 107 bytes.
const LONGEST: usize = 80;

/// How often a bounded wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Limits of the waits for somebody else's program.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the control daemon to be there.
    pub start: Duration,
    /// For a first process to have used the server.
    pub probe: Duration,
    /// For `quit` to be taken.
    pub quit: Duration,
    /// For the server to be gone after that; and after SIGTERM, and after SIGKILL.
    pub leave: Duration,
}

impl Limits {
    /// Those of a run.
    pub const USUAL: Limits = Limits {
        start: Duration::from_secs(10),
        probe: Duration::from_secs(30),
        quit: Duration::from_secs(5),
        leave: Duration::from_secs(3),
    };
}

/// Where servers are kept, and by what they are started.
#[derive(Clone, Debug)]
pub struct Place {
    /// The folder of this user's runs.
    pub base: PathBuf,
    /// [`PROGRAM`], or a double.
    pub program: OsString,
    /// See there.
    pub limits: Limits,
}

impl Place {
    /// Below the system's folder for temporary files; in /tmp where its name is too long for a socket.
    pub fn usual() -> Place {
        let name = format!("ginlab-mps-{}", geteuid());
        let mut base = std::env::temp_dir().join(&name);
        if base.as_os_str().len() + 24 > LONGEST {
            base = Path::new("/tmp").join(name);
        }
        Place { base, program: PROGRAM.into(), limits: Limits::USUAL }
    }

    /// Starts a server. `probe` is given the variables and says whether a process can use it.
    ///
    /// # Errors
    /// Why there is none, in one line. Nothing is left of it then.
    pub fn start(&self, probe: impl FnOnce(&Variables) -> Result<(), String>) -> Result<Server, String> {
        let (folder, lock) = self.folder().map_err(|error| format!("{}: {error}", self.base.display()))?;
        let server = Server { place: self.clone(), folder, _lock: Some(lock) };
        // What was begun is ended where `server` is dropped.
        self.launch(&server.folder)?;
        probe(&server.variables()).map_err(|why| match last_line(&server.folder.join("log/server.log")) {
            Some(line) => format!("{why}; its log ends: {line}"),
            None => why,
        })?;
        Ok(server)
    }

    /// A folder of this run, and the lock that says that the run lives.
    fn folder(&self) -> io::Result<(PathBuf, Flock<File>)> {
        // Another run that ends removes the base where it finds it empty.
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
        // Under its name once it is locked: whoever sweeps takes an owner without a lock for a dead one.
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
        // Files and no pipes: the daemon keeps what it is given.
        command.arg("-d").stdin(Stdio::null()).stdout(out).stderr(err);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                format!("{program} is not on PATH (it comes with the driver; in a container it must be there too)")
            }
            _ => format!("{program}: {error}"),
        })?;
        match await_end(&mut child, deadline) {
            Some(status) if status.success() => {}
            Some(status) => {
                let why = last_line(&said).map_or_else(String::new, |line| format!(": {line}"));
                return Err(format!("{program} -d ended with {status}{why}"));
            }
            None => {
                return Err(format!("{program} -d has not come back within {}", humantime::format_duration(limit)));
            }
        }
        let pipe = folder.join("pipe");
        if !until(deadline, || answers(&pipe)) {
            return Err(format!("{program} -d came back, and nobody answers in {}", pipe.display()));
        }
        Ok(())
    }

    /// The program, as it talks to the server of this folder.
    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(variables(folder)).current_dir("/");
        // A server renumbers what it is shown, and its clients renumber that once more: it is shown all.
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// Ends the server of this folder, whatever it takes, and removes the folder. Bounded.
    fn end(&self, folder: &Path) {
        let pipe = folder.join("pipe");
        let servers = || servers_of(Path::new("/proc"), geteuid().as_raw(), &pipe);
        if answers(&pipe) || !servers().is_empty() {
            // What it answers, and whether it does, shows in what is left.
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
        // Where it cannot be removed the next run tries again. The folder above goes with the last run.
        let _ = fs::remove_dir_all(folder);
        let _ = fs::remove_dir(&self.base);
    }

    fn quit(&self, folder: &Path) -> io::Result<()> {
        let mut command = self.command(folder);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        if let Some(mut words) = child.stdin.take() {
            // Few enough for any pipe's buffer: it does not wait.
            words.write_all(b"quit\n")?;
        }
        await_end(&mut child, Instant::now() + self.limits.quit);
        Ok(())
    }

    /// Ends what runs of this user have left whose owner is dead. Those that live are left alone, and so is everybody else's.
    pub fn sweep(&self) {
        if check_own(&self.base).is_err() {
            return;
        }
        let Ok(entries) = fs::read_dir(&self.base) else { return };
        for folder in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let Ok(owner) = File::open(folder.join("owner")) else { continue };
            // Held until the folder is gone: two runs may sweep at once.
            if let Ok(_lock) = Flock::lock(owner, FlockArg::LockExclusiveNonblock) {
                self.end(&folder);
            }
        }
    }
}

/// A server of this run. Dropping it ends the server.
#[derive(Debug)]
pub struct Server {
    place: Place,
    folder: PathBuf,
    /// Given up after the folder is gone.
    _lock: Option<Flock<File>>,
}

impl Server {
    /// What CUDA of the ranks must find.
    pub fn variables(&self) -> Variables {
        variables(&self.folder)
    }

    /// Leaves it behind as a run does that is killed.
    #[cfg(test)]
    pub fn forget(mut self) {
        self._lock = None;
        std::mem::forget(self);
    }

    /// Where it listens.
    pub fn pipe(&self) -> PathBuf {
        self.folder.join("pipe")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.place.end(&self.folder);
    }
}

fn variables(folder: &Path) -> Variables {
    [(PIPE, folder.join("pipe").into()), (LOG, folder.join("log").into())]
}

/// Refuses a folder that others may write to: they could put a server of theirs into it.
fn check_own(base: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(base)?;
    let own = found.is_dir() && found.uid() == geteuid().as_raw() && found.permissions().mode() & 0o077 == 0;
    if own { Ok(()) } else { Err(io::Error::other("it is not this user's alone (mode 0700)")) }
}

fn last_line(path: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(path).ok()?).into_owned();
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(ginlab_base::text::printable(line))
}

/// Waits for what somebody else does.
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

/// How a child has ended; one that has not by then is killed.
pub(super) fn await_end(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let mut status = None;
    until(deadline, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    if status.is_none() {
        // It is ours and not reaped yet: nobody else has its number.
        let _ = child.kill();
        let _ = child.wait();
    }
    status
}

/// Runs this program once, with these variables, in place of a rank: whether it can use a GPU at all.
pub(super) fn try_out(variables: &Variables, asked: &OsStr, limit: Duration) -> Result<(), String> {
    let failed = |error: io::Error| format!("trying it out: {error}");
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
            Err(format!("a process cannot use it: {}", line.unwrap_or_else(|| status.to_string())))
        }
        None => Err(format!("a process could not use it within {}", humantime::format_duration(limit))),
    }
}
