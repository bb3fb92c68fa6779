//! The messages with a permanent number, by which the journal's catalog explains them.
//!
//! Invariant: a message is one constant with a number and a text. Code that logs it uses the constant, and nothing
//! parses the text to identify it. `contrib/systemd/holdfast.catalog` explains each message. A number is never
//! reused. Messages that need no explanation have no number.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// 128 bits in hexadecimal digits.
    pub id: &'static str,
    /// The text before the fields.
    pub text: &'static str,
}

/// A constant for each message, and all of them.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $text:literal;)*) => {
        $($(#[$doc])* pub const $name: Message = Message { id: $id, text: $text };)*

        /// Every message, in the order of the table.
        pub const MESSAGES: &[Message] = &[$($name),*];

        /// The constants' names in the code.
        #[cfg(test)]
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

messages! {
    STARTED = "fa7bcbd42d2dc89fb8a718175b425260", "started; ask `holdfast status` how it is";
    /// The service manager got `READY=1`.
    READY = "65b0794de283a67c935fa3309c90d955", "ready; the kernel's tables are written";
    /// The same, where nothing is attached.
    READY_IN_MEMORY = "841f81f04bb6cd482ade62fc5de12a48", "ready; the maps are in memory, so no client is served";
    STOPPING = "187b7d892993e66831760515b687f134", "stopping; clients do not notice, and no change is followed";
    STOPPING_UNPINNED = "5d1c3f8a90b7472e8f64e2a1c79b0d36", "stopping; programs or their pins are gone, so clients may lose service";
    RELOADED = "61919eca0b7027ae2e541be61b248843", "reloaded";
    NOT_RELOADED = "8becadd9e7b51c2e90a24cd6d196661d", "not reloaded; the old configuration stays";
    RESTART_NEEDED = "57997c9e7c8f7809e2b393a7d20bec43", "these keys take effect with the next restart";
    KNOWLEDGE_LEFT_OUT = "8735fb6f022a4787bdb60068d23785db", "left out of the knowledge about Events";
    FRONTEND_ADDED = "22b9c2f00282921094383594fffba1ec", "frontend added";
    FRONTEND_REMOVED = "627095fb90c97d6b6aae5bc97a3b378b", "frontend removed";
    VERDICT_CHANGED = "9d13d2898fe1915ece3b90f9eca89ee4", "verdict changed";
    LIST_HELD = "16466ff2dcc44ad3a604b502bdafc640", "backends held; their endpoints are gone";
    HOLD_ENDED = "7cc426525d3d485da02ad17b79ef9b43", "hold ended";
    BACKENDS_CHANGED = "21fc81d10dd8e802f599d58727be2e46", "backends changed";
    /// A frontend from the snapshot is in the maps.
    REMEMBERED_WRITTEN = "443608d4e1679b29dcaa5fb89baf3bc5", "remembered frontend is in the kernel again";
    FRONTEND_UPDATED = "3b1f3bdd0009891ba706a3d92a0e43e7", "frontend updated after errors";
    SERVICE_NOT_UPDATED = "01f3077bef8a1f7507b930a326709383", "service not updated; trying again";
    CLIENT_NOT_SERVED = "3bd1f127526f2ed69b587176a5a4b8aa", "a client was not served";
    BACKENDS_FAIL = "4d6f1c0a93b84e57a1f26b7c58d90e32", "backends fail clients";
    FAILURES_ENDED = "b85e2f7d06c14a9890d3417fae6b5c21", "no client meets a failing backend any more";
    /// A comparison found a map that another program wrote to.
    MAPS_CHANGED = "8180364fe8250db68e5e000e5de240f1", "another program changed our maps; the differences are rewritten";
    PROGRAMS_CHANGED = "d51274d1a1030d1a74b5481fbe01b16c", "another program changed our programs, pins or bitmaps; restored";
    TOOK_OVER = "226800a691cbbc93489b46634c5be255", "this version's programs have replaced the former ones";
    DEVICE_SERVED = "534ec5f97a08634c7b0e9d5f3f19a6c2", "clients from outside are served at a device";
    DEVICE_LEFT = "0458576a90e13666cbebeac21d036d36", "clients from outside are no longer served at a device";
    PACKETS_NOT_SERVED = "da4a158cb5ae4a01af946dd10638cc8e", "clients from outside are not served; processes and pods of this node are";
    OTHER_PROXY = "ef24ba3e79f39a7a1e48e02b040101ab", "another proxy serves on this node too";
    SNAPSHOT_NOT_USED = "782dcfe9c369d4575f3e3aa03b46cf88", "the snapshot cannot be used; a new one replaces it once every source has delivered";
    SNAPSHOT_DAMAGED = "c0d3c1a8b4e64a0f9a3b7d52f6e1904b", "the snapshot is damaged; using its whole records and those of the previous one";
    CHANGES_MISSING = "54390a3c446ba2f27756c5194818152c", "too many changes at once to record; the history has a gap";
    HISTORY_NOT_WRITTEN = "7e9ad93f7c27745946efb04f3b160699", "cannot write the history; trying again, and `holdfast status` says what a restart would lose";
    SNAPSHOT_NOT_WRITTEN = "5a5f87c8153b739a0141a05d3fe5fab0", "cannot write the snapshot; trying again, and `holdfast status` says what a restart would lose";
    OBJECT_NOT_UNDERSTOOD = "3ffabc66196a31d3f791eab23b70c0d1", "object not understood; its last good version stays in force";
    APISERVER_TROUBLE = "c7e1f4e1946f278478e1d31cf028d9fe", "trouble with an apiserver";
    APISERVER_LED = "5d0d5b6c4a5b4b0f8f0d6f2a9c3e71b4", "the apiserver's virtual address leads to another endpoint";
    HISTORY_WRITTEN_AGAIN = "9ed29bc661e5459da9bf13f0a1c6b93c", "the history is written to disk again";
    LEFT_OUT = "20a1acb080803061ed92af86213cedf5", "log lines left out; there were too many";
    LOST = "7e587f289d83d73a8de026853cf059e4", "log lines lost; the journal did not take them";
}

/// Marks a line of level info as a notice: normal, but more important than other lines of its level.
pub const NOTICE: &str = "holdfast::notice";

/// Logs a message at a level, with fields as `tracing` takes them. The message's number is the event's name. A
/// `notice` is a line of level info that the journal gets with the priority notice.
#[macro_export]
macro_rules! say {
    (notice, $message:expr $(, $($field:tt)+)?) => {
        ::tracing::info!(
            name: $message.id, target: $crate::logging::messages::NOTICE, $($($field)+,)? "{}", $message.text
        )
    };
    ($level:ident, $message:expr $(, $($field:tt)+)?) => {
        ::tracing::$level!(name: $message.id, $($($field)+,)? "{}", $message.text)
    };
}
pub use say;

/// The number in an event's name. Other events are named after their place in the code.
pub(super) fn find_id(name: &str) -> Option<&'static str> {
    MESSAGES.iter().map(|message| message.id).find(|id| *id == name)
}
