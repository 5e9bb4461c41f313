//! Handlers for fatal signals that libraries cause with abort(3) or with a crash. libfabric's EFA provider does both if
//! it runs out of memory. Without these handlers, the run would exit with code 134 or 139 and without a message of
//! ginlab, and would leave files of its rails in shared memory.
//!
//! The handler reports the cause, starts this executable once more to remove the remaining files, and exits with
//! code 1. The cleanup needs a separate process because the files are locked until this process has exited, and because
//! this process may be out of memory. Signals from other processes keep their default effect.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{fs, process};

use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::getppid;

use crate::shm_cleanup::{self, has_ended};

/// First argument of the cleanup process.
const CLEANUP: &str = "tidy-up-behind";
/// Exit code of a failed run.
const FAILED: c_int = 1;
/// Time in milliseconds for which this process waits until the cleanup process has listed its children. The cleanup
/// process then waits up to [`ENDED`] until all of them have exited.
const SEEN: c_int = 1000;
const ENDED: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Strings for the handler, which must not allocate.
struct Ready {
    who: String,
    aborted: String,
    crashed: String,
    program: CString,
    tidy: CString,
    process: CString,
}

static READY: OnceLock<Ready> = OnceLock::new();
/// Returns the original cause of a failure in a library, or null.
type Cause = extern "C" fn() -> *const c_char;
static CAUSE: OnceLock<Cause> = OnceLock::new();

/// File system of shared memory. If it lacks space for a page, the first access to the page raises SIGBUS.
const SHARED_MEMORY: &CStr = c"/dev/shm";
/// Number of available bytes below which the file system counts as full. It is above 0 because other processes may free
/// some bytes while this one exits.
const FULL: u64 = 1 << 20;
const ENLARGE: &str = " KiB are available; remove old files there or enlarge it (mount -o remount,size=8G /dev/shm; \
                       docker: --shm-size 8g; pods: an emptyDir of medium Memory at /dev/shm), or use fewer ranks or \
                       rails\n";

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Installs the handlers. Their messages name `who`. If core dumps are enabled (`ulimit -c`), crashes are not handled,
/// so that they produce one.
///
/// # Errors
/// Returns the system's error if a handler cannot be installed.
pub fn install(who: &str) -> io::Result<()> {
    let memory =
        "memory was exhausted: raise the limit (ulimit -v, the cgroup's), or use fewer rails or a smaller size";
    let aborted = format!("ginlab: {who}: a library aborted this process; if it printed no cause, {memory}\n");
    let crashed = format!(
        "ginlab: {who}: this process crashed, in a library or in ginlab (`ulimit -c unlimited` keeps a core dump); \
         libfabric's EFA provider crashes if {memory}\n"
    );
    let program = CString::new(std::env::current_exe()?.into_os_string().into_vec())?;
    let ready = Ready {
        who: format!("ginlab: {who}: "),
        aborted,
        crashed,
        program,
        tidy: CString::new(CLEANUP)?,
        process: CString::new(process::id().to_string())?,
    };
    if READY.set(ready).is_err() {
        return Ok(());
    }
    take(libc::SIGABRT)?;
    if getrlimit(Resource::RLIMIT_CORE)?.0 > 0 {
        return Ok(());
    }
    [libc::SIGSEGV, libc::SIGBUS].into_iter().try_for_each(take)
}

/// Sets the function that the handler calls for the reason of an abort or crash. `cause` must return one line without a
/// line end, or null, and must only read memory.
pub fn blame(cause: Cause) {
    let _ = CAUSE.set(cause);
    cause();
}

/// Writes to stderr.
fn say(bytes: &[u8]) {
    // SAFETY: a system call with a valid pointer and length.
    unsafe { libc::write(2, bytes.as_ptr().cast(), bytes.len()) };
}

/// Writes a number to stderr without allocating.
fn say_number(mut number: u64) {
    let (mut digits, mut first) = ([b'0'; 20], 20);
    while first == 20 || number > 0 {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    say(&digits[first..]);
}

/// Prints the reason for the end of this process: the cause that a library reports, or that shared memory is full.
fn say_why(ready: &Ready, signal: c_int) {
    let cause = CAUSE.get().map_or(ptr::null(), |cause| cause());
    if !cause.is_null() {
        say(ready.who.as_bytes());
        // SAFETY: `blame` requires that the function returns a C string.
        say(unsafe { CStr::from_ptr(cause) }.to_bytes());
        return say(b"\n");
    }
    // SAFETY: zero is valid for all fields.
    let mut space: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a system call with a C string and a pointer to a local variable.
    let is_known = signal == libc::SIGBUS && unsafe { libc::statfs(SHARED_MEMORY.as_ptr(), &mut space) } == 0;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_bsize as u64);
    if is_known && space.f_blocks > 0 && bytes(space.f_bavail) < FULL {
        say(ready.who.as_bytes());
        say(b"shared memory is full: /dev/shm has ");
        say_number(bytes(space.f_blocks) >> 10);
        say(b" KiB, of which ");
        say_number(bytes(space.f_bavail) >> 10);
        return say(ENLARGE.as_bytes());
    }
    say(if signal == libc::SIGABRT { &ready.aborted } else { &ready.crashed }.as_bytes());
}

