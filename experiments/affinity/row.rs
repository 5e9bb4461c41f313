//! Row of a GPU.

use crate::listing::{Field, JsonObject, ListingColumn, entries, yes};
use ginlab::cuda::VisibleGpu;
use ginlab::pci::PciAddress;
use ginlab::report::Header;
use ginlab::topology::nvlink::{Links, between};
use ginlab::topology::tree::{PciFunction, PciKind, Tree};
use ginlab::topology::{Near, PciPath, near, way};
use serde::Serialize;

/// Version of the columns.
const SCHEMA: u32 = 1;

/// Results of queries to this machine's drivers. Empty for a recorded tree.
#[derive(Default)]
pub struct DriverAnswers {
    /// GPUs that CUDA shows.
    pub visible: Vec<VisibleGpu>,
    /// NVLink connections, if the driver reports them.
    pub links: Option<Vec<Links>>,
    /// Whether libgdrapi is installed.
    pub gdrcopy: Option<bool>,
}

/// One GPU.
pub struct AffinityRow {
    address: Option<PciAddress>,
    /// Position in the PCI tree, if known.
    gpu: Option<PciFunction>,
    /// Properties that CUDA reports, if the GPU is visible to CUDA.
    visible: Option<VisibleGpu>,
    /// Nearest NICs. `nics_by` is the link that they share with the GPU.
    nics: Vec<PciFunction>,
    nics_by: Option<PciPath>,
    links: Option<Links>,
    /// Path to each GPU in the order of the rows: `NV18`, or over PCI `switch`, `root`, `host`, `nodes`; `-` for
    /// itself.
    ways: Vec<String>,
    /// Whether libgdrapi is installed.
    gdrcopy: Option<bool>,
}

/// Columns of the CSV, which are also the keys of a GPU in the JSON document.
pub const FIELDS: [Field<AffinityRow>; 17] = [
    ("schema", |_| SCHEMA.into()),
    ("gpu", |row| row.gpu().into()),
    // CUDA ordinal under CUDA_VISIBLE_DEVICES.
    ("ordinal", |row| row.ordinal().into()),
    ("name", |row| row.name().into()),
    ("numa_node", |row| row.numa_node().into()),
    ("cores", |row| row.cores().into()),
    ("nics", |row| row.nics.iter().map(|nic| nic.address.to_string()).collect()),
    // Names of `nics` in the operating system, in the same order.
    ("nic_names", |row| row.nics.iter().map(|nic| nic.name.clone()).collect()),
    ("pcie", |row| row.pcie().into()),
    ("nvlinks", |row| row.nvlinks().into()),
    ("nvlink_gbytes_s", |row| row.nvlink_gbytes_s().into()),
    ("ways", |row| row.ways.clone().into()),
    ("dma_buf", |row| row.visible(|gpu| gpu.dma_buf).into()),
    ("gpu_direct_rdma", |row| row.visible(|gpu| gpu.gpu_direct_rdma).into()),
    ("gdrcopy", |row| row.gdrcopy.into()),
    ("concurrent_managed", |row| row.visible(|gpu| gpu.concurrent_managed).into()),
    // Nearest common ancestor of the GPU and `nics`: a `switch`, a `root` bus, or a NUMA node (`host`).
    ("nics_by", |row| row.nics_by.map(PciPath::name).into()),
];

/// Columns of the table. The paths are in a separate table.
pub const TABLE: [ListingColumn<AffinityRow>; 14] = [
    ("CUDA", "", |row| row.ordinal().map(|ordinal| ordinal.to_string()).unwrap_or_default()),
    ("GPU", "PCI address", |row| row.gpu()),
    ("name", "", |row| row.name().unwrap_or_default().to_owned()),
    ("NUMA", "node", |row| row.numa_node().map(|node| node.to_string()).unwrap_or_default()),
    ("cores", "", |row| row.cores().unwrap_or_default().to_owned()),
    ("nearest NICs", "", |row| row.nics.iter().map(|nic| nic.address.to_string()).collect::<Vec<_>>().join(" ")),
    ("NICs", "by", |row| row.nics_by.map_or("", PciPath::name).to_owned()),
    ("PCIe", "now", |row| row.pcie().unwrap_or_default()),
    ("NVLinks", "", |row| row.nvlinks().map(|links| links.to_string()).unwrap_or_default()),
    ("NVLink", "GB/s", |row| row.nvlink_gbytes_s().map(|rate| format!("{rate:.1}")).unwrap_or_default()),
    ("dma-buf", "", |row| yes(row.visible(|gpu| gpu.dma_buf))),
    ("GPUDirect", "RDMA", |row| yes(row.visible(|gpu| gpu.gpu_direct_rdma))),
    ("GDRCopy", "", |row| yes(row.gdrcopy)),
    ("managed", "at once", |row| yes(row.visible(|gpu| gpu.concurrent_managed))),
];

/// Keys of a NIC in the JSON document.
const NICS: [Field<PciFunction>; 6] = [
    ("nic", |nic| nic.address.to_string().into()),
    ("name", |nic| nic.name.clone().into()),
    ("driver", |nic| nic.driver.clone().into()),
    ("rma", |nic| nic.rma.into()),
    ("numa_node", |nic| nic.numa_node.into()),
    ("cores", |nic| nic.cores.clone().into()),
];

