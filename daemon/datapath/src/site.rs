//! Where programs hang: a site with its hooks.
//!
//! Invariant: the code that attaches, moves, repairs and withdraws programs uses a site through this trait alone, so a
//! new kind of site has to implement only the trait.

use std::fmt::{Debug, Display};
use std::io;
use std::path::PathBuf;

use libbpf_rs::query::LinkInfo;
use libbpf_rs::{Link, ProgramMut};

/// Something that programs hang at. `Display` shows it as an operator knows it.
pub(crate) trait Site: Debug + Display {
    /// Its hooks. Each has the name of its program.
    fn hooks(&self) -> impl Iterator<Item = &'static str>;

    /// The file of a hook's link in the folder of all links. Two sites share no file.
    fn link_path(&self, hook: &str) -> PathBuf;

    /// Attaches a program to its hook, beside the programs of others.
    fn attach(&self, program: &ProgramMut<'_>) -> Result<Link, libbpf_rs::Error>;

    /// Whether a link is at this very site, not at a former one of the same name.
    fn holds_link(&self, link: &LinkInfo) -> bool;

    /// Looks for the site anew, if it was removed and made again.
    fn reopen(&mut self);

    /// The numbers of all programs at a hook, ours and those of others.
    fn query_programs(&self, hook: &str) -> io::Result<Vec<u32>>;
}
