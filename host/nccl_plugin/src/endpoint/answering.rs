//! Gets of other ranks: this rank answers with an operation that sends the bytes.
//!
//! A rank that issues a get after its own put has completed expects to read the put's bytes. These bytes may still be
//! on their way from a slot into GPU memory. Therefore a get from such memory waits until the copies that precede it in
//! that stream are complete.

use super::Endpoint;
use super::incoming::Arrival;
use crate::coll::PluginRegion;
use crate::copies::CopyDirection;
use crate::operation::{Request, Source, SubmittedOperation, What};
use ginlab_fabric::Rail;

impl<R: Rail> Endpoint<R> {
    /// Answers a get, immediately or after the bytes that arrived before it are in memory. `region` is `None` for a get
    /// of no bytes.
    pub(super) fn asked(&mut self, arrival: Arrival, region: Option<PluginRegion>) -> Result<(), String> {
        let is_late = region.is_some_and(|region| region.cuda)
            && (self.inc.copied || self.copies.passed(CopyDirection::In)? < self.inc.last_mark);
        if is_late {
            let mark = self.mark_in()?;
            self.inc.asked.push_back((mark, arrival));
        } else {
            self.answer(&arrival, region);
        }
        Ok(())
    }

    fn answer(&mut self, arrival: &Arrival, region: Option<PluginRegion>) {
        let header = &arrival.header;
        let from = region.map_or(Source { address: 0, cuda: false }, |region| Source {
            address: region.address + header.at.offset,
            cuda: region.cuda,
        });
        self.enqueue(SubmittedOperation {
            what: What::Answer { from, bytes: header.total, to: header.then, get: header.get },
            peer: arrival.from,
            context: header.context,
            at_ns: header.at_ns,
            request: Request::of(0),
            carried: None,
        });
        self.inc.end(arrival.from, arrival.slot);
    }

    /// Answers the gets that were waiting for copies.
    pub(super) fn go_on_answering(&mut self) -> Result<(), String> {
        if self.inc.asked.is_empty() {
            return Ok(());
        }
        let passed = self.copies.passed(CopyDirection::In)?;
        while self.inc.asked.front().is_some_and(|(mark, _)| *mark <= passed)
            && let Some((_, arrival)) = self.inc.asked.pop_front()
        {
            // The region may have been deregistered in the meantime. This is an error, as it would have been on
            // arrival.
            let at = arrival.header.at;
            let region = self.find(&arrival, at.region, at.offset, arrival.header.total)?.ok_or_else(|| {
                format!("a get of rank {}: region {} is no longer registered", arrival.from, at.region)
            })?;
            self.answer(&arrival, Some(region));
        }
        Ok(())
    }
}
