//! A second provider in one run (`--versus`): two jobs of a rank, whose cases are measured alternately.

use crate::job::Job;
use crate::runner::Rows;
use ginlab::report::Header;

/// Drives the rails of only one of a rank's jobs, so that they have the whole thread. All ranks meet before they use
/// them.
pub fn drive_only<'a>(jobs: impl Iterator<Item = &'a mut Job>, active: usize) {
    jobs.enumerate().for_each(|(index, job)| job.drive(index == active));
}

/// Adds the rails of the second provider to the header.
pub fn note(header: &mut Header, job: &Job) {
    header.note(format!("versus {}: {}", job.provider, job.rail_names().join(", "))).notes(&job.notes);
}

/// Names the provider in the baseline of rows that are compared with the first provider's row of `case`, which is the
/// first row.
pub fn name_baseline(rows: &mut Rows, case: &str) {
    let Some((first, _)) = rows.first() else { return };
    let name = format!("{case} over {}", first.fabric);
    for (row, _) in rows.iter_mut().filter(|(row, _)| row.baseline.as_deref() == Some(case)) {
        row.baseline = Some(name.clone());
    }
}
