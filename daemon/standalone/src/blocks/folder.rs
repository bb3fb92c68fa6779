//! A folder of TOML files with `[[service]]` blocks, as manifests are a folder of objects.
//!
//! Invariant: a file speaks for its own blocks alone, and has nothing read that its author may not read. A block that
//! cannot be understood keeps its last good version, a file that cannot be read keeps all of its blocks, and so does
//! one with a bad block of which the name is not known: nothing is taken away that the file may still have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use holdfast_core::keys::Source;
use holdfast_objects::cut_reason;
use holdfast_objects::manifests::FolderLook;

use super::StaticService;
use super::block::Block;
use crate::folder::{Files, Watched};
use holdfast_config::{BlocksFile, FILE_BYTES_MAX, FileAuthor, Problem, ServiceBlock, Subject};

/// The folder of blocks, whether it is there or not.
pub type BlocksFolder = Watched<BlockFiles>;

/// Namespace and name of a block.
type Name = (String, String);

/// A block of a file, as it was read and as facts.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    pub service: ServiceBlock,
    pub(super) block: Arc<Block>,
}

impl Read {
    fn name(&self) -> Name {
        (self.service.namespace.to_string(), self.service.name.to_string())
    }
}

/// What a file says now.
#[derive(Debug, Default)]
pub struct Contents {
    good: Vec<Arc<Read>>,
    bad: BTreeSet<Name>,
    has_nameless: bool,
    /// What is wrong with the bad ones.
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl Contents {
    fn of(file: BlocksFile, path: &Arc<str>) -> Self {
        let BlocksFile { blocks, bad, has_nameless, errors, warnings } = file;
        let (bad, good) = (bad.into_iter().collect(), Vec::new());
        let mut contents = Self { good, bad, has_nameless, errors, warnings };
        for service in blocks {
            let block = Block::new(StaticService::from(&service), path);
            match block {
                Ok(block) => contents.good.push(Arc::new(Read { service, block: Arc::new(block) })),
                Err(fault) => {
                    let message = format!("[[service]] {}/{}: {fault}", service.namespace, service.name);
                    contents.bad.insert((service.namespace.to_string(), service.name.to_string()));
                    let file = path.to_string();
                    contents.errors.push(Problem { file, position: None, place: Subject::File, message });
                }
            }
        }
        contents
    }
}

/// What counts of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileBlocks {
    /// The blocks of the file that count, each in its last good version.
    pub blocks: Vec<Arc<Read>>,
    /// Why not all of the file as it is now counts.
    pub wrong: Option<Arc<str>>,
    /// Whether a part of the file counts as it is now.
    pub is_partial: bool,
}

impl FileBlocks {
    fn unreadable(&self, reason: &str) -> Self {
        Self { wrong: Some(cut_reason(reason)), is_partial: false, blocks: self.blocks.clone() }
    }

    /// The file as it says now; what is bad in it stays as it was known.
    fn then(&self, now: Contents) -> Self {
        let good: BTreeSet<Name> = now.good.iter().map(|it| it.name()).collect();
        let stays = |known: &&Arc<Read>| {
            let name = known.name();
            !good.contains(&name) && (now.has_nameless || now.bad.contains(&name))
        };
        let kept: Vec<_> = self.blocks.iter().filter(stays).cloned().collect();
        let wrong = summary(&now.errors).map(|reason| cut_reason(&reason));
        Self { is_partial: wrong.is_some(), wrong, blocks: now.good.into_iter().chain(kept).collect() }
    }

    fn names(&self) -> impl Iterator<Item = Name> {
        self.blocks.iter().map(|it| it.name())
    }
}

/// The first problem, and how many more there are.
fn summary(problems: &[Problem]) -> Option<String> {
    let (first, more) = problems.split_first()?;
    Some(match more.len() {
        0 => first.to_string(),
        more => format!("{first} (and {more} more: holdfast check-config names all)"),
    })
}

/// The files that count, by their paths.
pub type Listed = BTreeMap<Arc<str>, Arc<FileBlocks>>;

/// What is told of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderNews {
    /// All files, as they count now.
    Files(Arc<Listed>),
    /// Why the folder cannot be read, if it cannot.
    Unreadable(Option<Arc<str>>),
    /// Every file that is there has been told.
    Whole,
}

/// What is known of the files of one folder.
#[derive(Debug)]
pub struct BlockFiles {
    folder: Arc<str>,
    files: Arc<Listed>,
    unreadable: Option<Arc<str>>,
}

impl BlockFiles {
    /// All files, as they count now.
    pub fn files(&self) -> &Listed {
        &self.files
    }

    /// The path of a file, by which it is named everywhere.
    fn path(&self, file: &str) -> Arc<str> {
        Path::new(&*self.folder).join(file).to_string_lossy().into()
    }

    fn put(&mut self, file: &str, now: impl FnOnce(&FileBlocks) -> FileBlocks) {
        let path = self.path(file);
        let known = self.files.get(&path).map(|known| FileBlocks::clone(known)).unwrap_or_default();
        let now = now(&known);
        if now != known || !self.files.contains_key(&path) {
            Arc::make_mut(&mut self.files).insert(path, Arc::new(now));
        }
    }

