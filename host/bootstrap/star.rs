//! The star: rank 0 in the centre, with one connection to each other rank. Every collective is one step: the other
//! ranks send their parts to rank 0, which sends all parts back.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use super::Bootstrap;
use super::acceptor::Acceptor;
use super::children::Children;
use super::error::{BootstrapError, FailureKind};
use super::frame::{self, FrameKind, MAX_BYTES};
use super::greeting::{self, Hello};
use super::identity::Member;
use super::link::{Link, last_words_of};
use super::partial::Excluded;
use super::parts::{self, Spread};
use super::progress::{RankProgress, lock, report_every};
use super::wait::{Clock, SLICE, readable};

/// Maximum time for reporting an error to the other ranks.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Time within which a child whose connection has closed must exit, so that the error can include its exit status.
const EXIT_GRACE: Duration = Duration::from_millis(500);

pub(super) struct Star {
    pub rank: usize,
    pub size: usize,
    /// Links by rank: to all other ranks on rank 0, and only to rank 0 elsewhere.
    pub links: Vec<Option<Link>>,
    /// This field is declared after the links: connections are closed before children are stopped.
    pub children: Option<Children>,
    /// Time at which it was last checked whether a child has exited.
    children_checked: Instant,
    step: u64,
    pub progress: RankProgress,
    /// Whether the job continues without missing ranks.
    pub partial: bool,
    /// Ranks that rank 0 has excluded since the last numbering.
    pub excluded: Vec<Option<Excluded>>,
}

impl Star {
    pub fn new(rank: usize, size: usize, children: Option<Children>) -> Self {
        let links = (0..size).map(|_| None).collect();
        let excluded = (0..size).map(|_| None).collect();
        let (progress, children_checked) = (RankProgress::new(rank, size), Instant::now());
        Star { rank, size, links, children, children_checked, step: 0, progress, partial: false, excluded }
    }

    /// Returns the bytes of all ranks, by rank. Ranks other than 0 receive the parts that `spread` selects. While
    /// `acceptor` is given, ranks may still connect.
    pub fn exchange(
        &mut self,
        bytes: &[u8],
        spread: Spread,
        what: &str,
        clock: &mut Clock,
        acceptor: Option<&mut Acceptor>,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let all = if self.rank == 0 {
            let parts = self.collect(bytes, what, clock, acceptor)?;
            if self.size > 1 {
                let told = parts::join(&spread.told(&parts));
                if told.len() > MAX_BYTES {
                    return Err(BootstrapError::too_large(what, told.len()));
                }
                let others: Vec<usize> = (1..self.size).collect();
                self.send(&others, frame::encode(FrameKind::All, self.step, what, &told), what, clock)?;
            }
            parts
        } else {
            self.send(&[0], frame::encode(FrameKind::Part, self.step, what, bytes), what, clock)?;
            self.receive_all(what, clock)?
        };
        self.step += 1;
        Ok(all)
    }

    /// Admits the ranks among the new connections and refuses the others. Returns an error if a rank of this job is
    /// inconsistent with it, since the job can then never be complete.
    fn let_in(&mut self, acceptor: &mut Acceptor) -> Result<(), BootstrapError> {
        for (mut link, frame) in acceptor.step()? {
            let hello = match Hello::of(&frame) {
                Ok(hello) => hello,
                Err(why) => {
                    acceptor.turn_away(link, why, false);
                    continue;
                }
            };
            let Hello { rank, ref member, .. } = hello;
            if let Some(why) = self.objection(&hello) {
                let peer = format!("rank {rank} (host {}, pid {}, {})", member.host, member.pid, link.from);
                acceptor.refuse(link, why.clone(), true);
                return Err(BootstrapError::failed(format!("{peer} cannot join: {why}")));
            }
            link.send(frame::encode(FrameKind::Welcome, 0, "start", &greeting::json(&Member::here())));
            (link.member, link.longest) = (hello.member, MAX_BYTES);
            self.links[rank] = Some(link);
        }
        Ok(())
    }

