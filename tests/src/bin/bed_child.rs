//! The child processes of a test bed: keepers of namespaces, servers, load generators, clients, and commands that
//! enter a location.

use std::ffi::OsString;

fn main() -> std::io::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    holdfast_tests::bed::child::main(&arguments)
}
