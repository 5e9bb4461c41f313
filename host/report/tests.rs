//! Tests of rows in every output.
#![allow(clippy::unwrap_used)]
use super::*;

const OWN: [Column; 3] = [
    Column::measured("post_us_p50", "us", "posting").shown("post", 7),
    Column::measured("rail_bytes", "B", "bytes per rail"),
    Column::measured("eagain", "", "refused posts"),
];
const ABOUT: About = About { columns: &OWN, ..About::new("proxy", "puts") };

pub(super) fn rows() -> Vec<Row> {
    let mut put = Row::new("proxy", "put", "emulated", "tcp;ofi_rxm");
    put.ranks = 2;
    put.rails = Some(4);
    put.strategy = Some("round-robin".into());
    put.mode = Some("nbi".into());
    put.memory = Some("pinned".into());
    put.size_bytes = Some(4096);
    put.grid = Some(1);
    put.block = Some(32);
    put.iterations = Some(20);
    put.times(&[12.5, 10.0, 11.0]).tail(&[12.5, 10.0, 11.0]);
    put.throughput(4096 * 32, 32);
    put.set(&OWN[0], 1.0 / 3.0);
    put.baseline = Some("cpu-write".into());
    put.baseline_ratio = Some(0.9512345678);
    put.wrong_bytes = Some(0);
    put.set(&OWN[1], vec![1024, 1024, 1024, 1024]).set(&OWN[2], 0u64);
    let mut failed = Row::new("proxy", "put", "gpu:NVIDIA H200", "model:p5");
    failed.ranks = 2;
    failed.size_bytes = Some(1 << 20);
    failed.grid = Some(132);
    failed.block = Some(1024);
    failed.mode = Some("quiet-every=16".into());
    failed.time_us_p50 = Some(f64::NAN);
    failed.wrong_bytes = Some(3);
    failed.status = RowStatus::Failed("peer 1, \"rail 0\":\nconnection reset, again".into());
    let mut suspect = Row::new("proxy", "cpu-write", "gpu:NVIDIA H200", "model:p5");
    suspect.ranks = 2;
    suspect.bandwidth_gbytes_s = Some(60.0);
    suspect.suspect = Some("above the physical ceiling of 50 GB/s".into());
    let mut skipped = Row::new("proxy", "put", "gpu:NVIDIA H200", "model:p5");
    skipped.ranks = 2;
    skipped.status = RowStatus::Skipped("one rail only".into());
    vec![put, failed, suspect, skipped]
}

fn written(rows: &[Row]) -> Vec<Vec<Value>> {
    rows.iter().map(|row| row.values(&OWN).iter().map(Value::as_written).collect()).collect()
}

pub(super) fn header() -> Header {
    let mut header = Header::default();
    header.set(Key::Cores, 2).set(Key::Ginlab, "0.1.0").set(Key::Rails, vec!["lo#0", "lo#1"]);
    header.set(Key::Gpu, None::<String>).set(Key::Command, "ginlab proxy --np 2");
    header.note("bytes are staged").note("two\nlines");
    header
}

fn json_sink(target: &OutputTarget) -> Result<JsonSink, ReportError> {
    Ok(JsonSink::new(WholeFile::create("JSON", target)?, &header(), &OWN))
}

