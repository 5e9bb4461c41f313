//! `ginlab model`: what is known of modelled cards, and many of them in virtual time.

mod all2all;
mod all_to_all;
mod figures;
mod halo;
mod jacobi;
mod moe;
mod tokens;

use crate::error::Failure;
use crate::program::{Program, program};
use crate::runner::{self, Experiment, WithOutput};
use crate::values::usage;
use clap::Subcommand;
use ginlab::fabric::model::{PREFIX, Profile};
use ginlab::report::{About, Header};
use ginlab::versions::Versions;

pub const PROGRAMS: &[Program] = &[Program {
    about: Some(all2all::Model::ABOUT),
    ..program!(
        "model",
        "Modelled cards: their figures with sources, and an all-to-all of many machines in virtual time",
        Args,
        run
    )
}];

/// Rows of `ginlab model jacobi`, which is no subcommand of its own.
pub const JACOBI: About = jacobi::Model::ABOUT;

/// Rows of `ginlab model moe`.
pub const MOE: About = moe::Model::ABOUT;

/// Options of `ginlab model`.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// The figures of each profile: value, and where it comes from or what is assumed
    Figures(figures::Args),
    /// An all-to-all of many machines in virtual time: no rank is started, no byte moved, and each run gives the same
    All2all(Box<WithOutput<all2all::Args>>),
    /// Jacobi iterations of many machines in virtual time: what of the exchange of rows and of the norm is not hidden
    Jacobi(Box<WithOutput<jacobi::Args>>),
    /// A mixture of experts' dispatch and combine of many GPUs in virtual time, beside published figures
    Moe(Box<WithOutput<moe::Args>>),
}

/// The modelled cards of a profile.
pub struct Cards {
    /// Without the prefix that a provider has.
    pub name: String,
    pub profile: Profile,
}

impl Cards {
    pub fn named(name: &str) -> Result<Cards, Failure> {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        let profile = Profile::named(name).map_err(|why| usage("--profile", why))?;
        Ok(Cards { name: name.to_owned(), profile })
    }

    /// As rows name them.
    pub fn fabric(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// The header of a simulation; `more` are further assumptions.
    pub fn header(&self, more: &str) -> Header {
        let mut header = Versions::header();
        header.note(format!("{}{more}", self.note()));
        header
    }

    /// That they are modelled, and what is assumed.
    pub fn note(&self) -> String {
        let assumed = self.profile.assumed().collect::<Vec<_>>().join(", ");
        format!("MODELLED cards of a {} in virtual time; assumed: {assumed}", self.name)
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Figures(args) => figures::run(args),
        What::All2all(args) => runner::run::<all2all::Model>((**args).clone()),
        What::Jacobi(args) => runner::run::<jacobi::Model>((**args).clone()),
        What::Moe(args) => runner::run::<moe::Model>((**args).clone()),
    }
}
