//! Splits a page of a list into items and the frame around them while it arrives.
//!
//! Invariant: the output does not depend on chunk boundaries; only a few items are in memory. An item may be invalid
//! inside; only its brackets must match.

use serde::Deserialize;

use super::piece::{PIECE_BYTES_MAX, Piece, PieceBuffer};

/// The most bytes of a frame (kind, version, token). Real lists have less than one kilobyte.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 10;

/// How much text is buffered before items are read, so that only the item at its end is read twice.
const WINDOW_BYTES: usize = 512 << 10;

/// The most objects of a list: several times the count in the largest clusters.
pub(super) const OBJECTS_MAX: u32 = 500_000;

/// The result of reading at the start of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAhead<T> {
    /// The value, and its length in bytes.
    Read(T, usize),
    /// The text ends within the value.
    Cut,
    /// The value cannot be read ahead.
    Unfit,
}

impl<T> ReadAhead<T> {
    pub(super) fn map<U>(self, with: impl FnOnce(T) -> U) -> ReadAhead<U> {
        match self {
            Self::Read(what, length) => ReadAhead::Read(with(what), length),
            Self::Cut => ReadAhead::Cut,
            Self::Unfit => ReadAhead::Unfit,
        }
    }
}

/// Receives the items of a page.
pub trait ItemSink {
    /// Takes one item, valid or not.
    fn take_item(&mut self, item: Piece<'_>);

    /// Reads the item at the start of a text without finding its end first, which would cost as much as reading it.
    fn take_ahead(&mut self, text: &str) -> ReadAhead<()>;
}

/// A closure receives every item as a piece and reads none ahead.
impl<Each: FnMut(Piece<'_>)> ItemSink for Each {
    fn take_item(&mut self, item: Piece<'_>) {
        self(item);
    }

    fn take_ahead(&mut self, _: &str) -> ReadAhead<()> {
        ReadAhead::Unfit
    }
}

/// Why a body is not a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// Not a list, such as a proxy's HTML.
    #[error("the answer is not a list of objects")]
    NotAList,
    /// Reading this as an empty list would delete everything.
    #[error("the list has no array of items")]
    NoItems,
    /// Another kind of list.
    #[error("the list is not of the requested kind")]
    OtherKind,
    /// The list is incomplete and has no token for the rest.
    #[error("the list is incomplete and has no token for the rest")]
    NotAll,
    /// The body ended too early.
    #[error("the list ended before it was complete")]
    Truncated,
    /// The frame is larger than any list's.
    #[error("the list has more than {FRAME_BYTES_MAX} bytes around its items")]
    TooLong,
    /// The bytes are no protobuf message.
    #[error("the list cannot be parsed")]
    Garbled,
    /// The list does not end.
    #[error("the list has more than {OBJECTS_MAX} objects")]
    Endless,
}

/// The frame of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ListFrame {
    /// Such as `discovery.k8s.io/v1`.
    #[serde(rename = "apiVersion")]
    pub(crate) api_version: String,
    /// Such as `ServiceList`.
    pub kind: String,
    pub metadata: ListMeta,
}

impl ListFrame {
    /// Whether the list holds only metadata. Such a list does not name its kind.
    pub(super) fn is_metadata_only(&self) -> bool {
        (self.api_version.as_str(), self.kind.as_str()) == ("meta.k8s.io/v1", "PartialObjectMetadataList")
    }

    /// Any other object would pass for an empty list and delete everything.
    fn is_list(&self) -> bool {
        self.kind.ends_with("List") && !self.metadata.resource_version.is_empty()
    }

    /// Returns the frame if it is a list's and leads to the rest.
    pub(super) fn validate(self) -> Result<Self, PageError> {
        match (self.is_list(), self.metadata.is_complete_or_paged()) {
            (false, _) => Err(PageError::NotAList),
            (true, false) => Err(PageError::NotAll),
            (true, true) => Ok(self),
        }
    }
}

/// `metadata` of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMeta {
    pub resource_version: String,
    /// The token of the next page.
    #[serde(rename = "continue")]
    pub token: Option<String>,
    /// How many objects follow on later pages, if known.
    pub(crate) remaining_item_count: Option<i64>,
}

impl ListMeta {
    fn is_complete_or_paged(&self) -> bool {
        let goes_on = self.token.as_ref().is_some_and(|token| !token.is_empty());
        goes_on || self.remaining_item_count.is_none_or(|remaining| remaining <= 0)
    }
}

