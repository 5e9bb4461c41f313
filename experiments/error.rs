//! How a run can end other than well, and the exit code of each way.

use clap::error::{ContextKind, ErrorKind};
use ginlab::bootstrap::{BootstrapError, Ending};
use ginlab::cuda::DeviceError;
use ginlab::fabric::FabricError;
use ginlab::flow::FlowError;
use ginlab::measure::MeasureError;
use ginlab::proxy::{ChooseError, ProxyError};
use ginlab::report::ReportError;
use ginlab::report::chart::ChartError;
use ginlab::signals;
use std::error::Error;
use std::process::ExitCode;

/// Why a run ended.
#[derive(Clone, Debug)]
pub enum Failure {
    /// What was asked for cannot be: exit code 2.
    Usage(String),
    /// It was tried and failed: exit code 1.
    Run(String),
    /// Verification found wrong bytes: exit code 1, whatever happens after it.
    WrongData(String),
    /// This machine is not fit for the run (`ginlab doctor`): exit code 3.
    Unfit(String),
    /// A wait ran into its bound: exit code 124.
    Timeout(String),
    /// Ctrl-C or SIGTERM: exit code 130.
    Interrupted,
    /// The same of another rank, which told this one: exit code 130.
    Stopped(String),
    /// On a rank that rank 0 started: it knows, and it speaks for all. The exit code is that of the failure itself.
    Told(Box<Failure>),
    /// Another process was the run, and has said everything: its exit code.
    Elsewhere(u8),
    /// Nobody reads stdout any more: exit code 141, as a shell reports SIGPIPE, without a word.
    StdoutClosed,
}

impl Failure {
    /// The failure of a kind that ranks tell one another.
    pub fn of(ending: Ending, text: String) -> Failure {
        match ending {
            Ending::Failed => Failure::Run(text),
            Ending::TimedOut => Failure::Timeout(text),
            Ending::Usage => Failure::Usage(text),
            Ending::Interrupted => Failure::Stopped(text),
        }
    }

    /// What kind of end it is for the other ranks.
    pub fn ending(&self) -> Ending {
        match self {
            Failure::Told(failure) => failure.ending(),
            Failure::Usage(_) => Ending::Usage,
            Failure::Timeout(_) => Ending::TimedOut,
            Failure::Interrupted | Failure::Stopped(_) | Failure::StdoutClosed => Ending::Interrupted,
            Failure::Run(_) | Failure::WrongData(_) | Failure::Unfit(_) | Failure::Elsewhere(_) => Ending::Failed,
        }
    }

    /// One line for stderr, unless there is nobody to tell.
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

/// A bad value is one line as every other usage error; unknown options and `--help` are clap's own to tell.
impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Failure {
        let context = |kind| error.get(kind).map(ToString::to_string).filter(|text| !text.is_empty());
        let value = context(ContextKind::InvalidValue);
        let why = match (error.kind(), error.source(), value) {
            (ErrorKind::ValueValidation, Some(why), _) => why.to_string(),
            (ErrorKind::InvalidValue, _, Some(value)) => {
                format!("{value:?} is none of {}", context(ContextKind::ValidValue).unwrap_or_default())
            }
            _ => error.exit(),
        };
        let option = context(ContextKind::InvalidArg).unwrap_or_default();
        Failure::Usage(format!("{}: {why}", option.split_whitespace().next().unwrap_or_default()))
    }
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Failure {
        if signals::interrupted() { Failure::Interrupted } else { Failure::of(error.ending(), error.to_string()) }
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
        Failure::Usage(error.to_string())
    }
}

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Failure {
        match error {
            ReportError::StdoutClosed => Failure::StdoutClosed,
            ReportError::TwoOnStdout | ReportError::SameFile(_) => Failure::Usage(error.to_string()),
            ReportError::Write { .. } => Failure::Run(error.to_string()),
        }
    }
}
