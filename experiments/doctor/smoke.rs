//! Trials on this machine: a write to itself on each rail, also from GPU memory if rails support it, and puts through
//! the proxy between two ranks in child processes.

use super::{DoctorArgs, wants};
use ginlab::cuda::{self, Device, DeviceChoice};
use ginlab::doctor::Machine;
use ginlab::doctor::near::share_out;
use ginlab::doctor::trial::{self, Trial};
use ginlab::fabric::discover::{self, Domain, Reach};
use ginlab::{scratch, signals};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Upper bound on the number of rails of any machine.
const MOST_RAILS: usize = 64;

/// Runs the trials and stores their results in `machine`.
pub fn try_out(args: &DoctorArgs, machine: &mut Machine) {
    let timeout = args.job.meet.timeout.min(Duration::from_secs(10));
    let mut trials = Vec::new();
    let gpus = machine.took.of("contexts of the GPUs", || open_gpus(args, &mut trials));
    if let Some(gpu) = gpus.first().filter(|_| wants(args, "gdrcopy")) {
        machine.asked.gdrcopy = Some(machine.took.of("GDRCopy", || trial::gdrcopy(gpu)));
    }
    match domains(args, machine) {
        Ok((provider, domains)) => {
            let tries_gpu = ["gpu-register", "rma"].iter().any(|check| wants(args, check));
            let pairs = pairs(machine, &gpus, &domains);
            let of_efa = || pairs.iter().copied().filter(|(domain, _)| domain.provider.starts_with("efa"));
            if tries_gpu && of_efa().next().is_some() {
                let register = || trial::register_with_cards(of_efa());
                machine.asked.registered = Some(machine.took.of("GPU memory by the cards", register));
            }
            for domain in domains.iter().filter(|_| wants(args, "smoke")).take_while(|_| !signals::interrupted()) {
                let device = gpus.first().unwrap_or(&Device::Emulated);
                trials.push(machine.took.of(&domain.name, || trial::loop_back(domain, device, false, timeout)));
            }
            for (domain, gpu) in pairs.into_iter().filter(|_| tries_gpu).take_while(|_| !signals::interrupted()) {
                if machine.takes_gpu_memory(domain) {
                    let what = format!("{} from {}", domain.name, gpu.pci_address().unwrap_or_default());
                    trials.push(machine.took.of(&what, || trial::loop_back(domain, gpu, true, timeout)));
                }
            }
            if wants(args, "smoke") {
                let provider = args.job.provider.as_deref().unwrap_or(&provider);
                match std::env::current_exe() {
                    Ok(program) => {
                        let run = || puts(args, &program, provider, domains.len().min(4));
                        let outcome = machine.took.of("two ranks with a proxy", run);
                        trials.push(Trial::named("proxy", outcome));
                    }
                    Err(why) => {
                        machine.asked.untried = Some(format!(
                            "two ranks with a proxy: cannot determine the path of this executable: {why}"
                        ));
                    }
                }
            }
        }
        Err(why) => {
            trials.push(Trial::named("rails", Err(why)));
        }
    }
    machine.asked.trials = Some(trials);
}

/// Opens every GPU that is visible to CUDA. A GPU that cannot be opened is a failed trial.
fn open_gpus(args: &DoctorArgs, trials: &mut Vec<Trial>) -> Vec<Device> {
    if args.job.device == DeviceChoice::Emulated {
        return Vec::new();
    }
    let visible = cuda::visible_gpus().unwrap_or_default();
    // If no GPU is visible, the first one is opened only to determine why -d gpu fails.
    let count = if args.job.device == DeviceChoice::Gpu { visible.len().max(1) } else { visible.len() };
    let mut open = Vec::new();
    for ordinal in 0..count {
        match Device::open(args.job.device, ordinal) {
            Ok((device @ Device::Gpu(_), _)) => open.push(device),
            Ok(_) => {}
            Err(why) => {
                let address = visible.get(ordinal).and_then(|gpu| gpu.address);
                let name = address.map_or_else(|| format!("GPU {ordinal}"), |address| format!("GPU {address}"));
                trials.push(Trial::named(name, Err(why.to_string())));
            }
        }
    }
    open
}

