//! Client of a server: joins, writes, has the data verified, and leaves.

use super::window::Ahead;
use super::words::{self, Answer, Joining, PeerVerdict, ServerHello, SlotGrant, WritesDone};
use crate::columns::{AGAIN, RAIL_BYTES, WINDOW};
use crate::error::Failure;
use crate::output::{Output, OutputArgs};
use crate::rails::{self, RailRequest};
use crate::runner::{drive, in_event_loop, timed};
use crate::values;
use crate::visitors::HINDSIGHT;
use ginlab::bootstrap::session::{Session, bounded};
use ginlab::bootstrap::{FailureKind, process_env, token_for};
use ginlab::cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab::fabric::Access;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::soft;
use ginlab::flow::{Operation, Target};
use ginlab::measure::{pattern, size};
use ginlab::report::{About, Key, Plot, Row, RowStatus};
use ginlab::signals;
use ginlab::versions::Versions;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  GINLAB_TOKEN=secret ginlab join host-a:7002                   write 64 KiB into the server's memory 1000 times
  GINLAB_TOKEN=secret ginlab join 127.0.0.1:7002 -b 1M -n 100 --window 4 --csv -   print rows as CSV";

/// Declaration of the rows.
pub const ABOUT: About = About {
    columns: &[WINDOW, AGAIN, RAIL_BYTES],
    without: &["mode", "grid"],
    plots: &[Plot::BANDWIDTH],
    ..About::new("serve", "Measure writes into the memory of a server by peers that join and leave")
};

/// Options of `ginlab join`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct JoinArgs {
    /// Address of the server
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// Bytes per write; K, M and G are powers of two
    #[arg(short = 'b', long, default_value = "64K", value_name = "SIZE", value_parser = size::parse)]
    bytes: u64,
    /// Number of writes
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: u64,
    /// Writes in flight; the server may permit fewer
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,
    /// Software NICs, if the server uses them: soft-efa:p5; the server specifies any other provider
    #[arg(short = 'p', long, value_name = "CARDS", value_parser = cards)]
    provider: Option<String>,
    /// Domains on which to open rails, in this order [default: automatic]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    domain: Vec<String>,
    /// Limit for every wait, in seconds
    #[arg(short = 't', long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400), help_heading = "Connection")]
    timeout: u64,
    #[command(flatten)]
    output: OutputArgs,
    /// Inject a fault: corrupt (one byte is sent wrong)
    #[arg(long, hide = true, alias = "corrupt", value_name = "FAULT", num_args = 0..=1, default_missing_value = "corrupt", value_parser = values::corrupt)]
    fault: Option<()>,
}

fn cards(name: &str) -> Result<String, String> {
    if soft::is_asked(name) {
        Ok(name.to_owned())
    } else {
        Err("must be soft-efa:...; any other provider is specified by the server".to_owned())
    }
}

/// Runs the client.
pub fn run(args: &JoinArgs) -> Result<(), Failure> {
    // Check before connecting: the server's provider is known only after that, but it usually requires libfabric.
    ginlab::fabric::libfabric::require_library()?;
    if args.bytes == 0 {
        return Err(Failure::Usage("--bytes 0: must be at least 1 byte".to_owned()));
    }
    let token = token_for(&args.server, &process_env)?;
    in_event_loop(visit(args, args.bytes, &token))
}

