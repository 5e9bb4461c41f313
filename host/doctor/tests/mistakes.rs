//! Typical configuration mistakes on otherwise working instances, in their environments. Exactly the expected checks
//! must report each mistake.
//!
//! The directory trees are synthetic, like those of the instances. The table is in `experiments/doctor/README.md`, and
//! a test compares it.

use super::super::instances::Instance;
use super::super::trial::Trial;
use super::super::{CheckState, examine};
use super::clusters::ClusterEnvironment::{Enroot, Job, Node, PartOfPod, Pod};
use super::clusters::{ClusterEnvironment, PLACES, System, on_the_page, tree};
use super::fake::{FI_INFO, Fake, address, card_bus, paces, trial};
use std::collections::BTreeSet;
use std::fs;

/// A mistake applied to a working machine.
struct Mistake {
    /// Description in the table.
    what: &'static str,
    /// Environments in which it can occur.
    places: &'static [ClusterEnvironment],
    harm: fn(&mut Fake),
    /// Checks whose state changes, with the new state.
    says: &'static [(&'static str, CheckState)],
    /// Substring of the remedy that one of these checks reports.
    mend: &'static str,
}

const ALL: &[ClusterEnvironment] = &[Node, Job, Pod, PartOfPod, Enroot];
const CONTAINERS: &[ClusterEnvironment] = &[Pod, PartOfPod, Enroot];

/// States if libfabric lists no NIC.
const NO_DOMAIN: [(&str, CheckState); 4] = [
    ("libfabric", CheckState::Fail),
    ("rma", CheckState::Fail),
    ("gpu-register", CheckState::Skipped),
    ("smoke", CheckState::Fail),
];

