//! Mutates good input into broken input.

use holdfast_laws::simulation::Random;

/// Longer inputs are cut: a few repeated tokens exceed a reader's limit without a large corpus.
pub(super) const INPUT_BYTES_MAX: usize = 64 * 1024;

/// How many inputs with a new answer are kept for more mutation.
const CORPUS_MAX: usize = 2_000;

/// Tokens that have broken parsers before, here or elsewhere.
const TOKENS: &[&str] = &[
    "0",
    "-1",
    "65535",
    "65536",
    "70000",
    "4294967296",
    "18446744073709551616",
    "1e999",
    "-0.0",
    "NaN",
    "inf",
    "0x10",
    "null",
    "~",
    "true",
    "on",
    "\"\"",
    "''",
    "[]",
    "{}",
    "---\n",
    "...\n",
    "&a ",
    "*a",
    "!!binary ",
    "!t ",
    "<<: *a",
    "|\n",
    ">-\n",
    "? ",
    ": ",
    "- ",
    "# ",
    "\t",
    "\r\n",
    "\u{feff}",
    "\u{0}",
    "\u{202e}",
    "é",
    "𝒜",
    "\"\"\"",
    "'''",
    "\\u0000",
    "\\xff",
    "%00",
    "%2f",
    "%zz",
    "..",
    "/",
    "?",
    "&",
    "=",
    "+",
    ";",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "127.1",
    "1.2.3.004",
    "::",
    "::1",
    "::ffff:1.2.3.4",
    "fe80::1%eth0",
    "[::]:0",
    "1.2.3.4:0",
    "10.0.0.0/33",
    "::/0",
    "9999999999d",
    "0s",
    "1h1h",
    "IPv4",
    "IPv6",
    "FQDN",
    "TCP",
    "UDP",
    "SCTP",
    "Local",
    "None",
    "kind",
    "items",
    "List",
    "metadata",
    "endpoints",
    "ports",
    "addresses",
    "1970-01-01T00:00:00Z",
    "99999-99-99T99:99:99Z",
];

/// Produces a sequence of inputs from a seed.
#[derive(Debug)]
pub(super) struct Mutator {
    random: Random,
    corpus: Vec<Vec<u8>>,
    seeds: usize,
}

impl Mutator {
    pub(super) fn new(seed: u64, corpus: Vec<Vec<u8>>) -> Self {
        Self { random: Random::new(seed), seeds: corpus.len(), corpus }
    }

    /// Adds an input with a new answer. A full corpus drops another one, but never a seed.
    pub(super) fn keep(&mut self, input: Vec<u8>) {
        if self.corpus.len() < CORPUS_MAX {
            self.corpus.push(input);
            return;
        }
        let place = self.seeds + self.below(CORPUS_MAX - self.seeds);
        if let Some(old) = self.corpus.get_mut(place) {
            *old = input;
        }
    }

    pub(super) fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.entry();
        // Mostly few changes, so that the rest of the input stays meaningful.
        let changes = 1 << self.below(4);
        for _ in 0..self.below(changes) + 1 {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn entry(&mut self) -> Vec<u8> {
        let place = self.below(self.corpus.len());
        self.corpus.get(place).cloned().unwrap_or_default()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(10) {
            0 => self.flip(input, at),
            1 => input.truncate(at),
            2 => insert(input, at, &self.token()),
            3 | 4 => {
                let (word, token) = (word_at(input, at), self.token());
                input.splice(word, token);
            }
            5 => {
                let (word, other) = (word_at(input, at), self.word());
                input.splice(word, other);
            }
            6 => {
                let length = self.below(64).min(input.len() - at);
                input.drain(at..at + length);
            }
            7 => self.splice(input, at),
            8 => self.repeat(input, at),
            _ => self.nest(input, at),
        }
    }

    fn flip(&mut self, input: &mut [u8], at: usize) {
        let bit = 1 << self.below(8);
        if let Some(byte) = input.get_mut(at) {
            *byte ^= bit;
        }
    }

    /// Inserts the rest of another input.
    fn splice(&mut self, input: &mut Vec<u8>, at: usize) {
        let other = self.entry();
        let from = self.below(other.len() + 1);
        input.truncate(at);
        input.extend_from_slice(other.get(from..).unwrap_or_default());
    }

    /// Repeats a piece many times.
    fn repeat(&mut self, input: &mut Vec<u8>, at: usize) {
        let length = self.below(200).min(input.len() - at);
        let piece = input.get(at..at + length).unwrap_or_default().to_vec();
        let times = 1 << self.below(12);
        insert(input, at, &piece.repeat(times.min(INPUT_BYTES_MAX / piece.len().max(1))));
    }

    /// Inserts deep nesting, closed or not.
    fn nest(&mut self, input: &mut Vec<u8>, at: usize) {
        let depth = 1 << self.below(14);
        let (open, close) = match self.below(5) {
            0 => ("[", "]"),
            1 => ("{a: ", "}"),
            2 => ("{\"a\":", "}"),
            3 => ("- ", ""),
            _ => ("a.", "a"),
        };
        let inner = if self.below(2) == 0 { close.repeat(depth) } else { String::new() };
        insert(input, at, (open.repeat(depth) + &inner).as_bytes());
    }

    fn token(&mut self) -> Vec<u8> {
        let place = self.below(TOKENS.len());
        TOKENS.get(place).unwrap_or(&"").as_bytes().to_vec()
    }

    /// A word from any input of the corpus.
    fn word(&mut self) -> Vec<u8> {
        let entry = self.entry();
        let at = self.below(entry.len() + 1);
        entry.get(word_at(&entry, at)).unwrap_or_default().to_vec()
    }

    /// A number from 0 to below the bound; 0 if the bound is 0.
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}

/// The range of the word at a position: letters, digits and characters inside names and addresses.
fn word_at(input: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/');
    let before = input.iter().take(at).rev().take_while(|byte| is_word(byte)).count();
    let after = input.iter().skip(at).take_while(|byte| is_word(byte)).count();
    at - before..at + after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_every_input() {
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, vec![b"kind: Service".to_vec(), b"a = [1, 2]".to_vec()]);
            (0..500).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
        assert!(inputs(7).iter().all(|input| input.len() <= INPUT_BYTES_MAX));
    }

    #[test]
    fn a_word_at_the_end_of_the_text_is_found_whole() {
        assert_eq!(word_at(b"kind: Service", 8), 6..13);
        assert_eq!(word_at(b"kind: Service", 5), 5..5);
        assert_eq!(word_at(b"", 0), 0..0);
        assert_eq!(word_at(b"abc", 3), 0..3);
    }
}