/// The JSON document.
#[derive(Serialize)]
pub struct AffinityDocument<'a> {
    schema: u32,
    header: &'a Header,
    pub gpus: Vec<JsonObject>,
    nics: Vec<JsonObject>,
}

/// Returns the JSON document of these rows.
pub fn document<'a>(header: &'a Header, tree: &Tree, gpus: &[AffinityRow]) -> AffinityDocument<'a> {
    AffinityDocument {
        schema: SCHEMA,
        header,
        gpus: entries(&FIELDS, gpus),
        nics: entries(&NICS, tree.of(PciKind::Nic)),
    }
}

impl AffinityRow {
    /// Returns a row for each GPU: first the GPUs of the tree, then those that are visible to CUDA but not part of the
    /// tree.
    pub fn all(tree: &Tree, asked: &DriverAnswers) -> Vec<AffinityRow> {
        let near = near(tree);
        let known = |gpu: &PciAddress| near.iter().any(|near| near.gpu.address == *gpu);
        let rest = asked.visible.iter().filter(|gpu| gpu.address.is_none_or(|address| !known(&address)));
        let placed = near.iter().map(|one| {
            let visible = asked.visible.iter().find(|gpu| gpu.address == Some(one.gpu.address));
            AffinityRow::of(Some((one, near.as_slice())), visible, asked)
        });
        placed.chain(rest.map(|visible| AffinityRow::of(None, Some(visible), asked))).collect()
    }

    fn of(place: Option<(&Near<'_>, &[Near<'_>])>, visible: Option<&VisibleGpu>, asked: &DriverAnswers) -> AffinityRow {
        let address = place.map(|(near, _)| near.gpu.address).or(visible.and_then(|gpu| gpu.address));
        let to = |other: &PciFunction, gpu: &PciFunction| {
            if other.address == gpu.address {
                return "-".to_owned();
            }
            let nvlinks = asked.links.as_ref().map_or(0, |links| between(links, gpu.address, other.address));
            if nvlinks > 0 { format!("NV{nvlinks}") } else { way(gpu, other).name().to_owned() }
        };
        let links = asked.links.as_ref().and_then(|all| all.iter().find(|links| Some(links.gpu) == address));
        AffinityRow {
            address,
            gpu: place.map(|(near, _)| near.gpu.clone()),
            visible: visible.cloned(),
            nics: place.map_or(Vec::new(), |(near, _)| near.nics.iter().copied().cloned().collect()),
            nics_by: place.and_then(|(near, _)| near.way),
            links: links.cloned(),
            ways: place.map_or(Vec::new(), |(near, all)| all.iter().map(|other| to(other.gpu, near.gpu)).collect()),
            gdrcopy: visible.and(asked.gdrcopy),
        }
    }

    fn visible<T>(&self, of: impl Fn(&VisibleGpu) -> T) -> Option<T> {
        self.visible.as_ref().map(of)
    }

    /// Returns the PCI address.
    fn gpu(&self) -> String {
        self.address.map(|address| address.to_string()).unwrap_or_default()
    }

    fn ordinal(&self) -> Option<i32> {
        self.visible(|gpu| gpu.ordinal)
    }

    fn name(&self) -> Option<&str> {
        let visible = self.visible.as_ref().map(|gpu| gpu.name.as_str());
        visible.or(self.gpu.as_ref().map(|gpu| gpu.name.as_str()))
    }

    fn numa_node(&self) -> Option<u32> {
        self.gpu.as_ref()?.numa_node
    }

    /// Returns the cores near the GPU.
    fn cores(&self) -> Option<&str> {
        self.gpu.as_ref()?.cores.as_deref()
    }

    /// Returns the current speed and width of the PCIe link.
    fn pcie(&self) -> Option<String> {
        let (speed, lanes) = self.gpu.as_ref()?.link.as_ref()?;
        Some(format!("{} x{lanes}", speed.trim_end_matches(" PCIe")))
    }

    /// Returns the number of active NVLinks.
    fn nvlinks(&self) -> Option<u32> {
        self.links.as_ref().map(|links| links.active)
    }

    /// Returns the total NVLink rate in one direction.
    fn nvlink_gbytes_s(&self) -> Option<f64> {
        Some(self.links.as_ref()?.bytes_per_second? / 1e9)
    }
}

/// Formats the paths between GPUs, one row and one column each. Returns an empty string for fewer than two GPUs.
pub fn matrix(rows: &[AffinityRow]) -> String {
    let placed: Vec<&AffinityRow> = rows.iter().filter(|row| !row.ways.is_empty()).collect();
    if placed.len() < 2 {
        return String::new();
    }
    let mut columns = vec![("way between".to_owned(), String::new(), placed.iter().map(|row| row.gpu()).collect())];
    // Headings omit the PCI domain if it is 0 for all GPUs.
    let several = placed.iter().filter_map(|row| row.address).any(|gpu| gpu.domain != 0);
    for (index, row) in placed.iter().enumerate() {
        let gpu = row.gpu();
        let bus = gpu.split_once(':').map_or(gpu.as_str(), |(_, bus)| if several { gpu.as_str() } else { bus });
        columns.push((bus.to_owned(), String::new(), placed.iter().map(|row| row.ways[index].clone()).collect()));
    }
    format!("\n{}", crate::listing::table_of(columns))
}