/// The position of the splitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Around,
    BetweenItems,
    InItem,
}

/// A page while it arrives.
#[derive(Debug, Default)]
pub struct JsonPage {
    nesting: Nesting,
    position: Position,
    has_items: bool,
    frame: Vec<u8>,
    item: PieceBuffer,
    /// The start of an item that was cut, and how much text to wait for before the next try.
    window: Vec<u8>,
    window_min: usize,
}

impl JsonPage {
    /// Takes a chunk, and emits the items that are complete.
    pub fn push_chunk(&mut self, chunk: &[u8], items: &mut dyn ItemSink) -> Result<(), PageError> {
        if self.window.is_empty() {
            let read = self.read_items(chunk, items, PIECE_BYTES_MAX)?;
            self.window.extend_from_slice(chunk.get(read..).unwrap_or_default());
        } else {
            self.window.extend_from_slice(chunk);
            if self.window.len() >= self.window_min {
                self.read_window(items, PIECE_BYTES_MAX)?;
            }
        }
        Ok(())
    }

    /// Emits the last items, and returns the frame of a complete page.
    pub fn finish(mut self, items: &mut dyn ItemSink) -> Result<ListFrame, PageError> {
        self.read_window(items, 0)?;
        if self.nesting.depth > 0 {
            return Err(PageError::Truncated);
        }
        let frame: ListFrame = serde_json::from_slice(&self.frame).map_err(|_| PageError::NotAList)?;
        if frame.is_list() && !self.has_items {
            return Err(PageError::NoItems);
        }
        frame.validate()
    }

    fn read_window(&mut self, items: &mut dyn ItemSink, patience: usize) -> Result<(), PageError> {
        let mut window = std::mem::take(&mut self.window);
        let read = self.read_items(&window, items, patience)?;
        window.drain(..read);
        self.window = window;
        Ok(())
    }

    /// Reads all whole items, and returns their length. A cut item shorter than `patience` waits for more text; a
    /// longer one is split as it arrives.
    fn read_items(
        &mut self,
        text: &[u8],
        items: &mut dyn ItemSink,
        patience: usize,
    ) -> Result<usize, PageError> {
        let (legible, goes_on) = valid_prefix(text);
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            at += match self.read_ahead(legible.get(at..), rest, items) {
                ReadAhead::Read((), length) => length,
                ReadAhead::Cut if rest.len() < patience && goes_on => {
                    self.window_min = (rest.len() * 2).clamp(WINDOW_BYTES, PIECE_BYTES_MAX);
                    return Ok(at);
                }
                ReadAhead::Cut | ReadAhead::Unfit => self.read_to_bracket(rest, items)?,
            };
        }
        Ok(at)
    }

    /// Reads one item ahead, or the separators between two items.
    fn read_ahead(&self, legible: Option<&str>, rest: &[u8], items: &mut dyn ItemSink) -> ReadAhead<()> {
        match (self.position, legible) {
            (Position::BetweenItems, Some(text)) if rest.starts_with(b"{") => {
                let (text, _) = text.split_at(text.floor_char_boundary(PIECE_BYTES_MAX));
                items.take_ahead(text)
            }
            (Position::BetweenItems, _) => {
                match rest.iter().take_while(|byte| is_separator(**byte)).count() {
                    0 => ReadAhead::Unfit,
                    length => ReadAhead::Read((), length),
                }
            }
            _ => ReadAhead::Unfit,
        }
    }

    /// Reads up to the next bracket, and returns the length.
    fn read_to_bracket(&mut self, rest: &[u8], items: &mut dyn ItemSink) -> Result<usize, PageError> {
        let (length, turn) = self.nesting.advance(rest);
        let (run, _) = rest.split_at(length);
        match self.position {
            Position::Around => self.read_frame(run, turn)?,
            Position::BetweenItems => self.read_separator(run, turn)?,
            Position::InItem => self.read_item(run, turn, items),
        }
        Ok(length)
    }

    fn read_frame(&mut self, run: &[u8], turn: Bracket) -> Result<(), PageError> {
        if self.frame.is_empty() && !run.trim_ascii_start().starts_with(b"{") && !run.trim_ascii().is_empty()
        {
            return Err(PageError::NotAList);
        }
        if self.frame.len() + run.len() > FRAME_BYTES_MAX {
            return Err(PageError::TooLong);
        }
        self.frame.extend(run);
        if turn == Bracket::Opened(b'[') && self.nesting.depth == 2 && is_before_items(&self.frame) {
            self.position = Position::BetweenItems;
            self.has_items = true;
        }
        Ok(())
    }

    fn read_separator(&mut self, run: &[u8], turn: Bracket) -> Result<(), PageError> {
        let (separators, bracket) = run.split_at(run.len() - usize::from(turn != Bracket::None));
        if !separators.iter().all(|byte| is_separator(*byte)) {
            return Err(PageError::NotAList);
        }
        match turn {
            Bracket::None => {}
            Bracket::Opened(b'{') => {
                self.item.push(bracket);
                self.position = Position::InItem;
            }
            Bracket::Closed => {
                self.frame.extend(bracket);
                self.position = Position::Around;
            }
            Bracket::Opened(_) => return Err(PageError::NotAList),
        }
        Ok(())
    }

    fn read_item(&mut self, run: &[u8], turn: Bracket, items: &mut dyn ItemSink) {
        self.item.push(run);
        if turn == Bracket::Closed && self.nesting.depth == 2 {
            self.item.emit_piece(&mut |item| items.take_item(item));
            self.position = Position::BetweenItems;
        }
    }
}

