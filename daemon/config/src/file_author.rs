//! The possible writers of a file of services, and what they may read themselves.
//!
//! Invariant: this daemon may read any file, but the writer of a file of services need not be root. So a file named
//! there is read only if each possible writer may read it, along its whole path. The check uses the opened file, so a
//! link that moves meanwhile leads nowhere else.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The possible writers of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileAuthor {
    /// Root, or the daemon's user, who decide everything.
    #[default]
    Administrator,
    /// One other user, including the users that this user gave the file to.
    User(u32),
    /// Unknown users: members of a group, or all users.
    Others,
}

impl FileAuthor {
    /// The author of a file, by its owner and the write bits of its mode.
    pub fn from_metadata(file: &Metadata) -> Self {
        let is_own = [0, nix::unistd::geteuid().as_raw()].contains(&file.uid());
        let is_own_group = [0, nix::unistd::getegid().as_raw()].contains(&file.gid());
        let is_for_others = file.mode() & 0o002 != 0;
        let is_for_group = file.mode() & 0o020 != 0 && !is_own_group;
        match is_own {
            _ if is_for_others => Self::Others,
            true if is_for_group => Self::Others,
            true => Self::Administrator,
            false => Self::User(file.uid()),
        }
    }

    /// Whether the author may read an opened file.
    pub fn may_read(self, opened: &File) -> io::Result<bool> {
        if self == Self::Administrator {
            return Ok(true);
        }
        let path = fs::read_link(PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd())))?;
        for folder in path.ancestors().skip(1) {
            if !self.has_permission(&fs::metadata(folder)?, SEARCH) {
                return Ok(false);
            }
        }
        Ok(self.has_permission(&opened.metadata()?, READ))
    }

    /// Whether the mode grants this to the author as the owner, or to all users. The members of groups are unknown, so
    /// a group's permission counts for nothing, and a denial to it counts.
    fn has_permission(self, file: &Metadata, permission: u32) -> bool {
        let is_owner = self == Self::User(file.uid());
        let needed = permission & if is_owner { 0o700 } else { 0o077 };
        file.mode() & needed == needed
    }
}

/// The mode bits that let all users read a file.
const READ: u32 = 0o444;

/// The mode bits that let all users search a folder.
const SEARCH: u32 = 0o111;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::Path;

    use super::*;

    const USER: u32 = 61_183;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn written(path: &Path, owner: u32, mode: u32) {
        fs::write(path, "x").unwrap();
        chown(path, Some(owner), Some(owner)).unwrap();
        set_mode(path, mode);
    }

    #[test]
    fn kernel_the_author_of_a_file_is_its_possible_writer() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.toml");
        let group = |gid| chown(&file, None, Some(gid)).unwrap();
        for (owner, gid, mode, expected) in [
            (0, 0, 0o644, FileAuthor::Administrator),
            (0, 0, 0o664, FileAuthor::Administrator),
            (0, USER, 0o644, FileAuthor::Administrator),
            (0, USER, 0o660, FileAuthor::Others),
            (0, 0, 0o646, FileAuthor::Others),
            (USER, USER, 0o664, FileAuthor::User(USER)),
            (USER, 0, 0o600, FileAuthor::User(USER)),
            (USER, USER, 0o666, FileAuthor::Others),
        ] {
            written(&file, owner, mode);
            group(gid);
            let author = FileAuthor::from_metadata(&fs::metadata(&file).unwrap());
            assert_eq!(author, expected, "{owner}:{gid} {mode:o}");
        }
    }

    #[test]
    fn kernel_an_author_reads_only_files_its_permissions_allow() {
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o755);
        let at = |name: &str| folder.path().join(name);
        for (name, mode) in [("open", 0o755), ("shut", 0o700)] {
            fs::create_dir(at(name)).unwrap();
            set_mode(&at(name), mode);
        }
        for (name, owner, mode) in [
            ("secret", 0, 0o600),
            ("group", 0, 0o640),
            ("not-group", 0, 0o604),
            ("shown", 0, 0o644),
            ("own", USER, 0o400),
            ("others-own", USER + 1, 0o600),
            ("open/shown", 0, 0o644),
            ("shut/shown", 0, 0o644),
            ("shut/own", USER, 0o600),
        ] {
            written(&at(name), owner, mode);
        }
        for (link, to) in [("to-secret", "secret"), ("to-shut", "shut/shown"), ("to-shown", "shown")] {
            symlink(at(to), at(link)).unwrap();
        }
        let user = FileAuthor::User(USER);
        for (name, by_user, by_others) in [
            ("secret", false, false),
            ("group", false, false),
            ("not-group", false, false),
            ("shown", true, true),
            ("own", true, false),
            ("others-own", false, false),
            ("open/shown", true, true),
            ("shut/shown", false, false),
            ("shut/own", false, false),
            ("to-secret", false, false),
            ("to-shut", false, false),
            ("to-shown", true, true),
        ] {
            let opened = File::open(at(name)).unwrap();
            let may = |author: FileAuthor| author.may_read(&opened).unwrap();
            assert_eq!((may(user), may(FileAuthor::Others)), (by_user, by_others), "{name}");
            assert!(may(FileAuthor::Administrator), "{name}");
        }
    }
}
