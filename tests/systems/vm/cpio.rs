//! The archive that a kernel unpacks into its first file system (`newc`).
//!
//! Invariant: a folder comes before its content. Archives may be concatenated: a later file replaces an earlier one.
//! It is not compressed, because under emulation unpacking costs more than it saves.

use std::collections::BTreeMap;

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// Files by path, without a leading slash.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Archive {
    pub(crate) fn folder(&mut self, path: &str) {
        self.parents(path);
        self.entries.entry(trimmed(path)).or_insert((FOLDER, Vec::new()));
    }

    pub(crate) fn file(&mut self, path: &str, bytes: Vec<u8>) {
        self.parents(path);
        self.entries.insert(trimmed(path), (PROGRAM, bytes));
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entries.insert(trimmed(path), (LINK, target.as_bytes().to_vec()));
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.entries.contains_key(&trimmed(path))
    }

    fn parents(&mut self, path: &str) {
        let path = trimmed(path);
        for (at, _) in path.match_indices('/') {
            let parent = path.split_at(at).0.to_owned();
            self.entries.entry(parent).or_insert((FOLDER, Vec::new()));
        }
    }

    /// The bytes of the archive, padded for another one to follow.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // A path sorts before all paths below it, so folders come first.
        for (inode, (path, (mode, bytes))) in self.entries.iter().enumerate() {
            write_entry(&mut out, inode + 1, path, *mode, bytes);
        }
        write_entry(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }
}

fn trimmed(path: &str) -> String {
    path.trim_matches('/').to_owned()
}

fn write_entry(out: &mut Vec<u8>, inode: usize, path: &str, mode: u32, bytes: &[u8]) {
    let fields = [inode, mode as usize, 0, 0, 1, 0, bytes.len(), 0, 0, 0, 0, path.len() + 1, 0];
    out.extend_from_slice(b"070701");
    fields.iter().for_each(|field| out.extend_from_slice(format!("{field:08X}").as_bytes()));
    out.extend_from_slice(path.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(bytes);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_kernels_format() {
        let mut archive = Archive::default();
        archive.file("/a/b", b"hello".to_vec());
        let text = String::from_utf8(archive.bytes()).unwrap();
        let folder = "070701000000010000\x34\x31ED"; // inode 1, mode 0o040755
        assert!(text.starts_with(folder), "{text:?}");
        assert!(text.contains("a/b\0") && text.contains("hello\0\0\0") && text.contains("TRAILER!!!\0"));
        assert_eq!(text.len() % 4, 0);
    }

    #[test]
    fn a_folder_comes_before_its_content() {
        let mut archive = Archive::default();
        archive.file("/b/c/d", Vec::new());
        archive.folder("/b");
        let paths: Vec<&String> = archive.entries.keys().collect();
        assert_eq!(paths, ["b", "b/c", "b/c/d"]);
    }
}
