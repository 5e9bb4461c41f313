//! Expected results of the checks on instances in different environments. No working instance may fail a check.
//!
//! The directory trees are synthetic, based on the documentation of AWS, NVIDIA and the projects named in
//! `instances.rs` and `gpu.rs`, not on real machines. The table is in `experiments/doctor/README.md`, and a test
//! compares it.

use super::super::instances::{COUNTED, INSTANCES, Instance};
use super::super::{CHECKS, CheckState, examine};
use super::fake::{Fake, address, card_bus, gpu_state, trial};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

/// Operating system of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Amazon Linux 2023 with the EFA installer's driver, which accesses GPU memory through `efa_nv_peermem`.
    Amazon,
    /// Ubuntu 24.04 with the efa driver of the Linux kernel, which has no p2p attribute, and with restricted ptrace.
    Ubuntu,
}

pub const SYSTEMS: [System; 2] = [System::Amazon, System::Ubuntu];

/// Environment of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterEnvironment {
    Node,
    Job,
    Pod,
    PartOfPod,
    Enroot,
}

/// Environments with their headings in the table.
pub const PLACES: [(ClusterEnvironment, &str); 5] = [
    (ClusterEnvironment::Node, "whole node"),
    (ClusterEnvironment::Job, "Slurm job of one GPU"),
    (ClusterEnvironment::Pod, "pod, whole node"),
    (ClusterEnvironment::PartOfPod, "pod, one GPU and its cards"),
    (ClusterEnvironment::Enroot, "enroot by pyxis"),
];

/// Returns all instance types that doctor knows.
fn all() -> impl Iterator<Item = &'static Instance> {
    INSTANCES.iter().chain(&COUNTED)
}

/// Creates the instance in this environment.
pub fn tree(instance: &Instance, place: ClusterEnvironment, system: System) -> Fake {
    let (gpus, cards) = (instance.gpus as u8, instance.cards as u8);
    let mut fake = Fake::of(instance.name, gpus, cards);
    if instance.name.starts_with('g') {
        let states =
            (0..gpus).map(|gpu| super::GpuState { links: 0, links_up: 0, fabric: None, ..gpu_state(0x20 + gpu) });
        fake.asked.gpus = Some(Ok(states.collect()));
    }
    if instance.name.starts_with("p6-b200") {
        fake.nvlink_devices();
    }
    match system {
        System::Amazon => {
            fake.write("proc/sys/kernel/osrelease", "6.1.141-155.222.amzn2023.x86_64\n");
            fake.write("sys/module/efa_nv_peermem/refcnt", "0\n");
            fake.p2p("NVIDIA peermem");
        }
        System::Ubuntu => {
            fake.write("proc/sys/kernel/osrelease", "6.8.0-1021-aws\n");
            fake.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
            (0..cards).for_each(|card| std::fs::remove_file(fake.place(card_bus(card)).join("p2p")).unwrap());
        }
    }
    // No node has this by default.
    fake.write("proc/driver/nvidia/params", "RegistryDwords: \"\"\n");
    match place {
        ClusterEnvironment::Node => {}
        ClusterEnvironment::Job => {
            one_gpu(&mut fake, instance.rails());
            fake.write("proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-11\n");
            fake.variable(
                "CUDA_VISIBLE_DEVICES=0 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=1 PMIX_RANK=0",
            );
        }
        ClusterEnvironment::Pod => pod(&fake),
        ClusterEnvironment::PartOfPod => {
            pod(&fake);
            one_gpu(&mut fake, instance.rails());
            fake.wanted.cards = Some(instance.rails());
            (instance.rails() as u8..cards).for_each(|card| fake.remove(&format!("dev/infiniband/uverbs{card}")));
            fake.domains(instance.rails());
            fake.write("proc/meminfo", "MemTotal: 2000000000 kB\nMemAvailable: 16777216 kB\n");
            fake.write("proc/self/status", "CapEff:\t00000000a80465fb\nCpus_allowed_list:\t0-11\n");
        }
        ClusterEnvironment::Enroot => {
            // A user namespace, the limits of slurmd, and the host's /dev.
            fake.write("proc/self/uid_map", "         0       1000          1\n");
            fake.variable(&format!(
                "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS={} SLURM_NTASKS_PER_NODE={gpus} SLURM_MPI_TYPE=pmix PMIX_RANK=0 \
                 PMIX_SERVER_TMPDIR=/var/spool/slurmd/pmix.7.0",
                2 * gpus
            ));
            fake.write("var/spool/slurmd/pmix.7.0/dstore", "");
        }
    }
    fake
}

