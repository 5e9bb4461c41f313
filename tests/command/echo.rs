//! `ginlab echo`: sockets and fabric completions in one loop, and what both sides say when the other one is not there, is not
//! meant, or dies.

use std::process::Command;

use crate::common::lab::Lab;
use crate::common::{Done, Job, Stream, all_verified, free_port, ginlab, rows, run};
use nix::sys::signal::Signal;

fn with_token(token: &str, args: &str) -> Command {
    let mut command = ginlab(&format!("echo {args}"));
    command.env("GINLAB_TOKEN", token);
    command
}

/// A server under way, and its port.
struct Server(Job, u16);

impl Server {
    fn start(args: &str) -> Server {
        let mut job = Job::start(with_token("secret", &format!("--listen 127.0.0.1:0 {args}")));
        let line = job.until_line(Stream::Stdout, "listening address=127.0.0.1:");
        let port = line.trim().rsplit_once(':').unwrap().1.parse().unwrap();
        Server(job, port)
    }

    fn client(&self, args: &str) -> Command {
        with_token("secret", &format!("--connect 127.0.0.1:{} {args}", self.1))
    }

    fn finish(self) -> Done {
        self.0.finish()
    }
}

#[track_caller]
fn echoed(done: &Done, sizes: &[u64]) {
    let rows = rows(&done.stdout);
    all_verified(&rows);
    let found: Vec<_> = rows.iter().map(|row| (row.size_bytes.unwrap(), row.case.as_str())).collect();
    let expected: Vec<_> = sizes.iter().flat_map(|bytes| [(*bytes, "socket"), (*bytes, "fabric")]).collect();
    assert_eq!(found, expected);
    for pair in rows.chunks(2) {
        let [socket, fabric] = pair else { unreachable!() };
        assert_eq!((socket.fabric.as_str(), fabric.baseline.as_deref()), ("socket", Some("socket")));
        assert!(fabric.baseline_ratio.is_some() && fabric.time_us_p99 >= fabric.time_us_p50);
    }
}

#[test]
fn server_and_client_as_tasks_of_one_thread() {
    for provider in ["tcp", "shm"] {
        let done = run(ginlab(&format!("echo -p {provider} -b 1 -e 125 -f 5 -n 20 -w 2 --csv -"))).expect(0);
        echoed(&done, &[1, 5, 25, 125]);
    }
    // Longer than any socket's buffers.
    let done = run(ginlab("echo -p tcp -b 16777217 -e 16777217 -n 2 -w 0 --csv -")).expect(0);
    echoed(&done, &[16_777_217]);
}

#[test]
fn several_clients_of_one_server() {
    let server = Server::start("-p tcp --clients 3");
    let client = || Job::start(server.client("-p tcp -b 64 -e 4K -f 64 -n 30 -w 0 --csv -"));
    for client in [client(), client(), client()] {
        echoed(&client.finish().expect(0), &[64, 4096]);
    }
    let done = server.finish().expect(0);
    let count = |start: &str| done.stdout.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((count("joined host="), count("left host="), count("died")), (3, 3, 0), "{}", done.stdout);
    assert!(done.stdout.lines().filter(|line| line.ends_with(" messages=120")).count() == 3, "{}", done.stdout);
}

#[test]
fn a_client_that_dies_is_an_event_and_the_next_one_is_served() {
    let mut server = Server::start("-p tcp --clients 2");
    let mut victim = Job::start(server.client("-p tcp -b 64 -e 1K -n 1000000"));
    // In the middle of a size: the first header comes when both have each other's addresses.
    victim.until(Stream::Stderr, "# note: each message goes");
    victim.signal(Signal::SIGKILL);
    let line = server.0.until_line(Stream::Stdout, "died host=");
    assert!(line.contains(&format!("pid={}", victim.pid())) && line.contains("_left_while_"), "{line}");
    echoed(&run(server.client("-p tcp -b 64 -e 64 -n 10 --csv -")).expect(0), &[64]);
    server.finish().expect(0);
}

#[test]
fn a_server_that_dies_is_named() {
    let mut server = Server::start("-p tcp");
    let mut client = Job::start(server.client("-p tcp -b 64 -e 64 -n 1000000"));
    client.until(Stream::Stderr, "# note: each message goes");
    server.0.signal(Signal::SIGKILL);
    let done = client.finish().expect(1);
    let line = done.complaint();
    // By the socket or by the fabric, whichever hears first; the socket also knows the size.
    assert!(line.contains(&format!("(pid {}", server.0.pid())) && line.contains("left while a message"), "{line}");
    server.0.until_line(Stream::Stdout, "joined host=");
}

