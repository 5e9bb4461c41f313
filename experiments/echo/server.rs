//! The server: a task per client, all on one thread.

use super::args::Plan;
use super::side::{self, Card, Opened, Socket};
use crate::error::Failure;
use crate::events;
use crate::rails::Wanted;
use crate::visitors;
use ginlab::bootstrap::session::{Entrance, Session, bounded};
use std::cell::RefCell;
use std::rc::Rc;

/// Clients at a time: each has rails and memory of its own here.
const MOST_CLIENTS: usize = 64;

/// Why clients have been left, the last one of them, for one who serves only himself.
pub type Cause = Rc<RefCell<Option<Failure>>>;

/// Serves until so many clients have come and gone, or until Ctrl-C. What becomes of them is told on stdout, unless there is a place for it.
pub async fn serve(
    entrance: Entrance,
    rail: &Wanted,
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
    let crowded = format!("{MOST_CLIENTS} clients are here already");
    visitors::hear(entrance, clients, (MOST_CLIENTS, &crowded), visitor, || Ok(())).await
}

/// One client, from its coming to its leaving. Its failure is its own: the server goes on.
async fn client(visit: Session, rail: &Wanted, cause: Option<Cause>) {
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
        // It is the server that ends, not the client.
        Err(Failure::Interrupted) => {}
        Err(failure) => match &cause {
            Some(cause) => *cause.borrow_mut() = Some(failure),
            None => event("died", &[("why", failure.text().unwrap_or_default())]),
        },
    }
}

async fn echo(mut visit: Session, rail: &Wanted) -> Result<u64, Failure> {
    let plan: Plan = visit.hear("plan").await?;
    if let Err(why) = plan.check() {
        return Err(visit.refuse(why).await.into());
    }
    let same_host = visit.same_host();
    let opened = match Opened::new(rail, &plan, same_host) {
        Ok(opened) => opened,
        Err(failure) => {
            let why = failure.text().unwrap_or_default();
            visit.refuse(format!("the server cannot open a rail: {why}")).await;
            return Err(failure);
        }
    };
    let theirs: Card = visit.hear("fabric address").await?;
    if theirs.provider != opened.rails.provider {
        let why = format!(
            "the provider is {:?} at the server but {:?} at the client",
            opened.rails.provider, theirs.provider
        );
        return Err(visit.refuse(why).await.into());
    }
    let peer = opened.peer(&theirs)?;
    visit.say("fabric address", &opened.card()?).await?;
    let mut socket = Socket::new(visit, rail.timeout)?;
    side::both(&mut socket, &opened, async |socket| socket.echo(&plan).await, opened.echo(peer, &plan)).await?;
    // The last echo may still be under way to the client, who closes when it has it.
    let _ = bounded(rail.timeout, socket.until_closed()).await;
    Ok(2 * plan.total())
}