/// Applies the environment of a pod with device plugins: its own limits, a capability, and only the NICs' device nodes.
fn pod(fake: &Fake) {
    fake.variable("KUBERNETES_SERVICE_HOST=10.100.0.1 FI_PROVIDER=efa");
    fake.write(
        "proc/self/limits",
        "Max locked memory  8388608  8388608  bytes\nMax open files  1048576  1048576  files\n",
    );
    fake.write("proc/self/status", "CapEff:\t00000000a80465fb\nCpus_allowed_list:\t0-95\n");
    for node in ["uverbs40", "uverbs41"] {
        if fake.path("dev/infiniband").join(node).exists() {
            fake.remove(&format!("dev/infiniband/{node}"));
        }
    }
}

/// Makes only the first GPU visible to CUDA and NVML.
fn one_gpu(fake: &mut Fake, rails: usize) {
    fake.asked.visible.as_mut().unwrap().retain(|gpu| gpu.address == Some(address(0x20)));
    if let Some(Ok(states)) = &mut fake.asked.gpus {
        states.truncate(1);
    }
    fake.asked.trials = Some((0..rails).map(|_| trial(false, Ok(()))).chain([trial(true, Ok(()))]).collect());
}

/// Findings: check, state, and what was found.
type CheckResults = Vec<(String, CheckState, String)>;

/// Returns the findings whose state is not `ok`.
fn not_ok(found: &CheckResults) -> impl Iterator<Item = (&str, CheckState)> {
    found.iter().filter(|(_, state, _)| *state != CheckState::Ok).map(|(check, state, _)| (check.as_str(), *state))
}

/// Findings of each instance in each environment, on both systems.
static FOUND: LazyLock<Vec<(&'static str, ClusterEnvironment, [CheckResults; 2])>> = LazyLock::new(|| {
    let look = |instance: &Instance, place: ClusterEnvironment, system: System| -> CheckResults {
        let findings = examine(&tree(instance, place, system).machine(), &[]);
        findings.into_iter().map(|finding| (finding.check, finding.state, finding.found)).collect()
    };
    let cases = all().flat_map(|instance| PLACES.iter().map(move |(place, _)| (instance, *place)));
    cases.map(|(instance, place)| (instance.name, place, SYSTEMS.map(|system| look(instance, place, system)))).collect()
});

/// Expected states of working instances other than `ok`: instance, environment, check, state.
const EXPECTED: &[(&str, Option<ClusterEnvironment>, &str, CheckState)] = &[
    // The NICs of this instance have no RDMA write; the provider emulates it with messages.
    ("p4d.24xlarge", None, "rma", CheckState::Warn),
    ("p4de.24xlarge", None, "rma", CheckState::Warn),
    // A single GPU has no peers to link to.
    ("", Some(ClusterEnvironment::Job), "nvlink", CheckState::Skipped),
    ("", Some(ClusterEnvironment::PartOfPod), "nvlink", CheckState::Skipped),
    ("p5.4xlarge", None, "nvlink", CheckState::Skipped),
    ("g6e.8xlarge", None, "nvlink", CheckState::Skipped),
    ("g6e.16xlarge", None, "nvlink", CheckState::Skipped),
    ("g7e.8xlarge", None, "nvlink", CheckState::Skipped),
];

#[test]
fn no_instance_that_works_fails() {
    for (instance, place, systems) in FOUND.iter() {
        for (system, found) in SYSTEMS.iter().zip(systems) {
            let named: Vec<(&str, CheckState)> = not_ok(found).collect();
            let is_of = |line: &&(&str, Option<ClusterEnvironment>, &str, CheckState)| {
                (line.0.is_empty() || line.0 == *instance) && line.1.is_none_or(|wanted| wanted == *place)
            };
            let mut expected: Vec<(&str, CheckState)> =
                EXPECTED.iter().filter(is_of).map(|line| (line.2, line.3)).collect();
            expected.dedup();
            assert_eq!(named, expected, "{instance}, {place:?}, {system:?}: {found:?}");
        }
    }
}

