//! `ginlab echo`: sockets and fabric completions in one loop, and the messages of both sides if the other one is
//! missing, is the wrong one, or dies.

use std::process::Command;

use crate::common::lab::Lab;
use crate::common::{JobOutput, OutputStream, ProcessGroup, all_verified, free_port, ginlab, rows, run};
use nix::sys::signal::Signal;

fn with_token(token: &str, args: &str) -> Command {
    let mut command = ginlab(&format!("echo {args}"));
    command.env("GINLAB_TOKEN", token);
    command
}

/// A running server and its port.
struct Server(ProcessGroup, u16);

impl Server {
    fn start(args: &str) -> Server {
        let mut job = ProcessGroup::start(with_token("secret", &format!("--listen 127.0.0.1:0 {args}")));
        let line = job.until_line(OutputStream::Stdout, "listening address=127.0.0.1:");
        let port = line.trim().rsplit_once(':').unwrap().1.parse().unwrap();
        Server(job, port)
    }

    fn client(&self, args: &str) -> Command {
        with_token("secret", &format!("--connect 127.0.0.1:{} {args}", self.1))
    }

    fn finish(self) -> JobOutput {
        self.0.finish()
    }
}

#[track_caller]
fn echoed(done: &JobOutput, sizes: &[u64]) {
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
fn server_and_client_run_on_one_thread() {
    for provider in ["tcp", "shm"] {
        let done = run(ginlab(&format!("echo -p {provider} -b 1 -e 125 -f 5 -n 20 -w 2 --csv -"))).expect(0);
        echoed(&done, &[1, 5, 25, 125]);
    }
    // Longer than any socket's buffers.
    let done = run(ginlab("echo -p tcp -b 16777217 -e 16777217 -n 2 -w 0 --csv -")).expect(0);
    echoed(&done, &[16_777_217]);
}

#[test]
fn server_handles_several_clients() {
    let server = Server::start("-p tcp --clients 3");
    let client = || ProcessGroup::start(server.client("-p tcp -b 64 -e 4K -f 64 -n 30 -w 0 --csv -"));
    for client in [client(), client(), client()] {
        echoed(&client.finish().expect(0), &[64, 4096]);
    }
    let done = server.finish().expect(0);
    let count = |start: &str| done.stdout.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((count("joined host="), count("left host="), count("died")), (3, 3, 0), "{}", done.stdout);
    assert!(done.stdout.lines().filter(|line| line.ends_with(" messages=120")).count() == 3, "{}", done.stdout);
}

#[test]
fn killed_client_is_reported_and_next_served() {
    let mut server = Server::start("-p tcp --clients 2");
    let mut victim = ProcessGroup::start(server.client("-p tcp -b 64 -e 1K -n 1000000"));
    // Kills the process during a size: the first header is printed once both sides have each other's addresses.
    victim.until(OutputStream::Stderr, "# note: each message makes");
    victim.signal(Signal::SIGKILL);
    let line = server.0.until_line(OutputStream::Stdout, "died host=");
    assert!(line.contains(&format!("pid={}", victim.pid())) && line.contains("_disconnected_while_"), "{line}");
    echoed(&run(server.client("-p tcp -b 64 -e 64 -n 10 --csv -")).expect(0), &[64]);
    server.finish().expect(0);
}

#[test]
fn killed_server_is_named() {
    let mut server = Server::start("-p tcp");
    let mut client = ProcessGroup::start(server.client("-p tcp -b 64 -e 64 -n 1000000"));
    client.until(OutputStream::Stderr, "# note: each message makes");
    server.0.signal(Signal::SIGKILL);
    let done = client.finish().expect(1);
    let line = done.complaint();
    // The socket or the fabric reports the failure, whichever is notified first. Only the socket's message includes the
    // size.
    assert!(
        line.contains(&format!("(pid {}", server.0.pid())) && line.contains("disconnected while a message"),
        "{line}"
    );
    server.0.until_line(OutputStream::Stdout, "joined host=");
}

#[test]
fn wrong_token_is_rejected_without_blocking_valid_client() {
    let server = Server::start("-p tcp --clients 1");
    let stranger = with_token("guess", &format!("-p tcp --connect 127.0.0.1:{}", server.1));
    let stranger = run(stranger).expect(1);
    let line = stranger.complaint();
    assert!(line.contains("refused: it has a different job token; set GINLAB_TOKEN"), "{line}");
    echoed(&run(server.client("-p tcp -b 64 -e 64 -n 10 --csv -")).expect(0), &[64]);
    let done = server.finish().expect(0);
    assert!(done.complaint().starts_with("ginlab: refused a connection from 127.0.0.1:"), "{}", done.stderr);
}

#[test]
fn different_provider_is_rejected() {
    let server = Server::start("-p tcp --clients 1");
    let done = run(server.client("-p shm")).expect(1);
    // libfabric 1.17 layers tcp under ofi_rxm, 2.x does not.
    let said = done.complaint().replace("tcp;ofi_rxm", "tcp");
    assert!(said.contains("the server uses provider \"tcp\", but the client uses \"shm\""), "{done:?}");
    server.finish().expect(0);
}

#[test]
fn wrong_protocol_is_reported_to_client() {
    let server = Server::start("-p tcp");
    let mut rank = ginlab("bootstrap -t 2");
    rank.env("RANK", "1").env("WORLD_SIZE", "2").env("GINLAB_TOKEN", "secret");
    rank.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", server.1.to_string());
    let done = run(rank).expect(1);
    assert!(done.complaint().contains("it is a rank of a job, but this is the address of a server"), "{done:?}");

    let port = free_port();
    let mut rank = ginlab("bootstrap -t 5");
    rank.env("RANK", "0").env("WORLD_SIZE", "2").env("GINLAB_TOKEN", "secret");
    rank.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    let rank = ProcessGroup::start(rank);
    let done = run(with_token("secret", &format!("--connect 127.0.0.1:{port}"))).expect(1);
    assert!(done.complaint().contains("it is a client, but this is the address of the ranks of a job"), "{done:?}");
    drop(rank);
}

#[test]
fn missing_server_times_out() {
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

    // An unused address, in a separate network.
    let Some(lab) = Lab::up("--nodes 2 --rails 1 --rate none") else { return };
    let mut command = lab.ginlab(0, "echo --connect 10.99.0.77:7001 -t 1");
    command.env("GINLAB_TOKEN", "secret");
    let done = run(command).expect(124);
    assert!(done.complaint().contains("timed out after 1 s connecting to 10.99.0.77:7001"), "{done:?}");
}

#[test]
fn invalid_options_print_one_line() {
    for (args, part) in [
        ("-b 0 -e 0", "invalid message size of 0 bytes"),
        ("-b 1G -e 1G", "must be from 1 B to 64 MiB"),
        ("-f 1", "sweep factor 1"),
        ("-p nothing", "unknown provider \"nothing\""),
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
fn ctrl_c_ends_server_and_client() {
    let server = Server::start("-p tcp");
    let mut client = ProcessGroup::start(server.client("-p tcp -b 64 -e 64 -n 1000000"));
    client.until(OutputStream::Stderr, "# note: each message makes");
    client.signal(Signal::SIGINT);
    client.finish().expect(130);
    server.0.signal(Signal::SIGINT);
    server.finish().expect(130);
}
