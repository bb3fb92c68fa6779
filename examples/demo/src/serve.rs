//! A backend: answers one request at a time, each bounded in size and time.

use std::io::{BufRead, BufReader, Error, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The demo's clients are on this machine, which may be busy.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// More than curl's request line and headers.
const REQUEST_BYTES_MAX: u64 = 8 * 1024;

pub(crate) fn serve(name: &str, address: &str) -> Result<(), Error> {
    let listener = TcpListener::bind(address).map_err(|error| Error::other(format!("{address}: {error}")))?;
    for stream in listener.incoming() {
        // A client that has gone, or only tested the connection, does not stop the server.
        let _ = stream.and_then(|stream| answer(stream, name));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, name: &str) -> Result<(), Error> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    read_request(&mut stream)?;
    let body = format!("{name}\n");
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Reads up to the empty line that ends the headers.
fn read_request(stream: &mut TcpStream) -> Result<(), Error> {
    for line in BufReader::new(stream.take(REQUEST_BYTES_MAX)).lines() {
        if line?.is_empty() {
            return Ok(());
        }
    }
    Err(Error::other("the request has no end"))
}
