//! Table of all parsers of external input. A new parser needs an entry here.

use std::path::Path;

use ginlab::fabric::Fabric;
use ginlab::fabric::model::Profile;
use ginlab::flow::Offer;
use ginlab::measure::size;
use ginlab::pci::PciAddress;
use ginlab::report::Catalog;
use ginlab::report::chart::{Filter, Palette, Query};
use ginlab::report::compare::Comparison;
use ginlab::report::run::Run;
use ginlab::topology;
use ginlab::topology::tree::Tree;
use ginlab::untrusted;

/// A parser and the source of its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Parser {
    /// Name of the input format.
    pub name: &'static str,
    /// Well-formed inputs; whole files are given by their paths in the repository.
    pub samples: Samples,
    /// Words that mutations insert: those with a meaning for the parser.
    pub words: &'static [&'static str],
    /// Runs the parser. Returns whether it accepted the input.
    pub parse: fn(&[u8]) -> bool,
    /// Divisor of the number of inputs, because each takes longer by this factor.
    pub slowness: u64,
}

/// Source of well-formed inputs of a [`Parser`].
#[derive(Clone, Copy, Debug)]
pub enum Samples {
    /// These texts.
    Texts(&'static [&'static str]),
    /// These files.
    Files(&'static [&'static str]),
    /// These files and these texts.
    Both(&'static [&'static str], &'static [&'static str]),
    /// The results of this function.
    Made(fn() -> Vec<Vec<u8>>),
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Topology of a machine in which one GPU and one NIC are below the same bridge.
const NCCL: &str = r#"<system version="1"><cpu numaid="0" affinity="0000ffff" arch="x86_64">
<pci busid="0000:45:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
<pci busid="0000:53:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
<pci busid="0000:4f:00.0" class="0x020000"><nic><net name="rdmap79s0" gdr="1"/></nic></pci>
</pci></cpu></system>"#;

