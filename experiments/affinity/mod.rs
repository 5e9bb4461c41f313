//! `ginlab affinity`: which network cards and cores are near which GPU, and how GPUs reach each other.

mod row;

use crate::error::Failure;
use crate::listing::{ListingArgs, recorded, table};
use crate::program::{Program, program};
use ginlab::cuda;
use ginlab::report::{Header, Target, WholeFile};
use ginlab::topology::tree::{Kind, Tree};
use ginlab::topology::{nccl, nvlink};
use ginlab::versions::Versions;
use row::{Asked, Row};
use std::path::{Path, PathBuf};

pub const PROGRAMS: &[Program] =
    &[program!("affinity", "List GPUs with the network cards and cores near them, and what connects them", Args, run)];

const EXAMPLES: &str = "\
Examples:
  ginlab affinity                                GPUs, their NICs and cores, NVLink, memory features
  ginlab affinity --json - | jq '.gpus[] | {gpu, nics}'
  ginlab affinity --from tests/fixtures/p5       a machine of which somebody has saved lspci -tv and the PCI links
  ginlab affinity --from topo.xml                a machine of which NCCL has written NCCL_TOPO_DUMP_FILE=topo.xml
  ginlab affinity --nccl-topo topo.xml           write what NCCL reads by NCCL_TOPO_FILE=topo.xml
  CUDA_VISIBLE_DEVICES=3 ginlab affinity         what a rank sees; the other GPUs have no CUDA number";

/// Options of `ginlab affinity`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Read a recorded tree and not this machine: a folder with a copy of sys/bus/pci/devices, or with lspci.txt
    /// (`lspci -tv`) and ls_sys_bus_pci_devices.txt (`ls -l /sys/bus/pci/devices`); or a topology file of NCCL (XML)
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
    /// Also write GPUs and cards as a topology file that NCCL reads (NCCL_TOPO_FILE)
    #[arg(long, value_name = "FILE")]
    nccl_topo: Option<PathBuf>,
    #[command(flatten)]
    output: ListingArgs,
}

/// Lists.
fn run(args: &Args) -> Result<(), Failure> {
    args.output.check()?;
    let (mut header, tree, asked) = match &args.from {
        Some(folder) => {
            let tree = Tree::recorded(folder).map_err(|error| Failure::Usage(format!("--from {error}")))?;
            (recorded(folder), tree, Asked::default())
        }
        None => {
            let mut header = Versions::header();
            let asked = ask(&mut header)?;
            (header, Tree::here(), asked)
        }
    };
    let rows = Row::all(&tree, &asked);
    if rows.is_empty() {
        header.note("there is no NVIDIA GPU here");
    }
    if tree.of(Kind::Nic).next().is_none() {
        header.note("no network card is in the PCI tree");
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
        return Err(usage("the table goes to stdout; name a file"));
    }
    if tree.of(Kind::Gpu).next().is_none() {
        return Err(usage("there is no NVIDIA GPU in the PCI tree, so there is nothing for NCCL to read"));
    }
    let file = WholeFile::create("the topology", &Target::File(path.to_owned()))?;
    Ok(file.write(nccl::write(tree).as_bytes())?)
}

/// What only the drivers of this machine know.
fn ask(header: &mut Header) -> Result<Asked, Failure> {
    let visible = cuda::visible_gpus()?;
    if let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") {
        header.note(format!("CUDA_VISIBLE_DEVICES={list}: only those have a CUDA number"));
    }
    let links = match nvlink::links() {
        Ok(links) => Some(links),
        Err(_) if visible.is_empty() => None,
        Err(why) => {
            header.note(format!("NVLink is not known: {why}"));
            None
        }
    };
    Ok(Asked { visible, links, gdrcopy: Some(cuda::gdrcopy_version().is_some()) })
}
