//! A put is dropped on back-pressure.

use crate::museum::port::{Port, PortWrite, RuleResult};
use ginlab::fabric::Post;

/// Number of descriptors that a kernel has pushed to the proxy of PE 0.
const PUTS: u64 = 64;

/// The proxy of PE 0 takes descriptors from its queue and posts them. PE 1 waits for the same number of puts.
pub fn dropped(port: &Port, fixed: bool) -> RuleResult {
    if port.me() == 1 {
        let arrived = std::cell::Cell::new(0);
        return port.until(
            |events| {
                arrived.set(arrived.get() + events.immediates.len() as u64);
                Ok(arrived.get() == PUTS)
            },
            || format!("PE 1 has received {} of {PUTS} puts", arrived.get()),
        );
    }
    // Consumer index of the queue, and number of complete puts.
    let (mut next, mut done) = (0, 0);
    while done < PUTS {
        if next < PUTS {
            let descriptor = next;
            if !fixed {
                // Removes the descriptor from the queue before the proxy knows whether its post was accepted.
                next += 1;
            }
            let put =
                PortWrite { from: descriptor, to: descriptor, words: 1, token: descriptor, ..PortWrite::default() };
            match port.try_write(PortWrite { immediate: Some(0), ..put })? {
                Post::Accepted if fixed => next += 1,
                Post::Accepted => {}
                // The rail is full for now: nothing was posted, and the same descriptor must be posted again.
                Post::Again => {}
            }
        }
        done += port.poll()?.done.len() as u64;
        port.pause();
    }
    Ok(())
}
