//! One-time jobs of a process of any user: dial an address, or create many sockets that live for one datagram.
//!
//! Invariant: the process drops its privileges before it opens a socket.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use super::crowd::{become_user, word};

/// The longest time from the first socket to the last, on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The timeout of a local connection and of its reply.
const WAIT: Duration = Duration::from_secs(5);

/// More sockets than a table of reasonable size for one node could hold.
const SHORT_LIVED: u32 = 70_000;

/// The job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Connects over TCP and prints the received line, or an errno.
    Dial,
    /// Sends 70,000 datagrams, each from a new socket, and prints how many were sent.
    ShortSockets,
}

const ERRANDS: [Errand; 2] = [Errand::Dial, Errand::ShortSockets];

impl Errand {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Dial => "dial",
            Self::ShortSockets => "short-sockets",
        }
    }
}

/// The child process.
pub(super) fn run(uid: &str, errand: &str, to: SocketAddr) -> io::Result<()> {
    become_user(uid.parse().map_err(io::Error::other)?)?;
    let known = ERRANDS.into_iter().find(|known| known.word() == errand);
    let came = match known.ok_or_else(|| io::Error::other(format!("no errand is called {errand}")))? {
        Errand::Dial => dial(to),
        Errand::ShortSockets => short_sockets(to),
    };
    writeln!(io::stdout(), "{}", came.unwrap_or_else(|error| word(&error)))
}

fn dial(to: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.write_all(b"?\n")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

/// Connects every second socket, because resolvers differ in this.
fn short_sockets(to: SocketAddr) -> io::Result<String> {
    for number in 0..SHORT_LIVED {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        if number % 2 == 0 {
            socket.send_to(b"?", to)?;
        } else {
            socket.connect(to)?;
            socket.send(b"?")?;
        }
    }
    Ok(SHORT_LIVED.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_dialling_errand_returns_the_reply_or_the_errno() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let server = thread::spawn(move || listener.accept().unwrap().0.write_all(b"me\n").unwrap());
        assert_eq!(dial(to).unwrap(), "me");
        server.join().unwrap();
        assert_eq!(word(&dial(to).unwrap_err()), "ECONNREFUSED");
    }

    #[test]
    fn each_errand_has_a_word_of_its_own() {
        assert_ne!(Errand::Dial.word(), Errand::ShortSockets.word());
    }
}
