//! A separate file of `[[service]]` blocks.
//!
//! Invariant: each block is judged alone, so a bad one takes no other with it. A file has unclear blocks if it is not
//! TOML or has an unknown key, and then counts for nothing.

use super::problem::{ConfigErrors, Problem};
use super::report::Report;
use super::service::{self, ReadBlock, ServiceBlock};
use super::table::Table;
use super::{block_conflicts, limits};

/// The content of such a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlocksFile {
    /// The good blocks, in the order of the file.
    pub blocks: Vec<ServiceBlock>,
    /// Namespace and name of each bad block, where known.
    pub bad: Vec<(String, String)>,
    /// Whether a bad block lacks a readable name.
    pub has_nameless: bool,
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

/// The number of errors before a block, and the block.
type CountedBlock = (usize, Option<ReadBlock>);

impl BlocksFile {
    /// Judges the text of a file. The name is for messages, and relative paths start from its folder.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigErrors> {
        let (report, (read, after_blocks)) = Table::read_text(text, file_name, |root| {
            let read = root.blocks("service", limits::SERVICES_MAX, read_counted_block);
            (read, root.report().errors_count())
        })?;
        let before_blocks = read.first().map_or(0, |(before, _)| *before);
        if before_blocks > 0 || read.is_empty() || report.errors_count() > after_blocks {
            return report.finish().map(|warnings| Self { warnings, ..Self::default() });
        }
        Ok(Self::judge_blocks(report, read, after_blocks))
    }

    fn judge_blocks(mut report: Report<'_>, read: Vec<CountedBlock>, after: usize) -> Self {
        let mut file = Self::default();
        let ends: Vec<usize> = read.iter().skip(1).map(|(before, _)| *before).chain([after]).collect();
        for ((before, read), end) in read.into_iter().zip(ends) {
            let Some(read) = read else {
                file.has_nameless = true;
                continue;
            };
            let so_far = report.errors_count();
            block_conflicts::check_block(&mut report, &read);
            let block = read.block;
            match before == end && so_far == report.errors_count() {
                true => file.blocks.push(block),
                false => file.bad.push((block.namespace.to_string(), block.name.to_string())),
            }
        }
        let (errors, warnings) = report.into_problems();
        Self { errors, warnings, ..file }
    }
}

fn read_counted_block(table: &mut Table<'_, '_, '_>) -> CountedBlock {
    (table.report().errors_count(), service::read(table))
}
