//! `ginlab model`: figures of modelled NICs, and simulations of many of them.

mod all2all;
mod all_to_all;
mod figures;
mod halo;
mod jacobi;
mod moe;
mod tokens;

use crate::error::Failure;
use crate::program::{CommandSpec, program};
use crate::runner::{self, Experiment, WithOutput};
use crate::values::usage;
use clap::Subcommand;
use ginlab::fabric::model::{PREFIX, Profile};
use ginlab::report::{About, Header};
use ginlab::versions::Versions;

pub const PROGRAMS: &[CommandSpec] = &[CommandSpec {
    about: Some(all2all::All2AllModel::ABOUT),
    ..program!("model", "Show figures of modelled cards, and simulate many machines in virtual time", ModelArgs, run)
}];

/// Declaration of the rows of `ginlab model jacobi`, which is not a top-level subcommand.
pub const JACOBI: About = jacobi::JacobiModel::ABOUT;

/// Declaration of the rows of `ginlab model moe`.
pub const MOE: About = moe::MoeModel::ABOUT;

/// Options of `ginlab model`.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct ModelArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// List the figures of each profile: value, and its source or assumption
    Figures(figures::ModelFiguresArgs),
    /// Simulate an all-to-all of many machines in virtual time; starts no ranks, moves no bytes, and is deterministic
    All2all(Box<WithOutput<all2all::ModelAll2AllArgs>>),
    /// Simulate Jacobi iterations of many machines in virtual time: the time of the exchange of rows and of the norm
    /// that is not hidden
    Jacobi(Box<WithOutput<jacobi::ModelJacobiArgs>>),
    /// Simulate dispatch and combine of a mixture of experts on many GPUs in virtual time, compared with published
    /// figures
    Moe(Box<WithOutput<moe::ModelMoeArgs>>),
}

/// Modelled NICs of a profile.
pub struct Cards {
    /// Name without the provider's prefix.
    pub name: String,
    pub profile: Profile,
}

impl Cards {
    pub fn named(name: &str) -> Result<Cards, Failure> {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        let profile = Profile::named(name).map_err(|why| usage("--profile", why))?;
        Ok(Cards { name: name.to_owned(), profile })
    }

    /// Returns the value of column `fabric`.
    pub fn fabric(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Returns the header of a simulation. `more` lists further assumptions.
    pub fn header(&self, more: &str) -> Header {
        let mut header = Versions::header();
        header.note(format!("{}{more}", self.note()));
        header
    }

    /// Returns the note that the NICs are modelled, with the assumptions.
    pub fn note(&self) -> String {
        let assumed = self.profile.assumed().collect::<Vec<_>>().join(", ");
        format!("MODELLED cards of a {} in virtual time; assumed: {assumed}", self.name)
    }
}

fn run(args: &ModelArgs) -> Result<(), Failure> {
    match &args.what {
        What::Figures(args) => figures::run(args),
        What::All2all(args) => runner::run::<all2all::All2AllModel>((**args).clone()),
        What::Jacobi(args) => runner::run::<jacobi::JacobiModel>((**args).clone()),
        What::Moe(args) => runner::run::<moe::MoeModel>((**args).clone()),
    }
}
