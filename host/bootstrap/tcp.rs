//! `tcp`: the launcher gives every rank its number and the address of rank 0.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use super::detect::{Env, number, required};
use super::error::BootstrapError;
use super::handshake::MAX_TOKEN_BYTES;
use super::host::checked_host;
use super::local::TOKEN;
use super::open::{check_files, checked_size};
use super::star::Star;
use super::{Bootstrap, BootstrapKind, BootstrapOptions};

/// torchrun's default port.
const DEFAULT_PORT: u16 = 29400;

/// Name of the variable with the path of a file that contains the token.
const TOKEN_FILE: &str = "GINLAB_TOKEN_FILE";

/// Variables in which launchers store an ID that is the same on all ranks of a job and differs between jobs. All users
/// of the cluster can see these IDs (`squeue`). They only separate the jobs of one machine on its loopback, and are not
/// secrets elsewhere.
const JOB_IDS: [&str; 3] = ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SKYPILOT_TASK_ID"];

/// Parameters of a rank of a `tcp` job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// Number of this rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Host name or address of rank 0.
    pub master: String,
    /// Port of rank 0.
    pub port: u16,
    /// Secret that all ranks of the job share.
    pub token: String,
}

impl TcpSettings {
    /// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (set by torchrun and most other launchers), or SkyPilot's
    /// variables.
    ///
    /// SkyPilot starts one process per node, which is one rank. If the script starts one process per GPU, it must set
    /// LOCAL_RANK for each. Ranks are then SKYPILOT_NODE_RANK x SKYPILOT_NUM_GPUS_PER_NODE + LOCAL_RANK.
    ///
    /// GINLAB_PORT takes precedence over MASTER_PORT. If torchrun's own store uses MASTER_PORT, the next port is used.
    pub fn from_env(env: Env) -> Result<Self, BootstrapError> {
        let (rank, size, master) = if env("RANK").is_some() || env("SKYPILOT_NODE_RANK").is_none() {
            let (by, fix) = ("the tcp bootstrap needs it", "set RANK, WORLD_SIZE and MASTER_ADDR on every rank");
            let (rank, size) = (number(env, "RANK", by, fix)?, number(env, "WORLD_SIZE", by, fix)?);
            let master = if size == 1 {
                String::new()
            } else {
                checked_host("MASTER_ADDR", &required(env, "MASTER_ADDR", by, fix)?)?
            };
            (rank, size, master)
        } else {
            skypilot(env)?
        };
        if rank >= size {
            let allowed = format!("must be from 0 to {}", size.saturating_sub(1));
            return Err(BootstrapError::bad_variable("RANK", rank, allowed));
        }
        let token = if size == 1 { String::new() } else { token_for(&master, env)? };
        Ok(TcpSettings { rank, size, master, port: port(env)?, token })
    }
}

impl Bootstrap {
    /// Joins the job that `settings` describe ([`TcpSettings::from_env`]): listens as rank 0, or connects to it.
    pub fn tcp(settings: &TcpSettings, options: BootstrapOptions) -> Result<Self, BootstrapError> {
        let &TcpSettings { rank, size, ref master, port, ref token } = settings;
        if size == 0 || rank >= size {
            let allowed = format!("must be from 0 to {}", size.saturating_sub(1));
            return Err(BootstrapError::bad_variable("RANK", rank, allowed));
        }
        if rank > 0 {
            let resolve = || resolve(master, port);
            return Bootstrap::leaf(
                BootstrapKind::Tcp,
                (rank, size),
                resolve,
                &format!("{master}:{port}"),
                token,
                options,
            );
        }
        checked_size(size)?;
        check_files(size)?;
        let listener = if size > 1 { Some((listen(master, port)?, token.as_str())) } else { None };
        Bootstrap::centre(BootstrapKind::Tcp, Star::new(0, size, None), listener, options)
    }
}