const MISTAKES: &[Mistake] = &[
    Mistake {
        what: "one EFA interface is attached, not all",
        // For a part of a node, only the NICs of that part are required.
        places: &[Node, Job, Pod, Enroot],
        harm: |fake| (1..32).filter(|card| is_on_bus(fake, *card)).for_each(|card| fake.lose_card(card)),
        says: &[("efa-devices", CheckState::Fail)],
        mend: "attach all EFA interfaces in the launch template",
    },
    Mistake {
        what: "a card's link is down",
        places: ALL,
        harm: |fake| fake.write("sys/class/infiniband/rdmap16s0/ports/1/state", "1: DOWN\n"),
        says: &[("efa-links", CheckState::Fail)],
        mend: "replace the instance",
    },
    Mistake {
        what: "8 MiB of locked memory, and no IPC_LOCK",
        places: ALL,
        harm: |fake| {
            fake.write(
                "proc/self/limits",
                "Max locked memory  8388608  8388608  bytes\nMax open files  65536  65536  files\n",
            );
            line(fake, "proc/self/status", "CapEff", "CapEff:\t00000000a80425fb");
        },
        says: &[("memlock", CheckState::Fail)],
        mend: "IPC_LOCK",
    },
    Mistake {
        what: "2 GiB of memory",
        places: ALL,
        harm: |fake| line(fake, "proc/meminfo", "MemAvailable", "MemAvailable: 2097152 kB"),
        says: &[("memory", CheckState::Fail)],
        mend: "memory: 64Gi",
    },
    Mistake {
        what: "no huge pages",
        places: ALL,
        harm: |fake| fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n"),
        says: &[("memory", CheckState::Warn)],
        mend: "vm.nr_hugepages=5128",
    },
    Mistake {
        what: "/dev/shm of 64 MiB",
        places: ALL,
        harm: |fake| {
            fake.write("proc/self/mountinfo", "25 20 0:22 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k\n");
        },
        says: &[("shm", CheckState::Warn)],
        mend: "--shm-size 8g",
    },
    Mistake {
        what: "the cards' device nodes are not in the container",
        places: CONTAINERS,
        harm: |fake| {
            fake.remove("dev/infiniband");
            no_domain(fake);
        },
        says: &[
            ("efa-driver", CheckState::Fail),
            NO_DOMAIN[0],
            NO_DOMAIN[1],
            NO_DOMAIN[2],
            ("container", CheckState::Fail),
            NO_DOMAIN[3],
        ],
        mend: "vpc.amazonaws.com/efa",
    },
    Mistake {
        what: "the host's /dev/infiniband is mounted",
        places: &[Pod, PartOfPod],
        harm: |fake| {
            let mounts = fs::read_to_string(fake.path("proc/self/mountinfo")).unwrap();
            let mount = "31 20 0:5 /infiniband /dev/infiniband rw - devtmpfs devtmpfs rw\n";
            fake.write("proc/self/mountinfo", &format!("{mounts}{mount}"));
        },
        says: &[("container", CheckState::Warn)],
        mend: "remove the volume /dev/infiniband",
    },
    Mistake {
        what: "`FI_PROVIDER=tcp`, and EFA is asked for",
        places: ALL,
        harm: |fake| {
            fake.wanted.efa = true;
            let set = fs::read_to_string(fake.path("proc/self/environ")).unwrap();
            let others: Vec<&str> = set.split('\0').filter(|one| !one.starts_with("FI_PROVIDER")).collect();
            fake.write("proc/self/environ", &format!("{}\0FI_PROVIDER=tcp", others.join("\0")));
            no_domain(fake);
        },
        says: &[NO_DOMAIN[0], NO_DOMAIN[1], NO_DOMAIN[2], ("environment", CheckState::Fail), NO_DOMAIN[3]],
        mend: "unset FI_PROVIDER",
    },
    Mistake {
        what: "NVIDIA's closed driver, and `nvidia_peermem` instead of `efa_nv_peermem`",
        places: ALL,
        harm: |fake| {
            fake.closed_driver();
            fake.p2p("");
            if fake.path("sys/module/efa_nv_peermem").exists() {
                fake.remove("sys/module/efa_nv_peermem");
            }
            fake.write("sys/module/nvidia_peermem/refcnt", "0\n");
            fake.asked.registered = Some(Err("rdmap16s0 cannot register GPU memory: by dma-buf: refused".into()));
            super::copies(fake);
        },
        says: &[("rma", CheckState::Warn), ("gpu-direct", CheckState::Fail), ("gpu-register", CheckState::Fail)],
        mend: "modprobe efa_nv_peermem",
    },
    Mistake {
        what: "a libfabric without CUDA",
        places: ALL,
        harm: |fake| {
            fake.no_gpu_memory = true;
            fake.asked.trials = Some(vec![trial(false, Ok(()))]);
        },
        says: &[("rma", CheckState::Warn), ("gpu-register", CheckState::Warn)],
        mend: "built with CUDA",
    },
    Mistake {
        what: "a provider that accepts GPU memory only by CUDA calls",
        places: ALL,
        harm: super::copies,
        says: &[("rma", CheckState::Warn), ("gpu-register", CheckState::Fail)],
        mend: "see gpu-direct",
    },
    Mistake {
        what: "a provider that has agreed to make no CUDA calls, and copies GPU memory through the host",
        places: ALL,
        harm: |fake| {
            let slow = Trial { paces: Some(paces(900, 270)), ..trial(true, Ok(())) };
            fake.asked.trials = Some(vec![trial(false, Ok(())), slow]);
        },
        says: &[("rma", CheckState::Warn)],
        mend: "see gpu-direct",
    },
    Mistake {
        what: "the host's gdrdrv is not passed in",
        places: CONTAINERS,
        harm: |fake| {
            fake.remove("dev/gdrdrv");
            fake.asked.gdrcopy = Some(Err("gdr_open failed".into()));
        },
        says: &[("gdrcopy", CheckState::Warn), ("container", CheckState::Warn)],
        mend: "NVIDIA_GDRCOPY=enabled",
    },
    Mistake {
        what: "the process is bound to the other socket's cores",
        places: ALL,
        harm: |fake| line(fake, "proc/self/status", "Cpus_allowed_list", "Cpus_allowed_list:\t48-95"),
        says: &[("affinity", CheckState::Warn)],
        mend: "--cpu-bind=none",
    },
    Mistake {
        what: "`srun` without `--mpi=pmix`",
        places: &[Job, Enroot],
        harm: |fake| {
            let set = fs::read_to_string(fake.path("proc/self/environ")).unwrap();
            let others: Vec<&str> = set.split('\0').filter(|one| !one.starts_with("PMIX_")).collect();
            fake.write("proc/self/environ", &others.join("\0"));
        },
        says: &[("launch", CheckState::Fail)],
        mend: "srun --mpi=pmix",
    },
    Mistake {
        what: "enroot's hook for PMIx is not linked",
        places: &[Enroot],
        harm: |fake| fake.remove("var/spool/slurmd"),
        says: &[("launch", CheckState::Fail)],
        mend: "50-slurm-pmi.sh",
    },
];

