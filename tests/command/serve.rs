//! `ginlab serve` and `ginlab join`: peers that join while a server runs, leave, or die in the middle of their writes.

use crate::common::lab::Lab;
use crate::common::server::{ServeProcess, facts, verified, with_token};
use crate::common::{OutputStream, ProcessGroup, free_port, ginlab, rows, run};
use nix::sys::signal::Signal;

#[test]
fn peers_join_write_and_leave_concurrently() {
    let mut server = ServeProcess::start("-p tcp --peers 2 --bytes 100000 --rails 3 --visits 4");
    // Tests writes that fill a slot with a remainder, writes of one byte, and both concurrently.
    for (args, bytes) in [("-b 4097 -n 100", 4097 * 100), ("-b 1 -n 7 --window 1", 7)] {
        verified(run(server.join(&format!("{args} --csv -"))));
        let left = server.until("left");
        assert_eq!((left["bytes"].parse(), left["verified"].as_str()), (Ok(bytes), "true"), "{left:?}");
    }
    let both =
        ["-b 100000 -n 50", "-b 33333 -n 51"].map(|args| ProcessGroup::start(server.join(&format!("{args} --csv -"))));
    both.into_iter().for_each(|job| verified(job.finish()));
    let done = server.finish().expect(0);
    let events = |event: &str| done.stdout.lines().filter(|line| line.starts_with(event)).count();
    assert_eq!((events("joined peer="), events("left peer="), events("died")), (4, 4, 0), "{}", done.stdout);
    for peer in ["peer=1 ", "peer=2 ", "peer=3 ", "peer=4 "] {
        assert!(done.stdout.contains(&format!("joined {peer}")), "{}", done.stdout);
    }
}

#[test]
fn killed_peer_is_reported_and_next_served() {
    for (provider, rails) in [("tcp", 1), ("tcp", 4)] {
        let mut server = ServeProcess::start(&format!("-p {provider} --rails {rails} --peers 3 --bytes 4M --visits 3"));
        // This peer stays while the other dies.
        let mut stays = ProcessGroup::start(server.join("-b 1M -n 1000000"));
        server.until("writing");
        let victim = ProcessGroup::start(server.join("-b 1M -n 1000000"));
        let joined = server.until("joined");
        assert_eq!(joined["pid"], victim.pid().to_string());
        assert_eq!(server.until("writing")["peer"], joined["peer"]);
        victim.signal(Signal::SIGKILL);
        let died = server.until("died");
        assert_eq!((&died["peer"], &died["pid"]), (&joined["peer"], &joined["pid"]));
        let (writes, bytes): (u64, u64) = (died["writes"].parse().unwrap(), died["bytes"].parse().unwrap());
        assert!(writes > 0 && bytes == writes << 20, "{died:?}");
        assert!(died["why"].contains("_disconnected_at_\"writes\""), "{died:?}");
        // The slot is not reused yet; another one is free.
        verified(run(server.join("-b 1M -n 20 --csv -")));
        stays.signal(Signal::SIGINT);
        stays.until(OutputStream::Stderr, "interrupted");
        stays.finish().expect(130);
        assert!(server.until("died")["why"].contains("_disconnected_at_"));
        server.finish().expect(0);
    }
}

#[test]
fn silent_peer_is_dropped() {
    let mut server = ServeProcess::start("-p tcp --visits 1 -t 3");
    let peer = ProcessGroup::start(server.join("-b 64K -n 1000000000"));
    server.until("writing");
    peer.signal(Signal::SIGSTOP);
    let died = server.until("died");
    assert!(died["why"].starts_with("no_message_and_no_write_for_3_s"), "{died:?}");
    server.finish().expect(0);
    peer.signal(Signal::SIGCONT);
    let done = peer.finish().expect(1);
    assert!(done.complaint().contains(" disconnected at \"writes\""), "{done:?}");
}

#[test]
fn killed_server_is_named() {
    let mut server = ServeProcess::start("-p tcp");
    let peer = ProcessGroup::start(server.join("-b 64K -n 1000000000"));
    server.until("writing");
    server.0.signal(Signal::SIGKILL);
    let done = peer.finish().expect(1);
    let line = done.complaint();
    assert!(
        line.contains(&format!("(pid {}, ", server.0.pid())) && line.contains(" disconnected at \"writes\""),
        "{line}"
    );
}

