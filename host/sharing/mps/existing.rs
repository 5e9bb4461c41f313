//! Existing MPS servers: that of the machine, or one that the user has specified.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::geteuid;

/// Environment variable with the directory in which CUDA searches for a server.
pub const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Environment variable with the directory of a server's log.
pub const LOG: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Directory in which CUDA searches if the variable is not set.
pub const DEFAULT: &str = "/tmp/nvidia-mps";

/// Result of the search for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    /// No server exists, so one may be started.
    None,
    /// A control daemon responds in this directory, and CUDA will use it.
    Answers(PathBuf),
    /// The variable names this directory, but no daemon responds there.
    Silent(PathBuf),
}

/// Searches for a server in the same places as CUDA. `named` is the value of [`PIPE`]. A server in the default
/// directory is accepted only if it belongs to root or to this user, because another user's control daemon serves only
/// that user.
pub fn existing(named: Option<PathBuf>, default: &Path) -> Existing {
    if let Some(folder) = named {
        return if answers(&folder) { Existing::Answers(folder) } else { Existing::Silent(folder) };
    }
    let owner = fs::metadata(default.join("control")).map(|found| found.uid());
    match owner {
        Ok(owner) if (owner == 0 || owner == geteuid().as_raw()) && answers(default) => {
            Existing::Answers(default.to_owned())
        }
        _ => Existing::None,
    }
}

/// Returns whether a control daemon listens in this directory. Its `control` is a socket, or a pipe with older drivers.
/// Does not block.
pub fn answers(folder: &Path) -> bool {
    let control = folder.join("control");
    let Ok(found) = fs::metadata(&control) else { return false };
    if found.file_type().is_socket() {
        return listens(&control).unwrap_or(false);
    }
    // The pipe can be opened for writing only if it has a reader.
    found.file_type().is_fifo() && fs::OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(&control).is_ok()
}

fn listens(path: &Path) -> io::Result<bool> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    // The type of the socket is not known.
    for kind in [SockType::Stream, SockType::SeqPacket] {
        let one = socket(AddressFamily::Unix, kind, flags, None)?;
        match connect(one.as_raw_fd(), &UnixAddr::new(path)?) {
            // EAGAIN means that the daemon's queue of connections is full.
            Ok(()) | Err(Errno::EAGAIN) => return Ok(true),
            Err(Errno::EPROTOTYPE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ErrorKind::ConnectionRefused.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_answering_server_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let (here, gone) = (folder.path().to_owned(), folder.path().join("gone"));
        assert_eq!(existing(None, &gone), Existing::None);
        assert_eq!(existing(Some(gone.clone()), &here), Existing::Silent(gone));
        let control = here.join("control");
        fs::write(&control, "").unwrap();
        assert_eq!(existing(None, &here), Existing::None, "a plain file");
        fs::remove_file(&control).unwrap();
        let listener = UnixListener::bind(&control).unwrap();
        assert_eq!(existing(None, &here), Existing::Answers(here.clone()));
        assert_eq!(existing(Some(here.clone()), Path::new("/nowhere")), Existing::Answers(here.clone()));
        drop(listener);
        // A killed daemon leaves its socket.
        assert_eq!(existing(None, &here), Existing::None);
        fs::remove_file(&control).unwrap();
        nix::unistd::mkfifo(&control, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!answers(&here));
        let _reader = fs::OpenOptions::new().read(true).write(true).open(&control).unwrap();
        assert!(answers(&here));
    }
}
