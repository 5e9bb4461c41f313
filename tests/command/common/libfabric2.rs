//! A libfabric 2.x beside the machine's own, with all below it, as scripts/check-libfabric2.sh unpacks it. Programs run over it by
//! its own loader: it needs a newer C library than this machine may have.

use std::process::Command;

use super::clean;

/// All four cards in the fabric `efa-direct`.
pub const DIRECT: &str =
    "--domain efa-direct:rdmap79s0-rdm,efa-direct:rdmap80s0-rdm,efa-direct:rdmap81s0-rdm,efa-direct:rdmap82s0-rdm";

pub struct Libfabric2 {
    root: String,
    folder: String,
}

impl Libfabric2 {
    /// `None`, with the reason on stderr, where it was not unpacked.
    pub fn here() -> Option<Libfabric2> {
        let target =
            std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{}/target", env!("CARGO_MANIFEST_DIR")));
        let root = format!("{target}/libfabric2");
        let two = Libfabric2 { folder: format!("{root}/usr/lib/{}-linux-gnu", std::env::consts::ARCH), root };
        if std::path::Path::new(&two.tool_path("fi_pingpong")).is_file() {
            return Some(two);
        }
        super::skip("no target/libfabric2 (scripts/check-libfabric2.sh)");
        None
    }

    fn tool_path(&self, name: &str) -> String {
        format!("{}/usr/bin/{name}", self.root)
    }

    /// The words that run a program over it.
    fn program(&self, path: &str) -> String {
        let own = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        format!("{0}/ld-linux-x86-64.so.2 --library-path {0}:{own} {path}", self.folder)
    }

    /// The words that run a program of its package: `fi_pingpong`.
    pub fn tool(&self, name: &str) -> String {
        self.program(&self.tool_path(name))
    }

    /// The words that run `ginlab`, in an environment of [`Self::told`].
    pub fn words(&self) -> String {
        self.program(env!("CARGO_BIN_EXE_ginlab"))
    }

    /// Tells a command of [`Self::words`] where it is.
    pub fn told(&self, mut command: Command) -> Command {
        clean(&mut command);
        command.env("GINLAB_LIBFABRIC", format!("{}/libfabric.so.1", self.folder));
        command
    }

    /// `ginlab` with these arguments (separated by blanks), in an environment without launchers.
    pub fn ginlab(&self, args: &str) -> Command {
        let words = self.words();
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(args.split_whitespace());
        self.told(command)
    }
}
