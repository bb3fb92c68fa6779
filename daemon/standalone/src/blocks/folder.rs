//! A folder of TOML files with `[[service]]` blocks.
//!
//! Invariant: a file affects only its own blocks, and reads no file that its author may not read. An invalid block
//! keeps its last good version; an unreadable file keeps all its blocks, and so does a file with an invalid block
//! without a name: no block goes that the file may still contain.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use holdfast_core::keys::Source;
use holdfast_objects::manifests::FolderScan;
use holdfast_objects::truncate_reason;

use super::StaticService;
use super::block::Block;
use crate::folder::{FileFormat, FolderSource};
use holdfast_config::{BlocksFile, FILE_BYTES_MAX, FileAuthor, Problem, ServiceBlock, Subject};

/// The folder of blocks, which may come and go.
pub type BlocksFolder = FolderSource<BlockFiles>;

/// A block's namespace and name.
type BlockName = (String, String);

/// A block of a file, as parsed and as facts.
#[derive(Debug, PartialEq, Eq)]
pub struct ParsedBlock {
    pub service: ServiceBlock,
    pub(super) block: Arc<Block>,
}

impl ParsedBlock {
    fn name(&self) -> BlockName {
        (self.service.namespace.to_string(), self.service.name.to_string())
    }
}

/// The present contents of a file.
#[derive(Debug, Default)]
pub struct BlockContents {
    good: Vec<Arc<ParsedBlock>>,
    bad: BTreeSet<BlockName>,
    has_nameless: bool,
    /// The errors of the bad blocks.
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl BlockContents {
    fn from_file(file: BlocksFile, path: &Arc<str>) -> Self {
        let BlocksFile { blocks, bad, has_nameless, errors, warnings } = file;
        let (bad, good) = (bad.into_iter().collect(), Vec::new());
        let mut contents = Self { good, bad, has_nameless, errors, warnings };
        for service in blocks {
            let block = Block::new(StaticService::from(&service), path);
            match block {
                Ok(block) => contents.good.push(Arc::new(ParsedBlock { service, block: Arc::new(block) })),
                Err(fault) => {
                    let message = format!("[[service]] {}/{}: {fault}", service.namespace, service.name);
                    contents.bad.insert((service.namespace.to_string(), service.name.to_string()));
                    let file = path.to_string();
                    contents.errors.push(Problem {
                        file,
                        position: None,
                        place: Subject::File,
                        block: None,
                        message: message.into(),
                    });
                }
            }
        }
        contents
    }
}

/// The effective state of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileBlocks {
    /// The effective blocks, each in its last good version.
    pub blocks: Vec<Arc<ParsedBlock>>,
    /// Why the present contents are not effective as a whole.
    pub wrong: Option<Arc<str>>,
    /// Some of the present contents are effective.
    pub is_partial: bool,
}

impl FileBlocks {
    fn with_error(&self, reason: &str) -> Self {
        Self { wrong: Some(truncate_reason(reason)), is_partial: false, blocks: self.blocks.clone() }
    }

    /// Merges new contents; bad blocks keep their last good version.
    fn merge_contents(&self, now: BlockContents) -> Self {
        let good: BTreeSet<BlockName> = now.good.iter().map(|it| it.name()).collect();
        let stays = |known: &&Arc<ParsedBlock>| {
            let name = known.name();
            !good.contains(&name) && (now.has_nameless || now.bad.contains(&name))
        };
        let remaining: Vec<_> = self.blocks.iter().filter(stays).cloned().collect();
        let wrong = summarize_problems(&now.errors).map(|reason| truncate_reason(&reason));
        Self { is_partial: wrong.is_some(), wrong, blocks: now.good.into_iter().chain(remaining).collect() }
    }

    fn names(&self) -> impl Iterator<Item = BlockName> {
        self.blocks.iter().map(|it| it.name())
    }
}

/// The first problem, and the count of the others.
fn summarize_problems(problems: &[Problem]) -> Option<String> {
    let (first, more) = problems.split_first()?;
    Some(match more.len() {
        0 => first.to_string(),
        more => format!("{first} (and {more} more: holdfast check-config names all)"),
    })
}

/// The effective files by path.
pub type FileTable = BTreeMap<Arc<str>, Arc<FileBlocks>>;

/// A change of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderNews {
    /// The effective state of all files.
    Files(Arc<FileTable>),
    /// Why the folder is unreadable, if it is.
    Unreadable(Option<Arc<str>>),
    /// Every present file has been delivered.
    Whole,
}

/// The files of one folder.
#[derive(Debug)]
pub struct BlockFiles {
    folder: Arc<str>,
    files: Arc<FileTable>,
    unreadable: Option<Arc<str>>,
}

impl BlockFiles {
    /// The effective state of all files.
    pub fn files(&self) -> &FileTable {
        &self.files
    }

    /// The full path of a file, which identifies it everywhere.
    fn file_path(&self, file: &str) -> Arc<str> {
        Path::new(&*self.folder).join(file).to_string_lossy().into()
    }

    fn update_file(&mut self, file: &str, now: impl FnOnce(&FileBlocks) -> FileBlocks) {
        let path = self.file_path(file);
        let known = self.files.get(&path).map(|known| FileBlocks::clone(known)).unwrap_or_default();
        let now = now(&known);
        if now != known || !self.files.contains_key(&path) {
            Arc::make_mut(&mut self.files).insert(path, Arc::new(now));
        }
    }

