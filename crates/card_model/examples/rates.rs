//! Prints the bandwidth of windows of writes by size, in virtual time.
//!
//! ```text
//! cargo run -p card_model --example rates
//! ```

use card_model::{Nic, NicTimings, Picoseconds};

/// Time of the CPU per post.
const POST: Picoseconds = 250_000;
const WRITES: u64 = 2000;

fn main() {
    let figures = NicTimings {
        line_rate_gbps: 100.0,
        peak_share: 0.97,
        rate_per_rail_mops: 0.8,
        one_way_us: 10.0,
        one_way_spread_us: 2.5,
        mtu_bytes: 8776.0,
        ..NicTimings::default()
    };
    println!("{:>8} {:>10} {:>10}", "bytes", "1 in turn", "64 at once");
    for shift in [6, 10, 14, 18, 22] {
        let bytes = 1u64 << shift;
        let rate = |window| {
            let took = Nic::new(figures, 1).stream(bytes, WRITES, window, POST);
            (bytes * WRITES * 8) as f64 * 1e3 / took as f64
        };
        println!("{bytes:>8} {:>5.1} Gb/s {:>5.1} Gb/s", rate(1), rate(64));
    }
}
