//! Why a list or a watch ended, and what the reflector does next.
//!
//! Invariant: pure. Every error leads to another request; a version that yields nothing is given up after two tries.

use std::sync::Arc;
use std::time::Duration;

use super::codec::FrameError;
use super::envelope::Status;
use super::page::PageError;
use crate::apiserver::{AccessError, EndpointError};

/// Errors in a row from one suspect version until a list follows.
const STUCK_MAX: u32 = 2;

/// Why a list or a watch ended.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum WatchError {
    /// The server ended the watch as requested.
    #[error("the server ended the watch")]
    Ended,
    /// No endpoint replied.
    #[error("{0}")]
    Unreachable(AccessError),
    /// The reply broke off.
    #[error("{0}")]
    Broken(AccessError),
    /// Nothing arrived for too long.
    #[error("nothing came for {} s; an apiserver sends a bookmark each minute", .0.as_secs())]
    Silent(Duration),
    /// The server did not end the watch in time.
    #[error("the server did not end the watch in time")]
    Overrun,
    /// No page of a list arrived.
    #[error("no page of the list came for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The server refused the request.
    #[error("{status}")]
    Refused { status: Status, retry_after: Option<Duration> },
    /// The server ended the watch with an error.
    #[error("the watch failed: {0}")]
    Failed(Status),
    /// A line that is neither an event nor attributable to an object.
    #[error(transparent)]
    InvalidFrame(#[from] FrameError),
    /// The body is not a list.
    #[error(transparent)]
    InvalidPage(#[from] PageError),
    /// Objects that are unreadable in their encoding and could not be refetched as JSON.
    #[error("{0} objects cannot be read as protobuf, nor fetched one by one as JSON")]
    Doubtful(usize),
    /// The table has space for objects that it had left out.
    #[error("the table has space for objects that it left out; listing all of them again")]
    RelistRequested,
    /// The engine asks whether the endpoints of a held list are back; a new watch answers that.
    #[error("restarting the watch to check whether endpoints are back")]
    FreshnessRequested,
    /// The apiserver's store is older than a version that it sent.
    #[error(
        "the apiserver went back from version {from} to {to}, as after a restore from a backup; all is read again"
    )]
    Rewound { from: Arc<str>, to: Arc<str> },
    /// The watch missed a change.
    #[error("the watch missed changes: {0}")]
    Differs(Arc<str>),
}

impl WatchError {
    /// Converts an error of a body that broke off, or was silent for `idle`.
    pub(super) fn from_body(error: AccessError, idle: Duration) -> Self {
        let is_silence = |error: &AccessError| match error {
            AccessError::Failed(failures) => failures.iter().all(|it| it.trouble == EndpointError::Silent),
            AccessError::NoEndpoint => false,
        };
        if is_silence(&error) { Self::Silent(idle) } else { Self::Broken(error) }
    }

    /// Whether the requested version or token has expired.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Refused { status, .. } | Self::Failed(status) => status.is_gone(),
            _ => false,
        }
    }

    /// Whether the server considers the request invalid.
    pub(super) fn is_bad_request(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if matches!(status.code, Some(400 | 422)))
    }

    /// Whether the same request may succeed next time: the server was overloaded, or the reply was lost.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::InvalidPage(why) => !matches!(why, PageError::Endless),
            Self::Unreachable(_) | Self::Broken(_) | Self::Silent(_) | Self::Doubtful(_) => true,
            Self::Refused { status, .. } => status.code.is_some_and(|code| code == 429 || code >= 500),
            _ => false,
        }
    }

    /// Whether the reply's encoding may be the cause, so that another one may work.
    pub(super) const fn is_encoding_suspect(&self) -> bool {
        match self {
            Self::InvalidFrame(_) | Self::Doubtful(_) => true,
            Self::InvalidPage(why) => {
                matches!(
                    why,
                    PageError::NotAList | PageError::OtherKind | PageError::Garbled | PageError::TooLong
                )
            }
            _ => false,
        }
    }

    /// Whether the server supports none of the requested encodings.
    pub(super) fn is_not_acceptable(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if matches!(status.code, Some(406 | 415)))
    }

    /// Whether the server lacks the kind or denies access.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if matches!(status.code, Some(403 | 404)))
    }

    /// Whether the server throttles us.
    pub(super) fn is_throttled(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == Some(429))
    }

    /// Whether a server replied and refused.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// How long the server asks us to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unreachable(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Whether the watch's start version may be the cause.
    fn is_version_suspect(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::InvalidFrame(_) | Self::InvalidPage(_) | Self::Failed(_))
    }
}

