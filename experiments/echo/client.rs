//! Client: sends every message over both paths at the same time, measures both paths, and prints the rows.

use super::args::{EchoArgs, EchoPlan};
use super::side::{self, OpenSide, SideInfo, Socket};
use crate::error::Failure;
use crate::output::Output;
use crate::rails::RailRequest;
use crate::runner::{Rows, wrong_data};
use ginlab::bootstrap::session::Session;
use ginlab::flow::Peer;
use ginlab::measure::pattern;
use ginlab::measure::stats::Micros;
use ginlab::report::{About, Headline, Key, Plot, Row};
use ginlab::signals;
use ginlab::versions::Versions;
use std::time::Instant;

/// Declaration of the rows.
pub const ABOUT: About = About {
    without: &["mode", "grid"],
    headlines: &[Headline::least(
        "round trip of 64 B over the fabric",
        "time_us_p50",
        &[("case", "fabric"), ("size_bytes", "64")],
    )],
    plots: &[Plot::TIME, Plot::RATIO],
    ..About::new("echo", "Measure concurrent round trips over a socket and over the fabric, on one thread")
};

/// Connects to the server and measures.
pub async fn run(
    args: &EchoArgs,
    plan: &EchoPlan,
    address: &str,
    token: &str,
    rail: &RailRequest,
) -> Result<(), Failure> {
    let mut visit = Session::connect(address, token, rail.timeout).await?;
    visit.say("plan", plan).await?;
    let opened = OpenSide::new(rail, plan, visit.same_host())?;
    args.corrupt.into_iter().for_each(|number| opened.rails.flow.corrupt(number));
    visit.say("fabric address", &opened.card()?).await?;
    let theirs: SideInfo = visit.hear("fabric address").await?;
    visit.check_addresses(&opened.card()?.offer.addresses, &theirs.offer.addresses)?;
    let peer = opened.peer(&theirs)?;

    let mut header = Versions::header();
    header.set(Key::Provider, opened.rails.provider.clone()).set(Key::Rails, opened.rails.names.clone());
    header.note(format!("server: {visit}")).notes(&opened.rails.notes).note(
        "each message makes two concurrent round trips, over the socket and with send and receive over the fabric, on \
         one thread per side; times are round trips, percentiles are over messages, every echo is verified",
    );
    let mut output = Output::open(&args.output, &header, &ABOUT, plan.sizes.len() as u64)?;
    let mut socket = Socket::new(visit, rail.timeout)?;
    let result = async {
        for bytes in &plan.sizes {
            let rows = measure(plan, *bytes, &opened, peer, &mut socket).await?;
            output.rows(&rows)?;
            output.step();
            if let Some(failure) =
                rows.iter().find_map(|(row, _)| wrong_data(row, |row| format!("{} echoes", row.case)))
            {
                return Err(failure);
            }
        }
        Ok(())
    };
    let result = result.await;
    output.close(result)
}

/// Sends all messages of one size. Returns a row for the socket and one for the fabric.
async fn measure(
    plan: &EchoPlan,
    bytes: u64,
    opened: &OpenSide,
    peer: Peer,
    socket: &mut Socket,
) -> Result<Rows, Failure> {
    let mut message = vec![0; bytes as usize];
    let mut echo = vec![0; bytes as usize];
    let (mut by_socket, mut by_fabric) = (Vec::new(), Vec::new());
    let (mut wrong_socket, mut wrong_fabric) = (0, 0);
    for number in 0..plan.messages {
        if signals::interrupted() {
            return Err(Failure::Interrupted);
        }
        let seed = pattern::seed(0, number as u32, 0);
        pattern::fill(&mut message, seed);
        pattern::poison(&mut echo, seed);
        opened.set(&message, &echo)?;
        let began = Instant::now();
        let since = || Micros::from(began.elapsed()).0;
        let by_socket_now = async |socket: &mut Socket| socket.round_trip(&message, &mut echo).await.map(|()| since());
        let by_fabric_now = async { opened.round_trip(peer, bytes).await.map(|()| since()) };
        let (socket_us, fabric_us) = side::both(socket, opened, by_socket_now, by_fabric_now).await?;
        wrong_socket += pattern::check(&echo, seed) as u64;
        opened.arrived(&mut echo)?;
        wrong_fabric += pattern::check(&echo, seed) as u64;
        if number >= plan.messages - plan.timed {
            by_socket.push(socket_us);
            by_fabric.push(fabric_us);
        }
    }
    let row = |case: &str, fabric: &str, times: &[f64], wrong: u64| {
        let mut row = Row::new("echo", case, "cpu", fabric);
        (row.ranks, row.size_bytes, row.wrong_bytes) = (2, Some(bytes), Some(wrong));
        row.iterations = Some(1);
        row.times(times).tail(times);
        row
    };
    let socket_row = row("socket", "socket", &by_socket, wrong_socket);
    let mut fabric_row = row("fabric", &opened.rails.provider, &by_fabric, wrong_fabric);
    fabric_row.rails = Some(1);
    fabric_row.against(&socket_row, &by_fabric, &by_socket);
    Ok(vec![(socket_row, by_socket), (fabric_row, by_fabric)])
}
