//! `local`: this program starts copies of itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::children::Children;
use super::detect::{Env, RANK, number, process_env, required};
use super::error::BootstrapError;
use super::open::check_files;
use super::star::Star;
use super::{Bootstrap, BootstrapKind, BootstrapOptions};

const SIZE: &str = "GINLAB_WORLD_SIZE";
const MASTER: &str = "GINLAB_MASTER";
pub(super) const TOKEN: &str = "GINLAB_TOKEN";

/// Maximum number of ranks on one machine. A larger number is assumed to be a typing error.
pub(super) const MAX_RANKS: usize = 256;

/// Returns whether this process was started by rank 0 of a `local` job. Such a process prints no results.
pub fn is_spawned_child() -> bool {
    process_env(RANK).is_some()
}

/// A child's rank and the address of rank 0, from its environment.
pub(super) struct LocalRank {
    pub rank: usize,
    pub size: usize,
    pub master: SocketAddr,
    pub token: String,
}

impl LocalRank {
    pub fn from_env(env: Env) -> Result<Self, BootstrapError> {
        let by = "GINLAB_RANK indicates that another ginlab started this one";
        let fix = "unset GINLAB_RANK to start a separate job";
        let rank: usize = number(env, RANK, by, fix)?;
        let size: usize = number(env, SIZE, by, fix)?;
        let master = required(env, MASTER, by, fix)?;
        let token = required(env, TOKEN, by, fix)?;
        if rank == 0 || rank >= size {
            let allowed =
                format!("expected a child rank of a job of {size} ranks, from 1 to {}", size.saturating_sub(1));
            return Err(BootstrapError::bad_variable(RANK, rank, allowed));
        }
        let allowed = "expected an address and a port such as 127.0.0.1:4711";
        let master = master.parse().map_err(|_| BootstrapError::bad_variable(MASTER, master, allowed))?;
        Ok(LocalRank { rank, size, master, token })
    }
}

impl Bootstrap {
    /// Joins the star of the rank 0 that started this process.
    pub(super) fn child(options: BootstrapOptions) -> Result<Self, BootstrapError> {
        let place = LocalRank::from_env(&process_env)?;
        let master = place.master;
        let candidates = || Ok(vec![master]);
        Bootstrap::leaf(
            BootstrapKind::Local,
            (place.rank, place.size),
            candidates,
            &master.to_string(),
            &place.token,
            options,
        )
    }

    /// Starts `ranks - 1` copies of this program on this machine, with the same arguments, and becomes rank 0. In the
    /// copies [`Bootstrap::auto`] joins the job. Their stdout is closed, and they are killed when the thread that
    /// called this function exits.
    pub fn local(ranks: usize, options: BootstrapOptions) -> Result<Self, BootstrapError> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(BootstrapError::BadSize { asked: ranks, limit: MAX_RANKS });
        }
        if ranks == 1 {
            return Bootstrap::centre(BootstrapKind::Local, Star::new(0, 1, None), None, options);
        }
        check_files(ranks)?;
        let mut children = Children::default();
        let (listener, token) = start(ranks, &mut children)?;
        let star = Star::new(0, ranks, Some(children));
        Bootstrap::centre(BootstrapKind::Local, star, Some((listener, &token)), options)
    }
}

/// Starts ranks 1 to `size - 1`. Returns rank 0's listener and the token.
pub(super) fn start(size: usize, children: &mut Children) -> Result<(TcpListener, String), BootstrapError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|error| BootstrapError::system("listen on 127.0.0.1", error))?;
    let address = listener.local_addr().map_err(|error| BootstrapError::system("read the port of a socket", error))?;
    let token = random_token()?;
    for rank in 1..size {
        let environment =
            [(RANK, rank.to_string()), (SIZE, size.to_string()), (MASTER, address.to_string()), (TOKEN, token.clone())];
        children.start(rank, &environment)?;
    }
    Ok((listener, token))
}

/// Returns 128 random bits in hexadecimal.
pub fn random_token() -> Result<String, BootstrapError> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| BootstrapError::system("get random numbers from the system", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn child_reads_place_or_names_missing_variable() {
        let full = |name: &str| match name {
            RANK => Some("1".to_owned()),
            SIZE => Some("2".to_owned()),
            MASTER => Some("127.0.0.1:4711".to_owned()),
            TOKEN => Some("t".to_owned()),
            _ => None,
        };
        let place = LocalRank::from_env(&full).unwrap();
        assert_eq!((place.rank, place.size, place.master.port(), &*place.token), (1, 2, 4711, "t"));
        let torn = |name: &str| if name == MASTER { None } else { full(name) };
        let error = LocalRank::from_env(&torn).err().unwrap().to_string();
        assert!(error.starts_with("GINLAB_MASTER is not set"), "{error}");
        let zero = |name: &str| if name == RANK { Some("0".to_owned()) } else { full(name) };
        assert!(LocalRank::from_env(&zero).is_err());
    }

    #[test]
    fn tokens_differ() {
        assert_ne!(random_token().unwrap(), random_token().unwrap());
        assert_eq!(random_token().unwrap().len(), 32);
    }
}
