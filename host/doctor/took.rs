//! Durations of the queries and trials.

use std::time::{Duration, Instant};

/// Durations by name.
#[derive(Clone, Debug, Default)]
pub struct Took(Vec<(String, Duration)>);

impl Took {
    /// Runs `ask` and records its duration under the name `what`.
    pub fn of<T>(&mut self, what: &str, ask: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = ask();
        self.0.push((what.to_owned(), started.elapsed()));
        answer
    }

    /// Returns the total and the longest durations in one line.
    #[must_use]
    pub fn text(&self) -> String {
        let seconds = |duration: &Duration| format!("{:.1} s", duration.as_secs_f64());
        let mut longest: Vec<&(String, Duration)> =
            self.0.iter().filter(|(_, took)| *took >= Duration::from_millis(50)).collect();
        longest.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let parts: Vec<String> = longest.iter().map(|(what, took)| format!("{what} {}", seconds(took))).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        format!("checks took {}{parts}", seconds(&self.0.iter().map(|(_, took)| took).sum()))
    }
}
