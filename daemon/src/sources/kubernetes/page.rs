//! A page of a list, taken apart while it comes: each item on its own, and what stands around them.
//!
//! Invariant: what is given out does not depend on where chunks end; at no time is more than one item held. An item may be
//! wrong inside; only its brackets must fit. Deliberately absent: what an item says.

use serde::Deserialize;

use super::piece::{Gathered, Piece};

/// Everything around the items: kind, version, token. Real ones have less than one kilobyte.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Why a body is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPage {
    /// Something else, such as the HTML of a proxy.
    #[error("the answer is no list of objects")]
    NotAList,
    /// The body ended too early.
    #[error("the list ended in its middle")]
    Truncated,
    /// More around the items than a list has.
    #[error("the list has more than {FRAME_BYTES_MAX} bytes beside its items")]
    TooLong,
}

/// What a list says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ListFrame {
    /// `ServiceList`, …
    kind: String,
    pub(super) metadata: ListMeta,
}

/// `metadata` of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMeta {
    pub(super) resource_version: String,
    /// The token for the next page.
    #[serde(rename = "continue")]
    pub(super) token: Option<String>,
}

/// Where the splitter is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Around,
    BetweenItems,
    InItem,
}

/// One page that has begun.
#[derive(Debug, Default)]
pub(super) struct Page {
    nesting: Nesting,
    place: Place,
    frame: Vec<u8>,
    item: Gathered,
}

impl Page {
    /// Takes a chunk, and gives out each item that ends in it.
    pub(super) fn take(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>)) -> Result<(), NoPage> {
        let mut rest = chunk;
        while !rest.is_empty() {
            let (length, turn) = self.nesting.advance(rest);
            let (run, after) = rest.split_at(length);
            match self.place {
                Place::Around => self.around(run, turn)?,
                Place::BetweenItems => self.between(run, turn)?,
                Place::InItem => self.inside(run, turn, each),
            }
            rest = after;
        }
        Ok(())
    }

    /// What the page says of itself, if it is complete.
    pub(super) fn end(self) -> Result<ListFrame, NoPage> {
        if self.nesting.depth > 0 {
            return Err(NoPage::Truncated);
        }
        let frame: ListFrame = serde_json::from_slice(&self.frame).map_err(|_| NoPage::NotAList)?;
        // Any other object would pass for an empty list, and everything would go.
        let is_list = frame.kind.ends_with("List") && !frame.metadata.resource_version.is_empty();
        is_list.then_some(frame).ok_or(NoPage::NotAList)
    }

    fn around(&mut self, run: &[u8], turn: Turn) -> Result<(), NoPage> {
        if self.frame.is_empty() && !run.trim_ascii_start().starts_with(b"{") && !run.trim_ascii().is_empty()
        {
            return Err(NoPage::NotAList);
        }
        if self.frame.len() + run.len() > FRAME_BYTES_MAX {
            return Err(NoPage::TooLong);
        }
        self.frame.extend(run);
        if turn == Turn::Opened(b'[') && self.nesting.depth == 2 && is_before_items(&self.frame) {
            self.place = Place::BetweenItems;
        }
        Ok(())
    }

    fn between(&mut self, run: &[u8], turn: Turn) -> Result<(), NoPage> {
        let (separators, bracket) = run.split_at(run.len() - usize::from(turn != Turn::None));
        if !separators.iter().all(|byte| byte.is_ascii_whitespace() || *byte == b',') {
            return Err(NoPage::NotAList);
        }
        match turn {
            Turn::None => {}
            Turn::Opened(b'{') => {
                self.item.push(bracket);
                self.place = Place::InItem;
            }
            Turn::Closed => {
                self.frame.extend(bracket);
                self.place = Place::Around;
            }
            Turn::Opened(_) => return Err(NoPage::NotAList),
        }
        Ok(())
    }

    fn inside(&mut self, run: &[u8], turn: Turn, each: &mut dyn FnMut(Piece<'_>)) {
        self.item.push(run);
        if turn == Turn::Closed && self.nesting.depth == 2 {
            self.item.give(each);
            self.place = Place::BetweenItems;
        }
    }
}

/// Whether the list that was just opened is the one of the items, and not that of a key whose name ends alike.
fn is_before_items(frame: &[u8]) -> bool {
    let key = frame.strip_suffix(b"[").map(<[u8]>::trim_ascii_end).and_then(|it| it.strip_suffix(b":"));
    let before = key.map(<[u8]>::trim_ascii_end).and_then(|it| it.strip_suffix(b"\"items\""));
    before.is_some_and(|before| !before.ends_with(b"\\"))
}

/// What the last byte of a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    None,
    Opened(u8),
    Closed,
}

