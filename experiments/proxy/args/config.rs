//! Parameter combinations of `ginlab proxy`.

use super::super::random::{self, DrawnPuts};
use super::{ProxyArgs, ProxyMode};
use crate::error::Failure;
use crate::job;
use crate::values;
use ginlab::rails::strategy::Strategy;
use itertools::iproduct;

/// One measurement: a combination of parameters, measured in every mode and with CPU-initiated writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    pub bytes: u64,
    pub rails: usize,
    pub strategy: Strategy,
    pub grid: u32,
    pub block: u32,
    /// `None` if the shape is not a random one.
    pub drawn: Option<DrawnPuts>,
}

impl ProxyArgs {
    /// Returns every parameter combination, in the order of measurement.
    pub fn tuples(&self) -> Result<Vec<ProxyConfig>, Failure> {
        if let Some(shapes) = random::tuples(self) {
            return Ok(shapes);
        }
        let sizes = self.sizes.list()?;
        let tuples = iproduct!(self.rails(), &self.strategy, &self.grid, &self.block, &sizes);
        let tuple = |(&rails, &strategy, &grid, &block, &bytes)| ProxyConfig {
            bytes,
            rails,
            strategy,
            grid,
            block,
            drawn: None,
        };
        Ok(tuples.map(tuple).collect())
    }

    /// Returns the settings that must be equal on all ranks.
    pub fn fingerprint(&self, tuples: &[ProxyConfig]) -> Vec<(String, String)> {
        let text = |name: &str, value: String| (name.to_owned(), value);
        let provider = self.provider.clone().unwrap_or_default().to_string();
        let mut sizes: Vec<u64> = tuples.iter().map(|tuple| tuple.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let joined = |list: &mut dyn Iterator<Item = String>| list.collect::<Vec<_>>().join(",");
        vec![
            text("provider", provider),
            text("rails", job::rails_text(self.rails())),
            text("strategies", joined(&mut self.strategy.iter().map(Strategy::to_string))),
            text("sizes", joined(&mut sizes.iter().map(u64::to_string))),
            text("rows", format!("{tuples:?}")),
            text("cases", joined(&mut self.cases.iter().map(|way| values::name(*way)))),
            text("modes", joined(&mut self.mode.iter().map(ProxyMode::to_string))),
            text("iterations", format!("{}+{}x{:?}", self.warmup, self.iterations, self.repeats)),
            text("window", format!("{:?}", self.window)),
            text("fill-ahead", format!("{:?}", self.fill_ahead)),
            text("volume", self.volume.to_string()),
            text("memory limit", self.memory_limit().to_string()),
            text(
                "payload",
                format!(
                    "{:?} fill={} check={} bare={} cpu batches={:?}",
                    self.memory,
                    self.fills(),
                    !self.no_check,
                    self.bare,
                    self.cpu_batch
                ),
            ),
            text("scope", format!("{:?}", self.scope)),
            text("proxy threads", self.proxy_threads.to_string()),
            text("trace", self.trace.is_some().to_string()),
            text("ring memory", values::name(self.ring_memory)),
            text("moved bytes", self.moves().to_string()),
            text("completion", self.completion()),
        ]
    }
}
