//! Severity of findings, for schedulers: the required action on the machine.

use super::CheckState;
use serde::{Deserialize, Serialize};

/// Action that a finding requires. The terms are those of the cluster health check of awslabs/awsome-distributed-ai,
/// except `configure`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    /// No action.
    #[default]
    None,
    /// Watch the machine; jobs may run.
    Monitor,
    /// Change the configuration of the machine, the container or the job.
    Configure,
    /// Reset a GPU.
    Reset,
    /// Restart the machine.
    Reboot,
    /// Take the machine out and replace it.
    Isolate,
}

/// Checks of hardware, whose failures are not caused by the configuration.
const HARDWARE: [&str; 5] = ["efa-links", "nvlink", "pcie", "gate", "peers-rates"];

impl Severity {
    /// Returns the severity of a check with this outcome.
    #[must_use]
    pub fn of(check: &str, state: CheckState) -> Severity {
        match state {
            CheckState::Skipped | CheckState::Ok => Severity::None,
            CheckState::Warn => Severity::Monitor,
            CheckState::Fail if check == "gpu" => Severity::Reset,
            CheckState::Fail if HARDWARE.contains(&check) => Severity::Isolate,
            CheckState::Fail => Severity::Configure,
        }
    }
}