/// All parsers.
pub const PARSERS: &[Parser] = &[
    Parser {
        name: "connector's handshake",
        samples: Samples::Made(untrusted::connectors),
        words: &["ginlab\r\n", "\u{4}\u{0}\u{0}\u{0}", "\u{16}\u{0}", "\u{0}\u{0}\u{0}\u{0}"],
        parse: untrusted::listen,
        slowness: 100,
    },
    Parser {
        name: "listener's handshake",
        samples: Samples::Made(untrusted::listeners),
        words: &["\u{a}", "\u{2}", "\u{3}", "\u{16}\u{0}", "{\"why\":", "}", "\u{0}\u{0}\u{0}\u{0}"],
        parse: untrusted::connect,
        slowness: 100,
    },
    Parser {
        name: "connector's first frame",
        samples: Samples::Made(untrusted::greetings),
        words: &["\u{1}", "\u{8}", "{\"rank\":", "}", "\u{0}\u{0}\u{0}\u{0}"],
        parse: untrusted::greeting,
        slowness: 1,
    },
    Parser {
        name: "listener's first frame",
        samples: Samples::Made(untrusted::answers),
        words: &["\u{2}", "\u{3}", "\u{a}", "{\"why\":", "}", "\u{0}\u{0}\u{0}\u{0}"],
        parse: untrusted::answer,
        slowness: 1,
    },
    Parser {
        name: "sealed frames of a job",
        samples: Samples::Made(untrusted::sealed_steps),
        words: &["\u{2e}\u{0}", "\u{10}\u{0}", "\u{0}\u{0}", "\u{7f}\u{7f}"],
        parse: untrusted::sealed,
        slowness: 4,
    },
    Parser {
        name: "frames of a job",
        samples: Samples::Made(untrusted::steps),
        words: &["\u{4}", "\u{5}", "[", "]", "\u{0}\u{0}\u{0}\u{0}"],
        parse: untrusted::frames,
        slowness: 1,
    },
    Parser {
        name: "addresses and keys of a peer",
        samples: Samples::Texts(&[
            r#"{"rails":["tcp:lo"],"addresses":[[2,0,1,187,127,0,0,1]],"regions":[[{"key":7,"base":0,"bytes":65536}]]}"#,
        ]),
        words: &["[", "]", "{", "}", "\"", "18446744073709551616", "-1", "1e999", "\\ud800", "null"],
        parse: |bytes| serde_json::from_slice::<Offer>(bytes).is_ok(),
        slowness: 1,
    },
    Parser {
        name: "fi_info -v",
        samples: Samples::Both(&["tests/fixtures/p5/fi_info.yaml"], &[ENTRY]),
        words: &["fi_info:\n", "    fi_domain_attr:\n", "        name: x\n", "[", "]", "://", "(null)", "-1", "\n"],
        parse: |bytes| {
            let text = text(bytes);
            untrusted::entries(&text).iter().filter(|entry| entry.listed().is_ok()).count() > 0
        },
        slowness: 4,
    },
    Parser {
        name: "lspci and ls of the PCI devices",
        samples: Samples::Files(&["tests/fixtures/p5/lspci.txt", "tests/fixtures/p5/ls_sys_bus_pci_devices.txt"]),
        words: &[
            "-[0000:cc]-",
            "]----00.0  NVIDIA Corporation X\n",
            "0000:ca:00.0 -> ../../../devices/pci0000:bb/0000:bb:00.0/0000:ca:00.0\n",
            "ca:00.0 3D controller: NVIDIA Corporation GH100\n",
            "é",
        ],
        parse: |bytes| {
            let text = text(bytes);
            // Uses one text for both listings, so that devices and their locations can match.
            let _ = Tree::of_listings(&text, &text).map(|tree| topology::near(&tree).len());
            untrusted::lspci_devices(&text).is_ok() || untrusted::pci_tree(&text).is_ok_and(|tree| !tree.is_empty())
        },
        slowness: 4,
    },
    Parser {
        name: "NCCL's topology file",
        samples: Samples::Texts(&[NCCL]),
        words: &[
            "<cpu numaid=\"0\">",
            "</cpu>",
            "<pci busid=\"ffff:ff:1f.7\" class=\"0x030200\">",
            "</pci>",
            "<nic><net name=\"eth0\"/></nic>",
            "link_width=\"-1\"",
            "&lt;",
            "<!DOCTYPE x [<!ENTITY a \"aa\">]>",
            "&a;",
            "é",
        ],
        parse: |bytes| {
            let tree = topology::nccl::parse(&text(bytes));
            tree.is_ok_and(|tree| {
                let _ = topology::near(&tree);
                true
            })
        },
        slowness: 4,
    },
    Parser {
        name: "PCI address",
        samples: Samples::Texts(&["0000:4f:00.0", "00000000:4F:1f.7", "4f:00.0"]),
        words: &[":", ".", "ffffffff", "+1", "é"],
        parse: |bytes| text(bytes).parse::<PciAddress>().is_ok(),
        slowness: 1,
    },
    Parser {
        name: "sizes, lists of numbers and conditions",
        samples: Samples::Texts(&["4K", "64MiB", "16777215T", "1,8,32,132", "size_bytes=4K,8K"]),
        words: &["KiB", "T", "18446744073709551615", "-", ".", ",", "=", "é", "0x"],
        parse: |bytes| {
            let text = text(bytes);
            let size = size::parse(&text);
            if let Ok(end) = size {
                let _ = size::sweep(1, end, 2);
                let _ = size::human(end);
            }
            let list = size::parse_list(&text).is_ok();
            Filter::parse(&text).is_ok() || list || size.is_ok()
        },
        slowness: 1,
    },
    Parser {
        name: "cards and networks by their names (-p)",
        samples: Samples::Texts(&[
            "worst:seed=7,queue=64",
            "model:p5",
            "p5,cards=32,seed=7,reorder=9,slow=2.5,fail=3/7,lose=9,host=2,no-write",
            "name=fast,cards=1,depth=4096,receives=64,dead=5,full=9,trace",
        ]),
        words: &["worst:", "model:", ",", "=", "/", "seed=", "18446744073709551616", "1e400", "nan", "-1", "é"],
        parse: |bytes| {
            let text = text(bytes);
            let spec = text.split_once(',').is_some_and(|(_, words)| card_model::MachineSpec::parse(words).is_ok());
            !matches!(text.parse::<Fabric>(), Ok(Fabric::Libfabric { .. }) | Err(_)) || spec
        },
        slowness: 100,
    },
    Parser {
        name: "profiles of modelled cards (TOML)",
        samples: Samples::Made(profiles),
        words: &[
            "[p6]\n",
            "value = ",
            "source = \"",
            "\"\"\"",
            "{",
            "}",
            "=",
            "[[",
            "]]",
            "#",
            "1e400",
            "nan",
            "\\u0000",
            "é",
        ],
        parse: |bytes| Profile::read(&text(bytes)).is_ok_and(|profiles| !profiles.is_empty()),
        slowness: 400,
    },
    Parser {
        name: "rows (report, chart, compare)",
        samples: Samples::Texts(&[ROWS, STAGES]),
        words: &[
            "\"",
            ",",
            "\n",
            "1e308",
            "-1e308",
            "nan",
            "inf",
            "0",
            "ok",
            "18446744073709551616",
            "schema",
            "status",
            "stage",
        ],
        parse: rows,
        slowness: 20,
    },
    Parser {
        name: "header of a result",
        samples: Samples::Texts(&[
            r#"{"version":"0.1.0","commit":"abc","rails":["tcp:lo"],"notes":["one","two"],"gpu":null,"threads":4}"#,
        ]),
        words: &["[", "]", "{", "}", "\"notes\":", "1e999", "\\u0000", "\u{1b}"],
        parse: |bytes| {
            let rows = "schema,device,fabric,status\n".as_bytes();
            let run = Run::of_text(rows, serde_json::from_slice(bytes).ok(), Path::new("a.csv"), "a");
            run.is_ok_and(|run| !run.header().is_empty() || !run.notes().is_empty())
        },
        slowness: 4,
    },
];

