//! The options of `ginlab echo`, and what a client wants echoed.

use crate::error::Failure;
use crate::output::OutputArgs;
use crate::values::{seconds, sizes};
use ginlab::measure::size;
use serde::{Deserialize, Serialize};
use std::time::Duration;

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
    pub listen: Option<String>,
    /// Be a client of the server there
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,
    /// End the server after so many clients [default: with Ctrl-C]
    #[arg(long, value_name = "N", requires = "listen")]
    pub clients: Option<u64>,
    /// Smallest message [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "64", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest message
    #[arg(short = 'e', long, default_value = "64K", value_name = "SIZE", value_parser = size::parse)]
    pub end: u64,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 4, value_name = "N")]
    pub factor: u64,
    /// Timed messages of each size
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub iterations: u32,
    /// Untimed messages of each size before
    #[arg(short = 'w', long, default_value_t = 100, value_name = "N")]
    pub warmup: u32,
    /// libfabric provider (efa, tcp, shm, ...), or worst: the worst network that EFA may be [default: efa where there is one, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Domain to open the rail on [default: chosen]
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Longest wait of any kind, in seconds
    #[arg(short = 't', long, default_value = "10", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What the client wants echoed: so many messages of each size, in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub sizes: Vec<u64>,
    pub messages: u64,
    pub timed: u64,
}

/// Memory that a client may ask a server for is eight times this.
const LARGEST: u64 = 64 << 20;

/// Sizes of a plan, at most: as many as powers of two.
const MOST_SIZES: usize = 64;

/// Messages of each size, at most: what the options can ask for. All of a plan together stay far below 2^64.
const MOST_MESSAGES: u64 = 1 << 33;

impl Plan {
    pub fn new(args: &Args) -> Result<Plan, Failure> {
        let sizes = sizes(args.begin, args.end, args.factor)?;
        let timed = u64::from(args.iterations);
        let plan = Plan { sizes, messages: timed + u64::from(args.warmup), timed };
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// Also the server's check of what a client asks for.
    pub fn check(&self) -> Result<(), String> {
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
    pub fn total(&self) -> u64 {
        self.sizes.len() as u64 * self.messages
    }

    pub fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that come from a client: nothing that passes is too much for the server to count.
    #[test]
    fn what_a_client_may_ask_for_is_bounded() {
        let most = Plan { sizes: vec![LARGEST; MOST_SIZES], messages: MOST_MESSAGES, timed: MOST_MESSAGES };
        assert_eq!(most.check(), Ok(()));
        assert!((most.sizes.len() as u64).checked_mul(most.messages).is_some_and(|total| total == most.total()));
        let with = |sizes: Vec<u64>, messages, timed| Plan { sizes, messages, timed };
        for bad in [
            with(vec![], 1, 1),
            with(vec![0], 1, 1),
            with(vec![LARGEST + 1], 1, 1),
            with(vec![1; MOST_SIZES + 1], 1, 1),
            with(vec![1], u64::MAX, 1),
            with(vec![1], MOST_MESSAGES + 1, 1),
            with(vec![1], 1, 2),
        ] {
            assert!(bad.check().is_err(), "{} sizes, {}, {}", bad.sizes.len(), bad.messages, bad.timed);
        }
    }
}
