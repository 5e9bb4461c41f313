//! Files of libfabric in /dev/shm. Its shm provider creates one for each endpoint. Its EFA provider before 2.2 does so
//! as well, even if it moves no data through shared memory. libfabric does not reserve their pages: if the file system
//! lacks a page, its first access raises SIGBUS.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use libfabric_sys as sys;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, SysconfVar, access, sysconf};

use super::errors::{self, FailedOperation};
use crate::FabricError;

const FOLDER: &str = "/dev/shm";
/// Number of bytes of an endpoint's file that are written when it is enabled, rounded up. libfabric 1.17 to 2.1 write
/// 3.75 MiB of 16 MiB.
const FIRST: u64 = 4 << 20;
/// Maximum wait for the other ranks of this host, which enable their endpoints one after the other.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lock held while an endpoint is enabled, so that no two ranks rely on the same free pages.
pub(super) struct Turn {
    _lock: Option<Flock<File>>,
}

/// Returns whether endpoints of a provider have such files.
fn has_files(provider: &str, library: u32) -> bool {
    provider.starts_with("shm")
        || provider.starts_with("sm2")
        || provider.starts_with("efa") && library < sys::version(2, 2)
}

/// Checks that /dev/shm has space for an endpoint of this provider.
pub(super) fn turn(rail: &str, provider: &str, library: u32) -> Result<Turn, FabricError> {
    if !has_files(provider, library) {
        return Ok(Turn { _lock: None });
    }
    if let Err(why) = access(FOLDER, AccessFlags::W_OK) {
        let text = format!("{FOLDER} cannot be used: {}", why.desc());
        return Err(errors::refused(rail, FailedOperation::Opening, "fi_enable", why as i32, text));
    }
    let lock = lock().ok();
    match free() {
        Some((free, size)) if free < FIRST => {
            let text = format!(
                "{FOLDER} is full: libfabric needs {FIRST} B in it for an endpoint, but {free} B of {size} B are \
                 available"
            );
            Err(errors::refused(rail, FailedOperation::Opening, "fi_enable", sys::FI_ENOSPC, text))
        }
        _ => Ok(Turn { _lock: lock }),
    }
}

/// Returns the reason why a provider offers nothing. libfabric's shm provider returns "no data" if /dev/shm has less
/// space than an endpoint's file for each core.
pub(super) fn why_nothing(provider: &str) -> Option<String> {
    const WHOLE: u64 = 16 << 20;
    if !provider.starts_with("shm") && !provider.starts_with("sm2") {
        return None;
    }
    let cores = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten().and_then(|cores| u64::try_from(cores).ok())?;
    let (free, size) = free()?;
    let needed = cores * WHOLE;
    (free <= needed).then(|| {
        format!(
            "{FOLDER} is full: libfabric needs {needed} B in it, 16 MiB for each of {cores} cores, but {free} B of \
                 {size} B are available"
        )
    })
}

/// Returns the available bytes and the size. `None` if there is no such file system.
fn free() -> Option<(u64, u64)> {
    let space = statvfs(FOLDER).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.fragment_size());
    // A file system without a size limit reports 0 blocks.
    (space.blocks() > 0).then(|| (bytes(space.blocks_available()), bytes(space.blocks())))
}

fn lock() -> io::Result<Flock<File>> {
    let mut file = File::open(FOLDER)?;
    let began = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, error)) if began.elapsed() >= PATIENCE => return Err(error.into()),
            Err((again, _)) => file = again,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_with_files_are_serialized() {
        let (old, new) = (sys::version(1, 17), sys::version(2, 5));
        assert!(has_files("shm", new) && has_files("efa", old));
        assert!(!has_files("efa", new) && !has_files("tcp;ofi_rxm", old));
        let held = turn("test", "shm", old);
        assert!(
            held.is_err() || Flock::lock(File::open(FOLDER).expect("there"), FlockArg::LockExclusiveNonblock).is_err()
        );
        drop(held);
        assert!(turn("test", "tcp", old).is_ok_and(|turn| turn._lock.is_none()));
    }
}