    /// The news since these were the files, and this was wrong with the folder.
    fn since(&self, files: &Arc<Listed>, unreadable: Option<&Arc<str>>) -> Vec<FolderNews> {
        let is_news = unreadable != self.unreadable.as_ref();
        let told = is_news.then(|| FolderNews::Unreadable(self.unreadable.clone()));
        let changed = (*files != self.files).then(|| FolderNews::Files(Arc::clone(&self.files)));
        told.into_iter().chain(changed).collect()
    }
}

impl Files for BlockFiles {
    type Contents = Contents;
    type News = FolderNews;

    const NAMED: &'static str = "TOML files";
    const TABLE: &'static str = "services";
    const ENDINGS: &'static [&'static str] = &[".toml"];
    const FILE_BYTES_MAX: usize = FILE_BYTES_MAX;
    /// Several KiB for each block that may be there.
    const FOLDER_BYTES_MAX: u64 = 64 << 20;
    const SOURCE: Source = Source::Config;

    fn of(folder: &Path) -> Self {
        Self { folder: folder.to_string_lossy().into(), files: Arc::default(), unreadable: None }
    }

    fn decode(folder: &Path, file: &Arc<str>, bytes: &[u8], author: FileAuthor) -> Result<Contents, String> {
        let path: Arc<str> = folder.join(&**file).to_string_lossy().into();
        let text = str::from_utf8(bytes).map_err(|error| format!("is not UTF-8: {error}"))?;
        let read = BlocksFile::parse(text, &path);
        let mut read = read.map_err(|refused| summary(&refused.errors).unwrap_or_default())?;
        let checks = read.blocks.iter_mut().filter_map(|block| block.health_check.as_mut());
        checks.for_each(|check| check.kind.set_author(author));
        Ok(Contents::of(read, &path))
    }

    fn take(&mut self, look: FolderLook<Contents>) -> Vec<FolderNews> {
        let (files, unreadable) = (Arc::clone(&self.files), self.unreadable.take());
        match look.present {
            Ok(present) => {
                let present: BTreeSet<Arc<str>> = present.iter().map(|file| self.path(file)).collect();
                if self.files.keys().any(|path| !present.contains(path)) {
                    Arc::make_mut(&mut self.files).retain(|path, _| present.contains(path));
                }
            }
            Err(reason) => self.unreadable = Some(cut_reason(&reason)),
        }
        for (file, contents) in look.files {
            self.put(&file, |known| match contents {
                Ok(now) => known.then(now),
                Err(reason) => known.unreadable(&reason),
            });
        }
        self.since(&files, unreadable.as_ref())
    }

    fn is_between(&self, look: &FolderLook<Contents>) -> bool {
        let Ok(present) = &look.present else { return false };
        let present: BTreeSet<Arc<str>> = present.iter().map(|file| self.path(file)).collect();
        let names = |now: &Contents| now.good.iter().map(|it| it.name()).collect();
        let read: BTreeMap<Arc<str>, BTreeSet<Name>> =
            look.read().map(|(file, now)| (self.path(file), names(now))).collect();
        let known = || self.files.iter().flat_map(|(path, file)| file.names().map(move |it| (path, it)));
        let keeps = |path: &Arc<str>, name: &Name| match read.get(path) {
            Some(names) => names.contains(name),
            None => present.contains(path),
        };
        let kept: BTreeSet<Name> =
            known().filter(|(path, name)| keeps(path, name)).map(|(_, name)| name).collect();
        let named: BTreeSet<&Name> = read.values().flatten().collect();
        let is_lost = |(path, name): (&Arc<str>, Name)| {
            !keeps(path, &name) && !named.contains(&name) && !kept.contains(&name)
        };
        let had: BTreeSet<(&Arc<str>, Name)> = known().filter(|(path, _)| read.contains_key(*path)).collect();
        let is_new = |path: &Arc<str>, name: &Name| !had.contains(&(path, name.clone()));
        let is_doubled = |(path, name): (&Arc<str>, &Name)| kept.contains(name) && is_new(path, name);
        let of_file = |(path, names)| BTreeSet::iter(names).map(move |name| (path, name));
        known().any(is_lost) || read.iter().flat_map(of_file).any(is_doubled)
    }

    fn refuse(&mut self, files: &[Arc<str>], reason: &str) -> Vec<FolderNews> {
        let before = Arc::clone(&self.files);
        files.iter().for_each(|file| self.put(file, |known| known.unreadable(reason)));
        self.since(&before, self.unreadable.clone().as_ref())
    }

    fn again(&mut self) -> Vec<FolderNews> {
        vec![FolderNews::Files(Arc::clone(&self.files))]
    }

    fn whole() -> FolderNews {
        FolderNews::Whole
    }

    fn hangs(_: &str, reason: &str) -> FolderNews {
        FolderNews::Unreadable(Some(reason.into()))
    }

    fn answers(&self) -> Vec<FolderNews> {
        vec![FolderNews::Unreadable(self.unreadable.clone())]
    }
}

#[cfg(test)]
mod tests;