/// Makes libfabric list no NIC, so that no rail can be tried.
fn no_domain(fake: &mut Fake) {
    fake.write("fi_info.yaml", &FI_INFO[FI_INFO.rfind("fi_info:").unwrap()..]);
    fake.asked.registered = None;
    fake.asked.trials = Some(vec![trial(false, Err("no domain of efa supports rails".into()))]);
}

fn is_on_bus(fake: &Fake, card: u8) -> bool {
    fake.path(&format!("sys/bus/pci/devices/{}", address(card_bus(card)))).exists()
}

/// Replaces the lines of a file that start with `start`.
fn line(fake: &Fake, path: &str, start: &str, with: &str) {
    let text = fs::read_to_string(fake.path(path)).unwrap();
    assert!(text.contains(start), "{path}: {text}");
    let lines: Vec<&str> = text.lines().map(|line| if line.starts_with(start) { with } else { line }).collect();
    fake.write(path, &(lines.join("\n") + "\n"));
}

#[test]
fn every_mistake_fails_exactly_its_checks() {
    for (name, system) in
        [("p5.48xlarge", System::Amazon), ("p6-b200.48xlarge", System::Ubuntu), ("g7e.48xlarge", System::Ubuntu)]
    {
        let instance = Instance::named(name).unwrap();
        for (place, _) in PLACES {
            let works = examine(&tree(&instance, place, system).machine(), &[]);
            for mistake in MISTAKES.iter().filter(|mistake| mistake.places.contains(&place)) {
                let mut fake = tree(&instance, place, system);
                (mistake.harm)(&mut fake);
                let found = examine(&fake.machine(), &[]);
                let other: Vec<_> =
                    works.iter().zip(&found).filter(|(was, is)| was.state != is.state).map(|(_, is)| is).collect();
                let said: Vec<(&str, CheckState)> = other.iter().map(|is| (is.check.as_str(), is.state)).collect();
                assert_eq!(said, mistake.says, "{name}, {place:?}: {}: {other:?}", mistake.what);
                let mends = other.iter().any(|is| is.mend.contains(mistake.mend));
                assert!(mends, "{name}, {place:?}: {}: nobody says {:?}: {other:?}", mistake.what, mistake.mend);
            }
        }
    }
}

#[test]
fn page_contains_mistakes_table() {
    let mut text = String::from("| what is wrong | where | doctor says |\n|---|---|---|\n");
    for mistake in MISTAKES {
        let headings: Vec<&str> =
            PLACES.iter().filter(|(place, _)| mistake.places.contains(place)).map(|(_, heading)| *heading).collect();
        let places = match headings.len() {
            5 => "everywhere".to_owned(),
            _ => headings.join("; "),
        };
        let says: Vec<String> = mistake.says.iter().map(|(check, state)| format!("`{check}` {state}")).collect();
        text += &format!("| {} | {places} | {} |\n", mistake.what, says.join(", "));
    }
    on_the_page("mistakes", &text);
    let names: BTreeSet<&str> = MISTAKES.iter().map(|mistake| mistake.what).collect();
    assert_eq!(names.len(), MISTAKES.len());
}
