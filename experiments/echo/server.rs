//! Server: one task per client, all on one thread.

use super::args::EchoPlan;
use super::side::{self, OpenSide, SideInfo, Socket};
use crate::error::Failure;
use crate::events;
use crate::rails::RailRequest;
use crate::visitors;
use ginlab::bootstrap::session::{Session, SessionListener, bounded};
use std::cell::RefCell;
use std::rc::Rc;

/// Maximum number of concurrent clients. Each has its own rails and memory in the server.
const MOST_CLIENTS: usize = 64;

/// Last failure of a client, for a process that serves only itself.
pub type Cause = Rc<RefCell<Option<Failure>>>;

/// Serves until `clients` clients have disconnected, or until Ctrl-C. Prints events to stdout, unless `cause` is given.
pub async fn serve(
    entrance: SessionListener,
    rail: &RailRequest,
    clients: Option<u64>,
    cause: Option<Cause>,
) -> Result<(), Failure> {
    if cause.is_none() {
        events::print("listening", &[("address", entrance.address()?.to_string())]);
    }
    let visitor = |visit| {
        let (rail, cause) = (rail.clone(), cause.clone());
        async move {
            client(visit, &rail, cause).await;
            true
        }
    };
    let crowded = format!("{MOST_CLIENTS} clients are already connected");
    visitors::hear(entrance, clients, (MOST_CLIENTS, &crowded), visitor, || Ok(())).await
}

/// Serves one client. A failure affects only this client; the server continues.
async fn client(visit: Session, rail: &RailRequest, cause: Option<Cause>) {
    let (member, from) = (visit.member(), visit.from());
    let who = [("host", member.host.clone()), ("pid", member.pid.to_string()), ("from", from.to_string())];
    let event = |what: &str, more: &[(&str, String)]| {
        if cause.is_none() {
            events::print(what, &[&who[..], more].concat());
        }
    };
    event("joined", &[]);
    match echo(visit, rail).await {
        Ok(messages) => event("left", &[("messages", messages.to_string())]),
        // The server is being stopped; the client did not fail.
        Err(Failure::Interrupted) => {}
        Err(failure) => match &cause {
            Some(cause) => *cause.borrow_mut() = Some(failure),
            None => event("died", &[("why", failure.text().unwrap_or_default())]),
        },
    }
}

async fn echo(mut visit: Session, rail: &RailRequest) -> Result<u64, Failure> {
    let plan: EchoPlan = visit.hear("plan").await?;
    if let Err(why) = plan.check() {
        return Err(visit.refuse(why).await.into());
    }
    let same_host = visit.same_host();
    let opened = match OpenSide::new(rail, &plan, same_host) {
        Ok(opened) => opened,
        Err(failure) => {
            let why = failure.text().unwrap_or_default();
            visit.refuse(format!("the server cannot open a rail: {why}")).await;
            return Err(failure);
        }
    };
    let theirs: SideInfo = visit.hear("fabric address").await?;
    if theirs.provider != opened.rails.provider {
        let why =
            format!("the server uses provider {:?}, but the client uses {:?}", opened.rails.provider, theirs.provider);
        return Err(visit.refuse(why).await.into());
    }
    if let Err(error) = visit.check_addresses(&opened.card()?.offer.addresses, &theirs.offer.addresses) {
        return Err(visit.refuse(error.to_string()).await.into());
    }
    let peer = opened.peer(&theirs)?;
    visit.say("fabric address", &opened.card()?).await?;
    let mut socket = Socket::new(visit, rail.timeout)?;
    side::both(&mut socket, &opened, async |socket| socket.echo(&plan).await, opened.echo(peer, &plan)).await?;
    // The last echo may still be in flight. The client closes the socket when it has received it.
    let _ = bounded(rail.timeout, socket.until_closed()).await;
    Ok(2 * plan.total())
}
