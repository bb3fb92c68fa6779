//! The output of a command in a host.

use std::process::ExitStatus;

/// Its exit code and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl CommandOutput {
    pub(super) fn new(status: ExitStatus, out: &[u8], err: &[u8]) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).trim_end().to_owned();
        Self { code: status.code().unwrap_or(-1), out: text(out), err: text(err) }
    }

    /// Whether the service manager could not be reached yet.
    pub(super) fn is_lost(&self) -> bool {
        self.out.is_empty() || self.out == "offline" || self.err.contains("Failed to connect")
    }

    /// Its standard output; panics if it failed.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.out
    }

    /// Its output; panics if it succeeded.
    #[track_caller]
    pub fn expect_failure(self) -> String {
        assert_ne!(self.code, 0, "{self:#?}");
        format!("{}\n{}", self.out, self.err)
    }
}