    fn objection(&self, hello: &Hello) -> Option<String> {
        let Hello { rank, size, member } = hello;
        if *size != self.size {
            Some(format!("its number of ranks is {size}, that of rank 0 is {}", self.size))
        } else if *rank == 0 || *rank >= self.size {
            Some(format!("its rank must be from 1 to {}", self.size.saturating_sub(1)))
        } else {
            let first = &self.links[*rank].as_ref()?.member.host;
            Some(format!("two processes claim rank {rank}, on host {first} and host {}", member.host))
        }
    }

    /// Runs on rank 0: waits for every other rank's part of this step.
    fn collect(
        &mut self,
        mine: &[u8],
        what: &str,
        clock: &mut Clock,
        mut acceptor: Option<&mut Acceptor>,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mut parts: Vec<Option<Vec<u8>>> = vec![None; self.size];
        parts[0] = Some(mine.to_vec());
        let news_every = report_every(clock.timeout);
        let mut next_news = Instant::now() + news_every;
        loop {
            if let Some(acceptor) = acceptor.as_deref_mut() {
                self.let_in(acceptor)?;
            }
            self.look(what)?;
            for (rank, part) in parts.iter_mut().enumerate().skip(1) {
                if part.is_none() && self.is_excluded(rank) {
                    *part = Some(Vec::new());
                }
                if part.is_none()
                    && let Some(frame) = self.links[rank].as_mut().and_then(|link| link.frames.pop_front())
                {
                    if frame.kind != FrameKind::Part {
                        return Err(self.garbage(rank, format!("{:?} instead of Part", frame.kind)));
                    }
                    if frame.step != self.step || frame.label != frame::label(what) {
                        return Err(BootstrapError::failed(format!(
                            "ranks are out of step: rank {rank} is at {:?} (step {}), but rank 0 at {what:?} (step \
                             {}); every rank must make the same calls in the same order",
                            frame.label, frame.step, self.step
                        )));
                    }
                    *part = Some(frame.payload);
                }
            }
            let missing: Vec<usize> = (0..self.size).filter(|&rank| parts[rank].is_none()).collect();
            if missing.is_empty() {
                return Ok(parts.into_iter().flatten().collect());
            }
            self.progress.renew(clock, &missing);
            if self.exclude_late(&missing, what, clock) {
                continue;
            }
            self.check_clock(what, clock, &missing, || {
                acceptor.as_ref().map(|d| d.notices.clause()).unwrap_or_default()
            })?;
            if Instant::now() >= next_news {
                // Lets the waiting ranks also name the missing ones, and shows that rank 0 is at this step.
                next_news = Instant::now() + news_every;
                let news = frame::encode(FrameKind::Missing, self.step, what, &greeting::json(&missing));
                let arrived: Vec<usize> = (1..self.size).filter(|&rank| parts[rank].is_some()).collect();
                self.send(&arrived, news, what, &clock.within(LAST_WORDS))?;
                // Progress is also sent to the missing ranks, which may be waiting for one another.
                self.report_progress();
            }
            let mut fds: Vec<PollFd> = self.readable().map(|(_, fd)| fd).collect();
            if let Some(acceptor) = acceptor.as_deref() {
                fds.extend(acceptor.descriptors().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            }
            clock.poll(&mut fds)?;
        }
    }

    /// Runs on other ranks: waits for rank 0's answer of this step.
    fn receive_all(&mut self, what: &str, clock: &mut Clock) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mut missing = vec![0];
        loop {
            // Frames that arrived before the connection closed are still valid, so they are processed before the error
            // is returned.
            let look = self.look(what);
            while let Some(frame) = self.links[0].as_mut().and_then(|link| link.frames.pop_front()) {
                match frame.kind {
                    FrameKind::All if frame.step == self.step => {
                        return parts::split(&frame.payload, self.size)
                            .ok_or_else(|| self.garbage(0, "inconsistent parts".into()));
                    }
                    FrameKind::Missing if frame.step == self.step => {
                        missing = serde_json::from_slice(&frame.payload).unwrap_or(missing);
                        // Rank 0 ends this wait by its own clock, which started later than that of this rank.
                        clock.extend(clock.timeout);
                    }
                    FrameKind::Missing => {}
                    FrameKind::Abort => return Err(last_words_of(&frame)),
                    other => return Err(self.garbage(0, format!("{other:?} of step {}", frame.step))),
                }
            }
            look?;
            self.progress.renew(clock, &missing);
            self.check_clock(what, clock, &missing, || match missing[..] {
                [0] => "; rank 0 has not reached this step, so the state of the other ranks is unknown".into(),
                _ => String::new(),
            })?;
            clock.poll(&mut self.readable().map(|(_, fd)| fd).collect::<Vec<_>>())?;
        }
    }

