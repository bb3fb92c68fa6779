//! Follows pages of the guide, block by block.
//!
//! Invariant: a page with other blocks than expected fails its test.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// A section of a page, without its heading.
#[track_caller]
pub(crate) fn section(page: &str, name: &str) -> String {
    let page = fs::read_to_string(repository().join("docs").join(page)).unwrap();
    let rest = page.split_once(&format!("\n## {name}\n")).unwrap().1;
    rest.split("\n## ").next().unwrap().to_owned()
}

/// The blocks of a section, each as between its fences.
#[track_caller]
pub(crate) fn blocks<const N: usize>(page: &str, name: &str) -> [String; N] {
    let text = section(page, name);
    let fenced = text.split("```").skip(1).step_by(2);
    let blocks: Vec<String> = fenced.map(|block| block.split_once('\n').unwrap().1.to_owned()).collect();
    blocks.try_into().unwrap_or_else(|found: Vec<String>| panic!("{name}: other blocks: {found:#?}"))
}
