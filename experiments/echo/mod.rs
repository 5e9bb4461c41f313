//! `ginlab echo`: serves sockets and fabric completions in one event loop.
//!
//! A client connects to a server over TCP, and they exchange fabric addresses over that socket. Then every message
//! makes two concurrent round trips to the server: over the socket, and with send and receive over the fabric. Each
//! side uses one thread.

mod args;
mod client;
mod server;
mod side;

use crate::error::Failure;
use crate::program::{CommandSpec, program};
use crate::rails::{self, RailRequest};
use crate::runner::in_event_loop;
use args::{EchoArgs, EchoPlan};
use ginlab::bootstrap::session::SessionListener;
use ginlab::bootstrap::{self, process_env};

pub const PROGRAMS: &[CommandSpec] = &[CommandSpec {
    about: Some(client::ABOUT),
    ..program!("echo", "Run a TCP echo server or client whose messages are also sent over the fabric", EchoArgs, run)
}];

fn run(args: &EchoArgs) -> Result<(), Failure> {
    // Checks this before any wait, because client and server wait for each other before they open rails.
    let domains: Vec<String> = args.domain.iter().cloned().collect();
    let fabric = rails::check_provider(args.provider.as_deref(), &domains)?;
    let plan = EchoPlan::new(args)?;
    let rail = RailRequest {
        fabric,
        rails: 1,
        messages: true,
        timeout: args.timeout,
        rank: usize::from(args.listen.is_none()),
    };
    let token = match args.listen.as_ref().or(args.connect.as_ref()) {
        None => bootstrap::random_token(),
        Some(address) => bootstrap::token_for(address, &process_env),
    }?;
    // Each session opens its own flow, which its own task drives.
    let program = async {
        if let Some(address) = &args.listen {
            let entrance = SessionListener::listen(address, &token, rail.timeout).await?;
            return server::serve(entrance, &rail, args.clients, None).await;
        }
        if let Some(address) = &args.connect {
            return client::run(args, &plan, address, &token, &rail).await;
        }
        let entrance = SessionListener::listen("127.0.0.1:0", &token, rail.timeout).await?;
        let address = entrance.address()?.to_string();
        let cause = server::Cause::default();
        let server = {
            let (rail, cause) = (RailRequest { rank: 0, ..rail.clone() }, cause.clone());
            tokio::task::spawn_local(async move { server::serve(entrance, &rail, Some(1), Some(cause)).await })
        };
        if let Err(failure) = client::run(args, &plan, &address, &token, &rail).await {
            // Server and client share one thread, so that the server has recorded its failure before the client's.
            return Err(cause.take().unwrap_or(failure));
        }
        server.await.map_err(|error| Failure::Run(format!("the server's task failed: {error}")))?
    };
    in_event_loop(program)
}
