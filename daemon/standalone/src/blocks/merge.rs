//! Merges the blocks of the configuration and of the folder.
//!
//! Invariant: all blocks of the configuration count, then those of the files in order of path. A block with the name or
//! a frontend of an earlier one is rejected with its file, and takes nothing from the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::Source;
use holdfast_objects::truncate_reason;

use super::block::Blocks;
use super::folder::{FileTable, FolderNews, ParsedBlock};
use super::rejection_log::{RejectionLog, Rejections};
use holdfast_config::BlockAdmission;

/// The received state of the folder.
#[derive(Debug, Default)]
pub(super) struct FolderBlocks {
    path: Arc<str>,
    files: Arc<FileTable>,
    unreadable: Option<Arc<str>>,
    rejection_log: RejectionLog,
}

/// The merged blocks and the rejections.
#[derive(Debug)]
pub struct MergedBlocks {
    pub(super) blocks: Arc<Blocks>,
    /// The folder's blocks that count.
    pub more: Arc<[Arc<ParsedBlock>]>,
    pub(super) rejections: Rejections,
}

impl FolderBlocks {
    pub(super) fn new(path: Arc<str>) -> Self {
        Self { path, ..Self::default() }
    }

    /// Applies news; returns whether the folder is complete now.
    pub(super) fn take_news(&mut self, news: Vec<FolderNews>) -> bool {
        let mut is_whole = false;
        for news in news {
            match news {
                FolderNews::Files(files) => self.files = files,
                FolderNews::Unreadable(why) => self.unreadable = why,
                FolderNews::Whole => is_whole = true,
            }
        }
        is_whole
    }

    /// Whether a file or a part of it is rejected.
    pub(super) fn rejects_file(&self, path: &str) -> bool {
        self.files.get(path).is_some_and(|file| file.wrong.is_some())
    }

    /// Merges the blocks, and returns changes of rejections.
    pub(super) fn merge_with(&mut self, configured: &Arc<Blocks>) -> (MergedBlocks, Vec<Event>) {
        let mut merged = merge_blocks(configured, &self.files);
        let whole = self.unreadable.as_ref().map(|why| file_rejection(&self.path, why, false));
        merged.rejections.extend(whole.map(|it| (it.object.clone(), it)));
        let events = self.rejection_log.update_rejections(merged.rejections.clone());
        (merged, events)
    }
}

/// Merges the files' blocks into the configuration's.
pub fn merge_blocks(configured: &Arc<Blocks>, files: &FileTable) -> MergedBlocks {
    if files.is_empty() {
        return MergedBlocks {
            blocks: Arc::clone(configured),
            more: Arc::default(),
            rejections: BTreeMap::new(),
        };
    }
    let (config, origin) = configured.own_config();
    let mut admission = BlockAdmission::new(config, origin);
    let (mut more, mut rejections) = (Vec::new(), BTreeMap::new());
    for (path, file) in files {
        let rejection = file.wrong.as_deref().map(|why| file_rejection(path, why, file.is_partial));
        let mut reject = |it: Rejection| rejections.insert(it.object.clone(), it);
        rejection.into_iter().for_each(|it| drop(reject(it)));
        for read in &file.blocks {
            match admission.admit_block(&read.service, path) {
                Ok(()) => more.push(Arc::clone(read)),
                Err(why) => drop(reject(left_out_rejection(path, read, &why))),
            }
        }
    }
    let blocks = configured.with_blocks(more.iter().map(|read| Arc::clone(&read.block)));
    MergedBlocks { blocks: Arc::new(blocks), more: more.into(), rejections }
}

/// Rejects one block, not its file: a rejected file would keep all its remembered blocks at a start.
fn left_out_rejection(path: &Arc<str>, read: &ParsedBlock, why: &str) -> Rejection {
    let name = &read.block.service.key.name;
    let object = ObjectKey::Unnamed(Source::Config, format!("{path}, {name}").into());
    let reason = truncate_reason(&format!("{name} is left out: {why}"));
    Rejection { object, origin: Some(Arc::clone(path)), reason, partial: false }
}

fn file_rejection(path: &Arc<str>, reason: &str, partial: bool) -> Rejection {
    Rejection {
        object: ObjectKey::File(Source::Config, Arc::clone(path)),
        origin: Some(Arc::clone(path)),
        reason: truncate_reason(reason),
        partial,
    }
}

impl MergedBlocks {
    /// The rejections as file and reason.
    pub fn rejection_reasons(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rejections.values().map(|it| (it.origin.as_deref().unwrap_or_default(), &*it.reason))
    }
}

#[cfg(test)]
pub(crate) mod tests;
