//! The processes of a test bed: keepers of namespaces, servers, generators of load, clients that dial or ask, and
//! commands that enter a place.

use std::ffi::OsString;

fn main() -> std::io::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    holdfast_tests::bed::child::main(&arguments)
}
