//! A libfabric 2.x in addition to the machine's own, with all its dependencies, as unpacked by
//! scripts/check-headers.sh. Programs run over it with its own loader, because it needs a newer C library than this
//! machine may have.

use std::process::Command;

use super::clean;

/// Returns commands over libfabric 2.5, which works with this machine's own loader. Returns `None`, and prints the
/// reason to stderr, if scripts/check-headers.sh has not unpacked it.
pub fn libfabric25() -> Option<impl Fn(&str) -> Command> {
    let folder = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{}/target", env!("CARGO_MANIFEST_DIR")));
    let folder = format!("{folder}/libfabric25");
    if !std::path::Path::new(&format!("{folder}/libfabric.so.1")).is_file() {
        super::skip("no target/libfabric25 (scripts/check-headers.sh --fetch)");
        return None;
    }
    Some(move |args: &str| {
        let mut command = super::ginlab(args);
        command.env("GINLAB_LIBFABRIC", format!("{folder}/libfabric.so.1"));
        command.env("FI_PROVIDER_PATH", format!("{folder}/libfabric"));
        command
    })
}

/// All four NICs in the fabric `efa-direct`.
pub const DIRECT: &str =
    "--domain efa-direct:rdmap79s0-rdm,efa-direct:rdmap80s0-rdm,efa-direct:rdmap81s0-rdm,efa-direct:rdmap82s0-rdm";

pub struct Libfabric2 {
    root: String,
    folder: String,
}

impl Libfabric2 {
    /// Returns the unpacked libfabric. Returns `None`, and prints the reason to stderr, if there is none.
    pub fn here() -> Option<Libfabric2> {
        let target =
            std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{}/target", env!("CARGO_MANIFEST_DIR")));
        let root = format!("{target}/libfabric2");
        let two = Libfabric2 { folder: format!("{root}/usr/lib/{}-linux-gnu", std::env::consts::ARCH), root };
        if std::path::Path::new(&two.tool_path("fi_pingpong")).is_file() {
            return Some(two);
        }
        super::skip("no target/libfabric2 (scripts/check-headers.sh)");
        None
    }

    fn tool_path(&self, name: &str) -> String {
        format!("{}/usr/bin/{name}", self.root)
    }

    /// Returns the command line that runs a program over it.
    fn program(&self, path: &str) -> String {
        let own = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        format!("{0}/ld-linux-x86-64.so.2 --library-path {0}:{own} {path}", self.folder)
    }

    /// Returns the command line of a program of its package: `fi_pingpong`.
    pub fn tool(&self, name: &str) -> String {
        self.program(&self.tool_path(name))
    }

    /// Returns the command line of `ginlab`, for an environment of [`Self::told`].
    pub fn words(&self) -> String {
        self.program(env!("CARGO_BIN_EXE_ginlab"))
    }

    /// Sets the environment of a command of [`Self::words`].
    pub fn told(&self, mut command: Command) -> Command {
        clean(&mut command);
        command.env("GINLAB_LIBFABRIC", format!("{}/libfabric.so.1", self.folder));
        command
    }

    /// Returns `ginlab` with these arguments (separated by spaces), in an environment without launchers.
    pub fn ginlab(&self, args: &str) -> Command {
        let words = self.words();
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(args.split_whitespace());
        self.told(command)
    }
}
