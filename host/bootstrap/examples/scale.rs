//! Measures the bootstrap of a job of many ranks on one machine, and prints a row of CSV. The ranks are threads of
//! worker processes. Rank 0 has its own process, whose memory and open files are reported.
//!
//! ```text
//! unshare -n sh -c 'ip link set lo up; cargo run --release -p ginlab-bootstrap --example scale -- 4096'
//! ```
//!
//! The network namespace makes the bytes on the loopback those of the job.

use ginlab_bootstrap::{Bootstrap, BootstrapError, BootstrapOptions};
use nix::sys::time::TimeValLike;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const TOKEN: &str = "a secret of the measurement";
/// Ranks per worker.
const PER_WORKER: usize = 256;
/// Timed repeats of each step.
const REPEATS: usize = 3;
/// Bytes of a rank's part: addresses and keys of four rails.
const PART_BYTES: usize = 400;
/// Stack of a rank's thread.
const STACK_BYTES: usize = 256 << 10;

const HEADER: &str = "ranks,connect_ms,connect_cpu_ms,connect_bytes,barrier_ms,barrier_cpu_ms,barrier_bytes,\
                      gather_ms,gather_cpu_ms,gather_bytes,all_gather_ms,all_gather_cpu_ms,all_gather_bytes,\
                      rank_0_files,rank_0_mib";

fn options() -> BootstrapOptions {
    BootstrapOptions { timeout: Duration::from_secs(300), ..BootstrapOptions::default() }
}

/// Runs the steps on one rank: a barrier, a gather at rank 0 and a gather at all ranks, each followed by a barrier, so
/// that all ranks have its result. Returns for a repeat, including the second barrier, the median time and the mean CPU
/// time of this process in milliseconds, and the bytes.
fn steps(ranks: &mut Bootstrap) -> Result<[(f64, f64, u64); 3], BootstrapError> {
    // Parts of all ranks differ, because rank 0 sends equal parts once.
    let part: Vec<u8> = ranks.rank().to_le_bytes().into_iter().cycle().take(PART_BYTES).collect();
    let mut found = [(0.0, 0.0, 0); 3];
    for (index, found) in found.iter_mut().enumerate() {
        let (mut times, mut cpu) = (Vec::new(), 0.0);
        for _ in 0..REPEATS {
            ranks.barrier("start of a step")?;
            let (began, before, cpu_before) = (Instant::now(), transferred(ranks.rank()), cpu_time());
            match index {
                0 => {}
                1 => drop(ranks.gather_values(&part, "parts")?),
                _ => drop(ranks.all_gather_values(&part, "parts")?),
            }
            ranks.barrier("end of a step")?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            cpu += cpu_time() - cpu_before;
            found.2 = transferred(ranks.rank()) - before;
        }
        times.sort_by(f64::total_cmp);
        (found.0, found.1) = (times[REPEATS / 2], cpu / REPEATS as f64);
    }
    Ok(found)
}

/// Returns the bytes that the loopback has transferred, or 0 if they are unknown. Only rank 0 reads them.
fn transferred(rank: usize) -> u64 {
    if rank != 0 {
        return 0;
    }
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// Returns the CPU time of this process in milliseconds.
fn cpu_time() -> f64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    usage.map_or(0.0, |usage| (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e3)
}

/// Returns the maximum memory of this process so far, in MiB, or 0 if it is unknown.
fn peak_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() >> 10
}

/// Runs ranks `first` to `first + count - 1` as threads.
fn work(address: SocketAddr, first: usize, count: usize, size: usize) -> Result<(), Box<dyn Error>> {
    let rank = |rank: usize| {
        let mut ranks = Bootstrap::join(&[address], rank, size, TOKEN, options())?;
        steps(&mut ranks)?;
        ranks.finish()
    };
    std::thread::scope(|scope| {
        let start = |number| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, move || rank(number))
        };
        let threads = (first..first + count).map(start).collect::<Result<Vec<_>, _>>()?;
        for thread in threads {
            thread.join().map_err(|_| "a rank panicked")??;
        }
        Ok(())
    })
}

fn measure(size: usize) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let before = transferred(0);
    let began = Instant::now();
    let start = |first: usize| {
        let place = [first, PER_WORKER.min(size - first), size].map(|number| number.to_string());
        // On a cluster, other ranks take no CPU time from rank 0.
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(std::env::current_exe()?).arg(address.to_string()).args(place).spawn()
    };
    let workers = (1..size).step_by(PER_WORKER).map(start).collect::<Result<Vec<Child>, std::io::Error>>()?;
    let mut ranks = Bootstrap::serve(listener, size, TOKEN, options())?;
    let (connect, cpu, bytes) = (began.elapsed().as_secs_f64() * 1e3, cpu_time(), transferred(0) - before);
    let files = std::fs::read_dir("/proc/self/fd")?.count();
    let steps = steps(&mut ranks)?;
    ranks.finish()?;
    for mut worker in workers {
        if !worker.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    let steps = steps.map(|(time, cpu, bytes)| format!("{time:.2},{cpu:.2},{bytes}")).join(",");
    println!("{HEADER}\n{size},{connect:.0},{cpu:.0},{bytes},{steps},{files},{}", peak_memory());
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    ginlab_base::limits::raise_open_files();
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [size] => measure(size.parse()?),
        [address, first, count, size] => work(address.parse()?, first.parse()?, count.parse()?, size.parse()?),
        _ => Err("expected a number of ranks, such as 4096".into()),
    }
}
