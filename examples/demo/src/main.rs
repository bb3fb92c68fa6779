//! The programs of the demo beside holdfast. They have no dependencies, so they are built in a second.
//!
//! - `holdfast-demo serve NAME ADDRESS:PORT`: an HTTP server that answers every request with its own name
//! - `holdfast-demo forward PORT FOLDER`: lets this machine's clients reach the page of the demo's daemon, which is in
//!   a network of its own

mod forward;
mod serve;

use std::io::Error;

const USAGE: &str = "usage: holdfast-demo serve NAME ADDRESS:PORT | holdfast-demo forward PORT FOLDER";

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", name, address] => serve::serve(name, address),
        ["forward", port, folder] => forward::listen(port, folder.as_ref()),
        ["forward-from-stdin", port] => forward::forward(port),
        _ => Err(Error::other(USAGE)),
    }
}