/// Returns the table with a row per check that is not `ok` everywhere, and a column per environment. A cell is `ok`, or
/// lists the instances with other states.
fn table() -> String {
    let mut text = String::from("| check |");
    PLACES.iter().for_each(|(_, heading)| text.push_str(&format!(" {heading} |")));
    text.push_str(&format!("\n|{}\n", "---|".repeat(1 + PLACES.len())));
    // States other than `ok` in the cells, with their instances.
    let mut cells: BTreeMap<(&str, usize), BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    for (instance, place, [amazon, ubuntu]) in FOUND.iter() {
        let column = PLACES.iter().position(|(known, _)| known == place).unwrap();
        let [amazon, ubuntu]: [BTreeMap<&str, CheckState>; 2] = [amazon, ubuntu].map(|found| not_ok(found).collect());
        let mut say = |check, said| {
            cells.entry((check, column)).or_default().entry(said).or_default().push(instance);
        };
        for (check, state) in &amazon {
            let both = ubuntu.get(check) == Some(state);
            say(check, if both { state.to_string() } else { format!("{state} on Amazon Linux") });
        }
        for (check, state) in ubuntu.iter().filter(|(check, state)| amazon.get(*check) != Some(state)) {
            say(check, format!("{state} on Ubuntu"));
        }
    }
    let is_listed = |name: &str| (0..PLACES.len()).any(|column| cells.contains_key(&(name, column)));
    for check in CHECKS.iter().filter(|check| is_listed(check.name)) {
        text.push_str(&format!("| `{}` |", check.name));
        for column in 0..PLACES.len() {
            let cell = match cells.get(&(check.name, column)) {
                None => "ok".to_owned(),
                Some(lines) => {
                    let all = lines.iter().find(|(_, by)| by.len() == all().count());
                    let some = lines.iter().map(|(said, by)| {
                        // Types with a launch template are named by their family.
                        let has_template = |name: &str| INSTANCES.iter().any(|known| known.name == name);
                        let short = |name: &&'static str| match has_template(name) {
                            true => name.split('.').next().unwrap(),
                            false => *name,
                        };
                        format!("{} {said}", by.iter().map(short).collect::<Vec<&str>>().join(", "))
                    });
                    all.map_or_else(|| format!("ok; {}", some.collect::<Vec<_>>().join("; ")), |(said, _)| said.clone())
                }
            };
            text.push_str(&format!(" {cell} |"));
        }
        text.push('\n');
    }
    text
}

/// Compares the text of the page after the marker `mark` with `right`.
#[track_caller]
pub fn on_the_page(mark: &str, right: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/doctor/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("<!-- {mark} -->\n")).unwrap();
    let (stands, _) = rest.split_once("<!-- end -->").unwrap();
    assert_eq!(stands, right, "the page has another table; this one is right:\n\n{right}");
}

#[test]
fn page_contains_cluster_table() {
    on_the_page("instances", &table());
}

/// Writes every finding as CSV if `GINLAB_TABLE=FILE` is set. The rows are instances x environments x systems x checks,
/// with the text that the user sees.
#[test]
fn every_finding_can_be_kept() {
    let field = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut text = String::from("instance,place,system,check,state,found\n");
    for (instance, place, systems) in FOUND.iter() {
        let (_, heading) = PLACES.iter().find(|(known, _)| known == place).unwrap();
        for (system, found) in SYSTEMS.iter().zip(systems) {
            for (check, state, words) in found {
                let system = format!("{system:?}").to_lowercase();
                text += &format!("{instance},{},{system},{check},{state},{}\n", field(heading), field(words));
            }
        }
    }
    assert_eq!(text.lines().count(), 1 + all().count() * PLACES.len() * SYSTEMS.len() * CHECKS.len());
    if let Some(file) = std::env::var_os("GINLAB_TABLE") {
        std::fs::write(file, text).unwrap();
    }
}

/// The models and the instance table must agree.
#[test]
fn instances_and_modelled_cards_agree() {
    for (profile, instance) in
        [("p4d", "p4d.24xlarge"), ("p5", "p5.48xlarge"), ("p5en", "p5en.48xlarge"), ("p6-b200", "p6-b200.48xlarge")]
    {
        let (profile, instance) =
            (ginlab_fabric::model::Profile::named(profile).unwrap(), Instance::named(instance).unwrap());
        assert_eq!((profile.gpus.value as usize, profile.cards.value as usize), (instance.gpus, instance.cards));
    }
    let names: std::collections::BTreeSet<&str> = INSTANCES.iter().map(|instance| instance.name).collect();
    assert_eq!(names.len(), INSTANCES.len());
    assert_eq!(Instance::named("p6-b300.48xlarge").unwrap().rails(), 2);
}
