//! Every bound of this crate, with its reason.

/// The longest message, in bytes: the limit of the newer API. A longer message keeps both of its ends.
pub const MESSAGE_BYTES_MAX: usize = 1_024;

/// The bytes of a long message's beginning; the rest is its end, where Go puts the cause.
pub(crate) const MESSAGE_HEAD_BYTES: usize = 600;

/// The longest reason, action or component, in bytes; the apiserver allows 128 in the newer API.
pub const WORD_BYTES_MAX: usize = 128;

/// The longest name in Kubernetes, in bytes.
pub const NAME_BYTES_MAX: usize = 253;

/// The longest line about an Event, in bytes: all of the above, and the longest sentence.
pub const LINE_BYTES_MAX: usize = 2_048;

/// The most causes that are named after the first; more would not help a reader.
pub const ALSO_MAX: usize = 3;

/// The lifetime of an Event, in seconds: apiservers keep it that long by default.
pub const EVENT_LIFE_S: i64 = 3_600;

/// The most files that may add to the knowledge. A folder with more holds something else.
pub const FILES_MAX: usize = 32;

/// The largest such file, in bytes; the largest of ours has 25 KB.
pub const FILE_BYTES_MAX: usize = 128 * 1_024;

/// The most reasons in all such files, and the most causes; ours are fewer than 200.
pub const ENTRIES_MAX: usize = 512;

/// The most faults that are reported; more do not help until the first are fixed.
pub const FAULTS_MAX: usize = 50;

/// The most items of a list in an entry. It bounds the cost of one message: causes times keywords.
pub const LIST_MAX: usize = 24;

/// The length of a keyword, in bytes. A shorter one would match every message.
pub const KEYWORD_BYTES: std::ops::RangeInclusive<usize> = 3..=80;

/// The longest sentence, in bytes, so that a whole line stays within its bound.
pub const SENTENCE_BYTES_MAX: usize = 400;

/// The longest id, in bytes.
pub const ID_BYTES_MAX: usize = 64;
