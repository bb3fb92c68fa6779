//! Answers as YAML, made from their JSON.
//!
//! Invariant: each JSON value becomes one document as soon as it is complete, so that a stream stays a stream. What is
//! no JSON, such as the completions of a shell, passes unchanged.

use std::io::{self, Write};

use serde_json::{Deserializer, Value};

/// The most bytes of one value: as many as an answer may have that is read as a whole.
const VALUE_BYTES_MAX: usize = 256 << 20;

/// Takes JSON and writes YAML.
pub(super) struct YamlWriter<W> {
    out: W,
    /// What is not written yet.
    pending: Vec<u8>,
}

impl<W: Write> YamlWriter<W> {
    pub(super) const fn new(out: W) -> Self {
        Self { out, pending: Vec::new() }
    }

    /// Writes what is left, also if it is no JSON.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.write_values()?;
        self.out.write_all(&self.pending)?;
        self.out.flush()
    }

    /// Writes each complete value as a document.
    fn write_values(&mut self) -> io::Result<()> {
        let mut values = Deserializer::from_slice(&self.pending).into_iter::<Value>();
        let mut documents = String::new();
        let mut end = 0;
        while let Some(Ok(value)) = values.next() {
            documents += "---\n";
            documents += &serde_saphyr::to_string(&value).map_err(io::Error::other)?;
            end = values.byte_offset();
        }
        let blank = self.pending.iter().skip(end).take_while(|byte| byte.is_ascii_whitespace()).count();
        self.pending.drain(..end + blank);
        self.out.write_all(documents.as_bytes())
    }
}

impl<W: Write> Write for YamlWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pending.len() + bytes.len() > VALUE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "the answer is longer than {VALUE_BYTES_MAX} bytes; ask for JSON"
            )));
        }
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_values()?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn convert(pieces: &[&str]) -> String {
        let mut out = Vec::new();
        let mut yaml = YamlWriter::new(&mut out);
        for piece in pieces {
            yaml.write_all(piece.as_bytes()).unwrap();
            yaml.flush().unwrap();
        }
        yaml.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_value_is_a_document() {
        assert_eq!(
            convert(&["{\"a\": [1, \"x\"]}\n{\"b\"", ": null}\n"]),
            "---\na:\n- 1\n- x\n---\nb: null\n"
        );
    }

    #[test]
    fn text_passes_unchanged() {
        assert_eq!(convert(&["complete -F _holdfast holdfast\n"]), "complete -F _holdfast holdfast\n");
    }

    proptest! {
        #[test]
        fn yaml_means_what_the_json_means(text in any::<String>(), number in any::<i64>(), name in "[a-z.:/]{1,9}") {
            let value = json!({ name: [text, number, true, null, {}, []], "word": ["yes", "0x1", "~", "1e3", "", "- a"] });
            let yaml = convert(&[&value.to_string()]);
            let read: Value = serde_saphyr::from_str(&yaml).unwrap();
            prop_assert_eq!(read, value);
        }
    }
}