    /// The news since these earlier values.
    fn news_since(&self, files: &Arc<FileTable>, unreadable: Option<&Arc<str>>) -> Vec<FolderNews> {
        let is_news = unreadable != self.unreadable.as_ref();
        let unreadable_news = is_news.then(|| FolderNews::Unreadable(self.unreadable.clone()));
        let changed = (*files != self.files).then(|| FolderNews::Files(Arc::clone(&self.files)));
        unreadable_news.into_iter().chain(changed).collect()
    }
}

impl FileFormat for BlockFiles {
    type Contents = BlockContents;
    type News = FolderNews;

    const NAMED: &'static str = "TOML files";
    const TABLE: &'static str = "services";
    const ENDINGS: &'static [&'static str] = &[".toml"];
    const FILE_BYTES_MAX: usize = FILE_BYTES_MAX;
    /// Several KiB for each possible block.
    const FOLDER_BYTES_MAX: u64 = 64 << 20;
    const SOURCE: Source = Source::Config;

    fn for_folder(folder: &Path) -> Self {
        Self { folder: folder.to_string_lossy().into(), files: Arc::default(), unreadable: None }
    }

    fn decode(
        folder: &Path,
        file: &Arc<str>,
        bytes: &[u8],
        author: FileAuthor,
    ) -> Result<BlockContents, String> {
        let path: Arc<str> = folder.join(&**file).to_string_lossy().into();
        let text = str::from_utf8(bytes).map_err(|error| format!("is not UTF-8: {error}"))?;
        let read = BlocksFile::parse(text, &path);
        let mut read = read.map_err(|refused| summarize_problems(&refused.errors).unwrap_or_default())?;
        let checks = read.blocks.iter_mut().filter_map(|block| block.health_check.as_mut());
        checks.for_each(|check| check.kind.set_author(author));
        Ok(BlockContents::from_file(read, &path))
    }

    fn take_scan(&mut self, scan: FolderScan<BlockContents>) -> Vec<FolderNews> {
        let (files, unreadable) = (Arc::clone(&self.files), self.unreadable.take());
        match scan.present {
            Ok(present) => {
                let present: BTreeSet<Arc<str>> = present.iter().map(|file| self.file_path(file)).collect();
                if self.files.keys().any(|path| !present.contains(path)) {
                    Arc::make_mut(&mut self.files).retain(|path, _| present.contains(path));
                }
            }
            Err(reason) => self.unreadable = Some(truncate_reason(&reason)),
        }
        for (file, contents) in scan.files {
            self.update_file(&file, |known| match contents {
                Ok(now) => known.merge_contents(now),
                Err(reason) => known.with_error(&reason),
            });
        }
        self.news_since(&files, unreadable.as_ref())
    }

    fn is_object_moving(&self, scan: &FolderScan<BlockContents>) -> bool {
        let Ok(present) = &scan.present else { return false };
        let present: BTreeSet<Arc<str>> = present.iter().map(|file| self.file_path(file)).collect();
        let names = |now: &BlockContents| now.good.iter().map(|it| it.name()).collect();
        let read: BTreeMap<Arc<str>, BTreeSet<BlockName>> =
            scan.readable_files().map(|(file, now)| (self.file_path(file), names(now))).collect();
        let known = || self.files.iter().flat_map(|(path, file)| file.names().map(move |it| (path, it)));
        let keeps = |path: &Arc<str>, name: &BlockName| match read.get(path) {
            Some(names) => names.contains(name),
            None => present.contains(path),
        };
        let kept: BTreeSet<BlockName> =
            known().filter(|(path, name)| keeps(path, name)).map(|(_, name)| name).collect();
        let named: BTreeSet<&BlockName> = read.values().flatten().collect();
        let is_lost = |(path, name): (&Arc<str>, BlockName)| {
            !keeps(path, &name) && !named.contains(&name) && !kept.contains(&name)
        };
        let had: BTreeSet<(&Arc<str>, BlockName)> =
            known().filter(|(path, _)| read.contains_key(*path)).collect();
        let is_new = |path: &Arc<str>, name: &BlockName| !had.contains(&(path, name.clone()));
        let is_doubled = |(path, name): (&Arc<str>, &BlockName)| kept.contains(name) && is_new(path, name);
        let of_file = |(path, names)| BTreeSet::iter(names).map(move |name| (path, name));
        known().any(is_lost) || read.iter().flat_map(of_file).any(is_doubled)
    }

    fn reject_files(&mut self, files: &[Arc<str>], reason: &str) -> Vec<FolderNews> {
        let before = Arc::clone(&self.files);
        files.iter().for_each(|file| self.update_file(file, |known| known.with_error(reason)));
        self.news_since(&before, self.unreadable.clone().as_ref())
    }

    fn redeliver_all(&mut self) -> Vec<FolderNews> {
        vec![FolderNews::Files(Arc::clone(&self.files))]
    }

    fn complete_news() -> FolderNews {
        FolderNews::Whole
    }

    fn hang_news(_: &str, reason: &str) -> FolderNews {
        FolderNews::Unreadable(Some(reason.into()))
    }

    fn recovery_news(&self) -> Vec<FolderNews> {
        vec![FolderNews::Unreadable(self.unreadable.clone())]
    }
}

#[cfg(test)]
mod tests;
