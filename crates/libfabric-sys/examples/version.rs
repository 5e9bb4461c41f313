//! Prints the version of libfabric on this machine, or the reason why none is available.
//!
//! ```text
//! cargo run -p ginlab-libfabric-sys --example version
//! ```

use libfabric_sys::{Dotted, library};

fn main() {
    match library() {
        Ok(library) => {
            let (version, api) = (Dotted(library.version()), Dotted(library.api()));
            println!("libfabric {version} at {}, API {api}", library.path().display());
        }
        Err(why) => println!("{why}"),
    }
}
