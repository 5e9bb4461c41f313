//! Options of `ginlab echo`, and the messages that a client asks the server to echo.

use crate::args::SizeArgs;
use crate::error::Failure;
use crate::output::OutputArgs;
use crate::values::{corruption, seconds};
use ginlab::measure::size;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ginlab echo                                              run server and client as two tasks of one thread
  GINLAB_TOKEN=secret ginlab echo --listen 0.0.0.0:7001    run a server that prints its events to stdout
  GINLAB_TOKEN=secret ginlab echo --connect host-a:7001 -b 64 -e 1M --csv echo.csv    run a client on another host";

/// Options of `ginlab echo`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("begin", |arg| arg.default_value("64")), mut_arg("end", |arg| arg.default_value("64K")))]
#[command(mut_arg("factor", |arg| arg.default_value("4")))]
pub struct EchoArgs {
    /// Run a server that listens on this address; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Run a client of the server at this address
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,
    /// Exit the server after this many clients [default: run until Ctrl-C]
    #[arg(long, value_name = "N", requires = "listen")]
    pub clients: Option<u64>,
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Timed messages per size
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub iterations: u32,
    /// Untimed messages per size before the timed ones
    #[arg(short = 'w', long, default_value_t = 100, value_name = "N")]
    pub warmup: u32,
    /// libfabric provider (efa, tcp, shm, ...), or worst (the least ordered network that EFA permits) [default: efa if
    /// available, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Domain on which to open the rail [default: automatic]
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
    /// Limit for every wait, in seconds
    #[arg(short = 't', long, default_value = "10", value_name = "SECONDS", value_parser = seconds(), help_heading = "Connection")]
    pub timeout: Duration,
    /// Inject a fault: corrupt=N (message N of the client, counted from 0, is sent one byte short over the fabric)
    #[arg(long = "fault", value_name = "FAULT", hide = true, conflicts_with = "listen", value_parser = corruption)]
    pub corrupt: Option<u64>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Messages that a client asks the server to echo: `messages` of each size, in order of `sizes`. The last `timed` of
/// them are timed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EchoPlan {
    pub sizes: Vec<u64>,
    pub messages: u64,
    pub timed: u64,
}

/// Maximum message size in bytes. A server allocates up to eight times this size per client.
const LARGEST: u64 = 64 << 20;

/// Maximum number of sizes: one per power of two.
const MOST_SIZES: usize = 64;

/// Maximum number of messages per size, as permitted by the options. Keeps the total of a plan far below 2^64.
const MOST_MESSAGES: u64 = 1 << 33;

impl EchoPlan {
    pub fn new(args: &EchoArgs) -> Result<EchoPlan, Failure> {
        let sizes = args.sizes.list()?;
        let timed = u64::from(args.iterations);
        let plan = EchoPlan { sizes, messages: timed + u64::from(args.warmup), timed };
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// Checks the plan. The server also calls it for a client's plan.
    pub fn check(&self) -> Result<(), String> {
        match self.sizes.iter().find(|bytes| !(1..=LARGEST).contains(*bytes)) {
            Some(bytes) => {
                Err(format!("invalid message size of {bytes} bytes: must be from 1 B to {}", size::human(LARGEST)))
            }
            None if self.sizes.is_empty() => Err("no message sizes are given".to_owned()),
            None if self.sizes.len() > MOST_SIZES => {
                Err(format!("{} message sizes: at most {MOST_SIZES} are allowed", self.sizes.len()))
            }
            None if self.messages > MOST_MESSAGES || self.timed > self.messages => Err(format!(
                "{} messages per size, {} of them timed: at most {MOST_MESSAGES} are allowed, and at most all of them \
                 can be timed",
                self.messages, self.timed
            )),
            None => Ok(()),
        }
    }

    /// Returns the number of messages of all sizes. Does not overflow if the plan has passed [`EchoPlan::check`].
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

    /// Client plans are bounded, so that the server can count every plan that passes the check.
    #[test]
    fn client_plans_are_bounded() {
        let most = EchoPlan { sizes: vec![LARGEST; MOST_SIZES], messages: MOST_MESSAGES, timed: MOST_MESSAGES };
        assert_eq!(most.check(), Ok(()));
        assert!((most.sizes.len() as u64).checked_mul(most.messages).is_some_and(|total| total == most.total()));
        let with = |sizes: Vec<u64>, messages, timed| EchoPlan { sizes, messages, timed };
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
