//! Commands that a person may copy into a shell.
//!
//! Invariant: a command consists of our own words, and of names, labels and addresses that pass Kubernetes' grammar. If
//! one does not pass, there is no command. For a shell, every word that is not plain is quoted, and none contains a
//! quote.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::ObjectName;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

/// The longest names of DNS, and the longest labels.
const NAME_LENGTH_MAX: usize = 253;
const LABEL_LENGTH_MAX: usize = 63;

/// The words of a command, the program first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Command(Vec<String>);

/// One word of a command. Names that are not ours are checked.
#[derive(Clone, Copy, Debug)]
pub enum CommandWord<'a> {
    Literal(&'static str),
    /// The name of an object.
    Name(&'a str),
    Number(u64),
    Ip(IpAddr),
    Socket(SocketAddr),
    /// A name of ours, a `=` and a number.
    Pair(&'static str, u64),
    /// A path of ours at a server with TLS.
    Https(SocketAddr, &'static str),
    /// A file of ours.
    Path(&'a str),
}

impl Command {
    /// Makes a command of these words. `None`: a word is not legal.
    pub fn from_words(words: &[CommandWord<'_>]) -> Option<Self> {
        words.iter().map(CommandWord::legal_text).collect::<Option<Vec<_>>>().map(Self)
    }

    /// `kubectl` in a namespace.
    pub fn kubectl(namespace: &str, words: &[CommandWord<'_>]) -> Option<Self> {
        let start =
            [CommandWord::Literal("kubectl"), CommandWord::Literal("-n"), CommandWord::Name(namespace)];
        Self::from_words(&[&start, words].concat())
    }

    /// Patches labels of a Service's selector.
    pub fn set_selector(service: &ObjectName, wanted: &[(&str, &str)]) -> Option<Self> {
        let legal = |(name, value): &(&str, &str)| is_label_name(name) && is_label_value(value);
        if wanted.is_empty() || !wanted.iter().all(legal) {
            return None;
        }
        let pairs = wanted.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
        Self::patch_service(service, &json!({ "spec": { "selector": Value::Object(pairs.collect()) } }))
    }

    /// Sets one field of a Service's specification.
    pub fn set_field(service: &ObjectName, field: &'static str, value: &'static str) -> Option<Self> {
        Self::patch_service(service, &json!({ "spec": { field: value } }))
    }

    fn patch_service(service: &ObjectName, patch: &Value) -> Option<Self> {
        let words = [
            CommandWord::Literal("patch"),
            CommandWord::Literal("service"),
            CommandWord::Name(service.name()),
            CommandWord::Literal("-p"),
        ];
        let mut command = Self::kubectl(service.namespace(), &words)?;
        command.0.push(patch.to_string());
        Some(command)
    }
}

impl CommandWord<'_> {
    fn legal_text(&self) -> Option<String> {
        match self {
            Self::Literal(word) => Some((*word).to_owned()),
            Self::Name(name) => is_name(name).then(|| (*name).to_owned()),
            Self::Number(number) => Some(number.to_string()),
            Self::Ip(address) => Some(address.to_string()),
            Self::Socket(address) => Some(address.to_string()),
            Self::Pair(name, number) => Some(format!("{name}={number}")),
            Self::Https(address, path) => Some(format!("https://{address}{path}")),
            Self::Path(path) => is_path(path).then(|| (*path).to_owned()),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, word) in self.0.iter().enumerate() {
            let blank = if place == 0 { "" } else { " " };
            match is_plain(word) {
                true => write!(f, "{blank}{word}")?,
                false => write!(f, "{blank}'{word}'")?,
            }
        }
        Ok(())
    }
}

fn is_plain(word: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,%@".contains(&byte);
    !word.is_empty() && word.bytes().all(plain)
}

/// Whether a text is a DNS subdomain. No program takes one for an option, and no shell for syntax.
pub(super) fn is_name(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=NAME_LENGTH_MAX).contains(&text.len()) && text.bytes().all(legal) && has_plain_ends(text)
}

/// Whether a text is a path from the root, of characters that a quoted word may have.
fn is_path(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'\'' || byte == b' ';
    text.starts_with('/') && text.bytes().all(legal)
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_part(text)
}

fn is_label_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_name(prefix) && is_label_part(name),
        None => is_label_part(text),
    }
}

fn is_label_part(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LABEL_LENGTH_MAX).contains(&text.len()) && text.bytes().all(legal) && has_plain_ends(text)
}

fn has_plain_ends(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().next_back()];
    ends.into_iter().flatten().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName::new("default", name).unwrap()
    }

    #[test]
    fn a_patch_is_one_quoted_word() {
        let command = Command::set_selector(&name("my-svc"), &[("app.example/name", "my_App")]).unwrap();
        let patch = r#"{"spec":{"selector":{"app.example/name":"my_App"}}}"#;
        assert_eq!(command.to_string(), format!("kubectl -n default patch service my-svc -p '{patch}'"));
    }

    #[test]
    fn an_illegal_name_or_label_makes_no_command() {
        for bad in ["--all", "a;b", "$(x)", "", "a b", "é", "A", "a'b", "-a", "a."] {
            assert!(
                Command::kubectl("default", &[CommandWord::Literal("get"), CommandWord::Name(bad)]).is_none(),
                "{bad}"
            );
        }
        for bad in [("app", "a'b"), ("app", "$(x)"), ("a b", "x"), ("a/b/c", "x"), ("app", "-x")] {
            assert!(Command::set_selector(&name("web"), &[bad]).is_none(), "{bad:?}");
        }
        assert!(Command::set_selector(&name("--all"), &[("app", "web")]).is_none());
    }

    #[test]
    fn a_path_is_one_word() {
        for (path, expected) in [
            ("/etc/holdfast/holdfast.toml", Some("cat /etc/holdfast/holdfast.toml")),
            ("/etc/hold fast/$(x).toml", Some("cat '/etc/hold fast/$(x).toml'")),
            ("/etc/o'clock", None),
            ("/etc/two\nlines", None),
            ("--help", None),
        ] {
            let command = Command::from_words(&[CommandWord::Literal("cat"), CommandWord::Path(path)]);
            assert_eq!(command.map(|it| it.to_string()).as_deref(), expected);
        }
    }

    proptest! {
        #[test]
        fn any_label_of_a_tenant_is_one_quoted_word(key in any::<String>(), value in any::<String>()) {
            if let Some(command) = Command::set_selector(&name("web"), &[(&key, &value)]) {
                let shown = command.to_string();
                prop_assert_eq!(shown.matches('\'').count(), 2);
                prop_assert!(shown.is_ascii() && !shown.contains(['$', '`', '\\', ';', '|', '&', '\n']));
            }
        }
    }
}