#[test]
fn our_own_csv_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.csv");
    let mut sink = CsvSink::create(&OutputTarget::File(path.clone()), &header(), &OWN).unwrap();
    for row in rows() {
        sink.row(&row).unwrap();
    }
    // Every row is in the file before the end, so that it is kept after Ctrl-C.
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1 + rows().len());
    sink.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    insta::assert_snapshot!(text, @r#"
    schema,experiment,case,device,fabric,ranks,rails,strategy,mode,memory,size_bytes,grid,block,iterations,time_us_min,time_us_p50,time_us_p99,bandwidth_gbytes_s,rate_mops,line_rate_pct,baseline,baseline_ratio,wrong_bytes,status,time_us_max,cv_pct,repeats,bandwidth_gbits_s,suspect,post_us_p50,rail_bytes,eagain
    2,proxy,put,emulated,tcp;ofi_rxm,2,4,round-robin,nbi,pinned,4096,1,32,20,10.0,11.0,12.5,11.9156,2.90909,,cpu-write,0.951235,0,ok,12.5,11.2684,3,95.3251,,0.333333,1024;1024;1024;1024,0
    2,proxy,put,gpu:NVIDIA H200,model:p5,2,,,quiet-every=16,,1048576,132,1024,,,,,,,,,,3,"failed: peer 1, ""rail 0"": connection reset, again",,,,,,,,
    2,proxy,cpu-write,gpu:NVIDIA H200,model:p5,2,,,,,,,,,,,,60.0,,,,,,ok,,,,,above the physical ceiling of 50 GB/s,,,
    2,proxy,put,gpu:NVIDIA H200,model:p5,2,,,,,,,,,,,,,,,,,,skipped: one rail only,,,,,,,,
    "#);
    let back: Vec<Row> = ::csv::Reader::from_path(&path).unwrap().deserialize().map(Result::unwrap).collect();
    assert_eq!(written(&back), written(&rows()));
    let beside = std::fs::read_to_string(dir.path().join("run.header.json")).unwrap();
    insta::assert_snapshot!(beside, @r#"
    {
      "ginlab": "0.1.0",
      "commit": null,
      "command": "ginlab proxy --np 2",
      "date": null,
      "hostname": null,
      "instance": null,
      "cpu": null,
      "cores": 2,
      "kernel": null,
      "rustc": null,
      "kernel_rustc": null,
      "gpu": null,
      "sharing": null,
      "driver": null,
      "libfabric": null,
      "mpi": null,
      "provider": null,
      "rails": [
        "lo#0",
        "lo#1"
      ],
      "completion": null,
      "affinity": null,
      "memory": null,
      "environment": null,
      "gpu_clocks": null,
      "gpu_clocks_after": null,
      "nic_counters": null,
      "notes": [
        "bytes are staged",
        "two\nlines"
      ]
    }
    "#);
}

#[test]
fn our_own_json_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.json");
    std::fs::write(&path, "an older result").unwrap();
    let mut sink = json_sink(&OutputTarget::File(path.clone())).unwrap();
    for row in rows() {
        sink.row(&row, &[10.0, 1.0 / 3.0, f64::INFINITY]);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "an older result", "the old document stays until the end");
    sink.finish(RunOutcome::Complete).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    insta::assert_snapshot!(text, @r#"
    {
      "schema": 2,
      "complete": true,
      "header": {
        "ginlab": "0.1.0",
        "commit": null,
        "command": "ginlab proxy --np 2",
        "date": null,
        "hostname": null,
        "instance": null,
        "cpu": null,
        "cores": 2,
        "kernel": null,
        "rustc": null,
        "kernel_rustc": null,
        "gpu": null,
        "sharing": null,
        "driver": null,
        "libfabric": null,
        "mpi": null,
        "provider": null,
        "rails": [
          "lo#0",
          "lo#1"
        ],
        "completion": null,
        "affinity": null,
        "memory": null,
        "environment": null,
        "gpu_clocks": null,
        "gpu_clocks_after": null,
        "nic_counters": null,
        "notes": [
          "bytes are staged",
          "two\nlines"
        ]
      },
      "rows": [
        {"schema":2,"experiment":"proxy","case":"put","device":"emulated","fabric":"tcp;ofi_rxm","ranks":2,"rails":4,"strategy":"round-robin","mode":"nbi","memory":"pinned","size_bytes":4096,"grid":1,"block":32,"iterations":20,"time_us_min":10.0,"time_us_p50":11.0,"time_us_p99":12.5,"bandwidth_gbytes_s":11.9156,"rate_mops":2.90909,"line_rate_pct":null,"baseline":"cpu-write","baseline_ratio":0.951235,"wrong_bytes":0,"status":"ok","time_us_max":12.5,"cv_pct":11.2684,"repeats":3,"bandwidth_gbits_s":95.3251,"suspect":null,"post_us_p50":0.333333,"rail_bytes":"1024;1024;1024;1024","eagain":0,"samples_us":[10.0,0.333333,null]},
        {"schema":2,"experiment":"proxy","case":"put","device":"gpu:NVIDIA H200","fabric":"model:p5","ranks":2,"rails":null,"strategy":null,"mode":"quiet-every=16","memory":null,"size_bytes":1048576,"grid":132,"block":1024,"iterations":null,"time_us_min":null,"time_us_p50":null,"time_us_p99":null,"bandwidth_gbytes_s":null,"rate_mops":null,"line_rate_pct":null,"baseline":null,"baseline_ratio":null,"wrong_bytes":3,"status":"failed: peer 1, \"rail 0\": connection reset, again","time_us_max":null,"cv_pct":null,"repeats":null,"bandwidth_gbits_s":null,"suspect":null,"post_us_p50":null,"rail_bytes":null,"eagain":null,"samples_us":[10.0,0.333333,null]},
        {"schema":2,"experiment":"proxy","case":"cpu-write","device":"gpu:NVIDIA H200","fabric":"model:p5","ranks":2,"rails":null,"strategy":null,"mode":null,"memory":null,"size_bytes":null,"grid":null,"block":null,"iterations":null,"time_us_min":null,"time_us_p50":null,"time_us_p99":null,"bandwidth_gbytes_s":60.0,"rate_mops":null,"line_rate_pct":null,"baseline":null,"baseline_ratio":null,"wrong_bytes":null,"status":"ok","time_us_max":null,"cv_pct":null,"repeats":null,"bandwidth_gbits_s":null,"suspect":"above the physical ceiling of 50 GB/s","post_us_p50":null,"rail_bytes":null,"eagain":null,"samples_us":[10.0,0.333333,null]},
        {"schema":2,"experiment":"proxy","case":"put","device":"gpu:NVIDIA H200","fabric":"model:p5","ranks":2,"rails":null,"strategy":null,"mode":null,"memory":null,"size_bytes":null,"grid":null,"block":null,"iterations":null,"time_us_min":null,"time_us_p50":null,"time_us_p99":null,"bandwidth_gbytes_s":null,"rate_mops":null,"line_rate_pct":null,"baseline":null,"baseline_ratio":null,"wrong_bytes":null,"status":"skipped: one rail only","time_us_max":null,"cv_pct":null,"repeats":null,"bandwidth_gbits_s":null,"suspect":null,"post_us_p50":null,"rail_bytes":null,"eagain":null,"samples_us":[10.0,0.333333,null]}
      ]
    }
    "#);
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["complete"], true);
    let back: Vec<Row> = serde_json::from_value(document["rows"].clone()).unwrap();
    assert_eq!(written(&back), written(&rows()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn dropped_document_is_written_as_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.json");
    let mut sink = json_sink(&OutputTarget::File(path.clone())).unwrap();
    sink.row(&rows()[0], &[]);
    drop(sink);
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(document["complete"], false);
    assert_eq!(document["rows"].as_array().unwrap().len(), 1);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn empty_run_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let (csv, json) = (dir.path().join("e.csv"), dir.path().join("e.json"));
    CsvSink::create(&OutputTarget::File(csv.clone()), &header(), &OWN).unwrap().finish().unwrap();
    json_sink(&OutputTarget::File(json.clone())).unwrap().finish(RunOutcome::Interrupted).unwrap();
    assert_eq!(::csv::Reader::from_path(&csv).unwrap().headers().unwrap().len(), Row::COMMON.len() + OWN.len());
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(document["rows"], serde_json::json!([]));
}

#[test]
fn unwritable_paths_fail_before_run() {
    let dir = tempfile::tempdir().unwrap();
    let missing = OutputTarget::File("/no/such/folder/run.x".into());
    let folder = OutputTarget::File(dir.path().into());
    let full = OutputTarget::File("/dev/full".into());
    let errors = [
        CsvSink::create(&missing, &header(), &OWN).unwrap_err(),
        json_sink(&missing).unwrap_err(),
        CsvSink::create(&folder, &header(), &OWN).unwrap_err(),
        json_sink(&folder).unwrap_err(),
        CsvSink::create(&full, &header(), &OWN).unwrap_err(),
        json_sink(&full).unwrap().finish(RunOutcome::Complete).unwrap_err(),
    ];
    let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(text.join("\n").replace(&dir.path().display().to_string(), "DIR"), @r"
    cannot write CSV to /no/such/folder/run.x: No such file or directory (os error 2)
    cannot write JSON to /no/such/folder/run.x: No such file or directory (os error 2)
    cannot write CSV to DIR: Is a directory (os error 21)
    cannot write JSON to DIR: Is a directory (os error 21)
    cannot write CSV to /dev/full: No space left on device (os error 28)
    cannot write JSON to /dev/full: No space left on device (os error 28)
    ");
}

#[test]
fn one_place_takes_one_output() {
    let both = |csv: &str, json: &str| ReportOptions {
        csv: Some(csv.into()),
        json: Some(json.into()),
        quiet: true,
        ..ReportOptions::default()
    };
    assert!(matches!(Report::open(&both("-", "-"), &header(), &ABOUT), Err(ReportError::TwoOnStdout)));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x").display().to_string();
    assert!(matches!(Report::open(&both(&path, &path), &header(), &ABOUT), Err(ReportError::SameFile(_))));
    Report::open(&both("/dev/null", "/dev/null"), &header(), &ABOUT).unwrap().finish(RunOutcome::Complete).unwrap();
}

#[test]
fn closed_pipe_is_silent_and_full_disk_reported() {
    let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
    assert!(matches!(ReportError::write("CSV", &OutputTarget::Stdout, pipe()), ReportError::StdoutClosed));
    let file = OutputTarget::File("run.csv".into());
    assert!(matches!(ReportError::write("CSV", &file, pipe()), ReportError::Write { .. }));
}

#[test]
fn table_columns_are_aligned() {
    let mut text = Vec::new();
    let mut table = Table::new(&mut text, false, &ABOUT, false);
    for row in rows() {
        table.row(&row).unwrap();
    }
    insta::assert_snapshot!(String::from_utf8(text).unwrap(), @r#"
    case          size rails         mode               grid device   fabric           post      p50      p99    GB/s   Mops  base wrong status
                       strategy                      x block                             us       us       us                    % bytes
    put          4 KiB 4 round-robin nbi                1x32 emulated tcp;ofi_rxm    0.3333    11.00    12.50   11.92  2.909 95.12     0 ok
    put          1 MiB               quiet-every=16 132x1024 gpu:H200 model:p5                                                         3 failed: peer 1, "rail 0": connection reset, again
    cpu-write                                                gpu:H200 model:p5                                  60.00                    ok, suspect: above the physical ceiling of 50 GB/s
    put                                                      gpu:H200 model:p5                                                           skipped: one rail only
    "#);
}

#[test]
fn memory_is_shown_for_gpus() {
    let about = About { shows_memory: true, ..ABOUT };
    let mut row = Row::new("test", "put", "gpu:NVIDIA H200", "efa");
    let mut print = |memory: &str, on_gpu| {
        let mut text = Vec::new();
        row.memory = Some(memory.into());
        Table::new(&mut text, false, &about, on_gpu).row(&row).unwrap();
        String::from_utf8(text).unwrap()
    };
    for (memory, shown) in
        [("device", "device "), ("pinned", "pinned "), ("device-staged", "staged "), ("device-modelled", "modelled ")]
    {
        let text = print(memory, true);
        let lines: Vec<&str> = text.lines().collect();
        let at = lines[0].find("memory").unwrap();
        assert!(lines[2][at..].starts_with(shown), "{text}");
        assert!(!print(memory, false).contains("memory"));
    }
}

#[test]
fn colour_is_only_difference() {
    let print = |color| {
        let mut text = Vec::new();
        let mut table = Table::new(&mut text, color, &ABOUT, false);
        rows().iter().for_each(|row| table.row(row).unwrap());
        String::from_utf8(text).unwrap()
    };
    let (plain, mut coloured) = (print(false), print(true));
    assert!(coloured.contains('\x1b') && !plain.contains('\x1b'));
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[33m"] {
        coloured = coloured.replace(code, "");
    }
    assert_eq!(coloured, plain);
}