fn take(signal: c_int) -> io::Result<()> {
    // SAFETY: zero is valid for all fields.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = end as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    // SA_RESETHAND restores the default action after the first signal, so that an error in the handler ends the
    // process.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;
    // SAFETY: the handler makes only async-signal-safe calls and has the signature that SA_SIGINFO requires.
    match unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes only system calls: the thread that crashed or called abort(3) may hold any lock, and memory may be exhausted.
extern "C" fn end(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // A fault of this thread has a code above 0; abort(3) sends the signal to its own thread.
    // SAFETY: the system provides `info`, which for sent signals includes the sender's process ID.
    let by_itself = unsafe {
        if signal == libc::SIGABRT {
            (*info).si_code == libc::SI_TKILL && (*info).si_pid() == libc::getpid()
        } else {
            (*info).si_code > 0
        }
    };
    let Some(ready) = READY.get().filter(|_| by_itself) else {
        // SAFETY: the default action was restored. It takes effect when this handler returns.
        unsafe { libc::raise(signal) };
        return;
    };
    // SAFETY: the strings live as long as the process, and the argument lists end with a null. The child continues on
    // its own copy of the memory and makes only async-signal-safe calls until `execve`. The system call is made
    // directly, because fork(3) calls handlers that libraries have registered.
    unsafe {
        say_why(ready, signal);
        let mut pipe = [0; 2];
        if libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) == 0 {
            match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
                0 => {
                    libc::dup2(pipe[1], 1);
                    let words = [ready.program.as_ptr(), ready.tidy.as_ptr(), ready.process.as_ptr(), ptr::null()];
                    libc::execve(words[0], words.as_ptr(), environ);
                    libc::_exit(FAILED);
                }
                -1 => {}
                _ => {
                    // The pipe is readable or closed.
                    libc::close(pipe[1]);
                    let mut seen = libc::pollfd { fd: pipe[0], events: libc::POLLIN, revents: 0 };
                    libc::poll(&mut seen, 1, SEEN);
                }
            }
        }
        libc::_exit(FAILED);
    }
}

/// Runs the cleanup if this process was started for it, and returns `true`. Returns `false` otherwise.
#[must_use]
pub fn run_cleanup() -> bool {
    let mut words = std::env::args().skip(1);
    let (word, process) = (words.next(), words.next().and_then(|process| process.parse().ok()));
    let Some(process) = process.filter(|_| word.as_deref() == Some(CLEANUP)) else { return false };
    // Cleans up only for the parent process: the process ID may have been reused.
    if getppid().as_raw() as u32 != process {
        return true;
    }
    let mut all = children(process);
    all.push(process);
    // The parent waits until the pipe is closed.
    // SAFETY: no other code of this process uses its standard output, which is a pipe.
    drop(unsafe { OwnedFd::from_raw_fd(1) });
    let end = Instant::now() + ENDED;
    while !all.iter().all(|process| has_ended(*process)) && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    shm_cleanup::remove_stale();
    true
}

/// Returns the children of all threads of a process, except this process.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers =
        lists.flat_map(|list| list.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<u32>>());
    numbers.filter(|number| *number != process::id()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const CHILD: &str = "GIVEN_UP_CHILD";

    /// Runs this test in a child process, which ends in the way that the variable specifies.
    fn ended_by(how: &str) -> std::process::Output {
        let name = "crash_handler::tests::reports_abort_and_crash_but_not_external_signal";
        let program = std::env::current_exe().expect("this program");
        let words = ["--exact", name, "--nocapture"];
        Command::new(program).args(words).env(CHILD, how).output().expect("it has run")
    }

    #[test]
    fn reports_abort_and_crash_but_not_external_signal() {
        use std::os::unix::process::ExitStatusExt;
        if let Ok(how) = std::env::var(CHILD) {
            install("process of a test").expect("installed");
            match how.as_str() {
                "abort" => process::abort(),
                // SAFETY: the fault is the subject of the test.
                "crash" => unsafe { ptr::without_provenance::<u8>(64).read_volatile().into() },
                // SAFETY: the system call takes no pointers.
                _ => unsafe { libc::kill(libc::getpid(), libc::SIGABRT) },
            };
        }
        for (how, words) in [("abort", "a library aborted"), ("crash", "this process crashed")] {
            let output = ended_by(how);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.code() == Some(1) && said.contains("ginlab: process of a test: "),
                "{how}: {output:?}"
            );
            assert!(said.contains(words), "{how}: {said}");
        }
        let output = ended_by("kill");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("a library"), "{output:?}");
    }

    #[test]
    fn process_is_alive_until_exit() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a process");
        assert!(!has_ended(child.id()) && children(process::id()).contains(&child.id()));
        drop(child.stdin.take());
        let end = Instant::now() + Duration::from_secs(20);
        while !has_ended(child.id()) && Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(has_ended(child.id()), "ended, and not waited for");
        child.wait().expect("its end");
        assert!(has_ended(child.id()) && !has_ended(process::id()) && has_ended(u32::MAX));
    }
}
