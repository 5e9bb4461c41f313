//! Runs the commands of `docs/two-p5.md`, in the order of its text, in the lab. The lab has libfabric's EFA provider
//! over the 32 software NICs of a p5, two hosts that are network namespaces, and a real Slurm. The hosts have an archive
//! of `scripts/dist.sh`.
//!
//! A comment before each block specifies where it runs. `GINLAB_TRANSCRIPT=FILE` stores the commands and their output.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::archive;
use crate::common::lab::Lab;
use crate::common::{JobOutput, ProcessGroup, all_verified, clean, ginlab, rows_of, run, skip};
use ginlab::doctor::instances::{INSTANCES, Instance};
use ginlab::fabric::model::Profile;

/// Values of the page's variables in the lab. One rank per host, because both share this machine's cores.
const VALUES: [(&str, &str); 22] = [
    ("INSTANCE", "p5.48xlarge"),
    ("GPUS", "1"),
    ("CARDS", "32"),
    ("RAILS", "4"),
    ("PROVIDER", "soft-efa:p5,cards=32"),
    ("DEVICE", "emulated"),
    ("SIZES", "-b 64K -e 64K -n 4 -r 2"),
    ("WRITE", "-b 64K -e 64K -n 4 -r 2 --at-least 0"),
    ("WAIT", "0"),
    ("REGISTRY", "registry.example.com"),
    ("TAG", "first"),
    ("SUBNET", "subnet-0123"),
    ("VPC", "vpc-0123"),
    ("AMI", "ami-0123"),
    ("KEY", "key"),
    ("RESERVATION", "cr-0123"),
    ("FROM", "203.0.113.7/32"),
    ("GROUP", "sg-0123"),
    ("RANK", "0"),
    ("WORLD_SIZE", "2"),
    ("MASTER_ADDR", "10.99.0.1"),
    ("GINLAB_TOKEN", "0123456789abcdef"),
];

/// A block of the page: its comment and its lines.
struct Block {
    mark: String,
    text: String,
}

fn page() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/two-p5.md")).unwrap()
}

fn blocks() -> Vec<Block> {
    let page = page();
    let mut lines = page.lines();
    let (mut found, mut before) = (Vec::new(), "");
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let mark = before.strip_prefix("<!-- ").and_then(|mark| mark.strip_suffix(" -->"));
            let mark =
                mark.unwrap_or_else(|| panic!("a block behind {before:?} does not say where it runs")).to_owned();
            let text =
                lines.by_ref().take_while(|line| !line.starts_with("```")).map(|line| format!("{line}\n")).collect();
            found.push(Block { mark, text });
        }
        before = line;
    }
    found
}

#[derive(Default)]
struct Transcript(String);

impl Transcript {
    fn add(&mut self, place: &str, block: &Block, done: &JobOutput) {
        self.0 += &format!("== {place}\n");
        block.text.lines().for_each(|line| self.0 += &format!("$ {line}\n"));
        self.0 += &format!("{}{}", done.stdout, done.stderr);
        if done.code != 0 {
            self.0 += &format!("(exit code {})\n", done.code);
        }
        self.0 += "\n";
    }
}

impl Drop for Transcript {
    fn drop(&mut self) {
        if let Some(file) = std::env::var_os("GINLAB_TRANSCRIPT") {
            // The result is ignored, because a failing test has reported a more important cause.
            let _ = std::fs::write(file, &self.0);
        }
    }
}

/// Returns bash in a host's directory, with the lab's values and the installed ginlab first on the path, preceded by
/// `words`.
fn bash(words: &[&str], folder: &Path, script: &str) -> Command {
    let words: Vec<&str> = words.iter().copied().chain(["bash", "-euo", "pipefail", "-c", script]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder);
    clean(&mut command);
    let programs = folder.join(INSTALLED);
    // Cargo sets this variable for the test. In a user's environment, it is not set.
    command.env_remove("LD_LIBRARY_PATH");
    command.envs(VALUES).env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
    command
}

