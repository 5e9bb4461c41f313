//! Libraries that end the process: by abort(3), or by a crash. libfabric's EFA provider does both where it gets no memory: the run would end without a word
//! of ours, by code 134 or 139, and leave files of its rails in shared memory.
//!
//! The handler says what has ended the process, starts this program once more to remove what is left (the files are locked until this process is gone, and
//! a process without memory can hardly do it), and ends by code 1. A signal that another process sends ends this one as ever.

use std::ffi::{CString, c_char, c_int, c_void};
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

use crate::left_behind::{self, has_ended};

/// The first argument of the program that tidies up.
const TIDY: &str = "tidy-up-behind";
/// The code of a run that has failed.
const FAILED: c_int = 1;
/// How long this process waits until the other one has seen who its children are, and that one until all have ended.
const SEEN: c_int = 1000;
const ENDED: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What the handler needs: it may not allocate.
struct Ready {
    aborted: String,
    crashed: String,
    program: CString,
    tidy: CString,
    process: CString,
}

static READY: OnceLock<Ready> = OnceLock::new();

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Installs the handlers; `who` is named in what they say. Where crashes are to leave a file of the memory (`ulimit -c`), they do, and nothing is said.
///
/// # Errors
/// The system's.
pub fn install(who: &str) -> io::Result<()> {
    let memory = "it got no memory: raise the limit (ulimit -v, the cgroup's), or take fewer rails or a smaller size";
    let aborted =
        format!("ginlab: {who}: a library has ended this process (abort); if it has not said why, {memory}\n");
    let crashed = format!(
        "ginlab: {who}: this process has crashed, in a library or in ginlab (`ulimit -c unlimited` keeps where). libfabric's EFA provider does if {memory}\n"
    );
    let program = CString::new(std::env::current_exe()?.into_os_string().into_vec())?;
    let ready = Ready {
        aborted,
        crashed,
        program,
        tidy: CString::new(TIDY)?,
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

fn take(signal: c_int) -> io::Result<()> {
    // SAFETY: zero is a value of each field.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = end as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    // Behind the first signal the default action is back: what goes wrong in the handler ends the process.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;
    // SAFETY: the handler calls what is async-signal-safe alone, and has the signature that SA_SIGINFO asks for.
    match unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Of system calls alone: whoever called abort(3) or crashed may hold any lock, and there may be no memory.
extern "C" fn end(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // A fault of this thread has a code of its own above 0; abort(3) sends the signal to its thread.
    // SAFETY: the system's own; what is sent has the process that sent it.
    let by_itself = unsafe {
        if signal == libc::SIGABRT {
            (*info).si_code == libc::SI_TKILL && (*info).si_pid() == libc::getpid()
        } else {
            (*info).si_code > 0
        }
    };
    let Some(ready) = READY.get().filter(|_| by_itself) else {
        // SAFETY: the default action is back; it comes when this handler returns.
        unsafe { libc::raise(signal) };
        return;
    };
    // SAFETY: the strings live as long as the process, and the lists of arguments end with a null; the child goes on with its own copy of the memory and calls
    // what is async-signal-safe until it is another program (the system call itself: fork(3) calls what libraries have registered for it).
    unsafe {
        let said = if signal == libc::SIGABRT { &ready.aborted } else { &ready.crashed };
        libc::write(2, said.as_ptr().cast(), said.len());
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
                    // Readable, or closed.
                    libc::close(pipe[1]);
                    let mut seen = libc::pollfd { fd: pipe[0], events: libc::POLLIN, revents: 0 };
                    libc::poll(&mut seen, 1, SEEN);
                }
            }
        }
        libc::_exit(FAILED);
    }
}

/// Where this process was started to tidy up behind another: does so. Whether it was.
#[must_use]
pub fn tidied() -> bool {
    let mut words = std::env::args().skip(1);
    let (word, process) = (words.next(), words.next().and_then(|process| process.parse().ok()));
    let Some(process) = process.filter(|_| word.as_deref() == Some(TIDY)) else { return false };
    // Its parent alone: the number may have become another's.
    if getppid().as_raw() as u32 != process {
        return true;
    }
    let mut all = children(process);
    all.push(process);
    // It waits for that.
    // SAFETY: nothing else of this process uses its standard output, which is the end of a pipe.
    drop(unsafe { OwnedFd::from_raw_fd(1) });
    let end = Instant::now() + ENDED;
    while !all.iter().all(|process| has_ended(*process)) && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    left_behind::remove_of(&all);
    true
}

/// The children of all threads of a process, but for this one.
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

    /// The test itself once more, which ends as the variable says.
    fn ended_by(how: &str) -> std::process::Output {
        let name = "given_up::tests::who_aborts_or_crashes_is_told_of_and_who_is_killed_is_not";
        let program = std::env::current_exe().expect("this program");
        let words = ["--exact", name, "--nocapture"];
        Command::new(program).args(words).env(CHILD, how).output().expect("it has run")
    }

    #[test]
    fn who_aborts_or_crashes_is_told_of_and_who_is_killed_is_not() {
        use std::os::unix::process::ExitStatusExt;
        if let Ok(how) = std::env::var(CHILD) {
            install("process of a test").expect("installed");
            match how.as_str() {
                "abort" => process::abort(),
                // SAFETY: it faults, which is what is tested.
                "crash" => unsafe { ptr::without_provenance::<u8>(64).read_volatile().into() },
                // SAFETY: a system call.
                _ => unsafe { libc::kill(libc::getpid(), libc::SIGABRT) },
            };
        }
        for (how, words) in [("abort", "a library has ended"), ("crash", "this process has crashed")] {
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
    fn a_process_lives_until_it_has_ended_and_is_known_to_its_parent() {
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
