//! What servers of visits share (`echo`, `serve`): the loop that takes visitors in, and what a socket knows of a broken rail.

use crate::error::Failure;
use ginlab::bootstrap::session::{Ended, Entrance, Session, bounded};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long an error of the fabric waits for what the socket has to say about it.
pub const HINDSIGHT: Duration = Duration::from_millis(200);

/// A server itself waits for nobody in particular: no wait of its is longer than this.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Hears each visitor in a task of its own, `most` of them at a time, until so many that count have gone, `health` has an error,
/// or Ctrl-C. The task says whether its visitor counts. Whoever is one too many is turned away with the word `crowded`.
pub async fn hear<T: Future<Output = bool> + 'static>(
    mut entrance: Entrance,
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
