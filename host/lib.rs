//! ginlab: a laboratory for GPU-initiated networking.
//!
//! The library contains the mechanisms. The experiments combine them and add the command line. The documented items are
//! for applications, such as those in `examples/`. The modules also contain undocumented items for ginlab's own
//! experiments and tests, which may change with every version.
//!
//! - Ranks: rendezvous and exchange ([`bootstrap`]).
//! - Devices and transports: the CUDA device and its emulation ([`cuda`]), the fabrics ([`fabric`]), striping over
//!   several rails ([`rails`]), the command ring ([`ring`]) and the proxy that drains it ([`proxy`]).
//! - GPU-initiated networking: symmetric memory for communicating kernels ([`gin`]), and fabric operations as futures
//!   ([`flow`]).
//! - Results: rows and their files ([`report`]), software and machine ([`versions`]).
//! - Process: cores ([`cores`]), interruption ([`signals`]).

pub mod versions;

/// Connections among the ranks of a job.
pub mod bootstrap {
    pub use ginlab_bootstrap::{Bootstrap, BootstrapError, BootstrapKind, BootstrapOptions, FailureKind};
    #[doc(hidden)]
    pub use ginlab_bootstrap::{Member, is_spawned_child, process_env, random_token, session, token_for};
}

/// Cores of threads.
pub mod cores {
    pub use ginlab_topology::cores::Pin;
    #[doc(hidden)]
    pub use ginlab_topology::cores::{allowed, near, physical, pin, share, usable};
}

/// Devices: GPUs, and their emulation on the CPU.
pub mod cuda {
    pub use ginlab_cuda::{Buffer, Device, DeviceChoice, DeviceError, Launch, MemoryLocation, Stream, set_ptx};
    #[doc(hidden)]
    pub use ginlab_cuda::{
        Event, ForeignModule, Function, Graph, Kernel, OpenedMemory, PeerHandle, VisibleGpu, flush_stores,
        for_capability, free_buffers_again, gdrcopy_version, ptx, set_task, visible_gpus, wait_for,
    };
}

/// Fabrics: transfers between the memories of ranks.
pub mod fabric {
    pub use ginlab_fabric::any::AnyRail;
    pub use ginlab_fabric::discover::{Reach, select_domains};
    pub use ginlab_fabric::libfabric::{LibfabricRail, LibfabricRegion, RailOptions};
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub use ginlab_fabric::testing;
    pub use ginlab_fabric::verbs::VerbsRail;
    pub use ginlab_fabric::{
        Access, Completion, Fabric, FabricError, MemoryRange, Post, Rail, RailLimits, RankPlace, RemoteRegion, Transfer,
    };
    #[doc(hidden)]
    pub use ginlab_fabric::{
        Message, Messages, RailPlan, any, discover, filter, libfabric, listing, model, null, soft, verbs, worst,
    };
}

/// Fabric operations as futures.
pub mod flow {
    pub use ginlab_flow::{Flow, FlowError, Offer, Region, Target, run};
    #[doc(hidden)]
    pub use ginlab_flow::{Operation, Peer};
}

/// Symmetric memory for kernels that communicate.
pub mod gin {
    pub use ginlab_gin::{
        Fabric, GinError, HostPut, Inbox, PePath, Plain, Program, PutSignalRule, Signal, Sym, World, WorldOptions,
    };
    #[doc(hidden)]
    pub use ginlab_gin::{collective, seat, watch};
}

/// Proxies: threads that take commands from rings and post them to rails.
pub mod proxy {
    pub use ginlab_proxy::engine::Engine;
    #[doc(hidden)]
    pub use ginlab_proxy::{
        ChooseError, Cores, ProxyFault, ProxyThreadOptions, RegionMemory, Snapshot, Writes, device_timeout, engine,
        signal_order, trace,
    };
    pub use ginlab_proxy::{GroupOptions, GroupRegion, Proxy, ProxyError, ProxyGroup};
}

/// Striping of transfers over several rails.
pub mod rails {
    pub use ginlab_rails::strategy::Strategy;
    #[doc(hidden)]
    pub use ginlab_rails::{Counters, strategy};
}

/// Rows of results, and the files that contain them.
pub mod report {
    pub use ginlab_report::{
        About, Column, Header, Key, OutputTarget, Report, ReportError, ReportOptions, Row, RunOutcome,
    };
    #[doc(hidden)]
    pub use ginlab_report::{
        BestValue, Catalog, ChartStyle, ColumnRole, Headline, JsonObject, Plot, RowStatus, SCHEMA, Table, Value,
        WholeFile, chart, compare, each_once, figures, page, pages, run, same_file, width,
    };
}

/// Memory of the rings between kernels and proxies.
pub mod ring {
    pub use ginlab_proxy::ring::RingMemory;
    #[doc(hidden)]
    pub use ginlab_proxy::ring::{DEFAULT_SLOTS, HostVisible, RingPlace, RingTable, check_slots};
}

/// Interruption by signals of the operating system.
pub mod signals {
    #[doc(hidden)]
    pub use ginlab_base::signals::stdout_closed;
    pub use ginlab_base::signals::{install, interrupted, stdout};
}

// --- for ginlab's own experiments and tests --------------------------------------------------------------------------

#[doc(hidden)]
pub use ginlab_base::{crash_handler, limits, memory, pairing, progress, random, scratch, shm_cleanup, text};
#[doc(hidden)]
pub use ginlab_doctor as doctor;
#[doc(hidden)]
pub use ginlab_gin::direct;
#[doc(hidden)]
pub use ginlab_sharing::{self as sharing, mps};
#[doc(hidden)]
pub use ginlab_topology::{self as topology, environment, pci};

#[doc(hidden)]
pub mod measure {
    pub use ginlab_base::{pattern, size, stats};
    pub use ginlab_proxy::clocks;
    pub use ginlab_proxy::ping_pong::{self, MeasureError};
}

/// Parsers of input from other processes, for tests/fuzz.
#[doc(hidden)]
pub mod untrusted;
