//! Where programs hang: a site with its hooks.
//!
//! Invariant: the code that attaches, moves, repairs and withdraws programs knows a site by this alone, so each kind of
//! site gets all of that by saying these few things.

use std::fmt::{Debug, Display};
use std::io;
use std::path::PathBuf;

use libbpf_rs::query::LinkInfo;
use libbpf_rs::{Link, ProgramMut};

/// Something that programs hang at. It is displayed as an operator knows it.
pub(crate) trait Site: Debug + Display {
    /// Its hooks. Each has the name of its program.
    fn hooks(&self) -> impl Iterator<Item = &'static str>;

    /// The file of a hook's link in the folder of all links. Two sites have none in common.
    fn pin(&self, hook: &str) -> PathBuf;

    /// Hangs a program at its hook, beside those of others.
    fn attach(&self, program: &ProgramMut<'_>) -> Result<Link, libbpf_rs::Error>;

    /// Whether a link is at this very site, not at one that had its name before.
    fn holds(&self, link: &LinkInfo) -> bool;

    /// Looks for itself anew, where it was removed and made again.
    fn renew(&mut self);

    /// The numbers of all programs at a hook, ours and those of others.
    fn programs(&self, hook: &str) -> io::Result<Vec<u32>>;
}
