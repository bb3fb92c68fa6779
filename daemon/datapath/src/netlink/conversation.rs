//! A socket of netlink: a question, and its answer up to the end.
//!
//! Invariant: a conversation is bounded in time and bytes, whatever the kernel has to tell. A list that the kernel did
//! not end is an error and no list. A conversation sees the network namespace of the thread that opened it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{NetlinkAddr, bind};
use socket2::{Domain, Protocol, Socket, Type};

use super::{Message, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, PIECE, message, messages};

/// The longest that a read waits. The kernel answers before the write that asks it returns, and goes on as it is read.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// The part of the kernel that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Devices, addresses, routes and rules of routing.
    Routes,
    /// Sockets.
    Sockets,
    /// What IPsec does to packets.
    Policies,
    /// Rules of nftables, and tracked connections.
    Filters,
    /// Whatever else has a family of its own: what drivers can do.
    Generic,
}

impl Part {
    const fn number(self) -> i32 {
        match self {
            Self::Routes => libc::NETLINK_ROUTE,
            Self::Sockets => libc::NETLINK_SOCK_DIAG,
            Self::Policies => libc::NETLINK_XFRM,
            Self::Filters => libc::NETLINK_NETFILTER,
            Self::Generic => libc::NETLINK_GENERIC,
        }
    }

    fn socket(self) -> io::Result<Socket> {
        Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(self.number())))
    }
}

/// A socket that hears notices of these groups, a bit for each, and never waits.
pub fn subscribe(part: Part, groups: u32) -> io::Result<OwnedFd> {
    let socket = part.socket()?;
    socket.set_nonblocking(true)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket.into())
}

/// A conversation with one part of the kernel.
#[derive(Debug)]
pub struct Conversation(File);

impl Conversation {
    pub fn open(part: Part) -> io::Result<Self> {
        let socket = part.socket()?;
        socket.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        Ok(Self(OwnedFd::from(socket).into()))
    }

    /// A conversation with whatever is at the other end.
    #[cfg(test)]
    pub(crate) fn over(file: File) -> Self {
        Self(file)
    }

    pub fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send(&message(kind, flags | NLM_F_REQUEST, 0, body))
    }

    /// Sends messages that are made already, all at once.
    pub(crate) fn send(&mut self, messages: &[u8]) -> io::Result<()> {
        self.0.write_all(messages)
    }

    /// Asks for a list, and reads it as [`Self::listen`] does.
    pub fn list(
        part: Part,
        (kind, question): (u16, &[u8]),
        bytes_max: usize,
        each: impl FnMut(Message<'_>),
    ) -> io::Result<bool> {
        let mut kernel = Self::open(part)?;
        kernel.ask(kind, NLM_F_DUMP, question)?;
        kernel.listen(bytes_max, each)
    }

    /// Reads an answer to its end; one that is longer than so many bytes is an error. `false`: what is listed has
    /// changed meanwhile, so something may be missing.
    pub fn listen(&mut self, bytes_max: usize, each: impl FnMut(Message<'_>)) -> io::Result<bool> {
        let heard = hear(&mut self.0, |total| total < bytes_max, each)?;
        heard.ok_or_else(|| io::Error::other("the kernel's answer has no end"))
    }

    /// Reads an answer of one message: its body, or the error with which the kernel refuses. An outer error: the kernel
    /// gave no answer.
    pub fn one(&mut self) -> io::Result<io::Result<Vec<u8>>> {
        let mut datagram = vec![0; PIECE];
        let count = self.0.read(&mut datagram)?;
        let first = messages(datagram.get(..count).unwrap_or_default()).next();
        let message = first.ok_or(io::ErrorKind::InvalidData)?;
        match message.ending() {
            None => Ok(Ok(message.body.to_vec())),
            Some(Err(refusal)) => Ok(Err(refusal)),
            Some(Ok(())) => Err(io::Error::other("the kernel gave no answer")),
        }
    }
}

/// Reads an answer to its end, as long as `goes_on` says so of the bytes that have come. `None`: it did not end by
/// then; `false`: what is listed has changed meanwhile.
pub(crate) fn hear(
    answer: &mut impl Read,
    goes_on: impl Fn(usize) -> bool,
    mut each: impl FnMut(Message<'_>),
) -> io::Result<Option<bool>> {
    let mut datagram = vec![0; PIECE];
    let (mut total, mut is_whole) = (0, true);
    while goes_on(total) {
        let count = answer.read(&mut datagram)?;
        if count == 0 {
            break;
        }
        total += count;
        for message in messages(datagram.get(..count).unwrap_or_default()) {
            is_whole &= message.flags & NLM_F_DUMP_INTR == 0;
            match message.ending() {
                Some(ended) => return ended.map(|()| Some(is_whole)),
                None => each(message),
            }
        }
    }
    Ok(None)
}

/// Reads datagram by datagram, each cut at the room that there is.
impl Read for Conversation {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::super::{NLMSG_DONE, NLMSG_ERROR};
    use super::*;

    /// A kernel that has said this already.
    fn that_said(datagrams: &[Vec<u8>]) -> Conversation {
        let (ours, kernels) = UnixDatagram::pair().unwrap();
        datagrams.iter().for_each(|it| assert_eq!(kernels.send(it).unwrap(), it.len()));
        Conversation::over(OwnedFd::from(ours).into())
    }

    fn done() -> Vec<u8> {
        message(NLMSG_DONE, 0, 0, &[0; 4])
    }

    #[test]
    fn a_list_is_read_over_all_datagrams_and_not_beyond_its_end() {
        let pieces = [
            message(7, 0, 0, &[1; 4]),
            [message(7, 0, 0, &[2; 4]), done(), message(7, 0, 0, &[3; 4])].concat(),
        ];
        let mut heard = Vec::new();
        assert!(that_said(&pieces).listen(PIECE, |it| heard.push(it.body.to_vec())).unwrap());
        assert_eq!(heard, [vec![1; 4], vec![2; 4]]);
    }

    #[test]
    fn a_list_that_changed_meanwhile_says_so() {
        let pieces = [message(7, NLM_F_DUMP_INTR, 0, &[]), done()];
        assert!(!that_said(&pieces).listen(PIECE, |_| ()).unwrap());
    }

    #[test]
    fn a_list_without_end_is_an_error() {
        let pieces = vec![message(7, 0, 0, &[0; 84]); 10];
        let error = that_said(&pieces).listen(1_000, |_| ()).unwrap_err();
        assert!(error.to_string().contains("no end"), "{error}");
    }

    #[test]
    fn one_answer_is_a_body_or_what_the_kernel_refuses_with() {
        assert_eq!(that_said(&[message(7, 0, 0, &[5; 4])]).one().unwrap().unwrap(), [5; 4]);
        let refused = message(NLMSG_ERROR, 0, 0, &(-libc::ENETUNREACH).to_ne_bytes());
        let refusal = that_said(&[refused]).one().unwrap().unwrap_err();
        assert_eq!(refusal.raw_os_error(), Some(libc::ENETUNREACH));
        assert!(that_said(&[message(NLMSG_ERROR, 0, 0, &[0; 4])]).one().is_err(), "consent is no answer");
        assert!(that_said(&[vec![9; 7]]).one().is_err(), "and so is what is cut off");
    }
}
