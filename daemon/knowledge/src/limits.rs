//! Every bound of this crate, with its reason.

/// Bytes of a message that are kept, as many as the newer of the two APIs allows. A longer message keeps both of its
/// ends.
pub const MESSAGE_BYTES_MAX: usize = 1_024;

/// Bytes of a long message's beginning; the rest of it is its end, where Go puts the cause.
pub(crate) const MESSAGE_HEAD_BYTES: usize = 600;

/// Bytes of a reason, an action or a component; the apiserver allows 128 in the newer API.
pub const WORD_BYTES_MAX: usize = 128;

/// Bytes of a name, as Kubernetes allows.
pub const NAME_BYTES_MAX: usize = 253;

/// Bytes of one line about an Event: all of the above, and the longest sentence.
pub const LINE_BYTES_MAX: usize = 2_048;

/// Further causes that are named beside the first one; still more would tell a reader nothing.
pub const ALSO_MAX: usize = 3;

/// Seconds after which an Event says nothing of now: as long as apiservers keep it by default.
pub const EVENT_LIFE_S: i64 = 3_600;

/// Files that may add to the knowledge. A folder with more of them holds something else.
pub const FILES_MAX: usize = 32;

/// Bytes of such a file; the largest one of ours has 25 KB.
pub const FILE_BYTES_MAX: usize = 128 * 1_024;

/// Reasons that such files may have together, and as many causes; all of ours are fewer than 200.
pub const ENTRIES_MAX: usize = 512;

/// Faults that are told; more of them say nothing until the first ones are mended.
pub const FAULTS_MAX: usize = 50;

/// Items of any list of an entry. The bound limits what one message costs: so many causes with so many keywords.
pub const LIST_MAX: usize = 24;

/// Bytes of a keyword. A shorter one would be found in every message.
pub const KEYWORD_BYTES: std::ops::RangeInclusive<usize> = 3..=80;

/// Bytes of a sentence, so that a line with all that belongs to it keeps its bound.
pub const SENTENCE_BYTES_MAX: usize = 400;

/// Bytes of an id.
pub const ID_BYTES_MAX: usize = 64;