/// How deep in brackets a place is, and whether it is in a string.
#[derive(Debug, Default)]
struct Nesting {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Nesting {
    /// The length of the run up to and with the next bracket, or of all the text.
    fn advance(&mut self, text: &[u8]) -> (usize, Turn) {
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            if self.in_string {
                at += self.skip_string(rest);
                continue;
            }
            let Some(found) = rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))
            else {
                break;
            };
            at += found + 1;
            match rest.get(found) {
                Some(b'"') => self.in_string = true,
                Some(opening @ (b'{' | b'[')) => {
                    self.depth += 1;
                    return (at, Turn::Opened(*opening));
                }
                _ => {
                    self.depth = self.depth.saturating_sub(1);
                    return (at, Turn::Closed);
                }
            }
        }
        (text.len(), Turn::None)
    }

    fn skip_string(&mut self, text: &[u8]) -> usize {
        if std::mem::take(&mut self.is_escaped) {
            return 1;
        }
        let Some(found) = memchr::memchr2(b'"', b'\\', text) else { return text.len() };
        match text.get(found) {
            Some(b'"') => self.in_string = false,
            _ => self.is_escaped = true,
        }
        found + 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::PIECE_BYTES_MAX;
    use super::*;

    fn read(chunks: &[&[u8]]) -> Result<(Vec<String>, ListFrame), NoPage> {
        let (mut page, mut items) = (Page::default(), Vec::new());
        for chunk in chunks {
            page.take(chunk, &mut |piece| {
                items.push(match piece {
                    Piece::Whole(item) => String::from_utf8_lossy(item).into_owned(),
                    Piece::Cut(item) => format!("cut after {}", item.len()),
                });
            })?;
        }
        page.end().map(|frame| (items, frame))
    }

    #[track_caller]
    fn check(text: &str, items: &[&str], version: &str, token: Option<&str>) {
        for size in 1..=text.len() {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let (found, frame) = read(&chunks).unwrap();
            assert_eq!(found, items, "in chunks of {size}");
            assert_eq!(
                (frame.metadata.resource_version.as_str(), frame.metadata.token.as_deref()),
                (version, token)
            );
        }
    }

    #[track_caller]
    fn check_refused(text: &str, expected: NoPage) {
        for size in 1..=text.len() {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            assert_eq!(read(&chunks), Err(expected), "in chunks of {size}");
        }
    }

    #[test]
    fn items_are_taken_out_one_by_one() {
        check(r#"{"kind":"List","metadata":{"resourceVersion":"7"},"items":[]}"#, &[], "7", None);
        check(
            r#"{"kind":"List","metadata":{"resourceVersion":"7","continue":"c"},"items":null}"#,
            &[],
            "7",
            Some("c"),
        );
        check(
            r#"{"items":[{"a":[1,{"b":"]}"}]},{"c":"\"\\"}],"kind":"List","metadata":{"resourceVersion":"8"}}"#,
            &[r#"{"a":[1,{"b":"]}"}]}"#, r#"{"c":"\"\\"}"#],
            "8",
            None,
        );
        check(
            "{\n \"kind\": \"AList\", \"metadata\": {\"resourceVersion\": \"9\"},\n \"items\" : [\n  {} ,\n  {\"x\": 1}\n ]\n}\n",
            &["{}", "{\"x\": 1}"],
            "9",
            None,
        );
    }

    #[test]
    fn only_the_lists_own_items_are_items() {
        check(
            r#"{"x":[{"y":1}],"kind":"List","metadata":{"items":[{}],"resourceVersion":"1"}}"#,
            &[],
            "1",
            None,
        );
        check(r#"{"a\"items":[{"no":1}],"kind":"List","metadata":{"resourceVersion":"2"}}"#, &[], "2", None);
    }

    #[test]
    fn an_item_may_be_wrong_inside() {
        check(
            r#"{"items":[{wrong},{"ok":1}],"kind":"List","metadata":{"resourceVersion":"3"}}"#,
            &["{wrong}", r#"{"ok":1}"#],
            "3",
            None,
        );
    }

    #[test]
    fn what_is_no_list_is_refused() {
        check_refused("<html>no</html>", NoPage::NotAList);
        check_refused(r#"{"kind":"Status","metadata":{}}"#, NoPage::NotAList);
        check_refused(r#"{"kind":"Service","metadata":{"resourceVersion":"7"}}"#, NoPage::NotAList);
        check_refused(r#"{"kind":"List","metadata":{},"items":[]}"#, NoPage::NotAList);
        check_refused(r#"{"items":[null]}"#, NoPage::NotAList);
        check_refused(r#"{"items":[["a"]]}"#, NoPage::NotAList);
        check_refused(r#"{"items":[{}]"#, NoPage::Truncated);
        check_refused(r#"{"items":[{"a":"#, NoPage::Truncated);
        check_refused(r#"{"items":[]} {"#, NoPage::Truncated);
        check_refused(r#"{"items":[]} x"#, NoPage::NotAList);
        assert_eq!(read(&[b""]), Err(NoPage::NotAList));
        let endless = format!("{{\"a\":\"{}", "x".repeat(FRAME_BYTES_MAX));
        assert_eq!(read(&[endless.as_bytes()]), Err(NoPage::TooLong));
    }

    #[test]
    fn a_giant_item_is_cut_and_the_next_one_is_whole() {
        let giant = format!(
            r#"{{"kind":"List","metadata":{{"resourceVersion":"1"}},"items":[{{"a":"{}"}},{{"b":1}}]}}"#,
            "x".repeat(PIECE_BYTES_MAX)
        );
        let (items, _) = read(&[giant.as_bytes()]).unwrap();
        assert_eq!(items, [format!("cut after {PIECE_BYTES_MAX}"), r#"{"b":1}"#.to_owned()]);
    }
}
