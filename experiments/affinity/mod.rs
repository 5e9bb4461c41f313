//! `ginlab affinity`: lists the NICs and cores near each GPU, and the links between GPUs.

mod row;

use crate::error::Failure;
use crate::listing::{ListingArgs, recorded, table};
use crate::program::{CommandSpec, program};
use ginlab::cuda;
use ginlab::report::{Header, OutputTarget, WholeFile};
use ginlab::topology::tree::{PciKind, Tree};
use ginlab::topology::{nccl, nvlink};
use ginlab::versions::Versions;
use row::{AffinityRow, DriverAnswers};
use std::path::{Path, PathBuf};

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "affinity",
    "List GPUs with the NICs and cores near them, and the links between GPUs",
    AffinityArgs,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab affinity                                list GPUs with their NICs, cores, NVLink and memory features
  ginlab affinity --json - | jq '.gpus[] | {gpu, nics}'   select fields of the JSON document
  ginlab affinity --from tests/fixtures/p5       read saved lspci -tv and PCI links of another machine
  ginlab affinity --from topo.xml                read a file that NCCL wrote with NCCL_TOPO_DUMP_FILE=topo.xml
  ginlab affinity --nccl-topo topo.xml           write a file that NCCL reads with NCCL_TOPO_FILE=topo.xml
  CUDA_VISIBLE_DEVICES=3 ginlab affinity         list what a rank sees; the other GPUs have no CUDA number";

/// Options of `ginlab affinity`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AffinityArgs {
    /// Read a recorded tree instead of this machine: a directory with a copy of sys/bus/pci/devices, or with lspci.txt
    /// (`lspci -tv`) and ls_sys_bus_pci_devices.txt (`ls -l /sys/bus/pci/devices`), or an NCCL topology file (XML)
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Write GPUs and NICs to this topology file for NCCL (NCCL_TOPO_FILE)
    #[arg(long, value_name = "FILE")]
    nccl_topo: Option<PathBuf>,
    #[command(flatten)]
    output: ListingArgs,
}

fn run(args: &AffinityArgs) -> Result<(), Failure> {
    args.output.check()?;
    let (mut header, tree, asked) = match &args.from {
        Some(folder) => {
            let tree = Tree::recorded(folder).map_err(|error| Failure::Usage(format!("--from {error}")))?;
            (recorded(folder), tree, DriverAnswers::default())
        }
        None => {
            let mut header = Versions::header();
            let asked = ask(&mut header)?;
            // Without the PCI bus, GPUs that the driver reports still have rows.
            (header, Tree::here().unwrap_or_else(Tree::unseen), asked)
        }
    };
    let rows = AffinityRow::all(&tree, &asked);
    header.notes(&tree.lacks);
    if rows.is_empty() && tree.lacks.is_empty() {
        header.note("this machine has no NVIDIA GPU");
    }
    if tree.of(PciKind::Nic).next().is_none() && tree.lacks.is_empty() {
        header.note("the PCI tree has no NIC");
    }
    if let Some(path) = &args.nccl_topo {
        write_for_nccl(path, &tree)?;
    }
    let text = format!("{}{}", table(&row::TABLE, &rows), row::matrix(&rows));
    let document = row::document(&header, &tree, &rows);
    args.output.write(&header, &row::FIELDS.map(|(key, _)| key), &document.gpus, &document, &text)
}

fn write_for_nccl(path: &Path, tree: &Tree) -> Result<(), Failure> {
    let usage = |why: &str| Failure::Usage(format!("--nccl-topo {}: {why}", path.display()));
    if path == Path::new("-") {
        return Err(usage("stdout is used by the table; specify a file"));
    }
    if let (None, Some(lack)) = (tree.of(PciKind::Gpu).next(), tree.lacks.first()) {
        return Err(usage(&format!("no GPU found: {lack}")));
    }
    if tree.of(PciKind::Gpu).next().is_none() {
        return Err(usage("the PCI tree has no NVIDIA GPU, so that the topology would be empty"));
    }
    let file = WholeFile::create("the topology", &OutputTarget::File(path.to_owned()))?;
    Ok(file.write(nccl::write(tree).as_bytes())?)
}

/// Queries the drivers of this machine.
fn ask(header: &mut Header) -> Result<DriverAnswers, Failure> {
    let visible = cuda::visible_gpus()?;
    if let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") {
        header.note(format!("CUDA_VISIBLE_DEVICES={list}: only these GPUs have a CUDA number"));
    }
    let links = match nvlink::links() {
        Ok(links) => Some(links),
        Err(_) if visible.is_empty() => None,
        Err(why) => {
            header.note(format!("cannot query NVLink: {why}"));
            None
        }
    };
    Ok(DriverAnswers { visible, links, gdrcopy: Some(cuda::gdrcopy_version().is_some()) })
}
