//! `tcp`: the launcher tells every rank its number and where rank 0 listens.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use super::detect::{Env, number, required};
use super::error::BootstrapError;
use super::hello::MAX_TOKEN_BYTES;
use super::local::TOKEN;

/// torchrun's default.
const DEFAULT_PORT: u16 = 29400;

/// Places where launchers put something that is the same on all ranks of a job and differs between jobs.
const TOKENS: [&str; 4] = [TOKEN, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SKYPILOT_TASK_ID"];

/// What a rank of a `tcp` job must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Rank 0's host name or address.
    pub master: String,
    /// Rank 0's port.
    pub port: u16,
    /// The secret that all ranks of the job share.
    pub token: String,
}

impl TcpSettings {
    /// From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun and most others), or from SkyPilot's variables.
    ///
    /// SkyPilot starts one process per node. It is one rank, unless the script starts one per GPU and sets LOCAL_RANK for
    /// each: then the ranks are SKYPILOT_NODE_RANK x SKYPILOT_NUM_GPUS_PER_NODE + LOCAL_RANK.
    ///
    /// GINLAB_PORT goes before MASTER_PORT. Where torchrun keeps its own store at MASTER_PORT, the next port is taken.
    pub fn from_env(env: Env) -> Result<Self, BootstrapError> {
        let (rank, size, master) = if env("RANK").is_some() || env("SKYPILOT_NODE_RANK").is_none() {
            let (by, fix) = ("the tcp bootstrap needs it", "set RANK, WORLD_SIZE and MASTER_ADDR on every rank");
            let (rank, size) = (number(env, "RANK", by, fix)?, number(env, "WORLD_SIZE", by, fix)?);
            let master = if size == 1 { String::new() } else { required(env, "MASTER_ADDR", by, fix)? };
            (rank, size, master)
        } else {
            skypilot(env)?
        };
        let token = if size == 1 { String::new() } else { token_from_env(env)? };
        Ok(TcpSettings { rank, size, master, port: port(env)?, token })
    }
}

/// The job's token, from GINLAB_TOKEN or from what a launcher gives to all processes of a job.
pub fn token_from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<String, BootstrapError> {
    // torchrun's run id is "none" unless one is given: the same for all jobs.
    let token = TOKENS.iter().filter_map(|name| env(name)).find(|token| token != "none");
    token.ok_or(BootstrapError::NoToken).and_then(|token| Ok(checked_token(&token)?.to_owned()))
}

fn skypilot(env: Env) -> Result<(usize, usize, String), BootstrapError> {
    let (by, fix) = ("SkyPilot's other variables are", "set RANK, WORLD_SIZE and MASTER_ADDR instead");
    let node: usize = number(env, "SKYPILOT_NODE_RANK", by, fix)?;
    let nodes: usize = number(env, "SKYPILOT_NUM_NODES", by, fix)?;
    let addresses = required(env, "SKYPILOT_NODE_IPS", by, fix)?;
    let master = addresses.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned();
    if env("LOCAL_RANK").is_none() {
        return Ok((node, nodes, master));
    }
    let local: usize = number(env, "LOCAL_RANK", by, fix)?;
    let each: usize =
        number(env, "SKYPILOT_NUM_GPUS_PER_NODE", "LOCAL_RANK is", "unset LOCAL_RANK for one rank per node")?;
    if local >= each {
        let allowed = format!("SKYPILOT_NUM_GPUS_PER_NODE is {each}");
        return Err(BootstrapError::BadVariable { name: "LOCAL_RANK".into(), value: local.to_string(), allowed });
    }
    Ok((node.saturating_mul(each).saturating_add(local), nodes.saturating_mul(each), master))
}

