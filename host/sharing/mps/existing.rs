//! A server that serves this process already: the machine's, or one that the user has named.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::geteuid;

/// Where CUDA looks for a server.
pub const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where a server writes its log.
pub const LOG: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Where CUDA looks when nobody has said where.
pub const DEFAULT: &str = "/tmp/nvidia-mps";

/// What is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing: a server may be started.
    None,
    /// A control daemon answers in this folder, and CUDA will use it.
    Answers(PathBuf),
    /// The variable names this folder, and nobody answers there.
    Silent(PathBuf),
}

/// Looks where CUDA will look. `named` is the value of [`PIPE`]. A server in the default folder counts where it is root's or this user's:
/// the control daemon of another user serves that user alone.
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

/// Whether a control daemon listens in this folder. Its `control` is a socket; of drivers before that, a pipe. It does not wait.
pub fn answers(folder: &Path) -> bool {
    let control = folder.join("control");
    let Ok(found) = fs::metadata(&control) else { return false };
    if found.file_type().is_socket() {
        return listens(&control).unwrap_or(false);
    }
    // Without a reader there is nobody to write to.
    found.file_type().is_fifo() && fs::OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(&control).is_ok()
}

fn listens(path: &Path) -> io::Result<bool> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    // Of whichever kind it is.
    for kind in [SockType::Stream, SockType::SeqPacket] {
        let one = socket(AddressFamily::Unix, kind, flags, None)?;
        match connect(one.as_raw_fd(), &UnixAddr::new(path)?) {
            // As many wait there already as may.
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
    fn a_server_is_one_that_answers() {
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
        // The socket is left behind by whoever was killed.
        assert_eq!(existing(None, &here), Existing::None);
        fs::remove_file(&control).unwrap();
        nix::unistd::mkfifo(&control, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!answers(&here));
        let _reader = fs::OpenOptions::new().read(true).write(true).open(&control).unwrap();
        assert!(answers(&here));
    }
}
