//! The blocks of a page that its reader runs or writes.
//!
//! Invariant: a block is as between its fences, and a test says how many a section has.

/// The blocks of a section, up to the next heading.
#[track_caller]
pub(crate) fn blocks<const N: usize>(page: &str, heading: &str) -> [String; N] {
    let rest = page.split_once(&format!("# {heading}\n")).unwrap().1;
    let text = rest.split("\n#").next().unwrap();
    let fenced = text.split("```").skip(1).step_by(2);
    let blocks: Vec<String> = fenced.map(|block| block.split_once('\n').unwrap().1.to_owned()).collect();
    blocks.try_into().unwrap_or_else(|found: Vec<String>| panic!("{heading}: other blocks: {found:#?}"))
}