fn port(env: Env) -> Result<u16, BootstrapError> {
    let (name, step) = match () {
        () if env("GINLAB_PORT").is_some() => ("GINLAB_PORT", 0),
        () if env("MASTER_PORT").is_some() => {
            ("MASTER_PORT", u16::from(env("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|used| used == "True")))
        }
        () => return Ok(DEFAULT_PORT),
    };
    let port: u16 = number(env, name, "", "")?;
    port.checked_add(step).filter(|&port| port > 0).ok_or_else(|| BootstrapError::BadVariable {
        name: name.to_owned(),
        value: port.to_string(),
        allowed: "allowed are 1 to 65535".to_owned(),
    })
}

/// The token, or why it cannot be one.
pub(super) fn checked_token(token: &str) -> Result<&str, BootstrapError> {
    match token.len() {
        0 => Err(BootstrapError::NoToken),
        1..=MAX_TOKEN_BYTES => Ok(token),
        _ => Err(BootstrapError::BadVariable {
            name: TOKEN.to_owned(),
            value: format!("{}...", super::frame::label(token)),
            allowed: format!("at most {MAX_TOKEN_BYTES} bytes are allowed"),
        }),
    }
}

/// Listens on all interfaces, IPv6 and IPv4 where there is IPv6.
pub(super) fn listen(port: u16) -> Result<TcpListener, BootstrapError> {
    let any: [SocketAddr; 2] = [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    TcpListener::bind(&any[..]).map_err(|error| BootstrapError::System {
        action: format!("listen on port {port} as rank 0"),
        text: format!("{error}; if another program holds it, set GINLAB_PORT to a free port on every rank"),
    })
}

/// The addresses of rank 0. The system's resolver has its own time limit.
pub(super) fn resolve(master: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let addresses = (master, port).to_socket_addrs().map_err(|error| format!("cannot resolve {master:?}: {error}"))?;
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<TcpSettings, String> {
        let env = |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
        TcpSettings::from_env(&env).map_err(|error| error.to_string())
    }

    #[test]
    fn torchrun() {
        let mut variables = vec![
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "run"),
        ];
        let expected = TcpSettings { rank: 3, size: 4, master: "node0".into(), port: 29500, token: "run".into() };
        assert_eq!(settings(&variables), Ok(expected.clone()));
        variables.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
        assert_eq!(settings(&variables), Ok(TcpSettings { port: 29501, ..expected.clone() }));
        variables.push(("GINLAB_PORT", "7"));
        assert_eq!(settings(&variables), Ok(TcpSettings { port: 7, ..expected }));
        variables[5].1 = "none";
        assert!(settings(&variables).unwrap_err().contains("set GINLAB_TOKEN to the same secret on every rank"));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(settings(&[("RANK", "0")]).unwrap_err().starts_with("WORLD_SIZE is not set"));
        let error = settings(&[("RANK", "x"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(error.starts_with("RANK=\"x\" is not valid"), "{error}");
        assert!(settings(&[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap_err().starts_with("MASTER_ADDR is not set"));
        assert!(settings(&[("RANK", "0"), ("WORLD_SIZE", "1")]).is_ok());
        let error = settings(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "70000")]).unwrap_err();
        assert!(error.starts_with("MASTER_PORT=\"70000\" is not valid"), "{error}");
    }

    #[test]
    fn skypilot_nodes_and_gpus() {
        let mut variables = vec![
            ("SKYPILOT_NODE_RANK", "1"),
            ("SKYPILOT_NUM_NODES", "2"),
            ("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n"),
            ("SKYPILOT_NUM_GPUS_PER_NODE", "8"),
            ("SKYPILOT_TASK_ID", "task"),
        ];
        let expected = TcpSettings { rank: 1, size: 2, master: "10.0.0.1".into(), port: 29400, token: "task".into() };
        assert_eq!(settings(&variables), Ok(expected.clone()));
        variables.push(("LOCAL_RANK", "3"));
        assert_eq!(settings(&variables), Ok(TcpSettings { rank: 11, size: 16, ..expected }));
    }

    #[test]
    fn tokens_have_limits() {
        assert_eq!(checked_token("t"), Ok("t"));
        assert_eq!(checked_token(""), Err(BootstrapError::NoToken));
        assert!(checked_token(&"x".repeat(257)).is_err());
    }
}
