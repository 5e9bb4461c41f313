//! `ginlab proxy`: random shapes.

use crate::common::{ginlab, records, run};

/// Verified at every alignment, and the same for every number of shapes.
#[test]
fn random_puts_verify_and_repeat() {
    let shapes = |seed: &str, count: &str| {
        let line =
            format!("proxy -d emulated -p shared --rails 3 --random {count} --seed {seed} -e 64K -n 3 -w 1 -r 1");
        let done = run(ginlab(&format!("{line} --csv -"))).expect(0);
        assert!(done.stderr.contains(&format!("# random shapes: {count} ratios")), "{}", done.stderr);
        let rows = records(&done.stdout);
        assert_eq!(rows.iter().filter(|row| row["case"] == "put" && row["wrong_bytes"] == "0").count() * 2, rows.len());
        let chosen = ["case", "mode", "size_bytes", "grid", "block", "rails", "window", "alignment"];
        rows.iter().map(|row| chosen.map(|column| row[column].clone())).collect::<Vec<_>>()
    };
    let all = shapes("5", "12");
    assert_eq!(all[..6], shapes("5", "3"));
    assert_ne!(all[..6], shapes("6", "3"));
    let line = run(ginlab("proxy -d emulated -p efa-verbs/soft:p5 --random 3 --cases direct")).expect(2);
    assert!(line.complaint().contains("random shapes are only measured with cpu-write and put"));
}