#[test]
fn a_wrong_token_is_refused_and_the_right_one_still_served() {
    let server = Server::start("-p tcp --clients 1");
    let stranger = with_token("guess", &format!("-p tcp --connect 127.0.0.1:{}", server.1));
    let stranger = run(stranger).expect(1);
    let line = stranger.complaint();
    assert!(line.contains("refused: it has another job token: set GINLAB_TOKEN"), "{line}");
    echoed(&run(server.client("-p tcp -b 64 -e 64 -n 10 --csv -")).expect(0), &[64]);
    let done = server.finish().expect(0);
    assert!(done.complaint().starts_with("ginlab: refused a connection from 127.0.0.1:"), "{}", done.stderr);
}

#[test]
fn another_provider_is_refused() {
    let server = Server::start("-p tcp --clients 1");
    let done = run(server.client("-p shm")).expect(1);
    // libfabric 1.17 layers tcp under ofi_rxm, 2.x does not.
    let said = done.complaint().replace("tcp;ofi_rxm", "tcp");
    assert!(said.contains("the provider is \"tcp\" at the server but \"shm\" at the client"), "{done:?}");
    server.finish().expect(0);
}

#[test]
fn whoever_comes_to_the_wrong_door_is_told() {
    let server = Server::start("-p tcp");
    let mut rank = ginlab("bootstrap -t 2");
    rank.env("RANK", "1").env("WORLD_SIZE", "2").env("GINLAB_TOKEN", "secret");
    rank.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", server.1.to_string());
    let done = run(rank).expect(1);
    assert!(done.complaint().contains("it is a rank of a job, and here is a server for visits"), "{done:?}");

    let port = free_port();
    let mut rank = ginlab("bootstrap -t 5");
    rank.env("RANK", "0").env("WORLD_SIZE", "2").env("GINLAB_TOKEN", "secret");
    rank.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    let rank = Job::start(rank);
    let done = run(with_token("secret", &format!("--connect 127.0.0.1:{port}"))).expect(1);
    assert!(done.complaint().contains("it comes for a visit, and here ranks of a job meet"), "{done:?}");
    drop(rank);
}

#[test]
fn nobody_there() {
    let port = free_port();
    let done = run(with_token("secret", &format!("--connect 127.0.0.1:{port} -t 1"))).expect(124);
    let line = done.complaint();
    let part = format!(
        "timed out after 1 s connecting to 127.0.0.1:{port} (last attempt: 127.0.0.1:{port}: Connection refused"
    );
    assert!(line.contains(&part), "{line}");
    assert_eq!(done.stdout, "");
    let done = run(with_token("secret", "--connect no-such-host.invalid:1 -t 1")).expect(124);
    assert!(done.complaint().contains("connecting to no-such-host.invalid:1 (last attempt: "), "{done:?}");

    // An address that nobody has, in a network of its own.
    let Some(lab) = Lab::up("--nodes 2 --rails 1 --rate none") else { return };
    let mut command = lab.ginlab(0, "echo --connect 10.99.0.77:7001 -t 1");
    command.env("GINLAB_TOKEN", "secret");
    let done = run(command).expect(124);
    assert!(done.complaint().contains("timed out after 1 s connecting to 10.99.0.77:7001"), "{done:?}");
}

#[test]
fn bad_input_is_one_line() {
    for (args, part) in [
        ("-b 0 -e 0", "a message of 0 bytes cannot be echoed by a socket"),
        ("-b 1G -e 1G", "allowed are 1 B to 64 MiB"),
        ("-f 1", "sweep factor 1"),
        ("-p nothing", "there is no provider \"nothing\""),
    ] {
        let done = run(ginlab(&format!("echo {args}"))).expect(2);
        assert!(done.complaints().iter().any(|line| line.contains(part)), "{part}: {done:?}");
        assert_eq!(done.stdout, "");
    }
    for args in ["--listen 127.0.0.1:0", "--connect 127.0.0.1:1"] {
        assert!(run(ginlab(&format!("echo {args}"))).expect(2).complaint().contains("set GINLAB_TOKEN"));
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let done = run(with_token("secret", &format!("--listen {}", taken.local_addr().unwrap()))).expect(1);
    assert!(done.complaint().contains("Address already in use"), "{done:?}");
    for args in ["--listen 127.0.0.1:0 --connect 127.0.0.1:1", "--clients 2"] {
        assert_eq!(run(ginlab(&format!("echo {args}"))).expect(2).stdout, "");
    }
}

#[test]
fn ctrl_c_ends_a_server_and_a_client() {
    let server = Server::start("-p tcp");
    let mut client = Job::start(server.client("-p tcp -b 64 -e 64 -n 1000000"));
    client.until(Stream::Stderr, "# note: each message goes");
    client.signal(Signal::SIGINT);
    client.finish().expect(130);
    server.0.signal(Signal::SIGINT);
    server.finish().expect(130);
}
