//! Rank 0's listening socket: many connections at once, none of which can hold up the others.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::error::BootstrapError;
use super::frame::{self, FrameKind};
use super::guard::{CROWDED_OUT, HANDSHAKE_LIMIT, MAX_STRANGERS, Notices, shown};
use super::hello::{self, Gate, Hello, Knock, Refusal};
use super::identity::Member;
use super::link::Link;

/// Bytes kept of a connection that is not a link yet.
const MAX_UNREAD: usize = 16 << 10;

/// Accepts the ranks of one job.
pub(super) struct Door {
    listener: TcpListener,
    token: String,
    size: usize,
    welcome: Vec<u8>,
    /// In the order of their coming.
    callers: Vec<Caller>,
    notices: Notices,
}

struct Caller {
    stream: TcpStream,
    from: SocketAddr,
    gate: Gate,
    /// It knows the token.
    proven: bool,
    buffer: Vec<u8>,
    deadline: Instant,
    closed: bool,
    /// Refused: only waits for the other side to read the answer and close.
    leaving: bool,
}

enum Step {
    Wait,
    Stranger(String),
    Refuse(String),
    Join(Hello, usize),
}

impl Door {
    pub fn new(listener: TcpListener, token: &str, size: usize, me: &Member) -> Result<Self, BootstrapError> {
        listener.set_nonblocking(true).map_err(|e| BootstrapError::system("listen for the other ranks", e))?;
        let welcome = frame::encode(FrameKind::Welcome, 0, "start", &hello::json(me));
        Ok(Door { listener, token: token.to_owned(), size, welcome, callers: Vec::new(), notices: Notices::default() })
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.callers.iter().map(|caller| caller.stream.as_fd()))
    }

    /// For the error of a wait that ended without everybody.
    pub fn note(&self) -> String {
        self.notices.clause()
    }

    /// Moves every connection as far as it goes without waiting, and puts those that are ranks into `links`. Strangers are
    /// turned away; a rank of this job that cannot be is an error, since the job cannot become whole.
    pub fn step(&mut self, links: &mut [Option<Link>]) -> Result<(), BootstrapError> {
        self.accept()?;
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.advance(&self.token) {
                Step::Wait => self.callers.push(caller),
                Step::Stranger(why) => {
                    if !caller.leaving {
                        self.notices.tell(caller.from, &why);
                    }
                }
                Step::Refuse(why) => {
                    self.notices.tell(caller.from, &why);
                    caller.refuse(why, false);
                    self.callers.push(caller);
                }
                Step::Join(hello, used) => {
                    let Hello { rank, ref member, .. } = hello;
                    if let Some(why) = self.objection(&hello, links) {
                        let from = shown(caller.from);
                        let peer = format!("rank {rank} (host {}, pid {}, {from})", member.host, member.pid);
                        caller.refuse(why.clone(), true);
                        return Err(BootstrapError::BadPeer { peer, why });
                    }
                    match caller.into_link(&self.welcome, &hello, used) {
                        Ok(link) => links[rank] = Some(link),
                        // It will come again, or be missed by name.
                        Err(error) => self.notices.note(format!("rank {rank}: {error}")),
                    }
                }
            }
        }
        Ok(())
    }

    fn objection(&self, hello: &Hello, links: &[Option<Link>]) -> Option<String> {
        let Hello { rank, size, member } = hello;
        if *size != self.size {
            Some(format!("it counts {size} ranks, rank 0 counts {}", self.size))
        } else if *rank == 0 || *rank >= self.size {
            Some(format!("the ranks beside rank 0 are 1 to {}", self.size.saturating_sub(1)))
        } else {
            let first = &links[*rank].as_ref()?.member.host;
            Some(format!("two processes claim rank {rank}, on host {first} and host {}", member.host))
        }
    }

    fn accept(&mut self) -> Result<(), BootstrapError> {
        // Those who come faster than they can be looked at wait for the next turn.
        for _ in 0..MAX_STRANGERS {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if self.callers.len() >= self.size + MAX_STRANGERS {
                        self.let_oldest_go();
                    }
                    if let (Ok(()), Ok(gate)) = (stream.set_nonblocking(true), Gate::new()) {
                        let (deadline, buffer) = (Instant::now() + HANDSHAKE_LIMIT, Vec::new());
                        let (proven, closed, leaving) = (false, false, false);
                        self.callers.push(Caller { stream, from, gate, proven, buffer, deadline, closed, leaving });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The connector gave up in between.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Too many open files, say: those who have said nothing yet go first.
                Err(error) if !self.let_oldest_go() => {
                    return Err(BootstrapError::system("accept a connection", error));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Drops the oldest connection that has not proved the token, or is refused; whether there was one.
    fn let_oldest_go(&mut self) -> bool {
        let Some(oldest) = self.callers.iter().position(|caller| !caller.proven) else { return false };
        let caller = self.callers.remove(oldest);
        if !caller.leaving {
            self.notices.tell(caller.from, CROWDED_OUT);
        }
        true
    }
}

impl Caller {
    fn advance(&mut self, token: &str) -> Step {
        if let Err(error) = self.read() {
            return Step::Stranger(format!("the connection broke: {error}"));
        }
        let late = Instant::now() >= self.deadline;
        if self.leaving {
            self.buffer.clear();
            return if self.closed || late { Step::Stranger(String::new()) } else { Step::Wait };
        }
        if !self.proven {
            let mut answer = Vec::new();
            let knock = self.gate.step(&mut self.buffer, token, &mut answer);
            // It fits into the socket's buffer; when it does not, the other side takes nothing and is no rank.
            if let Err(error) = self.stream.write_all(&answer) {
                return Step::Stranger(format!("the connection broke: {error}"));
            }
            match knock {
                Knock::Stranger => return Step::Stranger("it is not a ginlab rank".into()),
                Knock::Other(why) => return Step::Refuse(why),
                Knock::Incomplete => {}
                Knock::Ours => self.proven = true,
            }
        }
        if self.proven {
            match hello::read_hello(&self.buffer) {
                Ok(Some((hello, used))) => return Step::Join(hello, used),
                Ok(None) => {}
                Err(why) => return Step::Refuse(why),
            }
        }
        if self.closed {
            Step::Stranger("it closed before it said who it is".into())
        } else if late {
            Step::Stranger(format!("it did not say who it is within {} s", HANDSHAKE_LIMIT.as_secs()))
        } else {
            Step::Wait
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0u8; 4096];
        while !self.closed && self.buffer.len() < MAX_UNREAD {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.closed = true,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers with the reason. It fits into the socket's buffer; when it does not, the other side sees a closed socket.
    fn refuse(&mut self, why: String, last_word: bool) {
        let bytes = frame::encode(FrameKind::Refuse, 0, "start", &hello::json(&Refusal { why, last_word }));
        let _ = self.stream.write_all(&bytes);
        let _ = self.stream.shutdown(Shutdown::Write);
        self.leaving = true;
    }

    fn into_link(mut self, welcome: &[u8], hello: &Hello, used: usize) -> io::Result<Link> {
        self.stream.write_all(welcome)?;
        Link::new(self.stream, hello.member.clone(), self.buffer.split_off(used))
    }
}
