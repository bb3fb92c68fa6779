//! The exit codes, and what help says about them.
//!
//! Invariant: a code means the same with every command. [`MEANINGS`] is the one list; the manual page and the
//! documentation repeat it, and a test compares them.

use std::fmt::Write as _;

use holdfast_config::ConfigErrors;

/// The exit of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, or all is well.
    Good,
    /// The answer reports a problem.
    Finding,
    /// The daemon is unreachable, or its answer was truncated.
    Unreachable,
    /// The command line, or a filter in it, is invalid.
    Usage,
    Config,
    Errors,
    /// The Service does not exist.
    NoService,
    /// A diagnosis found nothing, but could not check everything; or Events could not be read; or `verify` found no
    /// difference, but could not compare everything.
    Incomplete,
}

impl Exit {
    /// 64 is `EX_USAGE` of sysexits(3), 78 its `EX_CONFIG`.
    pub const fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Finding => 1,
            Self::Unreachable => 2,
            Self::Usage => 64,
            Self::Config => ConfigErrors::EXIT_CODE,
            Self::Errors => 3,
            Self::NoService => 4,
            Self::Incomplete => 5,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Every exit with its meaning.
pub(super) const MEANINGS: [(Exit, &str); 8] = [
    (Exit::Good, "the command did what it should, and reports no problem"),
    (Exit::Finding, "the answer reports a problem"),
    (Exit::Unreachable, "the daemon cannot be reached, or its answer cannot be used"),
    (Exit::Errors, "diagnose found errors"),
    (Exit::NoService, "there is no such service"),
    (Exit::Incomplete, "nothing wrong was found, and not everything could be read"),
    (Exit::Usage, "the command line, or a filter in it, is wrong"),
    (Exit::Config, "the configuration is wrong"),
];

/// All codes, below the list of commands.
pub(super) fn describe_all() -> String {
    let codes = MEANINGS.iter().fold("Exit codes:".to_owned(), |mut text, (exit, meaning)| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {:<3} {meaning}", exit.code());
        text
    });
    format!("{codes}\n{JUDGES}")
}

/// Which commands judge, so that their exit code says whether all is well.
pub(super) const JUDGES: &str = "status, explain, diagnose, verify, health, apiserver and datapath judge what they show. \
                                 Tables list, and end with 0 whatever stands in them; `events` ends with 5 where it \
                                 has nothing to read.";

pub(super) const STATUS: &str =
    "Exit code: 0 all is well, 1 something is not, 2 the daemon cannot be reached";

pub(super) const EXPLAIN: &str = "Exit code: 0 all is well with what was asked about, 1 something is not, 2 the daemon \
                                  cannot be reached, 4 no such service. Without an argument, all services are asked \
                                  about, and nothing of the node itself";

pub(super) const APISERVER: &str =
    "Exit code: 0 the apiserver is heard, 1 it is not, 2 the daemon cannot be reached";

pub(super) const DATAPATH: &str =
    "Exit code: 0 programs and maps are as they should be, 1 they are not, 2 the daemon cannot be reached";

pub(super) const DIAGNOSE: &str = "Exit code: 0 all is well, 1 warnings, 2 the daemon cannot be reached, 3 errors, \
                                   4 no such Service, 5 nothing found and something could not be checked";

pub(super) const VERIFY: &str = "Exit code: 0 all is equal, 1 something differs, 2 the daemon cannot be reached, 5 not \
                                 everything could be compared, and what was is equal";

pub(super) const EVENTS: &str =
    "Exit code: 0 they were read, 2 the daemon cannot be reached, 5 they could not be read";

pub(super) const DRAIN: &str = "Exit code: 0 no new client gets such a backend, 1 clients of some service still do, because no \
                                other backend there takes clients, or no service has such a backend, or the disk lacks the order, 2 the daemon cannot be \
                                reached or rejects the order";

pub(super) const UNDRAIN: &str = "Exit code: 0 it is not drained, 1 another drain still has some of it, or the disk lacks the order, 2 the daemon cannot be \
                                  reached or rejects the order";

pub(super) const BUGREPORT: &str = "Exit code: 0 it is written, 1 it cannot be written, 5 it is written, and some of its files have no content";

pub(super) const IMPORT: &str = "Exit code: 0 the blocks say all that the file says, 1 something is noted on standard error, 78 \
                                 the file cannot be read";
