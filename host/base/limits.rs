//! Limits of this process on open files and processes: raises them where possible, and names the limit that caused an
//! error.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of descriptors reserved for libraries, logs and result files.
const SPARE: u64 = 8;

/// Raises the soft limit of open files to the hard limit. Each rail, each peer of a tcp rail and each rank needs
/// several files, and the usual soft limit of 1024 exists only for programs that use select(2).
pub fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // If this fails, the soft limit stays, and `lacking_files` reports it.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Returns the reason if `more` files cannot be opened in addition to those that are open; `None` if they can.
#[must_use]
pub fn lacking_files(more: u64) -> Option<String> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    // Counting the open files takes about one system call per file, so it is skipped if the limit is far away.
    if more.saturating_mul(2) + 4096 < limit {
        return None;
    }
    let open = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    lacking(open, more, limit)
}

fn lacking(open: u64, more: u64, limit: u64) -> Option<String> {
    let needed = open + more + SPARE;
    (needed > limit).then(|| {
        format!(
            "{needed} open files are needed, but the limit is {limit}; raise it (ulimit -n {})",
            needed.next_power_of_two()
        )
    })
}

/// Returns the error's text, and the limit that caused it, if any.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    let limit = |resource| getrlimit(resource).map_or_else(|_| String::new(), |(soft, _)| format!(" of {soft}"));
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => {
            format!("{error}: the limit{} open files was reached; raise it (ulimit -n)", limit(Resource::RLIMIT_NOFILE))
        }
        Some(Errno::ENFILE) => {
            format!("{error}: the machine's limit of open files was reached; raise it (sysctl fs.file-max)")
        }
        Some(Errno::EAGAIN) => format!(
            "{error}: the limit of processes and threads was reached; raise ulimit -u{} or the control group's \
             pids.max",
            limit(Resource::RLIMIT_NPROC)
        ),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacking_files_are_counted_and_named() {
        assert_eq!(lacking(20, 36, 64), None);
        let text = lacking(20, 37, 64);
        assert_eq!(text.as_deref(), Some("65 open files are needed, but the limit is 64; raise it (ulimit -n 128)"));
    }

    #[test]
    fn limit_errors_name_limit() {
        let text = |errno: Errno| explain(&io::Error::from(errno));
        assert!(text(Errno::EMFILE).contains("ulimit -n"), "{}", text(Errno::EMFILE));
        assert!(text(Errno::ENFILE).contains("fs.file-max"), "{}", text(Errno::ENFILE));
        assert!(text(Errno::EAGAIN).contains("ulimit -u"), "{}", text(Errno::EAGAIN));
        assert_eq!(text(Errno::ENOENT), io::Error::from(Errno::ENOENT).to_string());
    }

    #[test]
    fn soft_limit_becomes_hard_limit() {
        raise_open_files();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        assert_eq!(soft, hard);
    }
}
