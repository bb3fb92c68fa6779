//! A netlink socket: sends requests and reads complete replies.
//!
//! Invariant: a reply is bounded in time and bytes. A list without its end is an error. A socket sees the network
//! namespace of the thread that opened it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{NetlinkAddr, bind};
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    DATAGRAM_BYTES_MAX, Message, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, encode_message, parse_messages,
};

/// The longest wait for a read. The kernel replies before the request's write returns, and continues as it is read.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// A family of netlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkFamily {
    /// Devices, addresses, routes and routing rules.
    Route,
    /// Sockets.
    SockDiag,
    /// IPsec policies and states.
    Xfrm,
    /// Rules of nftables, and tracked connections.
    Netfilter,
    /// Generic netlink, such as drivers' features.
    Generic,
}

impl NetlinkFamily {
    const fn number(self) -> i32 {
        match self {
            Self::Route => libc::NETLINK_ROUTE,
            Self::SockDiag => libc::NETLINK_SOCK_DIAG,
            Self::Xfrm => libc::NETLINK_XFRM,
            Self::Netfilter => libc::NETLINK_NETFILTER,
            Self::Generic => libc::NETLINK_GENERIC,
        }
    }

    fn socket(self) -> io::Result<Socket> {
        Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(self.number())))
    }
}

/// Opens a socket that receives notifications of these groups, one bit each, and never blocks.
pub fn subscribe(part: NetlinkFamily, groups: u32) -> io::Result<OwnedFd> {
    let socket = part.socket()?;
    socket.set_nonblocking(true)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket.into())
}

/// A socket for requests.
#[derive(Debug)]
pub struct NetlinkSocket(File);

impl NetlinkSocket {
    pub fn open(part: NetlinkFamily) -> io::Result<Self> {
        let socket = part.socket()?;
        socket.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        Ok(Self(OwnedFd::from(socket).into()))
    }

    #[cfg(test)]
    pub(crate) fn from_file(file: File) -> Self {
        Self(file)
    }

    pub fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send_messages(&encode_message(kind, flags | NLM_F_REQUEST, 0, body))
    }

    /// Sends encoded messages all at once.
    pub(crate) fn send_messages(&mut self, messages: &[u8]) -> io::Result<()> {
        self.0.write_all(messages)
    }

    /// Requests a list, and reads it as [`Self::read_reply`] does.
    pub fn dump(
        part: NetlinkFamily,
        (kind, body): (u16, &[u8]),
        bytes_max: usize,
        each: impl FnMut(Message<'_>),
    ) -> io::Result<bool> {
        let mut kernel = Self::open(part)?;
        kernel.request(kind, NLM_F_DUMP, body)?;
        kernel.read_reply(bytes_max, each)
    }

    /// Reads a reply to its end; more than `bytes_max` is an error. `false`: the list changed meanwhile and may be
    /// incomplete.
    pub fn read_reply(&mut self, bytes_max: usize, each: impl FnMut(Message<'_>)) -> io::Result<bool> {
        let result = read_until_done(&mut self.0, |total| total < bytes_max, each)?;
        result.ok_or_else(|| io::Error::other("the kernel's answer has no end"))
    }

    /// Reads a reply of one message: its body, or the kernel's error. An outer error: there was no reply.
    pub fn read_one(&mut self) -> io::Result<io::Result<Vec<u8>>> {
        let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
        let count = self.0.read(&mut datagram)?;
        let first = parse_messages(datagram.get(..count).unwrap_or_default()).next();
        let message = first.ok_or(io::ErrorKind::InvalidData)?;
        match message.end_result() {
            None => Ok(Ok(message.body.to_vec())),
            Some(Err(refusal)) => Ok(Err(refusal)),
            Some(Ok(())) => Err(io::Error::other("the kernel gave no answer")),
        }
    }
}

/// Reads a reply to its end, while `goes_on` accepts the bytes so far. `None`: it did not end; `false`: the list
/// changed meanwhile.
pub(crate) fn read_until_done(
    answer: &mut impl Read,
    goes_on: impl Fn(usize) -> bool,
    mut each: impl FnMut(Message<'_>),
) -> io::Result<Option<bool>> {
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    let (mut total, mut is_complete) = (0, true);
    while goes_on(total) {
        let count = answer.read(&mut datagram)?;
        if count == 0 {
            break;
        }
        total += count;
        for message in parse_messages(datagram.get(..count).unwrap_or_default()) {
            is_complete &= message.flags & NLM_F_DUMP_INTR == 0;
            match message.end_result() {
                Some(ended) => return ended.map(|()| Some(is_complete)),
                None => each(message),
            }
        }
    }
    Ok(None)
}

/// Reads one datagram per call, truncated to the buffer.
impl Read for NetlinkSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::super::{NLMSG_DONE, NLMSG_ERROR};
    use super::*;

    /// A kernel that has sent these datagrams.
    fn kernel_with(datagrams: &[Vec<u8>]) -> NetlinkSocket {
        let (ours, kernels) = UnixDatagram::pair().unwrap();
        datagrams.iter().for_each(|it| assert_eq!(kernels.send(it).unwrap(), it.len()));
        NetlinkSocket::from_file(OwnedFd::from(ours).into())
    }

    fn done() -> Vec<u8> {
        encode_message(NLMSG_DONE, 0, 0, &[0; 4])
    }

    #[test]
    fn a_list_is_read_across_datagrams_to_its_end() {
        let pieces = [
            encode_message(7, 0, 0, &[1; 4]),
            [encode_message(7, 0, 0, &[2; 4]), done(), encode_message(7, 0, 0, &[3; 4])].concat(),
        ];
        let mut bodies = Vec::new();
        assert!(
            kernel_with(&pieces).read_reply(DATAGRAM_BYTES_MAX, |it| bodies.push(it.body.to_vec())).unwrap()
        );
        assert_eq!(bodies, [vec![1; 4], vec![2; 4]]);
    }

    #[test]
    fn a_list_that_changed_meanwhile_is_marked_incomplete() {
        let pieces = [encode_message(7, NLM_F_DUMP_INTR, 0, &[]), done()];
        assert!(!kernel_with(&pieces).read_reply(DATAGRAM_BYTES_MAX, |_| ()).unwrap());
    }

    #[test]
    fn a_list_without_end_is_an_error() {
        let pieces = vec![encode_message(7, 0, 0, &[0; 84]); 10];
        let error = kernel_with(&pieces).read_reply(1_000, |_| ()).unwrap_err();
        assert!(error.to_string().contains("no end"), "{error}");
    }

    #[test]
    fn a_single_reply_is_a_body_or_the_kernels_error() {
        assert_eq!(kernel_with(&[encode_message(7, 0, 0, &[5; 4])]).read_one().unwrap().unwrap(), [5; 4]);
        let refused = encode_message(NLMSG_ERROR, 0, 0, &(-libc::ENETUNREACH).to_ne_bytes());
        let refusal = kernel_with(&[refused]).read_one().unwrap().unwrap_err();
        assert_eq!(refusal.raw_os_error(), Some(libc::ENETUNREACH));
        assert!(
            kernel_with(&[encode_message(NLMSG_ERROR, 0, 0, &[0; 4])]).read_one().is_err(),
            "an acknowledgement is no reply"
        );
        assert!(kernel_with(&[vec![9; 7]]).read_one().is_err(), "nor is a truncated message");
    }
}
