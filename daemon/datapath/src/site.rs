//! The site of programs: an object with hooks.
//!
//! Invariant: code that attaches, moves, repairs and detaches programs uses sites only through this trait, so a new
//! kind of site only implements the trait.

use std::fmt::{Debug, Display};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::query::LinkInfo;

/// An object that programs attach to. `Display` shows it for operators.
pub(crate) trait Site: Debug + Display {
    /// The hooks, each named after its program.
    fn hooks(&self) -> impl Iterator<Item = &'static str>;

    /// The file of a hook's link in the folder of links. Two sites share no file.
    fn link_path(&self, hook: &str) -> PathBuf;

    /// Attaches a program to a hook, alongside foreign programs, and returns the link that holds it there.
    fn attach(&self, hook: &str, program: BorrowedFd<'_>) -> io::Result<OwnedFd>;

    /// Whether a link is at exactly this site, not at a former one of the same name.
    fn holds_link(&self, link: &LinkInfo) -> bool;

    /// Opens the site again if it was recreated.
    fn reopen(&mut self);

    /// The ids of all programs at a hook, foreign ones included.
    fn query_programs(&self, hook: &str) -> io::Result<Vec<u32>>;
}