async fn visit(args: &JoinArgs, bytes: u64, token: &str) -> Result<(), Failure> {
    let timeout = Duration::from_secs(args.timeout);
    debug_assert!(args.provider.is_none() || soft::label().is_some());
    let mut visit = Session::connect(&args.server, token, timeout).await?;
    let server: ServerHello = visit.hear(words::SERVER).await?;
    if bytes > server.bytes {
        return Err(Failure::Usage(format!(
            "-b {}: exceeds the memory that the server provides per peer, {} ({} B)",
            args.bytes,
            size::human(server.bytes),
            server.bytes
        )));
    }
    if soft::label() != soft::label_of(&server.provider).as_deref() {
        let ours = soft::label().unwrap_or("the NICs of the machine");
        let text =
            format!("the server uses {}, but this client uses {ours}: specify the same NICs with -p", server.provider);
        return Err(Failure::Usage(text));
    }
    let fabric = rails::check_provider(Some(&server.provider), &args.domain)?;
    let wanted = RailRequest { fabric, rails: server.rails, messages: false, timeout, rank: 1 };
    let rails = wanted.open(server.reach())?;
    let flow = rails.flow.clone();
    let driver = drive(&flow);
    // The writes cycle through as many positions as fit in the slot. The checksum at the end covers all of them.
    let places = args.iterations.min(server.bytes / bytes).max(1);
    let extent = places * bytes;
    let (device, _) = Device::open(DeviceChoice::Emulated, 0)?;
    let source = flow.register(device.allocate(MemoryLocation::Host, extent as usize)?, Access::SOURCE)?;
    visit.say(words::JOINING, &Joining { offer: flow.offer(&[])?, write_bytes: bytes }).await?;
    let place: SlotGrant = visit.hear(words::PLACE).await?;
    visit.check_addresses(&flow.offer(&[])?.addresses, &place.offer.addresses)?;
    let target = Target::new(flow.add_peer(&place.offer)?, &place.offer, 0)?;
    let mut payload = vec![0; extent as usize];
    pattern::fill(&mut payload, pattern::seed(place.number, 0, 0));
    let crc32 = crc32fast::hash(&payload);
    if args.fault.is_some() {
        payload[extent as usize - 1] ^= 1;
    }
    source.buffer().write(0, &payload)?;

    let mut header = Versions::header();
    header.set(Key::Provider, rails.provider.as_str()).set(Key::Rails, rails.names.clone());
    header.note(format!("peer {} of the server {visit}", place.number));
    header.note(
        "time_us is the time per write until all are complete; they are verified by the server's checksum of the \
         received data",
    );
    let mut output = Output::open(&args.output, &header, &ABOUT, 1)?;
    let began = Instant::now();
    let write = |number: u64| {
        let offset = number % places * bytes;
        let rail = (number % server.rails as u64) as usize;
        flow.write_on(rail, &source, offset, &target, offset, bytes, Some(place.tag))
    };
    let window = u64::from(args.window).min(place.window.max(1));
    let result = match writes(args, (window as usize, place.window), write, &mut visit).await {
        Ok(()) => {
            let each = began.elapsed().as_secs_f64() * 1e6 / args.iterations as f64;
            visit.say(words::DONE, &WritesDone { writes: args.iterations, extent }).await?;
            let answer = loop {
                if let Answer::Checksum(answer) = visit.hear(words::DONE).await? {
                    break answer;
                }
            };
            let right = answer.crc32 == crc32 && answer.writes == args.iterations;
            visit.say(words::VERDICT, &PeerVerdict { right }).await?;
            let mut row = Row::new("serve", "join", "cpu", &rails.provider);
            (row.ranks, row.rails) = (2, Some(server.rails as u32));
            (row.size_bytes, row.iterations) = (Some(bytes), Some(args.iterations));
            if server.rails > 1 {
                row.strategy = Some("round-robin".to_owned());
            }
            timed(&mut row, &[each], bytes, 1);
            let counters = flow.counters();
            row.set(&WINDOW, window).set(&RAIL_BYTES, counters.rail_bytes).set(&AGAIN, counters.again);
            let verified = if right {
                row.wrong_bytes = Some(0);
                Ok(())
            } else {
                let text = format!(
                    "the server has checksum {:08x} after {} writes, but {crc32:08x} after {} writes is expected",
                    answer.crc32, answer.writes, args.iterations
                );
                row.status = RowStatus::Failed(text.clone());
                Err(Failure::WrongData(format!("verification failed: {text}")))
            };
            output.rows(&[(row, vec![each])]).and(verified)
        }
        Err(failure) => Err(failure),
    };
    driver.abort();
    output.close(result)
}

/// Posts all writes, with at most `in_flight` in flight and at most `window` ahead of those that the server has
/// counted. The server reports its count over the socket, which also shows a disconnect.
async fn writes(
    args: &JoinArgs,
    (in_flight, window): (usize, u64),
    write: impl Fn(u64) -> Operation<AnyRail>,
    visit: &mut Session,
) -> Result<(), Failure> {
    let (ahead, limit) = (Ahead::new(window), Duration::from_secs(args.timeout));
    let all = async {
        let mut flight = VecDeque::with_capacity(in_flight);
        for number in 0..args.iterations {
            if flight.len() >= in_flight
                && let Some(oldest) = flight.pop_front()
            {
                oldest.await?;
            }
            if signals::interrupted() {
                return Err(Failure::Interrupted);
            }
            ahead.wait(number, limit).await?;
            flight.push_back(write(number));
        }
        for operation in flight {
            operation.await?;
        }
        Ok(())
    };
    let gone = async {
        loop {
            match visit.hear(words::DONE).await {
                Ok(Answer::Counted(counted)) => ahead.told(counted),
                // The server sends nothing while it has nothing to report, however long the writes take.
                Err(error) if error.ending() == FailureKind::TimedOut => {}
                Err(error) => return Failure::from(error),
                Ok(Answer::Checksum(_)) => return Failure::Run("the server sent an unexpected message".to_owned()),
            }
        }
    };
    let mut gone = std::pin::pin!(gone);
    tokio::select! {
        // Poll the server's messages first: they enable the writes that wait for them.
        biased;
        failure = &mut gone => Err(failure),
        // The socket may report the cause a moment later.
        result = all => match result {
            Err(failure @ (Failure::Run(_) | Failure::Timeout(_))) => Err(bounded(HINDSIGHT, gone).await.unwrap_or(failure)),
            other => other,
        },
    }
}
