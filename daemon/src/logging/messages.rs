//! The messages that have a number for ever, by which the journal's catalog explains them.
//!
//! Invariant: each is said somewhere in this program, and explained in `contrib/systemd/holdfast.catalog`; a number is never used
//! for anything else. Deliberately absent: messages that explain themselves.

/// Lines that the daemon left out by itself.
pub const LEFT_OUT: &str = "log lines left out; there were too many";

/// Lines that the journal did not take.
pub const LOST: &str = "log lines lost; the journal did not take them";

/// The text of each message, and its number.
pub const MESSAGES: [(&str, &str); 29] = [
    ("started", "fa7bcbd42d2dc89fb8a718175b425260"),
    ("ready", "65b0794de283a67c935fa3309c90d955"),
    ("stopping; what is programmed stays", "187b7d892993e66831760515b687f134"),
    ("reloaded", "61919eca0b7027ae2e541be61b248843"),
    ("not reloaded; the old configuration stays", "8becadd9e7b51c2e90a24cd6d196661d"),
    ("these keys take effect with the next restart", "57997c9e7c8f7809e2b393a7d20bec43"),
    ("frontend added", "22b9c2f00282921094383594fffba1ec"),
    ("frontend removed", "627095fb90c97d6b6aae5bc97a3b378b"),
    ("verdict changed", "9d13d2898fe1915ece3b90f9eca89ee4"),
    ("list held", "16466ff2dcc44ad3a604b502bdafc640"),
    ("hold ended", "7cc426525d3d485da02ad17b79ef9b43"),
    ("backends changed", "21fc81d10dd8e802f599d58727be2e46"),
    ("remembered frontend written", "443608d4e1679b29dcaa5fb89baf3bc5"),
    ("frontend updated after errors", "3b1f3bdd0009891ba706a3d92a0e43e7"),
    ("service not updated; trying again", "01f3077bef8a1f7507b930a326709383"),
    ("a client was not served", "3bd1f127526f2ed69b587176a5a4b8aa"),
    ("somebody changed the maps; repairing", "8180364fe8250db68e5e000e5de240f1"),
    ("somebody changed programs, pins or bitmaps; they are as they were", "d51274d1a1030d1a74b5481fbe01b16c"),
    ("took over from the programs that were there", "226800a691cbbc93489b46634c5be255"),
    ("another proxy serves on this node too", "ef24ba3e79f39a7a1e48e02b040101ab"),
    ("the snapshot is not used; a new one replaces it", "782dcfe9c369d4575f3e3aa03b46cf88"),
    ("more changes came than could be recorded; the history has a gap", "54390a3c446ba2f27756c5194818152c"),
    (
        "cannot write the history; memory goes on, and a restart would not know the latest",
        "7e9ad93f7c27745946efb04f3b160699",
    ),
    (
        "cannot write the snapshot; a restart would begin without the last changes",
        "5a5f87c8153b739a0141a05d3fe5fab0",
    ),
    ("object not understood, its last good version stays", "3ffabc66196a31d3f791eab23b70c0d1"),
    ("trouble with an apiserver", "c7e1f4e1946f278478e1d31cf028d9fe"),
    ("the history is written again", "9ed29bc661e5459da9bf13f0a1c6b93c"),
    (LEFT_OUT, "20a1acb080803061ed92af86213cedf5"),
    (LOST, "7e587f289d83d73a8de026853cf059e4"),
];

/// The number of a message that has one.
pub(super) fn id(message: &str) -> Option<&'static str> {
    MESSAGES.iter().find(|(text, _)| *text == message).map(|(_, id)| *id)
}
