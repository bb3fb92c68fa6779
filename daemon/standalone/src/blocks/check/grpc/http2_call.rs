//! One call over one HTTP/2 connection.
//!
//! Invariant: everything that a server sends must fit into [`ANSWER_BYTES_MAX`], useless frames included; so there are
//! at most some 1,800 frames, and replies to them are no longer than they are. Nothing unsolicited is sent: the initial
//! window is larger than the limit, so no update is needed. The result does not depend on chunk boundaries.

use std::fmt;

use super::super::{ANSWER_BYTES_MAX, excerpt};
use super::frames::{
    self, ACK, END_HEADERS, END_STREAM, FrameHeader, FrameKind, HEAD_BYTES, PREFACE, STREAM,
};
use super::hpack::{self, CallStatuses};

/// Our settings: no header table, no push.
const SETTINGS: [u8; 12] = [0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];

/// One setting: id and value.
const SETTING_BYTES: usize = 6;

const PING_BYTES: usize = 8;

/// The size of most replies: thousands of silent backends cost this much each.
const ANSWER_BYTES_USUAL: usize = 1024;

/// Why there is no complete reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Http2Error {
    /// It does not start with SETTINGS, as every HTTP/2 server does.
    #[error("it begins {0:?}")]
    NotHttp2(String),
    #[error("it is longer than {} bytes", ANSWER_BYTES_MAX)]
    TooLong,
    #[error("it breaks off")]
    Cut,
    #[error("{0} that no server may send")]
    Illegal(&'static str),
    #[error("GOAWAY with {0}")]
    GoAway(ErrorCode),
    #[error("RST_STREAM with {0}")]
    Reset(ErrorCode),
}

/// The code of a RST_STREAM or GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ErrorCode(u32);

const NO_ERROR: u32 = 0;

const ERROR_CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = usize::try_from(self.0).ok().and_then(|code| ERROR_CODES.get(code));
        match name {
            Some(name) => f.write_str(name),
            None => write!(f, "code {}", self.0),
        }
    }
}

/// A complete reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GrpcReply {
    pub(super) statuses: CallStatuses,
    pub(super) message: Vec<u8>,
}

/// A call in progress.
#[derive(Debug)]
pub(super) struct Http2Call {
    /// The bytes to send before the next read.
    pub(super) unsent: Vec<u8>,
    /// Received bytes without a complete frame; the caller appends.
    pub(super) unread: Vec<u8>,
    // The count of all bytes read.
    read: usize,
    // Incomplete headers, and whether the stream ends with them.
    headers: Option<(Vec<u8>, bool)>,
    answer: GrpcReply,
    has_begun: bool,
    is_over: bool,
}

impl Http2Call {
    /// Starts a call with these headers and this message.
    pub(super) fn new(headers: &[(&str, &str)], message: &[u8]) -> Self {
        let mut unsent = PREFACE.to_vec();
        frames::write_frame(&mut unsent, FrameKind::Settings, 0, 0, &SETTINGS);
        frames::write_frame(
            &mut unsent,
            FrameKind::Headers,
            END_HEADERS,
            STREAM,
            &hpack::encode_headers(headers),
        );
        frames::write_frame(&mut unsent, FrameKind::Data, END_STREAM, STREAM, message);
        Self {
            unsent,
            unread: Vec::with_capacity(ANSWER_BYTES_USUAL),
            read: 0,
            headers: None,
            answer: GrpcReply::default(),
            has_begun: false,
            is_over: false,
        }
    }

    /// Processes the received bytes; returns the reply once it is complete.
    pub(super) fn advance(&mut self) -> Result<Option<GrpcReply>, Http2Error> {
        let mut unread = std::mem::take(&mut self.unread);
        let mut taken = 0;
        while !self.is_over
            && let Some(length) = self.take_frame(unread.get(taken..).unwrap_or_default())?
        {
            taken += length;
        }
        unread.drain(..taken);
        self.unread = unread;
        Ok(self.is_over.then(|| std::mem::take(&mut self.answer)))
    }

    /// The error of a connection that ended early.
    pub(super) fn truncation_error(&self) -> Http2Error {
        if self.has_begun || self.unread.is_empty() { Http2Error::Cut } else { not_http2_error(&self.unread) }
    }