/// Returns the secret for connections to `host` (a name or an address, with or without a port), from GINLAB_TOKEN or
/// the file that GINLAB_TOKEN_FILE names. On the loopback a launcher's job ID is accepted as well.
///
/// # Errors
/// Returns [`BootstrapError::NoToken`] if there is no secret, and a usage error if there is only a job ID.
pub fn token_for(host: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, BootstrapError> {
    if let Some(token) = env(TOKEN) {
        return Ok(checked_token(&token)?.to_owned());
    }
    if let Some(path) = env(TOKEN_FILE) {
        let bad = |why: &str| BootstrapError::bad_variable(TOKEN_FILE, &path, why);
        let text = std::fs::read_to_string(&path).map_err(|error| bad(&format!("it cannot be read: {error}")))?;
        return match text.trim() {
            "" => Err(bad("the file is empty; it must contain the token")),
            token => Ok(checked_token(token)?.to_owned()),
        };
    }
    // torchrun's run ID is "none", which is the same for all jobs, unless an ID is specified.
    let found = JOB_IDS.iter().find_map(|name| Some((*name, env(name).filter(|id| id != "none")?)));
    match found {
        Some((_, id)) if is_loopback(host) => Ok(checked_token(&id)?.to_owned()),
        Some((name, _)) => Err(BootstrapError::usage(format!(
            "{name} is not a secret: every user of the cluster can read it, so it is accepted as a job token only on \
             the loopback; set GINLAB_TOKEN to the same secret on every rank (`export GINLAB_TOKEN=$(openssl rand -hex \
             16)` before srun or mpirun), or GINLAB_TOKEN_FILE to a file that holds it"
        ))),
        None => Err(BootstrapError::NoToken),
    }
}

/// Returns whether `host` can only be the loopback: a loopback address or `localhost`. Other names are not resolved: on
/// many systems a host's own name resolves to a loopback address locally and to a network address elsewhere.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = match host.parse::<SocketAddr>() {
        Ok(address) => return address.ip().to_canonical().is_loopback(),
        // An IPv6 address contains colons.
        Err(_) if host.parse::<IpAddr>().is_ok() => host,
        Err(_) => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

fn skypilot(env: Env) -> Result<(usize, usize, String), BootstrapError> {
    let (by, fix) = ("SkyPilot's other variables are set", "set RANK, WORLD_SIZE and MASTER_ADDR instead");
    let node: usize = number(env, "SKYPILOT_NODE_RANK", by, fix)?;
    let nodes: usize = number(env, "SKYPILOT_NUM_NODES", by, fix)?;
    let addresses = required(env, "SKYPILOT_NODE_IPS", by, fix)?;
    let master = addresses.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let master = checked_host("SKYPILOT_NODE_IPS", master)?;
    if env("LOCAL_RANK").is_none() {
        return Ok((node, nodes, master));
    }
    let local: usize = number(env, "LOCAL_RANK", by, fix)?;
    let each: usize =
        number(env, "SKYPILOT_NUM_GPUS_PER_NODE", "LOCAL_RANK is set", "unset LOCAL_RANK for one rank per node")?;
    if local >= each {
        let allowed = format!("must be below SKYPILOT_NUM_GPUS_PER_NODE, which is {each}");
        return Err(BootstrapError::bad_variable("LOCAL_RANK", local, allowed));
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
    let bad = || BootstrapError::bad_variable(name, port, "must be from 1 to 65535");
    port.checked_add(step).filter(|&port| port > 0).ok_or_else(bad)
}

/// Returns the token, or an error if it is empty or too long.
pub(super) fn checked_token(token: &str) -> Result<&str, BootstrapError> {
    match token.len() {
        0 => Err(BootstrapError::NoToken),
        1..=MAX_TOKEN_BYTES => Ok(token),
        _ => {
            let (shown, allowed) = (super::frame::label(token), format!("at most {MAX_TOKEN_BYTES} bytes are allowed"));
            Err(BootstrapError::bad_variable(TOKEN, format!("{shown}..."), allowed))
        }
    }
}

/// Listens as rank 0, which the other ranks know as `master`. Listens only on the loopback if `master` is a loopback
/// name or address, only on that address if it is one of this host, and otherwise on all interfaces. The last case
/// covers names, which other ranks may resolve to a different address than this host does, and addresses that are
/// translated on the way.
pub(super) fn listen(master: &str, port: u16) -> Result<TcpListener, BootstrapError> {
    let only: Vec<SocketAddr> = match master.parse::<IpAddr>() {
        Ok(ip) => vec![(ip, port).into()],
        Err(_) if is_loopback(master) => vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()],
        Err(_) => return listen_on_all(port),
    };
    match TcpListener::bind(&only[..]) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => listen_on_all(port),
        other => other.map_err(|error| cannot_listen(port, &error)),
    }
}