/// Directory of the installed program, relative to the archive's: `/usr/local/bin` of the page.
const INSTALLED: &str = "../bin";

/// Unpacks the archive on a host and installs the program, as the page does. Adds the saved dumps, which the page's
/// readers find in the repository. Returns the archive's directory.
fn host(archive: &Path, folder: &Path) -> PathBuf {
    let unpacked = archive::unpacked(archive, folder);
    let bin = unpacked.join(INSTALLED);
    std::fs::create_dir(&bin).unwrap();
    let mut install = Command::new("install");
    install.args(["ginlab", "libsoft_efa.so"]).arg(&bin).current_dir(&unpacked);
    run(install).expect(0);
    std::fs::create_dir(unpacked.join("tests")).unwrap();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    std::os::unix::fs::symlink(fixtures, unpacked.join("tests/fixtures")).unwrap();
    unpacked
}

#[test]
fn first_hour_commands_run_as_documented() {
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    let folder = tempfile::tempdir().unwrap();
    let archive = archive::packed(folder.path());
    let hosts = ["host-a", "host-b"].map(|name| host(&archive, &folder.path().join(name)));
    let mut transcript = Transcript::default();
    for block in blocks() {
        let Some(place) = block.mark.strip_prefix("lab: ") else { continue };
        match place {
            "one host" | "one host, exit code 3" => {
                if block.text.contains("kubectl") && run(bash(&[], &hosts[0], "command -v kubectl")).code != 0 {
                    skip("no kubectl here: the overlay of the page is not built");
                    continue;
                }
                let done = run(bash(&[], &hosts[0], &block.text));
                transcript.add(place, &block, &done);
                done.expect(if place.ends_with('3') { 3 } else { 0 });
            }
            "both hosts" | "both hosts, a rank per GPU" => {
                let on = |node: usize| {
                    let namespace = lab.namespace(node);
                    let mut command = bash(&["ip", "netns", "exec", &namespace], &hosts[node], &block.text);
                    if place.ends_with("GPU") {
                        command.env("NODE", node.to_string()).env_remove("RANK").env_remove("WORLD_SIZE");
                    } else {
                        command.env("RANK", node.to_string());
                    }
                    ProcessGroup::start(command).runs(3)
                };
                let both = [on(0), on(1)].map(ProcessGroup::finish);
                for (done, host) in both.into_iter().zip(["host-a", "host-b"]) {
                    transcript.add(&format!("{place}: {host}"), &block, &done);
                    done.expect(0);
                }
            }
            "slurm" => slurm(&block, &hosts[0], &mut transcript),
            "pods" => pods(&block, &hosts[0], &mut transcript),
            other => panic!("the page has a place that is not known: {other}"),
        }
    }
    let template: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(hosts[0].join("template.json")).unwrap()).unwrap();
    assert_eq!(template["NetworkInterfaces"].as_array().unwrap().len(), 33);
    for name in ["rails.csv", "write.csv", "proxy.csv", "proxy-pinned.csv", "node-rails.csv", "node.csv"] {
        let rows = rows_of(&hosts[0].join(name));
        assert!(
            rows.iter().all(|row| row.ranks == 2 && row.fabric == "efa/soft:p5" && row.status.to_string() == "ok"),
            "{name}"
        );
        // Sums of a node have no count of wrong bytes.
        let counts: Vec<u64> = rows.iter().filter_map(|row| row.wrong_bytes).collect();
        assert!(counts.len() >= 2 && counts.iter().all(|wrong| *wrong == 0), "{name}: {counts:?}");
    }
}