/// How often in a row the same version yielded nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StuckVersion(u32);

impl StuckVersion {
    /// Records a watch's end and whether it reached a newer version; returns whether the next request must be a list.
    pub(super) fn record_error(&mut self, ending: &WatchError, has_moved: bool) -> bool {
        if has_moved {
            self.0 = 0;
        }
        self.0 += u32::from(ending.is_version_suspect());
        let is_needed = ending.is_gone()
            || ending.is_bad_request()
            || matches!(
                ending,
                WatchError::Differs(_)
                    | WatchError::RelistRequested
                    | WatchError::Rewound { .. }
                    | WatchError::Doubtful(_)
            )
            || self.0 >= STUCK_MAX;
        if is_needed {
            self.0 = 0;
        }
        is_needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::Failure;

    fn refused(code: u16) -> WatchError {
        WatchError::Refused { status: Status { code: Some(code), ..Status::default() }, retry_after: None }
    }

    fn failed(code: u16, reason: &str) -> WatchError {
        WatchError::Failed(Status { code: Some(code), reason: Some(reason.to_owned()), message: None })
    }

    fn broken(troubles: &[EndpointError]) -> AccessError {
        let failure =
            |trouble: &EndpointError| Failure { endpoint: "1.2.3.4:6443".into(), trouble: trouble.clone() };
        AccessError::Failed(troubles.iter().map(failure).collect())
    }

    /// Checks the sequence of next requests: `l` for a list, `w` for a watch.
    #[track_caller]
    fn check(name: &str, endings: &[(WatchError, bool)], expected: &str) {
        let mut stuck = StuckVersion::default();
        let follows = |(ending, has_moved): &(WatchError, bool)| {
            if stuck.record_error(ending, *has_moved) { 'l' } else { 'w' }
        };
        assert_eq!(endings.iter().map(follows).collect::<String>(), expected, "{name}");
    }

    #[test]
    fn each_error_leads_to_a_list_or_a_watch() {
        let silent = || WatchError::Silent(Duration::from_secs(90));
        check(
            "a watch that ended goes on",
            &[(WatchError::Ended, true), (WatchError::Ended, false), (WatchError::Ended, false)],
            "www",
        );
        check(
            "a version that is gone needs a list",
            &[(refused(410), false), (failed(410, ""), false)],
            "ll",
        );
        check("however it is spelled", &[(failed(500, "Expired"), true), (failed(0, "Gone"), true)], "ll");
        check("a version that is no version needs a list", &[(refused(400), false)], "l");
        check(
            "servers that are away change nothing",
            &[(refused(503), false), (refused(429), false), (refused(403), false)],
            "www",
        );
        check(
            "nor do broken connections",
            &[(WatchError::Broken(broken(&[EndpointError::Closed])), false), (WatchError::Overrun, false)],
            "ww",
        );
        check(
            "silence twice from one version needs a list",
            &[(silent(), false), (silent(), false), (silent(), false)],
            "wlw",
        );
        check("silence after news does not", &[(silent(), true), (silent(), true)], "ww");
        check(
            "an error twice from one version needs a list",
            &[(failed(500, ""), false), (failed(500, ""), false)],
            "wl",
        );
        check(
            "versions that went back need a list",
            &[(WatchError::Rewound { from: "9".into(), to: "5".into() }, false)],
            "l",
        );
        check("a watch that missed changes needs a list", &[(WatchError::Differs("a".into()), true)], "l");
    }

    #[test]
    fn a_page_is_requested_again_only_if_that_may_help() {
        let may_pass = |code| refused(code).is_transient();
        assert!([429, 500, 502, 503, 504].into_iter().all(may_pass));
        assert!(![400, 401, 403, 404, 410, 422].into_iter().any(may_pass));
        assert!(
            WatchError::Broken(broken(&[EndpointError::Closed])).is_transient()
                && WatchError::from(PageError::Truncated).is_transient()
        );
        assert!(!WatchError::Stalled(Duration::ZERO).is_transient());
    }

    #[test]
    fn silence_differs_from_a_broken_reply() {
        let idle = Duration::from_secs(90);
        let silent = WatchError::from_body(broken(&[EndpointError::Silent]), idle);
        assert_eq!(silent.to_string(), "nothing came for 90 s; an apiserver sends a bookmark each minute");
        let closed = WatchError::from_body(broken(&[EndpointError::Closed]), idle);
        assert_eq!(closed.to_string(), "1.2.3.4:6443: closed the connection");
    }
}
