//! Why there is no PTX.

use std::io;
use std::path::PathBuf;

/// Why there is no PTX.
#[derive(Debug)]
pub enum Error {
    /// No toolchain has the sources of `core`; the text says what was looked at and which command installs one.
    NoToolchain(String),
    /// The nested cargo failed; its own messages are on stderr.
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
