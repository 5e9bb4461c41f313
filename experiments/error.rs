//! Reasons for the failure of a run, and their exit codes.

use crate::values::usage;
use clap::error::{ContextKind, ErrorKind};
use ginlab::bootstrap::{BootstrapError, FailureKind};
use ginlab::cuda::DeviceError;
use ginlab::fabric::FabricError;
use ginlab::flow::FlowError;
use ginlab::gin::watch::StopReason;
use ginlab::measure::MeasureError;
use ginlab::proxy::{ChooseError, ProxyError};
use ginlab::report::ReportError;
use ginlab::report::chart::ChartError;
use ginlab::report::pages::PageError;
use ginlab::signals;
use std::error::Error;
use std::process::ExitCode;

/// Reason for the end of a run.
#[derive(Clone, Debug)]
pub enum Failure {
    /// Invalid or unsupported options: exit code 2.
    Usage(String),
    /// The run failed: exit code 1.
    Run(String),
    /// Verification found wrong bytes: exit code 1, even if the run later fails for another reason.
    WrongData(String),
    /// This machine does not meet the requirements of the run (`ginlab doctor`), or a device shows an outcome that its
    /// memory model forbids (`ginlab litmus`). Exit code 3.
    Unfit(String),
    /// A wait timed out: exit code 124.
    Timeout(String),
    /// Ctrl-C or SIGTERM: exit code 130.
    Interrupted,
    /// Another rank was interrupted and notified this one: exit code 130.
    Stopped(String),
    /// Failure on a rank that rank 0 has started. Rank 0 reports it, so this rank prints nothing. The exit code is that
    /// of the failure.
    Told(Box<Failure>),
    /// Another process performed the run and reported its result. Contains its exit code.
    Elsewhere(u8),
    /// The reader of stdout has closed it: exit code 141, with which a shell reports SIGPIPE, and no message.
    StdoutClosed,
}

impl Failure {
    /// Creates the failure for an `ending` received from another rank.
    pub fn of(ending: FailureKind, text: String) -> Failure {
        match ending {
            FailureKind::Failed => Failure::Run(text),
            FailureKind::TimedOut => Failure::Timeout(text),
            FailureKind::Usage => Failure::Usage(text),
            FailureKind::Interrupted => Failure::Stopped(text),
        }
    }

    /// Returns the kind of ending that is reported to other ranks.
    pub fn ending(&self) -> FailureKind {
        match self {
            Failure::Told(failure) => failure.ending(),
            Failure::Usage(_) => FailureKind::Usage,
            Failure::Timeout(_) => FailureKind::TimedOut,
            Failure::Interrupted | Failure::Stopped(_) | Failure::StdoutClosed => FailureKind::Interrupted,
            Failure::Run(_) | Failure::WrongData(_) | Failure::Unfit(_) | Failure::Elsewhere(_) => FailureKind::Failed,
        }
    }

    /// Returns a one-line message for stderr. `None` if the failure is reported elsewhere or stdout is closed.
    pub fn text(&self) -> Option<String> {
        match self {
            Failure::Usage(text)
            | Failure::Run(text)
            | Failure::WrongData(text)
            | Failure::Unfit(text)
            | Failure::Timeout(text)
            | Failure::Stopped(text) => Some(text.clone()),
            Failure::Interrupted => Some("interrupted; the rows so far are complete".into()),
            Failure::Told(_) | Failure::Elsewhere(_) | Failure::StdoutClosed => None,
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Told(failure) => return failure.exit_code(),
            Failure::Elsewhere(code) => *code,
            Failure::Run(_) | Failure::WrongData(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unfit(_) => 3,
            Failure::Timeout(_) => 124,
            Failure::Interrupted | Failure::Stopped(_) => 130,
            Failure::StdoutClosed => 141,
        })
    }
}

/// Converts clap errors. Invalid values are reported in one line, like other usage errors. Clap prints other errors and
/// `--help`, and exits.
impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Failure {
        let context = |kind| error.get(kind).map(ToString::to_string).filter(|text| !text.is_empty());
        let value = context(ContextKind::InvalidValue);
        let why = match (error.kind(), error.source(), value) {
            (ErrorKind::ValueValidation, Some(why), _) => why.to_string(),
            (ErrorKind::InvalidValue, _, Some(value)) => {
                format!(
                    "invalid value {value:?}: expected one of {}",
                    context(ContextKind::ValidValue).unwrap_or_default()
                )
            }
            _ => error.exit(),
        };
        let option = context(ContextKind::InvalidArg).unwrap_or_default();
        Failure::Usage(format!("{}: {why}", option.split_whitespace().next().unwrap_or_default()))
    }
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Failure {
        match error {
            _ if signals::interrupted() => Failure::Interrupted,
            BootstrapError::Interfaces(_) => usage("--bootstrap-if", error),
            _ => Failure::of(error.ending(), error.to_string()),
        }
    }
}

impl From<StopReason> for Failure {
    fn from(stop: StopReason) -> Failure {
        match stop {
            StopReason::Interrupted => Failure::Interrupted,
            StopReason::Ranks(error) => error.into(),
            StopReason::Late(limit) => Failure::Timeout(format!("no progress within {:.0} s", limit.as_secs_f64())),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        match error {
            DeviceError::Missing(_) | DeviceError::Refused(_) => Failure::Usage(error.to_string()),
            _ => Failure::Run(error.to_string()),
        }
    }
}

impl From<MeasureError> for Failure {
    fn from(error: MeasureError) -> Failure {
        match error {
            MeasureError::Device(error) => error.into(),
            MeasureError::Proxy(error) => error.into(),
            MeasureError::Ended(..) => Failure::Timeout(error.to_string()),
        }
    }
}

impl From<FlowError> for Failure {
    fn from(error: FlowError) -> Failure {
        match error {
            FlowError::Stalled { .. } => Failure::Timeout(error.to_string()),
            _ => Failure::Run(error.to_string()),
        }
    }
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Failure {
        if error.is_no_library() { Failure::Usage(error.to_string()) } else { Failure::Run(error.to_string()) }
    }
}

impl From<ChooseError> for Failure {
    fn from(error: ChooseError) -> Failure {
        match error {
            ChooseError::Ranks(error) => error.into(),
            ChooseError::Usage(text) => Failure::Usage(text),
        }
    }
}

impl From<ProxyError> for Failure {
    fn from(error: ProxyError) -> Failure {
        if error.is_timeout() { Failure::Timeout(error.to_string()) } else { Failure::Run(error.to_string()) }
    }
}

impl From<ChartError> for Failure {
    fn from(error: ChartError) -> Failure {
        match &error {
            ChartError::NoCommonRow { differ, .. } if !differ.is_empty() => {
                Failure::Usage(format!("{error}; --ignore {} compares them nevertheless", differ.join(",")))
            }
            _ => Failure::Usage(error.to_string()),
        }
    }
}

impl From<PageError> for Failure {
    fn from(error: PageError) -> Failure {
        match error {
            PageError::NoPages(_) | PageError::Marker { .. } => Failure::Usage(error.to_string()),
            PageError::Read { .. } => Failure::Run(error.to_string()),
            PageError::Write(error) => error.into(),
        }
    }
}

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Failure {
        match error {
            ReportError::StdoutClosed => Failure::StdoutClosed,
            ReportError::TwoOnStdout | ReportError::SameFile(_) => Failure::Usage(format!("--csv, --json: {error}")),
            ReportError::Write { ref source, .. } if source.kind() == std::io::ErrorKind::Interrupted => {
                Failure::Interrupted
            }
            ReportError::Write { .. } => Failure::Run(error.to_string()),
        }
    }
}
