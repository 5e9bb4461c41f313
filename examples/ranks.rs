//! The smallest program that uses the library: opens the ranks, exchanges one line each, prints them on rank 0.
//!
//! ```text
//! cargo run --example ranks -- 3                                       three ranks on this machine
//! mpirun -np 2 target/debug/examples/ranks                             built with --features mpi
//! RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 GINLAB_TOKEN=secret ...    and the same with RANK=1
//! ```

use std::io::Write;
use std::process::ExitCode;

use ginlab::bootstrap::{Bootstrap, BootstrapError, BootstrapOptions};
use ginlab::signals;

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).and_then(|text| text.parse().ok());
    match signals::install().map_err(|e| e.to_string()).and_then(|()| run(asked).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ranks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(asked: Option<usize>) -> Result<(), BootstrapError> {
    let mut ranks = Bootstrap::auto(asked, BootstrapOptions::default())?;
    let mine = format!("local {}/{}", ranks.local_rank(), ranks.local_size());
    let lines = ranks.all_gather(mine.as_bytes(), "places")?;
    if ranks.rank() == 0 {
        let mut out = signals::stdout();
        for (rank, (line, member)) in lines.iter().zip(ranks.members()).enumerate() {
            let (kind, line) = (ranks.kind(), String::from_utf8_lossy(line));
            // A closed pipe is not a failure of the job, and the writer records it.
            let _ =
                writeln!(out, "{kind} rank {rank}/{}: {line}, host {}, pid {}", ranks.size(), member.host, member.pid);
        }
    }
    ranks.finish()
}