/// Returns each GPU with the domains of the NICs that its rank would use.
fn pairs<'a>(machine: &Machine, gpus: &'a [Device], domains: &'a [Domain]) -> Vec<(&'a Domain, &'a Device)> {
    let addresses: Vec<_> = gpus.iter().map(|gpu| gpu.pci_address().and_then(|text| text.parse().ok())).collect();
    let nics: Vec<_> = domains.iter().map(|domain| domain.pci).collect();
    let shares = share_out(machine.tree(), &addresses, &nics);
    shares.iter().zip(gpus).flat_map(|(share, gpu)| share.iter().map(move |nic| (&domains[*nic], gpu))).collect()
}

/// Returns the domains that this machine's ranks would open: each EFA device once, otherwise the loopback.
fn domains(args: &DoctorArgs, machine: &Machine) -> Result<(String, Vec<Domain>), String> {
    let choice = discover::choose_provider(args.job.provider.as_deref()).map_err(|error| error.to_string())?;
    let cards = if choice.provider.starts_with("efa") {
        machine.usable_cards().max(machine.efa_domains()).clamp(1, MOST_RAILS)
    } else {
        1
    };
    let count = args.job.domain.len().max(cards);
    let plan = discover::select_domains(&choice.provider, count, Reach::SameHost, &args.job.domain, None, 0, 1)
        .map_err(|error| error.to_string())?;
    let mut domains = plan.domains;
    domains.truncate(plan.distinct);
    Ok((choice.provider, domains))
}

/// Runs two ranks with a proxy, as a user would.
fn puts(args: &DoctorArgs, program: &Path, provider: &str, rails: usize) -> Result<(), String> {
    const SECONDS: u64 = 60;
    let mut command = Command::new(program);
    command.args(["proxy", "--np", "2", "--bootstrap", "local", "-p", provider, "-b", "64K", "-e", "64K"]);
    command.args(["-n", "4", "-w", "1", "-r", "1", "--mode", "nbi", "--no-header", "--csv", "-", "-t", "20"]);
    command.args(["--rails", &rails.max(1).to_string()]);
    match args.job.device {
        DeviceChoice::Emulated => _ = command.args(["-d", "emulated"]),
        DeviceChoice::Gpu => _ = command.args(["-d", "gpu"]),
        DeviceChoice::Auto => {}
    }
    // The child must not use the environment of the launcher that started this process.
    let launchers = ["OMPI_", "PMIX_", "PMI_", "SLURM_", "SKYPILOT_", "TORCHELASTIC_", "GINLAB_RANK"];
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if launchers.iter().any(|prefix| text.starts_with(prefix))
            || ["RANK", "WORLD_SIZE", "LOCAL_RANK"].contains(&&*text)
        {
            command.env_remove(&name);
        }
    }
    // Uses a memory file, because an unread pipe could block the child, and there may be no writable directory.
    let said = scratch::file().and_then(|file| Ok((file.try_clone()?, file)));
    let (stderr, mut said) = match said {
        Ok((stderr, said)) => (Stdio::from(stderr), Some(said)),
        Err(_) => (Stdio::null(), None),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let deadline = Instant::now() + Duration::from_secs(SECONDS);
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() < deadline && !signals::interrupted() => {
                std::thread::sleep(Duration::from_millis(10))
            }
            None => {
                // The child's ranks exit with it.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("puts of two ranks over {provider} have not completed within {SECONDS} s"));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    if let Some(said) = &mut said {
        let _ = said.seek(SeekFrom::Start(0)).and_then(|_| said.read_to_end(&mut text));
    }
    Err(format!("two ranks over {provider}: {}", first_cause(&String::from_utf8_lossy(&text))))
}

/// Returns the first failure that ranks have printed. A rank that crashes prints its reason before the others report
/// that they have lost it.
fn first_cause(text: &str) -> &str {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("ginlab: "));
    lines.find(|line| !line.starts_with("note: ")).unwrap_or("no reason was given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_the_cause() {
        let text = "# note: ranks share cores\nginlab: note: ulimit\nginlab: rank 1, process 7: process_vm_writev: denied\n\
                    ginlab: lost connection to rank 1: exit status: 1\n";
        assert_eq!(first_cause(text), "rank 1, process 7: process_vm_writev: denied");
        assert_eq!(first_cause("Your application will now abort().\n"), "no reason was given");
    }
}