/// Listens on all interfaces: on IPv6 and IPv4 if IPv6 is available, otherwise on IPv4.
pub(super) fn listen_on_all(port: u16) -> Result<TcpListener, BootstrapError> {
    let any: [SocketAddr; 2] = [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    TcpListener::bind(&any[..]).map_err(|error| cannot_listen(port, &error))
}

fn cannot_listen(port: u16, error: &std::io::Error) -> BootstrapError {
    let text = format!("{error}; if another program uses it, set GINLAB_PORT to a free port on every rank");
    BootstrapError::system(format_args!("listen on port {port} as rank 0"), text)
}

/// Returns the addresses of rank 0. The time limit is that of the system's resolver.
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
    fn torchrun_variables_are_parsed() {
        let mut variables = vec![
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("GINLAB_TOKEN", "run"),
        ];
        let expected = TcpSettings { rank: 3, size: 4, master: "node0".into(), port: 29500, token: "run".into() };
        assert_eq!(settings(&variables), Ok(expected.clone()));
        variables.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
        assert_eq!(settings(&variables), Ok(TcpSettings { port: 29501, ..expected.clone() }));
        variables.push(("GINLAB_PORT", "7"));
        assert_eq!(settings(&variables), Ok(TcpSettings { port: 7, ..expected }));
        variables.truncate(5);
        assert!(settings(&variables).unwrap_err().contains("set GINLAB_TOKEN to the same secret on every rank"));
    }

    #[test]
    fn job_id_is_token_only_on_loopback() {
        for name in JOB_IDS {
            let of = |master: &str, id: &str| {
                settings(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", master), (name, id)])
                    .map(|all| all.token)
            };
            for master in ["127.0.0.1", "127.1.2.3", "::1", "localhost", "::ffff:127.0.0.1"] {
                assert_eq!(of(master, "4711"), Ok("4711".into()), "{master}");
            }
            for master in
                ["node0", "10.0.0.1", "fe80::1%eth0", "0.0.0.0", "localhost.example.org", "127.0.0.1.example.org"]
            {
                let error = of(master, "4711").unwrap_err();
                assert!(error.starts_with(&format!("{name} is not a secret")), "{error}");
                assert!(error.contains("set GINLAB_TOKEN"), "{error}");
            }
            assert!(of("127.0.0.1", "none").unwrap_err().contains("share no job token"));
        }
        let env = |name: &str| (name == "SLURM_JOB_ID").then(|| "4711".to_owned());
        for (address, is) in
            [("127.0.0.1:7002", true), ("[::1]:0", true), ("localhost:1", true), ("host-a:7002", false)]
        {
            assert_eq!(token_for(address, &env).is_ok(), is, "{address}");
        }
        assert!(token_for("0.0.0.0:7002", &env).is_err());
    }

    #[test]
    fn token_is_read_from_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let text = path.display().to_string();
        let env = |name: &str| (name == TOKEN_FILE).then(|| text.clone());
        assert!(token_for("host", &env).unwrap_err().to_string().contains("it cannot be read: No such file"));
        std::fs::write(&path, " \n").unwrap();
        assert!(token_for("host", &env).unwrap_err().to_string().contains("the file is empty"));
        std::fs::write(&path, "of a file\n").unwrap();
        assert_eq!(token_for("host", &env), Ok("of a file".into()));
    }

    #[test]
    fn rank_0_listens_only_on_its_address() {
        let on = |master: &str| listen(master, 0).unwrap().local_addr().unwrap().ip();
        assert_eq!(on("127.0.0.1"), Ipv4Addr::LOCALHOST);
        assert!(on("localhost").is_loopback());
        // This host does not have this address: it may be translated on the way.
        assert!(on("192.0.2.1").is_unspecified());
        assert!(on("some-name").is_unspecified());
    }

    #[test]
    fn missing_and_invalid_variables_are_named() {
        assert!(settings(&[("RANK", "0")]).unwrap_err().starts_with("WORLD_SIZE is not set"));
        let error = settings(&[("RANK", "x"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(error.starts_with("RANK=\"x\" is not valid"), "{error}");
        assert!(settings(&[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap_err().starts_with("MASTER_ADDR is not set"));
        assert!(settings(&[("RANK", "0"), ("WORLD_SIZE", "1")]).is_ok());
        let of = |rank, master| {
            settings(&[("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", master), ("GINLAB_TOKEN", "run")])
        };
        assert_eq!(of(" 1 ", "::1").map(|all| (all.rank, all.master)), Ok((1, "::1".to_owned())));
        assert!(of("2", "node0").unwrap_err().contains("must be from 0 to 1"));
        assert!(
            of("0", "node0:29500").unwrap_err().starts_with("MASTER_ADDR=\"node0:29500\" is not valid: it has a port")
        );
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
            ("GINLAB_TOKEN", "task"),
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