/// Runs the block on the first node of its own Slurm, if that is installed.
fn slurm(block: &Block, folder: &Path, transcript: &mut Transcript) {
    let page = folder.join("slurm.sh");
    std::fs::write(&page, &block.text).unwrap();
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/slurm-lab.sh");
    let mut command = bash(&[], folder, &format!("exec {lab} \"$PWD/lab\""));
    command.env("PAGE", &page).env("GINLAB", folder.join("ginlab")).env("RATE", "1gbit");
    command.env("WRITE", "-b 64K -e 64K -n 4 -r 2");
    command.env("PROXY", "-b 64K -e 64K -n 4 -w 1 -r 2 --mode nbi").env("ALL2ALL", "-b 64K -e 64K -n 4 -w 1");
    // Uses the NICs of one GPU, because each rank of doctor opens each NIC, and libfabric fills 60 MB per NIC.
    command.env("PROVIDER", "soft-efa:p5,cards=4");
    command.env_remove("RANK").env_remove("WORLD_SIZE");
    let done = ProcessGroup::start(command).runs(4).finish();
    if done.code == 77 {
        return skip(done.stderr.trim());
    }
    transcript.add("slurm", block, &done);
    let done = done.expect(0);
    assert!(done.stdout.contains("== results in"), "{}", done.stdout);
    let results = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let results = results.filter(|path| path.is_dir()).find(|path| path.join("proxy.csv").is_file()).unwrap();
    for name in ["rails.csv", "proxy.csv", "proxy-pinned.csv", "all2all.csv"] {
        all_verified(&rows_of(&results.join(name)));
    }
    let hosts = std::fs::read_to_string(results.join("hosts.txt")).unwrap();
    assert_eq!(hosts.lines().count(), 2, "a line for each host: {hosts}");
}

/// Runs the block on the first host, with a lab of root file systems that answers kubectl instead of a cluster.
fn pods(block: &Block, folder: &Path, transcript: &mut Transcript) {
    if !folder.join("deploy/k8s/mine").is_dir() {
        return skip("no kubectl here: there is no overlay whose pods could run");
    }
    let first = folder.join("path");
    std::fs::create_dir(&first).unwrap();
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/k8s-lab-kubectl.sh");
    std::os::unix::fs::symlink(lab, first.join("kubectl")).unwrap();
    let mut command = bash(&[], folder, &format!("PATH={}:$PATH\n{}", first.display(), block.text));
    command.env("LAB_PODS", folder.join("pods")).env("GINLAB", folder.join("ginlab")).env("RATE", "1gbit");
    command.env("WRITE", "-b 64K -e 64K -n 4 -r 2");
    command.env("PROXY", "-b 64K -e 64K -n 4 -w 1 -r 2 --mode nbi").env("ALL2ALL", "-b 64K -e 64K -n 4 -w 1");
    command.env_remove("RANK").env_remove("WORLD_SIZE");
    let done = ProcessGroup::start(command).runs(5).finish();
    if done.code == 77 {
        return skip(done.stderr.trim());
    }
    transcript.add("pods", block, &done);
    let done = done.expect(0);
    assert!(
        done.stdout.contains("32 EFA devices of a p5.48xlarge"),
        "doctor looked for this instance: {}",
        done.stdout
    );
    for name in ["rails.json", "proxy.json", "proxy-pinned.json", "all2all.json"] {
        let text = std::fs::read_to_string(folder.join("pods").join(name)).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = document["rows"].as_array().unwrap();
        let good = |row: &serde_json::Value| row["wrong_bytes"] == 0 && row["fabric"] == "efa/soft:p5";
        assert!(document["complete"] == true && !rows.is_empty() && rows.iter().all(good), "{name}: {text}");
    }
}

/// The page must show the command's actual output.
#[test]
fn documented_output_is_printed() {
    let mut seen = 0;
    for block in blocks() {
        let Some(command) = block.mark.strip_prefix("output: ginlab ") else { continue };
        let done = run(ginlab(command)).expect(0);
        let printed = format!("{}{}", done.stdout, done.stderr);
        for line in block.text.lines() {
            assert!(printed.lines().any(|printed| printed == line), "{command} does not print {line:?}:\n{printed}");
        }
        seen += 1;
    }
    assert!(seen > 1);
}

