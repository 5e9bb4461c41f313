//! A GPU as a row.

use crate::listing::Column;
use ginlab::cuda::VisibleGpu;
use ginlab::pci::PciAddress;
use ginlab::report::Header;
use ginlab::topology::nvlink::{Links, between};
use ginlab::topology::tree::{Function, Kind, Tree};
use ginlab::topology::{Near, Way, near, way};
use serde::Serialize;

/// Version of the columns.
const SCHEMA: u32 = 1;

/// What was asked of this machine; nothing of it for a recorded tree.
#[derive(Default)]
pub struct Asked {
    /// The GPUs that CUDA shows.
    pub visible: Vec<VisibleGpu>,
    /// NVLink, where the driver says it.
    pub links: Option<Vec<Links>>,
    /// Whether libgdrapi is here.
    pub gdrcopy: Option<bool>,
}

/// One GPU. What is not known is null in JSON and empty in CSV.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub schema: u32,
    /// PCI address.
    pub gpu: String,
    /// CUDA's number for it under CUDA_VISIBLE_DEVICES; null where CUDA does not show it.
    pub ordinal: Option<i32>,
    pub name: Option<String>,
    pub numa_node: Option<u32>,
    /// Cores near it.
    pub cores: Option<String>,
    /// PCI addresses of the network cards that are nearest.
    pub nics: Vec<String>,
    /// What the system calls them, in the same order.
    pub nic_names: Vec<String>,
    /// The PCIe link as it runs now.
    pub pcie: Option<String>,
    /// NVLinks that are up, and the rate of all of them in one direction.
    pub nvlinks: Option<u32>,
    pub nvlink_gbytes_s: Option<f64>,
    /// The way to each GPU, in the order of the rows: `NV18`, or over PCI `switch`, `root`, `host`, `nodes`; `-` for itself.
    pub ways: Vec<String>,
    /// Its memory can be given to a NIC's driver as a dma-buf.
    pub dma_buf: Option<bool>,
    /// NICs may reach its memory.
    pub gpu_direct_rdma: Option<bool>,
    /// libgdrapi is installed.
    pub gdrcopy: Option<bool>,
    /// CPU and GPU may use managed memory at the same time.
    pub concurrent_managed: Option<bool>,
    /// By what these cards are nearest: below one `switch`, on one `root` bus, or in one NUMA node (`host`).
    pub nics_by: Option<&'static str>,
}

/// The columns of the CSV, which are the keys of a GPU in the JSON document.
pub const COLUMNS: [&str; 17] = [
    "schema",
    "gpu",
    "ordinal",
    "name",
    "numa_node",
    "cores",
    "nics",
    "nic_names",
    "pcie",
    "nvlinks",
    "nvlink_gbytes_s",
    "ways",
    "dma_buf",
    "gpu_direct_rdma",
    "gdrcopy",
    "concurrent_managed",
    "nics_by",
];

/// The columns of the table; the ways stand in a table of their own.
pub const TABLE: [Column<Row>; 14] = [
    ("CUDA", "", |row| row.ordinal.map(|ordinal| ordinal.to_string()).unwrap_or_default()),
    ("GPU", "PCI address", |row| row.gpu.clone()),
    ("name", "", |row| row.name.clone().unwrap_or_default()),
    ("NUMA", "node", |row| row.numa_node.map(|node| node.to_string()).unwrap_or_default()),
    ("cores", "", |row| row.cores.clone().unwrap_or_default()),
    ("nearest NICs", "", |row| row.nics.join(" ")),
    ("NICs", "by", |row| row.nics_by.unwrap_or_default().to_owned()),
    ("PCIe", "now", |row| row.pcie.clone().unwrap_or_default()),
    ("NVLinks", "", |row| row.nvlinks.map(|links| links.to_string()).unwrap_or_default()),
    ("NVLink", "GB/s", |row| row.nvlink_gbytes_s.map(|rate| format!("{rate:.1}")).unwrap_or_default()),
    ("dma-buf", "", |row| yes(row.dma_buf)),
    ("GPUDirect", "RDMA", |row| yes(row.gpu_direct_rdma)),
    ("GDRCopy", "", |row| yes(row.gdrcopy)),
    ("managed", "at once", |row| yes(row.concurrent_managed)),
];

fn yes(value: Option<bool>) -> String {
    value.map_or("", |value| if value { "yes" } else { "no" }).to_owned()
}

/// A card, for the JSON document.
#[derive(Serialize)]
struct Nic<'a> {
    nic: String,
    name: &'a str,
    driver: Option<&'a str>,
    rma: bool,
    numa_node: Option<u32>,
    cores: Option<&'a str>,
}

