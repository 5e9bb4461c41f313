//! Parts that the servers `echo` and `serve` share: the accept loop, and the delay for errors that the socket explains.

use crate::error::Failure;
use ginlab::bootstrap::session::{Ended, Session, SessionListener, bounded};
use std::time::Duration;
use tokio::task::JoinSet;

/// Time for which an error of the fabric is withheld, so that the socket can report its cause.
pub const HINDSIGHT: Duration = Duration::from_millis(200);

/// Limit of one wait for events. The server itself has no deadline.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Serves each client in a task, at most `most` at a time. Rejects further clients with the message `crowded`. Returns
/// after `until` counted clients, when `health` returns an error, or on Ctrl-C. A task returns whether its client
/// counts.
pub async fn hear<T: Future<Output = bool> + 'static>(
    mut entrance: SessionListener,
    until: Option<u64>,
    (most, crowded): (usize, &str),
    visitor: impl Fn(Session) -> T,
    health: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut tasks, mut gone) = (JoinSet::new(), 0);
    while until.is_none_or(|until| gone < until) {
        let next = async {
            tokio::select! {
                visit = entrance.next() => Some(visit),
                Some(ended) = tasks.join_next() => {
                    gone += u64::from(matches!(ended, Ok(true)));
                    None
                }
            }
        };
        match bounded(PATIENCE, next).await {
            Ok(Some(visit)) if tasks.len() >= most => entrance.turn_away(visit, crowded),
            Ok(Some(visit)) => drop(tasks.spawn_local(visitor(visit))),
            Ok(None) | Err(Ended::TimedOut) => {}
            Err(Ended::Interrupted) => return Err(Failure::Interrupted),
        }
        health()?;
    }
    Ok(())
}
