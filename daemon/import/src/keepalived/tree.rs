//! Lines and braces of keepalived's file.
//!
//! Invariant: no file nests deeper here than [`DEPTH_MAX`]; deeper lines belong to the innermost block within that
//! depth.

use super::super::notes::Notes;

/// A check's address within a check within a server within a virtual server is at the fifth level.
const DEPTH_MAX: usize = 16;

/// A line, and the lines within its braces.
#[derive(Debug, Default)]
pub(super) struct Node<'a> {
    pub(super) line: usize,
    pub(super) words: Vec<&'a str>,
    pub(super) children: Vec<Self>,
}

impl<'a> Node<'a> {
    /// The word at an index; empty if there is none.
    pub(super) fn word(&self, at: usize) -> &'a str {
        self.words.get(at).copied().unwrap_or_default()
    }

    pub(super) fn child(&self, word: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.word(0) == word)
    }
}

pub(super) fn parse_nodes<'a>(text: &'a str, notes: &mut Notes) -> Vec<Node<'a>> {
    // The open blocks, the file itself first.
    let mut open = vec![Node::default()];
    let mut too_deep = 0_usize;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split(['!', '#']).next().unwrap_or_default();
        let mut words = Vec::new();
        for word in split_words(line) {
            match word {
                "{" if open.len() >= DEPTH_MAX => {
                    too_deep += 1;
                    notes.add(number, "nested too deeply to be read");
                    push_line(&mut open, number, &mut words);
                }
                "{" => {
                    open.push(Node { line: number, words: std::mem::take(&mut words), children: Vec::new() });
                }
                "}" => {
                    push_line(&mut open, number, &mut words);
                    if too_deep > 0 {
                        too_deep -= 1;
                    } else {
                        close_block(&mut open);
                    }
                }
                word => words.push(word.trim_matches('"')),
            }
        }
        push_line(&mut open, number, &mut words);
    }
    while open.len() > 1 {
        close_block(&mut open);
    }
    open.pop().map(|file| file.children).unwrap_or_default()
}

/// The words of a line. A brace needs no space around it.
fn split_words(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split_inclusive(['{', '}']);
    let apart = parts.flat_map(|part| {
        let brace = part.len() - usize::from(part.ends_with(['{', '}']));
        let (before, brace) = part.split_at_checked(brace).unwrap_or((part, ""));
        [before, brace]
    });
    apart.flat_map(str::split_whitespace)
}

fn push_line<'a>(open: &mut [Node<'a>], line: usize, words: &mut Vec<&'a str>) {
    if let Some(block) = open.last_mut().filter(|_| !words.is_empty()) {
        block.children.push(Node { line, words: std::mem::take(words), children: Vec::new() });
    }
}

/// Moves the innermost block into its parent; the file itself stays open.
fn close_block(open: &mut Vec<Node<'_>>) {
    if open.len() > 1
        && let Some(block) = open.pop()
        && let Some(around) = open.last_mut()
    {
        around.children.push(block);
    }
}
