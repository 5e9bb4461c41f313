//! `ginlab collective` on the emulated device: every operation correct to the bit over every path, its columns on
//! participants and paths, and rejected options.

use crate::common;
use crate::common::{ginlab, run};
use ginlab::report::{Row, RowStatus};

const ALL: &str = "gin-all-to-all,gin-all-gather,gin-reduce-scatter,gin-all-reduce,gin-broadcast";

#[track_caller]
fn rows_of(args: &str) -> Vec<Row> {
    let done = run(ginlab(&format!("collective -d emulated --csv - -n 1 -w 1 -r 1 {args}"))).expect(0);
    common::rows(&done.stdout)
}

fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    row.own(column).text().unwrap_or_default()
}

fn number(row: &Row, column: &str) -> f64 {
    row.own(column).number().unwrap_or_else(|| panic!("{column} of {row:?}"))
}

/// Returns the bytes that ranks send to others in one operation by puts within one node, with chunks of `bytes / n`, if
/// `n` divides `bytes`.
fn wire_bytes(row: &Row) -> u64 {
    let (n, bytes) = (u64::from(row.ranks), row.size_bytes.unwrap());
    match row.case.as_str() {
        // Loads and stores.
        "gin-all-reduce" => 2 * (n - 1) * bytes,
        // The scatter, then every chunk to all ranks except the root and its owner.
        "gin-broadcast" => (n - 1) * bytes / n + ((n - 1) + (n - 1) * (n - 2)) * bytes / n,
        _ => (n - 1) * bytes,
    }
}

#[track_caller]
fn sound(rows: &[Row]) {
    for row in rows.iter().filter(|row| !matches!(row.status, RowStatus::Skipped(_))) {
        common::all_verified(std::slice::from_ref(row));
        assert_eq!(number(row, "heard"), f64::from(row.ranks), "{row:?}");
        let n = f64::from(row.ranks);
        let factor = match row.case.as_str() {
            "gin-all-reduce" => 2.0 * (n - 1.0) / n,
            "gin-broadcast" => 1.0,
            _ => (n - 1.0) / n,
        };
        let algbw = row.size_bytes.unwrap() as f64 / row.time_us_p50.unwrap() / 1000.0;
        assert!((number(row, "algbw_gbytes_s") - algbw).abs() <= 1e-4 * algbw, "{row:?}");
        assert!((number(row, "busbw_gbytes_s") - factor * algbw).abs() <= 1e-4 * algbw, "{row:?}");
    }
}

#[test]
fn every_operation_verifies_within_node() {
    // Operations by messages, and by puts of several blocks. With 3 ranks, the chunks have different sizes.
    let rows = rows_of(&format!(
        "--np 3 --path nvlink --cases {ALL} --type f32,bf16,f16 --place out-of-place,in-place --launch stream -b 10 -e 20000 -f 2000 --message-limit 4K"
    ));
    assert_eq!(rows.len(), 5 * 3 * 2 * 2);
    sound(&rows);
    let skipped: Vec<&Row> = rows.iter().filter(|row| row.status != RowStatus::Ok).collect();
    assert!(skipped.len() == 6 && skipped.iter().all(|row| row.case == "gin-all-to-all"), "{skipped:?}");
    for row in rows.iter().filter(|row| row.status == RowStatus::Ok) {
        assert_eq!(row.fabric, "memory");
        assert_eq!(text(row, "protocol"), if row.size_bytes < Some(4096) { "messages" } else { "puts" });
    }
}

