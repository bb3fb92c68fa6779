//! The effective blocks of files, by earlier and present contents.

use std::path::Path;

use super::*;

const FOLDER: &str = "/etc/holdfast/services.d";

/// A block with this name and the last byte of its one backend.
fn block(name: &str, backend: u8) -> String {
    let frontend = name.bytes().map(u32::from).sum::<u32>() % 250;
    format!(
        "[[service]]\nname = \"{name}\"\nfrontends = [\"10.96.0.{frontend}:80\"]\nbackends = [\"192.0.2.{backend}:80\"]\n"
    )
}

struct Disk {
    known: BlockFiles,
    present: BTreeSet<Arc<str>>,
}

impl Disk {
    fn new() -> Self {
        Self { known: BlockFiles::for_folder(Path::new(FOLDER)), present: BTreeSet::new() }
    }

    fn look(&mut self, files: &[(&str, Option<&str>)]) -> FolderScan<BlockContents> {
        let mut read = Vec::new();
        for (file, text) in files {
            let file: Arc<str> = (*file).into();
            match text {
                Some(text) => {
                    self.present.insert(Arc::clone(&file));
                    let contents = BlockFiles::decode(
                        Path::new(FOLDER),
                        &file,
                        text.as_bytes(),
                        FileAuthor::Administrator,
                    );
                    read.push((file, contents));
                }
                None => drop(self.present.remove(&file)),
            }
        }
        FolderScan { present: Ok(self.present.clone()), files: read }
    }

    /// Scans the files and checks the effective blocks, one line per file.
    #[track_caller]
    fn check(&mut self, files: &[(&str, Option<&str>)], expected: &[&str]) {
        let look = self.look(files);
        self.known.take_scan(look);
        assert_eq!(shown(self.known.files()), expected);
    }
}

fn shown(files: &FileTable) -> Vec<String> {
    let line = |(path, file): (&Arc<str>, &Arc<FileBlocks>)| {
        let block = |it: &Arc<ParsedBlock>| format!(" {}@{}", it.service.name, it.service.backends[0].ip());
        let blocks: String = file.blocks.iter().map(block).collect();
        let wrong = file.wrong.as_deref().map(|why| format!(" ! {why}")).unwrap_or_default();
        let part = if file.is_partial { " (the rest counts)" } else { "" };
        format!("{}:{blocks}{wrong}{part}", path.strip_prefix(FOLDER).unwrap())
    };
    files.iter().map(line).collect()
}

#[test]
fn a_broken_block_keeps_its_last_good_version() {
    let (a1, a2, b1) = (block("a", 1), block("a", 2), block("b", 1));
    let bad_b = block("b", 2).replace("192.0.2.2:80", "192.0.2.2");
    let nameless = block("b", 2).replace("name =", "nmae =");
    let mut disk = Disk::new();
    disk.check(&[("x.toml", Some(&(a1.clone() + &b1)))], &["/x.toml: a@192.0.2.1 b@192.0.2.1"]);
    disk.check(
        &[("x.toml", Some(&(a2.clone() + &bad_b)))],
        &["/x.toml: a@192.0.2.2 b@192.0.2.1 ! /etc/holdfast/services.d/x.toml:8:13: service \"b\": backends[0]: \
          *** has no port: add it, as in \"192.0.2.2:80\" (the rest counts)"],
    );
    disk.check(
        &[("x.toml", Some(&(a1.clone() + &nameless)))],
        &["/x.toml: a@192.0.2.1 b@192.0.2.1 ! /etc/holdfast/services.d/x.toml:5:1: service[1]: the key \"name\" is \
          missing, and it has no default (and 1 more: holdfast check-config names all) (the rest counts)"],
    );
    disk.check(
        &[("x.toml", Some(&(a2.clone() + "[[servce]]\n")))],
        &["/x.toml: a@192.0.2.1 b@192.0.2.1 ! /etc/holdfast/services.d/x.toml:5:3: unknown key \"servce\": did you \
          mean \"service\"? legal here: service"],
    );
    disk.check(
        &[("x.toml", Some("[["))],
        &["/x.toml: a@192.0.2.1 b@192.0.2.1 ! /etc/holdfast/services.d/x.toml:1:3: this is not TOML: unquoted keys \
          cannot be empty, expected letters, numbers, `-`, `_`"],
    );
    disk.check(&[("x.toml", Some(&a2))], &["/x.toml: a@192.0.2.2"]);
    disk.check(&[("x.toml", Some(""))], &["/x.toml:"]);
    disk.check(&[("x.toml", None)], &[]);
}