    fn check_clock(
        &self,
        what: &str,
        clock: &Clock,
        missing: &[usize],
        note: impl Fn() -> String,
    ) -> Result<(), BootstrapError> {
        if clock.interrupted() {
            return Err(BootstrapError::Interrupted(what.to_owned()));
        }
        if clock.expired() {
            // A rank that waits for rank 0 only knows that it has arrived itself.
            let here = |rank: &usize| if missing == [0] { *rank == self.rank } else { !missing.contains(rank) };
            let arrived: Vec<usize> = (0..self.size).filter(here).collect();
            let note = note() + &self.progress.note(missing);
            return Err(BootstrapError::timed_out(clock.timeout, missing, &arrived, what, &note));
        }
        Ok(())
    }

    /// Returns the links to poll, each with its rank.
    fn readable(&self) -> impl Iterator<Item = (usize, PollFd<'_>)> {
        let links = self.links.iter().enumerate().filter_map(|(rank, link)| Some((rank, link.as_ref()?)));
        let links = links.filter(|(_, link)| link.wants_more());
        links.map(|(rank, link)| (rank, PollFd::new(link.as_fd(), PollFlags::POLLIN)))
    }

    /// Returns by rank whether its link has bytes to read or has been closed. Makes one system call for all links,
    /// because rank 0 may have thousands of them.
    fn ready(&self) -> Result<Vec<bool>, BootstrapError> {
        let (ranks, mut fds): (Vec<usize>, Vec<PollFd<'_>>) = self.readable().unzip();
        let mut ready = vec![false; self.size];
        for (rank, is_ready) in ranks.into_iter().zip(readable(&mut fds)?) {
            ready[rank] = is_ready;
        }
        Ok(ready)
    }

    /// Reads all available bytes on all links, without waiting. Returns an error if a peer has reported one, has closed
    /// its connection, or has exited.
    pub fn look(&mut self, what: &str) -> Result<(), BootstrapError> {
        for (rank, is_ready) in self.ready()?.into_iter().enumerate() {
            let Some(link) = self.links[rank].as_mut() else { continue };
            let filled = if is_ready { link.fill() } else { link.sound() };
            self.progress.hear(rank, link);
            let failed = match (filled, link.abort(), link.closed) {
                (Err(text), ..) => self.garbage(rank, text),
                (Ok(()), Some(told), _) => told,
                // Complete parts that arrived before the end of the connection still count.
                (Ok(()), None, true) if self.partial && !link.frames.is_empty() => continue,
                (Ok(()), None, true) => self.lost(rank, what),
                (Ok(()), None, false) => continue,
            };
            self.exclude_failed(rank, failed)?;
        }
        // A closed connection is detected immediately. This check is for children that never connect.
        if self.children_checked.elapsed() < SLICE {
            return Ok(());
        }
        self.children_checked = Instant::now();
        if let Some(rank) = self.children.as_mut().and_then(Children::ended).filter(|rank| !self.is_excluded(*rank)) {
            let failed = self.lost(rank, what);
            self.exclude_failed(rank, failed)?;
        }
        Ok(())
    }

    /// Reports to the other ranks which ranks have made progress since the last call. Does not wait: links that have
    /// not accepted all earlier bytes are skipped.
    pub fn report_progress(&mut self) {
        for (rank, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link.as_mut().filter(|_| self.rank == 0) else { continue };
            // Errors are kept for the next step.
            let _ = link.fill();
            self.progress.hear(rank, link);
        }
        let Some(payload) = self.progress.take() else { return };
        let frame: Arc<[u8]> = frame::encode(FrameKind::Progress, self.step, "progress", &payload).into();
        for link in self.links.iter_mut().flatten() {
            link.flush();
            if link.has_sent_all() && !link.closed {
                link.send(frame.clone());
            }
        }
    }

    /// Returns the error for a rank that has left: the error that it reported, if any.
    fn lost(&mut self, rank: usize, what: &str) -> BootstrapError {
        let mut member = None;
        if let Some(link) = self.links[rank].as_mut() {
            let _ = link.fill();
            if let Some(told) = link.abort() {
                return told;
            }
            member = Some((link.member.host.clone(), link.member.pid));
        }
        let status = self.children.as_mut().and_then(|children| children.status(rank, EXIT_GRACE));
        let (host, pid) = member.unwrap_or_else(|| {
            let pid = self.children.as_ref().and_then(|children| children.pid(rank)).unwrap_or_default();
            (Member::here().host, pid)
        });
        BootstrapError::Left { rank, host, pid, status, what: what.to_owned() }
    }

    fn garbage(&self, rank: usize, text: String) -> BootstrapError {
        let from = match self.links[rank].as_ref() {
            Some(Link { member, .. }) => format!("rank {rank} (host {}, pid {})", member.host, member.pid),
            None => format!("rank {rank}"),
        };
        BootstrapError::garbage(from, text)
    }

    /// Sends the same bytes to several ranks, concurrently.
    fn send(&mut self, ranks: &[usize], bytes: Vec<u8>, what: &str, clock: &Clock) -> Result<(), BootstrapError> {
        let bytes: Arc<[u8]> = bytes.into();
        for &rank in ranks {
            if let Some(link) = self.links[rank].as_mut() {
                link.send(bytes.clone());
            }
        }
        loop {
            let mut late = Vec::new();
            for &rank in ranks {
                let Some(link) = self.links[rank].as_mut() else { continue };
                if !link.flush() {
                    late.push(rank);
                } else if link.closed {
                    let failed = self.lost(rank, what);
                    self.exclude_failed(rank, failed)?;
                }
            }
            if late.is_empty() {
                return Ok(());
            }
            if self.exclude_late(&late, what, clock) {
                continue;
            }
            self.check_clock(what, clock, &late, || "; they do not receive".into())?;
            let links = late.iter().filter_map(|&rank| self.links[rank].as_ref());
            let mut fds: Vec<PollFd> = links.map(|link| PollFd::new(link.as_fd(), PollFlags::POLLOUT)).collect();
            clock.poll(&mut fds)?;
        }
    }

    /// Reports the reason why this rank stops to the other ranks. Never fails, and waits only briefly, because it is
    /// the last action of a broken job.
    pub fn last_words(&mut self, origin: usize, ending: FailureKind, text: &str) {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let clock = Clock::new(LAST_WORDS, &NEVER);
        for rank in (0..self.size).filter(|rank| *rank != origin) {
            // Notifies one rank at a time, so that a rank that has left does not prevent the message to the others.
            if self.links[rank].as_ref().is_some_and(|link| !link.closed) {
                let words = frame::encode(FrameKind::Abort, origin as u64, ending.into(), text.as_bytes());
                let _ = self.send(&[rank], words, "abort", &clock);
            }
        }
    }

    /// Closes all connections in an orderly way.
    pub fn leave(&mut self) {
        self.links.drain(..).flatten().for_each(Link::close);
    }
}

impl Bootstrap {
    /// Reports the reason why this rank stops to the other ranks.
    pub(super) fn spread(&mut self, error: &BootstrapError) {
        let me = self.rank;
        let mut star = lock(&self.star);
        match error {
            // Rank 0 already knows an error that it reported. Rank 0 forwards errors of the other ranks.
            BootstrapError::Aborted { rank, ending, text } if me == 0 || *rank == me => {
                star.last_words(*rank, *ending, text)
            }
            BootstrapError::Aborted { .. } => {}
            BootstrapError::Left { rank: 0, .. } => {}
            other => star.last_words(me, other.ending(), &other.to_string()),
        }
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        self.leave();
    }
}
