//! `ginlab echo`: sockets and fabric completions in one loop.
//!
//! A client visits a server over TCP; the two exchange fabric addresses over that socket. Then every message goes to the server
//! and back twice at the same time, by the socket and by send and receive of the fabric, on one thread of each side.

mod client;
mod server;
mod side;

use crate::error::Failure;
use crate::output::OutputArgs;
use crate::program::{Program, program};
use crate::rails::Wanted;
use crate::runner::in_event_loop;
use crate::values::{sizes};
use ginlab::bootstrap::visit::Entrance;
use ginlab::bootstrap::{self, process_env};
use ginlab::measure::size;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub const PROGRAMS: &[Program] = &[Program {
    about: Some(client::ABOUT),
    ..program!(
        "echo",
        "A TCP echo server and client whose messages also go over the fabric: sockets and completions in one loop",
        Args,
        run
    )
}];

const EXAMPLES: &str = "\
Examples:
  ginlab echo                                              server and client here, as two tasks of one thread
  GINLAB_TOKEN=secret ginlab echo --listen 0.0.0.0:7001    a server; its events are lines on stdout
  GINLAB_TOKEN=secret ginlab echo --connect host-a:7001 -b 64 -e 1M --csv echo.csv    a client on another host";

/// Options of `ginlab echo`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Be the server and listen here; port 0 is any free one
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    listen: Option<String>,
    /// Be a client of the server there
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// End the server after so many clients [default: with Ctrl-C]
    #[arg(long, value_name = "N", requires = "listen")]
    clients: Option<u64>,
    /// Smallest message [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "64", value_name = "SIZE", value_parser = size::parse)]
    begin: u64,
    /// Largest message
    #[arg(short = 'e', long, default_value = "64K", value_name = "SIZE", value_parser = size::parse)]
    end: u64,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 4, value_name = "N")]
    factor: u64,
    /// Timed messages of each size
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iterations: u32,
    /// Untimed messages of each size before
    #[arg(short = 'w', long, default_value_t = 100, value_name = "N")]
    warmup: u32,
    /// libfabric provider (efa, tcp, shm, ...) [default: efa where there is one, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    provider: Option<String>,
    /// Domain to open the rail on [default: chosen]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Longest wait of any kind, in seconds
    #[arg(short = 't', long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// What the client wants echoed: so many messages of each size, in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    sizes: Vec<u64>,
    messages: u64,
    timed: u64,
}

/// Memory that a client may ask a server for is eight times this.
const LARGEST: u64 = 64 << 20;

/// Sizes of a plan, at most: as many as powers of two.
const MOST_SIZES: usize = 64;

/// Messages of each size, at most: what the options can ask for. All of a plan together stay far below 2^64.
const MOST_MESSAGES: u64 = 1 << 33;

impl Plan {
    fn new(args: &Args) -> Result<Plan, Failure> {
        let sizes = sizes(args.begin, args.end, args.factor)?;
        let timed = u64::from(args.iterations);
        let plan = Plan { sizes, messages: timed + u64::from(args.warmup), timed };
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// Also the server's check of what a client asks for.
    fn check(&self) -> Result<(), String> {
        match self.sizes.iter().find(|bytes| !(1..=LARGEST).contains(*bytes)) {
            Some(bytes) => Err(format!(
                "a message of {bytes} bytes cannot be echoed by a socket: allowed are 1 B to {}",
                size::human(LARGEST)
            )),
            None if self.sizes.is_empty() => Err("there are no sizes to echo".to_owned()),
            None if self.sizes.len() > MOST_SIZES => {
                Err(format!("{} sizes to echo: at most {MOST_SIZES} are allowed", self.sizes.len()))
            }
            None if self.messages > MOST_MESSAGES || self.timed > self.messages => Err(format!(
                "{} messages of each size, {} of them timed: at most {MOST_MESSAGES} are allowed, and no more timed",
                self.messages, self.timed
            )),
            None => Ok(()),
        }
    }

    /// Messages of all sizes. A plan that has passed its check has a number of them.
    fn total(&self) -> u64 {
        self.sizes.len() as u64 * self.messages
    }

    fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    // They wait for each other before they open rails.
    ginlab::fabric::libfabric::require_library()?;
    let plan = Plan::new(args)?;
    let rail = Wanted {
        provider: args.provider.clone(),
        domains: args.domain.iter().cloned().collect(),
        rails: 1,
        messages: true,
        timeout: Duration::from_secs(args.timeout),
    };
    let token = match args.listen.as_ref().or(args.connect.as_ref()) {
        None => bootstrap::random_token(),
        Some(address) => bootstrap::token_for(address, &process_env),
    }?;
    // The flows come with the visits, and each is driven by a task of its own.
    let program = async {
        if let Some(address) = &args.listen {
            let entrance = Entrance::listen(address, &token, rail.timeout).await?;
            return server::serve(entrance, &rail, args.clients, true).await;
        }
        if let Some(address) = &args.connect {
            return client::run(args, &plan, address, &token, &rail).await;
        }
        let entrance = Entrance::listen("127.0.0.1:0", &token, rail.timeout).await?;
        let address = entrance.address()?.to_string();
        let server = {
            let rail = rail.clone();
            tokio::task::spawn_local(async move { server::serve(entrance, &rail, Some(1), false).await })
        };
        client::run(args, &plan, &address, &token, &rail).await?;
        server.await.map_err(|error| Failure::Run(format!("the server's task ended: {error}")))?
    };
    in_event_loop(program)
}
