//! Finds a user's name in this node's own file of users.
//!
//! Invariant: no name service is queried, because it may be another host that does not answer. A name that the file
//! lacks stays unknown.

use std::path::Path;
use std::sync::Arc;

use holdfast_host::small_file;

/// The file of this node's own users.
pub(super) const USERS: &str = "/etc/passwd";

/// How much of it is read: some ten thousand users.
const USERS_BYTES_MAX: usize = 1 << 20;

/// The longest name that is kept; Linux allows 32 characters.
const NAME_LENGTH_MAX: usize = 32;

pub(super) fn user_name(users: &Path, uid: u32) -> Option<Arc<str>> {
    let users = small_file::read_bounded(users, USERS_BYTES_MAX).ok()?;
    let users = str::from_utf8(&users).ok()?;
    users.lines().find_map(|line| parse_line(line, uid)).map(Into::into)
}

/// `name:x:uid:…`
fn parse_line(line: &str, uid: u32) -> Option<&str> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let found: u32 = fields.nth(1)?.parse().ok()?;
    let is_a_name =
        (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    (found == uid && is_a_name).then_some(name)
}
