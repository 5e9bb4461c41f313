//! `ginlab queue`: the GPU-to-CPU queue alone, algorithms and memories side by side, with the floors of the same run.

mod args;
mod measure;
mod plan;
mod prototype;

pub use args::Args;

use crate::error::Failure;
use crate::output::Output;
use ginlab::cores;
use ginlab::cores::share::{Want, share_out};
use ginlab::cuda::Device;
use ginlab::report::{Header, Key, Row};
use measure::{Bench, Rows, place_name};
use plan::Plan;
use prototype::Prototype;
use std::path::Path;

/// Runs the experiment.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = Plan::new(args)?;
    let (device, why_emulated) = Device::open(plan.device, 0)?;
    let emulated = matches!(device, Device::Emulated);
    let benches = benches(&plan, &device)?;
    if emulated && plan.prototype.is_some() {
        return Err(Failure::Usage("--prototype: the emulated device cannot run it; use -d gpu".into()));
    }
    let prototype = plan.prototype.as_deref().map(Prototype::load).transpose()?;
    let threads = plan.tuples.iter().map(|tuple| tuple.rings as usize).max().unwrap_or(1);
    let allowed = cores::allowed();
    // Near the GPU. None where the grid needs them, or too few.
    let pinned = plan.pin && !emulated && threads < allowed.len();
    let gpu: Vec<_> = device.pci_address().into_iter().filter_map(|address| address.parse().ok()).collect();
    let root = Path::new("/");
    let threads = if pinned { threads } else { 0 };
    let want = Want { threads, allowed: allowed.to_vec(), near: cores::near(root, &gpu) };
    let cores = share_out(&[want], &cores::physical(root, allowed)).concat();
    let mut header = Header::default();
    crate::versions().fill(&mut header);
    header.set(Key::Gpu, device.name()).set(Key::Affinity, format!("consumers on cores {cores:?}"));
    if let Some(why) = why_emulated {
        header.note(format!("emulated device: {why}"));
    }
    header.note(
        "time_us is the time per push of one producer until all elements of a repeat are taken, on the device's clock; \
         rates count all producers; push_us and ack_us are of single pushes in a watched pass",
    );
    let mut output = Output::open(&args.output.options(), &header, benches.len() as u64)?;
    let result = sweep(&plan, &device, &benches, &cores, prototype.as_ref(), &mut output);
    output.close(result)?.map_or(Ok(()), Err)
}

/// The tuples with their blocks, all of which the device must take.
fn benches(plan: &Plan, device: &Device) -> Result<Vec<(plan::Tuple, u32)>, Failure> {
    let usual: &[u32] = if matches!(device, Device::Emulated) { &[1, 4] } else { &[1, 32] };
    let mut benches = Vec::new();
    for tuple in &plan.tuples {
        for block in tuple.block.map_or(usual.to_vec(), |block| vec![block]) {
            device.check_grid(tuple.grid, block)?;
            if u64::from(tuple.grid) * u64::from(block) > u64::from(u32::MAX) / 2 {
                return Err(Failure::Usage(format!("--grid {} x {block}: more than 2^31 producers", tuple.grid)));
            }
            benches.push((*tuple, block));
        }
    }
    Ok(benches)
}

/// Measures every tuple; the failure it returns is of wrong elements in a row that was written.
fn sweep(
    plan: &Plan,
    device: &Device,
    benches: &[(plan::Tuple, u32)],
    cores: &[usize],
    prototype: Option<&Prototype>,
    output: &mut Output,
) -> Result<Option<Failure>, Failure> {
    let mut wrong = None;
    let mut floors = Rows::new();
    let mut place = None;
    for &(tuple, block) in benches {
        let bench = Bench { plan, device, tuple, block, cores, prototype };
        if place != Some(tuple.place) {
            place = Some(tuple.place);
            let found = measure::floors(&bench)?;
            output.rows(&found)?;
            floors.extend(found);
        }
        let rows = measure::measure(&bench, &floors)?;
        output.rows(&rows)?;
        output.step();
        wrong = wrong.or_else(|| rows.iter().find_map(|(row, _)| wrong_elements(row, tuple)));
    }
    Ok(wrong)
}

fn wrong_elements(row: &Row, tuple: plan::Tuple) -> Option<Failure> {
    let wrong = row.wrong.filter(|wrong| *wrong > 0)?;
    Some(Failure::WrongData(format!("{wrong} wrong elements in {} over {} memory", row.case, place_name(tuple.place))))
}
