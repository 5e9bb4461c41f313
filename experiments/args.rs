//! Options that experiments share: sizes to sweep, and repeats. A command with other defaults or a more specific help
//! text sets them with `#[command(mut_arg(..))]`.

use crate::error::Failure;
use crate::series::SeriesOptions;
use crate::values::sizes;
use ginlab::measure::size;

/// Sizes to sweep.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct SizeArgs {
    /// Smallest size; K, M and G are powers of two
    #[arg(short = 'b', long, default_value = "8", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest size
    #[arg(short = 'e', long, default_value = "1M", value_name = "SIZE", value_parser = size::parse)]
    pub end: u64,
    /// Factor between consecutive sizes
    #[arg(short = 'f', long, default_value_t = 8, value_name = "N")]
    pub factor: u64,
}

impl SizeArgs {
    /// Returns the sizes. A sweep that starts with 0 continues with 1.
    pub fn list(&self) -> Result<Vec<u64>, Failure> {
        sizes(self.begin, self.end, self.factor)
    }
}

/// Repeats of a measurement, and its verification.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct RepeatArgs {
    /// Number of repeats; times are reported as median, minimum and maximum over the repeats
    #[arg(short = 'r', long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub repeats: u32,
    /// Do not verify
    #[arg(long)]
    pub no_check: bool,
}

impl RepeatArgs {
    /// Returns a series of runs of fixed length. `what` names a run in messages about missing ranks.
    pub fn series<'a>(&self, what: &'a str) -> SeriesOptions<'a> {
        SeriesOptions { repeats: Some(self.repeats), check: !self.no_check, warmup: 1, iterations: 1, what }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Usual {
        #[command(flatten)]
        sizes: SizeArgs,
        #[command(flatten)]
        repeat: RepeatArgs,
    }

    #[derive(Parser, Debug)]
    #[command(mut_arg("begin", |arg| arg.default_value("4K")), mut_arg("factor", |arg| arg.default_value("4")))]
    #[command(mut_arg("repeats", |arg| arg.default_value("3").value_parser(clap::value_parser!(u32).range(0..=5))))]
    struct Changed {
        #[command(flatten)]
        sizes: SizeArgs,
        #[command(flatten)]
        repeat: RepeatArgs,
    }

    #[test]
    fn command_changes_only_its_own_defaults() {
        let Changed { sizes, repeat } = Changed::try_parse_from(["x"]).unwrap();
        assert_eq!(sizes.list().unwrap(), [4096, 16384, 65536, 262_144, 1 << 20]);
        assert_eq!((repeat.repeats, repeat.no_check), (3, false));
        assert!(
            Changed::try_parse_from(["x", "-r", "6"]).is_err() && Changed::try_parse_from(["x", "-r", "0"]).is_ok()
        );
        let Usual { sizes, repeat } = Usual::try_parse_from(["x", "-b", "0", "-e", "8", "--no-check"]).unwrap();
        assert_eq!(sizes.list().unwrap(), [0, 1, 8]);
        assert_eq!((repeat.repeats, repeat.no_check), (10, true));
        assert!(Usual::try_parse_from(["x", "-r", "0"]).is_err());
    }
}
