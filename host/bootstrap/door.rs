//! Rank 0's listening socket: many connections at once, none of which can hold up the others.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::error::BootstrapError;
use super::frame::{self, FrameKind};
use super::hello::{self, Hello, Knock, Refusal};
use super::identity::Member;
use super::link::Link;

/// A connection must have said who it is within this time.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Connections under way beyond the job's own; further ones wait in the kernel's backlog.
const MAX_STRANGERS: usize = 64;

/// Bytes kept of a connection that is not a link yet.
const MAX_UNREAD: usize = 16 << 10;

/// Refusals told on stderr; a port scanner must not flood it.
const MAX_NOTICES: usize = 8;

/// Accepts the ranks of one job.
pub(super) struct Door {
    listener: TcpListener,
    token: String,
    size: usize,
    welcome: Vec<u8>,
    callers: Vec<Caller>,
    refused: usize,
    last_refusal: String,
}

struct Caller {
    stream: TcpStream,
    from: SocketAddr,
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
        Ok(Door {
            listener,
            token: token.to_owned(),
            size,
            welcome,
            callers: Vec::new(),
            refused: 0,
            last_refusal: String::new(),
        })
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = (!self.full()).then(|| self.listener.as_fd());
        listener.into_iter().chain(self.callers.iter().map(|caller| caller.stream.as_fd()))
    }

    fn full(&self) -> bool {
        self.callers.len() >= self.size + MAX_STRANGERS
    }

    /// For the error of a wait that ended without everybody.
    pub fn note(&self) -> String {
        match self.refused {
            0 => String::new(),
            1 => format!("; refused one connection: {}", self.last_refusal),
            n => format!("; refused {n} connections, the last: {}", self.last_refusal),
        }
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
                        self.tell(&caller, &why);
                    }
                }
                Step::Refuse(why) => {
                    self.tell(&caller, &why);
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
                        Err(error) => self.last_refusal = format!("rank {rank}: {error}"),
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
        while !self.full() {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        let deadline = Instant::now() + HANDSHAKE_LIMIT;
                        let buffer = Vec::new();
                        self.callers.push(Caller { stream, from, buffer, deadline, closed: false, leaving: false });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The connector gave up in between.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => return Err(BootstrapError::system("accept a connection", error)),
            }
        }
        Ok(())
    }

    fn tell(&mut self, caller: &Caller, why: &str) {
        self.refused += 1;
        self.last_refusal = format!("{}: {why}", shown(caller.from));
        if self.refused <= MAX_NOTICES {
            eprintln!("ginlab: refused a connection from {}", self.last_refusal);
        }
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
        let used = match hello::knock(&self.buffer, token) {
            Knock::Stranger => return Step::Stranger("it is not a ginlab rank".into()),
            Knock::Other(why) => return Step::Refuse(why),
            Knock::Incomplete => None,
            Knock::Ours(used) => Some(used),
        };
        if let Some(used) = used {
            match hello::read_hello(&self.buffer[used..]) {
                Ok(Some((hello, length))) => return Step::Join(hello, used + length),
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

/// Without the IPv6 spelling of an IPv4 address.
fn shown(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