#[test]
fn stores_within_node_use_one_queue() {
    // Chunks consist of whole parts or not, and there are more ranks than a part has addresses in registers. Sums use
    // one piece, several pieces, or as many as there are signals.
    for (ranks, sizes, piece, lines) in [
        (4, "-b 64K -e 64K", "64K", 16),
        (4, "-b 16K -e 16K", "2K", 16),
        (3, "-b 21120 -e 21120", "2K", 16),
        (2, "-b 128K -e 128K", "8K", 16),
        (6, "-b 30K -e 30K", "600", 16),
    ] {
        let rows = rows_of(&format!(
            "--np {ranks} --path nvlink --cases gin-all-reduce,gin-reduce-scatter,gin-all-gather,gin-all-to-all --type f32 \
             --place out-of-place,in-place --launch stream,persistent {sizes} --message-limit 0 --stores-from 1 --piece {piece}"
        ));
        assert_eq!(rows.len(), lines);
        sound(&rows);
        for row in rows.iter().filter(|row| row.status == RowStatus::Ok) {
            assert_eq!(text(row, "protocol"), "stores", "{row:?}");
            assert_eq!(number(row, "nvlink_bytes") as u64, wire_bytes(row), "{row:?}");
        }
    }
    // Sums of 2-byte numbers, sums by one thread or warp per block, and sums of 3 ranks with a shorter last chunk.
    for (others, lines) in [
        ("--np 4 --cases gin-all-reduce,gin-reduce-scatter --type bf16,f16 --place in-place -b 32K -e 32K", 4),
        ("--np 4 --cases gin-all-reduce,gin-reduce-scatter --scope thread,warp -b 32K -e 32K", 4),
        ("--np 3 --cases gin-all-reduce --type f32,bf16 --place out-of-place,in-place -b 20000 -e 20000", 4),
    ] {
        let rows =
            rows_of(&format!("{others} --path nvlink --launch stream --message-limit 0 --stores-from 1 --piece 4K"));
        assert_eq!(rows.len(), lines);
        sound(&rows);
        assert!(rows.iter().all(|row| text(row, "protocol") == "stores"), "{rows:?}");
    }
    // Below the limit, puts and loads are used.
    let rows = rows_of(
        "--np 2 --path nvlink --cases gin-all-reduce,gin-all-gather --launch stream -b 4K -e 8K -f 2 --message-limit 0 --stores-from 4K",
    );
    let stored = |row: &&Row| text(row, "protocol") == "stores";
    assert_eq!(rows.iter().filter(stored).map(|row| row.size_bytes).collect::<Vec<_>>(), [Some(8192); 2]);
    sound(&rows);
}

#[test]
fn launches_scopes_modes_and_packets_verify() {
    let args = format!("--np 2 --path nvlink --cases {ALL} --packet 1000 -b 16K -e 16K");
    let mut rows = rows_of(&format!("{args} --launch stream,graph,persistent"));
    rows.extend(rows_of(&format!("{args} --launch persistent --scope thread,warp --mode nbi,blocking")));
    assert_eq!(rows.len(), 5 * 3 + 5 * 2 * 2);
    sound(&rows);
    for row in rows.iter().filter(|row| row.status == RowStatus::Ok) {
        assert_eq!(number(row, "nvlink_bytes") as u64, wire_bytes(row), "{row:?}");
    }
    // Sums within a node use no puts, so there is nothing to wait for.
    let skipped = rows.iter().filter(|row| row.status != RowStatus::Ok);
    assert!(skipped.clone().count() == 4 && skipped.clone().all(|row| row.mode.as_deref() == Some("blocking")));
}

/// Checks that operations of this size use two rounds. The bytes that the second round saves would take longer than the
/// round itself.
#[test]
fn small_all_reduce_uses_two_message_rounds() {
    let rows = rows_of(
        "--np 4 --path nvlink --cases gin-all-reduce --type f32,bf16 --place out-of-place,in-place --launch persistent -b 192K -e 192K --message-limit 192K",
    );
    assert_eq!(rows.len(), 4);
    sound(&rows);
    for row in &rows {
        // Each rank sends three quarters of its bytes to the others, twice. Each rank sends one message per block to
        // each of the other three.
        assert_eq!((text(row, "protocol"), number(row, "nvlink_bytes")), ("messages", 4.0 * 2.0 * 144.0 * 1024.0));
        assert_eq!(number(row, "puts"), 2.0 * 3.0 * f64::from(row.grid.unwrap()));
    }
}

