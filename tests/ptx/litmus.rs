//! Pairs of accesses of litmus tests: each combination of accesses, scope and order is in the kernel, with nothing
//! between its instructions. A test whose accesses the compiler reordered or dropped would count nothing.

use ptx_text::{Protocol, mnemonic};

/// Returns the instructions of every pair, by scope.
fn pairs() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for scope in ["cta", "gpu", "sys"] {
        let st = |order: &str| format!("st.{order}.{scope}.global.u64");
        let ld = |order: &str| format!("ld.{order}.{scope}.global.u64");
        let fence = |order: &str| format!("fence.{order}.{scope}");
        for (first, second) in [
            (st("relaxed"), st("relaxed")),
            (st("relaxed"), ld("relaxed")),
            (ld("relaxed"), st("relaxed")),
            (ld("relaxed"), ld("relaxed")),
        ] {
            all.push(vec![first.clone(), second.clone()]);
            all.push(vec![first.clone(), fence("acq_rel"), second.clone()]);
            all.push(vec![first, fence("sc"), second]);
        }
        all.push(vec![st("relaxed"), st("release")]);
        all.push(vec![st("release"), ld("acquire")]);
        all.push(vec![ld("acquire"), st("release")]);
        all.push(vec![ld("acquire"), ld("relaxed")]);
        all.push(vec![st("relaxed"), ld("relaxed"), "shr.u64".into(), "add.u64".into(), st("relaxed")]);
    }
    all
}

/// Checks that each pair is in the kernel, as adjacent instructions.
pub fn pairs_are_adjacent(functions: &Protocol) {
    let list: Vec<String> = functions["litmus_threads"].iter().map(|statement| mnemonic(statement)).collect();
    for pair in pairs() {
        assert!(list.windows(pair.len()).any(|window| window == pair), "litmus_threads: no {}", pair.join("; "));
    }
    // Counts the fences of four pairs and those on both sides of the second meeting.
    let fences = list.iter().filter(|one| *one == "fence.acq_rel.sys").count();
    assert!(fences >= 6, "litmus_threads: {fences} fences of system scope");
    assert!(list.iter().filter(|one| *one == "mov.u64 %globaltimer").count() >= 2, "litmus_threads: no deadline");
}

/// Checks the order of the instructions of a bulk store, and that each of its orders occurs.
pub fn bulk_stores_are_in_order(functions: &Protocol) {
    let list: Vec<String> = functions["litmus_bulk"].iter().map(|statement| mnemonic(statement)).collect();
    let at = |wanted: &str| {
        list.iter().position(|word| word.starts_with(wanted)).unwrap_or_else(|| panic!("litmus_bulk: no {wanted}"))
    };
    let (fill, fence) = (at("st.shared.v4.b32"), at("fence.proxy.async.shared::cta"));
    let (store, commit) = (at("cp.async.bulk.global.shared::cta.bulk_group"), at("cp.async.bulk.commit_group"));
    assert!(fill < fence && fence < store && store < commit, "litmus_bulk: {list:#?}");
    for wanted in ["cp.async.bulk.wait_group.read", "fence.proxy.async.global", "st.relaxed.sys", "st.release.sys"] {
        assert!(at(wanted) > commit, "litmus_bulk: {wanted} precedes the bulk store: {list:#?}");
    }
    // Counts the waits in the order `complete`, in the order with a fence, and at the end of each round.
    let waits = list.iter().filter(|word| *word == "cp.async.bulk.wait_group").count();
    assert!(waits >= 3, "litmus_bulk: {waits} waits for bulk stores");
}