/// The JSON document.
#[derive(Serialize)]
pub struct Document<'a> {
    schema: u32,
    header: &'a Header,
    gpus: &'a [Row],
    nics: Vec<Nic<'a>>,
}

/// The document of these rows.
pub fn document<'a>(header: &'a Header, tree: &'a Tree, gpus: &'a [Row]) -> Document<'a> {
    let nic = |nic: &'a Function| Nic {
        nic: nic.address.to_string(),
        name: &nic.name,
        driver: nic.driver.as_deref(),
        rma: nic.rma,
        numa_node: nic.numa_node,
        cores: nic.cores.as_deref(),
    };
    Document { schema: SCHEMA, header, gpus, nics: tree.of(Kind::Nic).map(nic).collect() }
}

impl Row {
    /// A row for each GPU: of the tree, and behind them those that CUDA shows without a place in it.
    pub fn all(tree: &Tree, asked: &Asked) -> Vec<Row> {
        let near = near(tree);
        let known = |gpu: &PciAddress| near.iter().any(|near| near.gpu.address == *gpu);
        let rest = asked.visible.iter().filter(|gpu| gpu.address.is_none_or(|address| !known(&address)));
        let placed = near.iter().map(|one| {
            let visible = asked.visible.iter().find(|gpu| gpu.address == Some(one.gpu.address));
            Row::of(Some((one, near.as_slice())), visible, asked)
        });
        placed.chain(rest.map(|visible| Row::of(None, Some(visible), asked))).collect()
    }

    fn of(place: Option<(&Near<'_>, &[Near<'_>])>, visible: Option<&VisibleGpu>, asked: &Asked) -> Row {
        let address = place.map(|(near, _)| near.gpu.address).or(visible.and_then(|gpu| gpu.address));
        let gpu = place.map(|(near, _)| near.gpu);
        let nics = place.map_or(&[][..], |(near, _)| &near.nics);
        let links = asked.links.as_ref().and_then(|all| all.iter().find(|links| Some(links.gpu) == address));
        let to = |other: &Function, gpu: &Function| {
            if other.address == gpu.address {
                return "-".to_owned();
            }
            let nvlinks = asked.links.as_ref().map_or(0, |links| between(links, gpu.address, other.address));
            if nvlinks > 0 { format!("NV{nvlinks}") } else { way(gpu, other).name().to_owned() }
        };
        Row {
            schema: SCHEMA,
            gpu: address.map(|address| address.to_string()).unwrap_or_default(),
            ordinal: visible.map(|gpu| gpu.ordinal),
            name: visible.map(|gpu| gpu.name.clone()).or_else(|| gpu.map(|gpu| gpu.name.clone())),
            numa_node: gpu.and_then(|gpu| gpu.numa_node),
            cores: gpu.and_then(|gpu| gpu.cores.clone()),
            nics: nics.iter().map(|nic| nic.address.to_string()).collect(),
            nic_names: nics.iter().map(|nic| nic.name.clone()).collect(),
            pcie: gpu
                .and_then(|gpu| gpu.link.as_ref())
                .map(|(speed, lanes)| format!("{} x{lanes}", speed.trim_end_matches(" PCIe"))),
            nvlinks: links.map(|links| links.active),
            nvlink_gbytes_s: links.and_then(|links| links.bytes_per_second).map(|rate| rate / 1e9),
            ways: place.map_or(Vec::new(), |(near, all)| all.iter().map(|other| to(other.gpu, near.gpu)).collect()),
            dma_buf: visible.map(|gpu| gpu.dma_buf),
            gpu_direct_rdma: visible.map(|gpu| gpu.gpu_direct_rdma),
            gdrcopy: visible.and(asked.gdrcopy),
            concurrent_managed: visible.map(|gpu| gpu.concurrent_managed),
            nics_by: place.and_then(|(near, _)| near.way).map(Way::name),
        }
    }
}

/// The ways between GPUs, one row and one column for each; nothing where there is one GPU or none.
pub fn matrix(rows: &[Row]) -> String {
    let placed: Vec<&Row> = rows.iter().filter(|row| !row.ways.is_empty()).collect();
    if placed.len() < 2 {
        return String::new();
    }
    let mut columns =
        vec![("way between".to_owned(), String::new(), placed.iter().map(|row| row.gpu.clone()).collect())];
    for (index, row) in placed.iter().enumerate() {
        let (_, bus) = row.gpu.split_once(':').unwrap_or_default();
        columns.push((bus.to_owned(), String::new(), placed.iter().map(|row| row.ways[index].clone()).collect()));
    }
    format!("\n{}", crate::listing::table_of(columns))
}
