//! Errors of the PTX build.

use std::io;
use std::path::PathBuf;

/// Reason why there is no PTX.
#[derive(Debug)]
pub enum Error {
    /// No toolchain has the sources of `core`; the text lists the toolchains checked and the command that installs one.
    NoToolchain(String),
    /// The build failed. The text contains the messages of the nested cargo.
    Compile(String),
    /// A file could not be read or written.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::NoToolchain(text) | Error::Compile(text) => f.write_str(text),
            Error::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {}