#[test]
fn wrong_bytes_are_detected_on_both_sides() {
    let mut server = ServeProcess::start("-p tcp --visits 1");
    let done = run(server.join("-b 1000 -n 10 --corrupt --csv -")).expect(1);
    assert!(done.complaint().starts_with("ginlab: verification failed: the server has checksum "), "{done:?}");
    let rows = rows(&done.stdout);
    assert!(rows.len() == 1 && rows[0].status.to_string().starts_with("failed: the server has checksum"), "{rows:?}");
    assert_eq!(server.until("left")["verified"], "false");
    server.finish().expect(0);
}

#[test]
fn rejected_peers_do_not_disturb_server() {
    let mut server = ServeProcess::start("-p tcp --peers 1 --bytes 64K --visits 2");
    let stranger = run(with_token("guess", &format!("join 127.0.0.1:{}", server.1))).expect(1);
    assert!(stranger.complaint().contains("refused: it has a different job token; set GINLAB_TOKEN"), "{stranger:?}");
    let large = run(server.join("-b 65537")).expect(2);
    assert!(
        large.complaint().contains("-b 65537: exceeds the memory that the server provides per peer, 64 KiB"),
        "{large:?}"
    );
    let mut first = ProcessGroup::start(server.join("-b 64K -n 1000000000"));
    server.until("writing");
    let second = run(server.join("-b 1 -n 1")).expect(1);
    assert!(second.complaint().contains("all 1 slots are in use"), "{second:?}");
    first.signal(Signal::SIGINT);
    first.until(OutputStream::Stderr, "interrupted");
    first.finish().expect(130);
    server.until("died");
}

#[test]
fn missing_server_and_invalid_options_are_reported() {
    let port = free_port();
    let done = run(with_token("secret", &format!("join 127.0.0.1:{port} -t 1"))).expect(124);
    assert!(done.complaint().contains(&format!("timed out after 1 s connecting to 127.0.0.1:{port}")), "{done:?}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let done = run(with_token("secret", &format!("serve -p tcp --listen {}", taken.local_addr().unwrap()))).expect(1);
    assert!(done.complaint().contains("Address already in use"), "{done:?}");
    for args in ["serve", "join 127.0.0.1:1"] {
        let done = run(ginlab(args)).expect(2);
        assert!(done.complaint().contains("set GINLAB_TOKEN"), "{done:?}");
    }
    for (args, part) in [
        ("serve --bytes 0", "must be from 1 B to 1 TiB"),
        ("serve --bytes 1T", "try a smaller --bytes or --peers"),
        ("serve -p nothing", "unknown provider \"nothing\""),
        ("join 127.0.0.1:1 -b 0", "must be at least 1 byte"),
        ("join 127.0.0.1:1 -b 1X", "--bytes"),
    ] {
        let done = run(with_token("secret", args)).expect(2);
        assert!(done.complaint().contains(part), "{part}: {done:?}");
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn peer_of_another_host_uses_four_rails() {
    let Some(lab) = Lab::up("--rate none") else { return };
    let on = |node: usize, args: &str| {
        let mut command = lab.ginlab(node, args);
        command.env("GINLAB_TOKEN", "secret");
        command
    };
    let mut server = ProcessGroup::start(on(0, "serve -p tcp --listen 10.99.0.1:0 --rails 4 --visits 3"));
    let address = facts(&server.until_line(OutputStream::Stdout, "listening "))["address"].clone();
    verified(run(on(1, &format!("join {address} -b 100001 -n 41 --csv -"))));
    let victim = ProcessGroup::start(on(1, &format!("join {address} -b 1M -n 1000000")));
    server.until(OutputStream::Stdout, "left ");
    server.until(OutputStream::Stdout, "writing ");
    drop(victim);
    server.until(OutputStream::Stdout, "died ");
    verified(run(on(1, &format!("join {address} -b 8 -n 9 --csv -"))));
    server.finish().expect(0);
}

#[test]
fn ctrl_c_ends_server() {
    let server = ServeProcess::start("-p tcp");
    server.0.signal(Signal::SIGINT);
    server.finish().expect(130);

    // Stops the server while a peer writes to it. The peer is notified.
    let mut server = ServeProcess::start("-p tcp");
    let peer = ProcessGroup::start(server.join("-b 1M -n 1000000000"));
    server.until("writing");
    server.0.signal(Signal::SIGINT);
    let done = server.finish().expect(130);
    assert!(!done.stdout.contains("died"), "{}", done.stdout);
    assert!(peer.finish().expect(1).complaint().contains(" disconnected at \"writes\""));
}