/// Returns a profile with all its figures, short enough to be mutated as a whole.
fn profiles() -> Vec<Vec<u8>> {
    let known = Profile::named("p5").unwrap();
    let figures =
        known.figures().map(|(name, figure)| format!("{name} = {{ value = {:?}, source = \"s\" }}\n", figure.value));
    vec![format!("[p5]\n{}", figures.concat()).into_bytes()]
}

/// The mandatory part of a domain, and its location.
const ENTRY: &str = "\
fi_info:
    caps: [ FI_MSG, FI_RMA, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE ]
    addr_format: FI_SOCKADDR_IN6
    src_addr: fi_sockaddr_in6://[fe80::8e7:efff:feee:e81d]:0
    fi_ep_attr:
        type: FI_EP_RDM
        max_msg_size: 18446744073709551615
    fi_domain_attr:
        name: rdmap79s0-rdm
        mr_mode: [ FI_MR_VIRT_ADDR, FI_MR_ALLOCATED ]
        cq_data_size: 4
    fi_fabric_attr:
        name: efa
        prov_name: efa
    nic:
        fi_bus_attr:
            fi_pci_attr:
                domain_id: 0
                bus_id: 79
                device_id: 0
                function_id: 0
        fi_link_attr:
            mtu: 8928
            speed: 100000000000
";

const ROWS: &str = "\
schema,experiment,case,device,fabric,ranks,size_bytes,time_us_min,time_us_p50,time_us_p99,bandwidth_gbytes_s,wrong,status
1,proxy,put,emulated,tcp,2,64,1.5,2.0,9.0,0.03,0,ok
1,proxy,put,emulated,tcp,2,4096,2.5,3.0,,1.36,0,ok
1,proxy,\"put, quoted\",emulated,model:p5,2,4096,,,,,,\"failed: \"\"x\"\"\"
";

const STAGES: &str = "\
case,size_bytes,rails,mode,fabric,stage,p50_us,p99_us,share_pct
put,64,4,quiet,model:p5,push,0.4,0.6,4
put,64,4,quiet,model:p5,total,10.0,14.1,100
";

/// Reads rows as `report` does, draws them as `chart` does, and compares them with themselves and with the sample.
fn rows(bytes: &[u8]) -> bool {
    let Ok(run) = Run::of_text(bytes, None, Path::new("a.csv"), "a") else { return false };
    let (_, _, _) = (run.experiment(), run.unreal(), run.values("size_bytes").len());
    let query = |x: &str, y: &str, stacked| Query {
        x: vec![x.into()],
        y: y.into(),
        bars: stacked,
        stacked,
        width: 640,
        height: 400,
        ..Query::default()
    };
    // Only every eighth input is drawn, because drawing takes longest and its input has been parsed already.
    let drawn = if bytes.len().is_multiple_of(8) { 2 } else { 0 };
    for query in [query("size_bytes", "time_us_p50", false), query("case", "p50_us", true)].into_iter().take(drawn) {
        if let Ok(picture) = query.chart(&run.records) {
            let _ = picture.chart.svg(&Palette::of([&picture.chart]));
        }
    }
    let runs = [run];
    let _ = Comparison::of(&runs, &runs, Catalog::default(), &[]);
    if let Ok(sample) = Run::of_text(ROWS.as_bytes(), None, Path::new("a.csv"), "b") {
        let _ = Comparison::of(&[sample], &runs, Catalog::default(), &[]);
    }
    true
}
