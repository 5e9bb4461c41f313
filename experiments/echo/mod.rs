//! `ginlab echo`: sockets and fabric completions in one loop.
//!
//! A client visits a server over TCP; the two exchange fabric addresses over that socket. Then every message goes to the server
//! and back twice at the same time, by the socket and by send and receive of the fabric, on one thread of each side.

mod args;
mod client;
mod server;
mod side;

use crate::error::Failure;
use crate::program::{Program, program};
use crate::rails::{self, Wanted};
use crate::runner::in_event_loop;
use args::{Args, Plan};
use ginlab::bootstrap::session::Entrance;
use ginlab::bootstrap::{self, process_env};

pub const PROGRAMS: &[Program] = &[Program {
    about: Some(client::ABOUT),
    ..program!(
        "echo",
        "A TCP echo server and client whose messages also go over the fabric: sockets and completions in one loop",
        Args,
        run
    )
}];

fn run(args: &Args) -> Result<(), Failure> {
    // They wait for each other before they open rails.
    let domains: Vec<String> = args.domain.iter().cloned().collect();
    let fabric = rails::check_provider(args.provider.as_deref(), &domains)?;
    let plan = Plan::new(args)?;
    let rail =
        Wanted { fabric, rails: 1, messages: true, timeout: args.timeout, rank: usize::from(args.listen.is_none()) };
    let token = match args.listen.as_ref().or(args.connect.as_ref()) {
        None => bootstrap::random_token(),
        Some(address) => bootstrap::token_for(address, &process_env),
    }?;
    // The flows come with the visits, and each is driven by a task of its own.
    let program = async {
        if let Some(address) = &args.listen {
            let entrance = Entrance::listen(address, &token, rail.timeout).await?;
            return server::serve(entrance, &rail, args.clients, None).await;
        }
        if let Some(address) = &args.connect {
            return client::run(args, &plan, address, &token, &rail).await;
        }
        let entrance = Entrance::listen("127.0.0.1:0", &token, rail.timeout).await?;
        let address = entrance.address()?.to_string();
        let cause = server::Cause::default();
        let server = {
            let (rail, cause) = (Wanted { rank: 0, ..rail.clone() }, cause.clone());
            tokio::task::spawn_local(async move { server::serve(entrance, &rail, Some(1), Some(cause)).await })
        };
        if let Err(failure) = client::run(args, &plan, &address, &token, &rail).await {
            // One thread: what the server has said of its end came before the client's.
            return Err(cause.take().unwrap_or(failure));
        }
        server.await.map_err(|error| Failure::Run(format!("the server's task ended: {error}")))?
    };
    in_event_loop(program)
}
