//! Translation of proxies' errors into the application's terms: PEs and heap objects instead of ranks and offsets in
//! region 0.

use super::World;
use ginlab_fabric::{FabricError, offsets};
use ginlab_proxy::ProxyError;
use ginlab_proxy::engine::EngineError;

impl World {
    /// Replaces ranks and offsets in a proxy's error by PEs and names of heap objects.
    pub(super) fn named(&self, error: ProxyError) -> ProxyError {
        let name = |text: String| of_ranks(&offsets::replace(&text, |offset| self.space.name(offset)));
        let ProxyError::Engine(error) = error else { return error };
        ProxyError::Engine(match error {
            EngineError::Fabric(error) => {
                let FabricError { rail, operation, code, text, hint } = error;
                let [operation, text, hint] = [operation, text, hint].map(name);
                EngineError::Fabric(FabricError { rail, operation, code, text, hint })
            }
            EngineError::Refused(text) => EngineError::Refused(name(text)),
            error => error,
        })
    }
}

/// Replaces "rank" by "PE" before a number. A world's ranks are its PEs.
fn of_ranks(text: &str) -> String {
    let mut parts = text.split("rank ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let word = if part.starts_with(|first: char| first.is_ascii_digit()) { "PE " } else { "rank " };
        text + word + part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_ranks_are_renamed_to_pes() {
        assert_eq!(of_ranks("rank 0 waits for rank 12's word"), "PE 0 waits for PE 12's word");
        assert_eq!(of_ranks("this rank has a rank "), "this rank has a rank ");
    }
}