    /// Processes the first frame; returns its length, or `None` if it is incomplete.
    fn take_frame(&mut self, bytes: &[u8]) -> Result<Option<usize>, Http2Error> {
        let Some(head) = FrameHeader::parse(bytes) else { return Ok(None) };
        if !self.has_begun && (head.kind != FrameKind::Settings || head.has_flag(ACK) || head.stream != 0) {
            return Err(not_http2_error(bytes));
        }
        self.has_begun = true;
        let length = HEAD_BYTES.saturating_add(head.length);
        if self.read.saturating_add(length) > ANSWER_BYTES_MAX {
            return Err(Http2Error::TooLong);
        }
        let Some(payload) = bytes.get(HEAD_BYTES..length) else { return Ok(None) };
        self.read += length;
        self.handle_frame(head, payload)?;
        Ok(Some(length))
    }

    fn handle_frame(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Http2Error> {
        let is_its_stream = head.stream == STREAM;
        if self.headers.is_some() != (head.kind == FrameKind::Continuation) {
            return Err(Http2Error::Illegal("a frame out of place"));
        }
        match head.kind {
            FrameKind::Settings => self.take_settings(head, payload),
            FrameKind::Ping => self.take_ping(head, payload),
            FrameKind::GoAway => handle_goaway(payload),
            FrameKind::RstStream if is_its_stream => Err(Http2Error::Reset(ErrorCode(read_u32(payload, 0)?))),
            FrameKind::Headers | FrameKind::Continuation if is_its_stream => self.take_headers(head, payload),
            FrameKind::Data if is_its_stream => self.take_data(head, payload),
            FrameKind::RstStream | FrameKind::Headers | FrameKind::Continuation | FrameKind::Data => {
                Err(Http2Error::Illegal("a frame of a stream"))
            }
            FrameKind::PushPromise => Err(Http2Error::Illegal("a PUSH_PROMISE")),
            FrameKind::Other => Ok(()),
        }
    }

    fn take_settings(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Http2Error> {
        if !payload.len().is_multiple_of(SETTING_BYTES) {
            return Err(Http2Error::Illegal("a SETTINGS frame"));
        }
        if !head.has_flag(ACK) {
            frames::write_frame(&mut self.unsent, FrameKind::Settings, ACK, 0, &[]);
        }
        Ok(())
    }

    fn take_ping(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Http2Error> {
        if payload.len() != PING_BYTES {
            return Err(Http2Error::Illegal("a PING"));
        }
        if !head.has_flag(ACK) {
            frames::write_frame(&mut self.unsent, FrameKind::Ping, ACK, 0, payload);
        }
        Ok(())
    }

    fn take_headers(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Http2Error> {
        let content = match head.kind {
            FrameKind::Continuation => payload,
            _ => head.payload_content(payload).ok_or(Http2Error::Illegal("a HEADERS frame"))?,
        };
        let (mut block, is_last) =
            self.headers.take().unwrap_or_else(|| (Vec::new(), head.has_flag(END_STREAM)));
        block.extend(content);
        if !head.has_flag(END_HEADERS) {
            self.headers = Some((block, is_last));
            return Ok(());
        }
        let statuses = CallStatuses::parse(&block).ok_or(Http2Error::Illegal("a block of headers"))?;
        // An interim response precedes the final one.
        let is_interim = statuses.http.is_some_and(|status| status < 200);
        let answered = &mut self.answer.statuses;
        if !is_interim {
            *answered =
                CallStatuses { http: answered.http.or(statuses.http), grpc: answered.grpc.or(statuses.grpc) };
        }
        self.is_over = is_last;
        Ok(())
    }

    fn take_data(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Http2Error> {
        let content = head.payload_content(payload).ok_or(Http2Error::Illegal("a DATA frame"))?;
        self.answer.message.extend(content);
        self.is_over = head.has_flag(END_STREAM);
        Ok(())
    }
}

fn not_http2_error(bytes: &[u8]) -> Http2Error {
    Http2Error::NotHttp2(excerpt(bytes))
}

/// A server that drains its connections still answers this call if it has accepted it.
fn handle_goaway(payload: &[u8]) -> Result<(), Http2Error> {
    // The highest bit is reserved.
    let (last, code) = (read_u32(payload, 0)? & (u32::MAX >> 1), read_u32(payload, 4)?);
    if code == NO_ERROR && last >= STREAM { Ok(()) } else { Err(Http2Error::GoAway(ErrorCode(code))) }
}

/// Reads four bytes of a payload at an offset.
fn read_u32(payload: &[u8], from: usize) -> Result<u32, Http2Error> {
    let bytes = payload.get(from..).and_then(|rest| rest.first_chunk());
    bytes.map(|bytes| u32::from_be_bytes(*bytes)).ok_or(Http2Error::Illegal("an end without a code"))
}

#[cfg(test)]
mod tests;