#[test]
fn collectives_verify_over_rails_of_every_kind() {
    for (rails, size) in
        [("worst", "-b 12 -e 12000 -f 1000"), ("tcp", "-b 6000 -e 6000"), ("model:p5", "-b 6000 -e 6000")]
    {
        let rows = rows_of(&format!(
            "--np 3 --path rails -p {rails} --rails 2 --cases {ALL} --mode nbi,blocking --packet 999 --launch stream {size}"
        ));
        sound(&rows);
        for row in &rows {
            // The provider that was opened: tcp;ofi_rxm with libfabric 1.x.
            let asked = if rails == "worst" { "worst:seed=1" } else { rails };
            assert!(row.fabric.starts_with(asked) && number(row, "nvlink_bytes") == 0.0, "{row:?}");
            assert_eq!(row.own("rail_bytes").list().unwrap().len(), 2);
            let ceiling = row.own("ceiling_gbytes_s").number();
            assert_eq!(ceiling.is_some(), rails == "model:p5", "only modelled cards' rate is known: {row:?}");
        }
    }
    // Runs the operation also by messages.
    sound(&rows_of(&format!("--np 2 --path rails -p shm --cases {ALL} --launch graph,persistent -b 8 -e 8")));
}

#[test]
fn two_emulated_nodes_use_memory_and_rails() {
    let rows = rows_of(&format!(
        "--np 4 --node-size 2 -p worst --cases {ALL} --place out-of-place,in-place --launch stream,persistent -b 64 -e 16384 -f 256 --message-limit 1K"
    ));
    sound(&rows);
    for row in rows.iter().filter(|row| row.status == RowStatus::Ok && text(row, "protocol") == "puts") {
        assert_eq!((row.fabric.as_str(), number(row, "nodes")), ("memory+worst:seed=1", 2.0));
        let chunk = row.size_bytes.unwrap() / 4;
        let crossed: u64 = row.own("rail_bytes").list().unwrap().iter().sum();
        // Number of chunks that cross between the nodes.
        let expected = match row.case.as_str() {
            "gin-all-to-all" => 4 * 2,
            "gin-all-gather" | "gin-reduce-scatter" => 4,
            "gin-all-reduce" => 8,
            // Two chunks are scattered. Then each chunk crosses between the nodes once, but not to the root.
            _ => 2 + 3,
        };
        assert_eq!(crossed, expected * chunk, "{row:?}");
    }
}

/// Three nodes of two: whole chunks by one block, parts of them by several, and data gathered at one rank of a node
/// before it crosses.
#[test]
fn all_to_all_verifies_over_both_routes() {
    let rows = rows_of(
        "--np 6 --node-size 2 -p worst --rails 2 --cases gin-all-to-all --route direct,gathered --launch persistent \
         -b 12000 -e 12000 --message-limit 0 --grid 1,4 --packet 700,1M",
    );
    sound(&rows);
    assert_eq!(rows.len(), 2 * 2 * 2);
    for row in &rows {
        let (chunk, grid) = (row.size_bytes.unwrap() / 6, row.grid.unwrap());
        let crossed: u64 = row.own("rail_bytes").list().unwrap().iter().sum();
        assert_eq!(crossed, 6 * 4 * chunk, "{row:?}");
        // Each rank sends its own chunk to the other rank of the node and, with gathering, one for its place in each
        // other node.
        let gathered = text(row, "route") == "gathered";
        let near = if gathered { 3 } else { 1 };
        assert_eq!(number(row, "nvlink_bytes") as u64, 6 * near * chunk, "{row:?}");
        if number(row, "packet_bytes") > 12000.0 && grid == 1 {
            // With gathering, two are stored for the other nodes and two are sent there; otherwise four are sent.
            assert_eq!(number(row, "puts"), 1.0 + 4.0, "{row:?}");
        }
    }
    // More blocks than parts: a block without parts still waits with the others (the command checks its signals at the
    // end).
    sound(&rows_of(
        "--np 4 --path rails -p worst --cases gin-all-to-all,gin-all-gather --launch persistent -b 4000 -e 4000 \
         --message-limit 0 --grid 8,5",
    ));
    // There are more blocks than target nodes, and each block waits for its puts. An all-gather has only one route.
    let rows = rows_of(
        "--np 4 --node-size 2 -p tcp --cases gin-all-to-all,gin-all-gather --route direct,gathered --mode blocking --grid 5 \
         --launch stream -b 12000 -e 12000 --message-limit 0",
    );
    sound(&rows);
    assert_eq!(rows.len(), 2 + 1);
    let rows = rows_of("--np 2 --path nvlink --cases gin-all-to-all --route gathered -b 8 -e 8 --launch stream");
    assert!(rows[0].status.to_string().starts_with("skipped: gathered: requires several nodes"), "{rows:?}");
}