/// The hour must measure GPU memory, and pinned host memory as the comparison.
#[test]
fn gpu_memory_is_measured_before_pinned_memory() {
    let commands: Vec<String> =
        blocks().iter().flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let proxies: Vec<&String> = commands.iter().filter(|line| line.contains("ginlab proxy ")).collect();
    let with = |memory: &str| proxies.iter().filter(|line| line.contains(&format!("--memory {memory} "))).count();
    assert!(with("device") >= 2 && with("pinned") >= 1, "{proxies:?}");
    assert_eq!(with("device") + with("pinned"), proxies.len(), "a command of the page leaves the memory open");
    for file in [
        "slurm/ginlab.sbatch",
        "k8s/mpijob/mpijob.yaml",
        "k8s/job/job.yaml",
        "skypilot/ginlab.yaml",
        "skypilot/kubernetes.yaml",
    ] {
        let text = std::fs::read_to_string(format!("{}/deploy/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let default = |line: &&str| line.contains("MEMORY") && line.contains("device pinned") && !line.starts_with('#');
        assert_eq!(text.lines().filter(default).count(), 1, "{file}: GPU memory, then pinned memory");
        let runs: Vec<&str> = text.lines().filter(|line| line.contains(" proxy --") && !line.contains('#')).collect();
        assert!(!runs.is_empty() && runs.iter().all(|line| line.contains("--memory \"$memory\"")), "{file}: {runs:?}");
    }
    let all = std::fs::read_to_string(format!("{}/deploy/run-all.sh", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let at = |memory: &str| all.find(&format!("proxy --per-node --memory {memory}")).unwrap();
    assert!(at("device") < at("pinned"));
}

/// The page's expected rates are those of the modelled NICs, which have sources.
#[test]
fn expected_rates_match_profiles() {
    let page = page();
    let mut seen = 0;
    for (name, profile) in Profile::all().unwrap() {
        let Some(line) = page.lines().find(|line| line.starts_with(&format!("| {name} | "))) else {
            assert!(page.contains(&format!("{name} has no RDMA write")) && profile.rdma_write.value == 0.0, "{name}");
            continue;
        };
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let rate = profile.line_rate_gbps.value * profile.peak_share.value;
        let rails = profile.cards_per_gpu();
        let short = |rate: f64| format!("{rate:.1}").trim_end_matches(".0").to_owned();
        let expected = [profile.line_rate_gbps.value, rate, rate / 8.0, rails * rate / 8.0].map(short);
        assert_eq!(cells[1..5], expected, "{line}");
        seen += 1;
    }
    assert_eq!(seen, 3);
}

/// Each block specifies where it runs, the variables of the page are those of the lab, and other checks that it names
/// exist.
#[test]
fn every_block_names_its_location() {
    let mut set: BTreeSet<String> = BTreeSet::from(["GROUP".to_owned()]);
    for block in blocks() {
        let (kind, rest) = block.mark.split_once(": ").unwrap_or((&block.mark, ""));
        match kind {
            "settings" => {
                let words = block.text.lines().flat_map(|line| line.split('#').next().unwrap().split_whitespace());
                set.extend(words.filter_map(|word| Some(word.split_once('=')?.0.to_owned())));
            }
            "other" => {
                let script = rest.split(' ').next().unwrap();
                assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(script).is_file(), "{script}");
            }
            "lab" | "output" => {}
            "arguments" => assert!(block.text.contains("aws ec2 "), "{}", block.text),
            other => panic!("a block is marked {other:?}"),
        }
    }
    assert_eq!(set, VALUES.iter().map(|(name, _)| (*name).to_owned()).collect());
}

/// The page's table, the launch template and the overlays must have the figures of doctor's instances.
#[test]
fn instances_match_doctor() {
    let page = page();
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `p") || line.starts_with("| `g")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [names, gpus, cards, rails, _] = cells[..] else { continue };
        for name in names.split(", ") {
            let name = name.trim_matches('`');
            let instance = Instance::named(name).unwrap_or_else(|| panic!("{name}"));
            let rails = rails.split(' ').next().unwrap();
            let said = [gpus, cards, rails].map(|text| text.parse::<usize>().unwrap());
            assert_eq!(said, [instance.gpus, instance.cards, instance.rails()], "{name}");
            seen.insert(instance.name);
        }
    }
    assert_eq!(seen.len(), INSTANCES.len());
    for instance in INSTANCES {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/aws/interfaces.sh");
        let mut command = Command::new(script);
        command.args([instance.name, "subnet-1", "sg-1"]);
        let template: serde_json::Value = serde_json::from_str(&run(command).expect(0).stdout).unwrap();
        let interfaces = template["NetworkInterfaces"].as_array().unwrap();
        let of = |kind: &str| interfaces.iter().filter(|one| one["InterfaceType"] == kind).count();
        assert_eq!((of("efa-only"), of("interface")), (instance.cards, 1), "{}", instance.name);
        let places: BTreeSet<String> =
            interfaces.iter().map(|one| format!("{} {}", one["NetworkCardIndex"], one["DeviceIndex"])).collect();
        assert_eq!(places.len(), interfaces.len(), "{}: a place is taken twice", instance.name);
    }
    let mut unknown = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/aws/interfaces.sh"));
    unknown.args(["p5.large", "subnet-1", "sg-1"]);
    assert!(run(unknown).expect(2).complaint().contains("unknown instance \"p5.large\": expected p4d.24xlarge"));
    for family in ["p5en", "p6-b200", "p6-b300"] {
        let file = format!("{}/deploy/k8s/{family}/kustomization.yaml", env!("CARGO_MANIFEST_DIR"));
        let instance = Instance::named(&format!("{family}.48xlarge")).unwrap();
        let (gpus, cards, rails) = (instance.gpus, instance.cards, instance.rails());
        let name = instance.name;
        let values = format!("[type={name}, gpus={gpus}, cards={cards}, rails={rails}, label={name}]");
        assert!(std::fs::read_to_string(file).unwrap().contains(&values), "{family}: {values} is meant");
    }
}

/// A resource that the page creates must be deleted at its end, and nothing may be built while instances are billed.
#[test]
fn created_resources_are_deleted() {
    let page = page();
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text:?} is not on the page"));
    for (created, deleted) in [
        ("create-security-group", "delete-security-group"),
        ("create-launch-template", "delete-launch-template"),
        ("create-placement-group", "delete-placement-group"),
        ("allocate-address", "release-address"),
        ("$(aws ec2 run-instances", "terminate-instances"),
    ] {
        assert!(at(created) < at("## 8. Termination") && at("## 8. Termination") < at(deleted), "{created}");
    }
    for step in ["make dist\n", "docker build", "describe-capacity-reservations", "run-instances --dry-run"] {
        assert!(at(step) < at("$(aws ec2 run-instances"), "{step}");
    }
}

/// Each trap of Kubernetes and Slurm that keeps a job waiting or unbalanced is avoided in the file that would have it.
#[test]
fn launch_files_avoid_known_traps() {
    for (file, text) in [
        // The device plugin's pods do not run on nodes with a taint by default.
        ("docs/two-p5.md", "--set 'tolerations[0].operator=Exists'"),
        // The MPI operator never starts the launcher if a worker's init container fails.
        ("docs/two-p5.md", "kubectl wait --for=condition=Ready pod -l app=ginlab-worker --timeout=15m || kubectl logs"),
        // HyperPod's nodes have another label.
        ("docs/two-p5.md", "label=ml.p5.48xlarge"),
        // The first pod waits for the slowest image pull.
        ("deploy/k8s/job/job.yaml", "ginlab bootstrap --bootstrap tcp -p \"$PROVIDER\" --device \"$DEVICE\" -t 900"),
        // The static CPU manager would take all cores from one socket.
        ("deploy/k8s/job/job.yaml", "cpu: \"180\""),
        ("deploy/k8s/mpijob/mpijob.yaml", "cpu: \"180\""),
        // EFA devices of some instances appear late.
        ("docs/two-p5.md", "export WAIT=60"),
        // Pyxis unpacks the image once for all steps.
        ("deploy/slurm/ginlab.sbatch", "--container-name="),
    ] {
        let all = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        assert!(all.contains(text), "{file}: {text}");
    }
}