const fn is_separator(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b','
}

/// The valid UTF-8 prefix, and whether more bytes may complete the rest.
fn valid_prefix(text: &[u8]) -> (&str, bool) {
    str::from_utf8(text).map_or_else(
        |error| {
            let valid = text.get(..error.valid_up_to()).and_then(|valid| str::from_utf8(valid).ok());
            (valid.unwrap_or_default(), error.error_len().is_none())
        },
        |text| (text, true),
    )
}

/// Whether the opened array is `items` itself and not a key that ends with it.
fn is_before_items(frame: &[u8]) -> bool {
    let key = frame.strip_suffix(b"[").map(<[u8]>::trim_ascii_end).and_then(|it| it.strip_suffix(b":"));
    let before = key.map(<[u8]>::trim_ascii_end).and_then(|it| it.strip_suffix(b"\"items\""));
    before.is_some_and(|before| !before.ends_with(b"\\"))
}

/// The effect of a run's last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    None,
    Opened(u8),
    Closed,
}

/// The depth in brackets, and whether the position is within a string.
#[derive(Debug, Default)]
struct Nesting {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Nesting {
    /// The length up to and including the next bracket, or of the whole text.
    fn advance(&mut self, text: &[u8]) -> (usize, Bracket) {
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
                    return (at, Bracket::Opened(*opening));
                }
                _ => {
                    self.depth = self.depth.saturating_sub(1);
                    return (at, Bracket::Closed);
                }
            }
        }
        (text.len(), Bracket::None)
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

    /// Collects items as texts; if `eager`, reads JSON items ahead.
    struct Texts {
        eager: bool,
        texts: Vec<String>,
        ahead: usize,
    }

    impl ItemSink for Texts {
        fn take_item(&mut self, item: Piece<'_>) {
            self.texts.push(match item {
                Piece::Whole(item) => String::from_utf8_lossy(item).into_owned(),
                Piece::Cut(item) => format!("cut after {}", item.len()),
            });
        }

        fn take_ahead(&mut self, text: &str) -> ReadAhead<()> {
            let mut objects = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
            match objects.next() {
                _ if !self.eager => ReadAhead::Unfit,
                Some(Ok(_)) => {
                    self.ahead += 1;
                    self.texts.push(text[..objects.byte_offset()].to_owned());
                    ReadAhead::Read((), objects.byte_offset())
                }
                Some(Err(error)) if error.is_eof() => ReadAhead::Cut,
                _ => ReadAhead::Unfit,
            }
        }
    }

    fn read_into(items: &mut Texts, chunks: &[&[u8]]) -> Result<ListFrame, PageError> {
        let mut page = JsonPage::default();
        chunks.iter().try_for_each(|chunk| page.push_chunk(chunk, items))?;
        page.finish(items)
    }

    fn read_as(eager: bool, chunks: &[&[u8]]) -> Result<(Vec<String>, ListFrame), PageError> {
        let mut items = Texts { eager, texts: Vec::new(), ahead: 0 };
        read_into(&mut items, chunks).map(|frame| (items.texts, frame))
    }

    fn read(chunks: &[&[u8]]) -> Result<(Vec<String>, ListFrame), PageError> {
        let found = read_as(false, chunks);
        assert_eq!(found, read_as(true, chunks), "whether or not items are read ahead of their ends");
        found
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
    fn check_refused(text: &str, expected: PageError) {
        for size in 1..=text.len() {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            assert_eq!(read(&chunks), Err(expected), "in chunks of {size}");
        }
    }

    #[test]
    fn items_are_emitted_one_by_one() {
        check(r#"{"kind":"List","metadata":{"resourceVersion":"7"},"items":[]}"#, &[], "7", None);
        check(
            r#"{"kind":"List","metadata":{"resourceVersion":"7","continue":"c","remainingItemCount":9},"items":[]}"#,
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
            r#"{"x":[{"y":1}],"kind":"List","metadata":{"items":[{}],"resourceVersion":"1"},"items":[]}"#,
            &[],
            "1",
            None,
        );
        check(
            r#"{"a\"items":[{"no":1}],"items":[],"kind":"List","metadata":{"resourceVersion":"2"}}"#,
            &[],
            "2",
            None,
        );
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
    fn a_body_that_is_no_list_is_refused() {
        check_refused("<html>no</html>", PageError::NotAList);
        check_refused(r#"{"kind":"Status","metadata":{}}"#, PageError::NotAList);
        check_refused(r#"{"kind":"Service","metadata":{"resourceVersion":"7"}}"#, PageError::NotAList);
        check_refused(r#"{"kind":"List","metadata":{},"items":[]}"#, PageError::NotAList);
        for items in ["", r#","items":null"#, r#","items":{}"#, r#","data":{"items":[{}]}"#] {
            let list = format!(r#"{{"kind":"List","metadata":{{"resourceVersion":"1"}}{items}}}"#);
            check_refused(&list, PageError::NoItems);
        }
        for more in [r#""remainingItemCount":8"#, r#""remainingItemCount":8,"continue":"""#] {
            let list = format!(r#"{{"kind":"List","metadata":{{"resourceVersion":"1",{more}}},"items":[]}}"#);
            check_refused(&list, PageError::NotAll);
        }
        check_refused(r#"{"items":[null]}"#, PageError::NotAList);
        check_refused(r#"{"items":[["a"]]}"#, PageError::NotAList);
        check_refused(r#"{"items":[{}]"#, PageError::Truncated);
        check_refused(r#"{"items":[{"a":"#, PageError::Truncated);
        check_refused(r#"{"items":[]} {"#, PageError::Truncated);
        check_refused(r#"{"items":[]} x"#, PageError::NotAList);
        assert_eq!(read(&[b""]), Err(PageError::NotAList));
        let endless = format!("{{\"a\":\"{}", "x".repeat(FRAME_BYTES_MAX));
        assert_eq!(read(&[endless.as_bytes()]), Err(PageError::TooLong));
    }

    /// The buffer's size bounds how much text is scanned twice.
    #[test]
    fn items_are_read_ahead_wherever_they_end() {
        let item = format!(r#"{{"a":"{}"}}"#, "é".repeat(20_000));
        let items = vec![item.as_str(); 60];
        let head = r#"{"kind":"List","metadata":{"resourceVersion":"1"},"items":["#;
        let text = format!("{head}{}]}}", items.join(" ,"));
        for size in [1_000, 16_384, 300_001, text.len()] {
            let mut found = Texts { eager: true, texts: Vec::new(), ahead: 0 };
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            read_into(&mut found, &chunks).unwrap();
            assert_eq!((found.ahead, found.texts == items), (60, true), "in chunks of {size}");
        }
    }

    #[test]
    fn invalid_utf_8_harms_one_item() {
        let text = b"{\"kind\":\"List\",\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"a\":1},{\"b\":\"\xff\"},{\"c\":1}]}";
        for size in 1..=text.len() {
            let chunks: Vec<&[u8]> = text.chunks(size).collect();
            let (items, _) = read(&chunks).unwrap();
            assert_eq!(items, [r#"{"a":1}"#, "{\"b\":\"\u{fffd}\"}", r#"{"c":1}"#], "in chunks of {size}");
        }
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