#[test]
fn muted_rank_is_visible_in_columns() {
    for way in ["--path nvlink", "--path rails -p worst"] {
        let args = format!(
            "collective -d emulated --csv - -n 2 -w 1 -r 1 --np 3 --cases gin-all-to-all -b 12K -e 12K --message-limit 0 {way}"
        );
        let bytes = |row: &Row| {
            let rails: u64 = row.own("rail_bytes").list().unwrap_or_default().iter().sum();
            number(row, "nvlink_bytes") as u64 + rails
        };
        let good = common::rows(&run(ginlab(&format!("{args} --per-node"))).expect(0).stdout);
        // The bytes that all ranks moved, over mappings or rails, divided by the time of the slowest.
        let (node, seconds) = (&good[1], good[1].time_us_p50.unwrap() / 1e6);
        assert_eq!(
            (good.len(), node.case.as_str(), good[2].case.as_str(), number(node, "senders")),
            (3, "node", "job", 3.0)
        );
        let rate = bytes(&good[0]) as f64 / seconds / 1e9;
        assert!((node.bandwidth_gbytes_s.unwrap() / rate - 1.0).abs() < 1e-3, "{rate}: {node:?}");
        let done = run(ginlab(&format!("{args} --mute 1"))).expect(1);
        let mute = common::rows(&done.stdout);
        assert_eq!((number(&good[0], "heard"), number(&mute[0], "heard")), (3.0, 2.0));
        // Two ranks miss the 1024 numbers of 4 bytes that rank 1 should have sent, in each of four checked operations.
        assert_eq!(
            (mute[0].wrong_bytes, bytes(&good[0]), bytes(&mute[0])),
            (Some(4 * 2048 * 4), 6 * 4096, 4 * 4096),
            "{way}"
        );
        assert!(done.complaint().contains("verification failed: 32768 wrong bytes"), "{done:?}");
    }
}

#[test]
fn single_rank_is_rejected_under_any_launcher() {
    let done = run(ginlab("collective -d emulated --np 1")).expect(2);
    assert!(done.complaint().contains("at least 2 ranks"), "{done:?}");
    // Emulates an mpirun of another MPI: its variables are set, and the MPI that ginlab is built with does not know its
    // ranks.
    let mut command = ginlab("collective -d emulated -b 8 -e 8");
    command.env("PMI_SIZE", "2").env("PMI_RANK", "0");
    let done = run(command).expect(2);
    let line = done.complaint();
    assert!(line.contains("started 2") && (line.contains("another MPI") || !cfg!(feature = "mpi")), "{line}");
}

#[test]
fn nccl_is_skipped_without_gpus() {
    let done = run(ginlab(
        "collective -d emulated --csv - -n 2 -w 1 -r 1 -b 64 -e 64 --cases gin-all-reduce,nccl-all-reduce,nccl-window-all-reduce,nccl-send-recv --launch graph",
    ))
    .expect(0);
    let rows = common::rows(&done.stdout);
    let of = |case: &str| rows.iter().find(|row| row.case == case).unwrap_or_else(|| panic!("{case} in {rows:?}"));
    assert_eq!((rows.len(), &of("gin-all-reduce").status), (4, &RowStatus::Ok));
    for case in ["nccl-all-reduce", "nccl-window-all-reduce", "nccl-send-recv"] {
        assert_eq!(of(case).status.to_string(), "skipped: NCCL needs GPUs, but this is the emulated device");
    }
}

#[test]
fn invalid_options_print_one_line() {
    for (args, part) in [
        ("--cases gin-all-to-none", "gin-all-to-none"),
        ("--np 2 --root 2", "the last of 2 ranks is 1"),
        ("--np 3 --node-size 2", "do not form nodes of 2"),
        ("--packet 0", "must be at least 1 byte"),
        ("--grid 513", "from 1 to 512"),
        ("--mode eager", "eager"),
        ("--message-limit 4G", "must be at most 1G"),
    ] {
        let done = run(ginlab(&format!("collective -d emulated -b 8 -e 8 {args}"))).expect(2);
        assert!(done.complaint().contains(part), "{args}: {done:?}");
    }
}