#[test]
fn a_broken_file_touches_no_other_file() {
    let (a1, b1, b2) = (block("a", 1), block("b", 1), block("b", 2));
    let mut disk = Disk::new();
    disk.check(
        &[("x.toml", Some(&a1)), ("y.toml", Some(&b1))],
        &["/x.toml: a@192.0.2.1", "/y.toml: b@192.0.2.1"],
    );
    disk.look(&[]);
    let read = disk.look(&[("x.toml", Some("=")), ("y.toml", Some(&b2))]);
    disk.known.take_scan(read);
    let now = shown(disk.known.files());
    assert!(now[0].starts_with("/x.toml: a@192.0.2.1 ! "), "{now:?}");
    assert_eq!(now[1], "/y.toml: b@192.0.2.2");
}

#[test]
fn an_unreadable_folder_removes_nothing() {
    let mut disk = Disk::new();
    disk.check(&[("x.toml", Some(&block("a", 1)))], &["/x.toml: a@192.0.2.1"]);
    let gone = || FolderScan { present: Err("gone".to_owned()), files: Vec::new() };
    assert_eq!(disk.known.take_scan(gone()), [FolderNews::Unreadable(Some("gone".into()))]);
    assert_eq!(disk.known.take_scan(gone()), []);
    assert_eq!(shown(disk.known.files()), ["/x.toml: a@192.0.2.1"]);
    disk.check(&[], &["/x.toml: a@192.0.2.1"]);
}

#[test]
fn a_block_that_moves_between_files_is_awaited() {
    let (a, b) = (block("a", 1), block("b", 1));
    let mut disk = Disk::new();
    disk.check(
        &[("x.toml", Some(&a)), ("y.toml", Some(&b))],
        &["/x.toml: a@192.0.2.1", "/y.toml: b@192.0.2.1"],
    );
    let mut check = |files: &[(&str, Option<&str>)], expected: bool| {
        let present = disk.present.clone();
        let look = disk.look(files);
        assert_eq!(disk.known.is_object_moving(&look), expected, "{files:?}");
        disk.present = present;
    };
    check(&[("x.toml", Some(&b))], true);
    check(&[("x.toml", Some(""))], true);
    check(&[("x.toml", None)], true);
    check(&[("y.toml", Some(&(a.clone() + &b)))], true);
    check(&[("x.toml", Some("")), ("y.toml", Some(&(a.clone() + &b)))], false);
    check(&[("x.toml", Some(&block("a", 2)))], false);
    check(&[("z.toml", Some(&block("c", 1)))], false);
}

#[test]
fn an_undecodable_file_is_rejected_with_its_reason() {
    let decode = |bytes: &[u8]| {
        BlockFiles::decode(Path::new(FOLDER), &"x.toml".into(), bytes, FileAuthor::Administrator).err()
    };
    assert!(decode(b"\xff").is_some_and(|why| why.starts_with("is not UTF-8")));
    let many = block("a", 1).repeat(1_001);
    assert!(decode(many.as_bytes()).is_some_and(|why| why.contains("1001 blocks are too many")));
}

#[test]
fn kernel_files_named_in_a_users_file_need_the_users_permission() {
    const USER: u32 = 61_183;
    let folder = tempfile::tempdir().unwrap();
    let check = "health_check = { kind = \"https\", ca_file = \"/etc/ca.crt\" }\n";
    for (name, owner) in [("a.toml", 0), ("b.toml", USER)] {
        let path = folder.path().join(name);
        std::fs::write(&path, block(name.trim_end_matches(".toml"), 1) + check).unwrap();
        std::os::unix::fs::chown(path, Some(owner), None).unwrap();
    }
    let look = crate::folder::read_folder::<BlockFiles>(folder.path()).unwrap();
    let author =
        |read: &Arc<ParsedBlock>| read.block.check.as_ref().unwrap().kind.tls().unwrap().files.author;
    let authors = |(_, contents): &(Arc<str>, Result<BlockContents, String>)| {
        contents.as_ref().unwrap().good.iter().map(author).collect::<Vec<_>>()
    };
    let found: Vec<_> = look.files.iter().flat_map(authors).collect();
    assert_eq!(found, [FileAuthor::Administrator, FileAuthor::User(USER)]);
}
