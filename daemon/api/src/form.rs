//! Table or JSON, by the client's choice.
//!
//! Invariant: plain `curl` gets a table, and a client gets JSON if it ranks JSON higher or names it in the query. The
//! user agent plays no role.

use axum::http::{HeaderMap, header};
use holdfast_core::words;

words! {
    /// The format of an answer: `?format=`, and `--output` of the command line.
    #[derive(PartialOrd, Ord, clap::ValueEnum)]
    pub enum Form {
        /// Aligned columns that fit a screen
        Table = "table",
        /// Aligned columns, all of them
        Wide = "wide",
        /// JSON, for programs
        Json = "json",
    }
}

impl Form {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Table | Self::Wide => "text/plain; charset=utf-8",
            Self::Json => "application/json",
        }
    }

    /// The format by `Accept`: the highest quality wins, then the more exact range, then the first one. If no range
    /// fits, it is the table, because an answer in another format is better than none.
    pub(super) fn from_accept(headers: &HeaderMap) -> Self {
        let ranges = headers.get_all(header::ACCEPT);
        let ranges = ranges.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let mut best = None;
        for (rank, form) in ranges.filter_map(parse_media_range) {
            if best.is_none_or(|(known, _)| rank > known) {
                best = Some((rank, form));
            }
        }
        best.map_or(Self::Table, |(_, form)| form)
    }
}

/// The quality in thousandths and the exactness of one media range, and its format; `None` if no format fits or the
/// range is refused.
fn parse_media_range(range: &str) -> Option<((u32, u8), Form)> {
    let mut parts = range.split(';').map(str::trim);
    let (exactness, form) = match parts.next()?.to_ascii_lowercase().as_str() {
        "application/json" => (2, Form::Json),
        "text/plain" => (2, Form::Table),
        "application/*" => (1, Form::Json),
        "text/*" => (1, Form::Table),
        "*/*" => (0, Form::Table),
        _ => return None,
    };
    let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1000), parse_quality)?;
    (quality > 0).then_some(((quality, exactness), form))
}

/// Parses a quality in thousandths: `0`, `1`, `0.5`, `1.000`, with at most three digits after the point.
fn parse_quality(quality: &str) -> Option<u32> {
    let (whole, fraction) = quality.split_once('.').unwrap_or((quality, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match whole {
        "1" => Some(1000),
        "0" => format!("{fraction:0<3}").parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, expected: Form) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        assert_eq!(Form::from_accept(&headers), expected, "{accept}");
    }

    #[test]
    fn the_form_follows_accept() {
        assert_eq!(Form::from_accept(&HeaderMap::new()), Form::Table);
        check("*/*", Form::Table);
        check("application/json", Form::Json);
        check("Application/JSON;charset=utf-8", Form::Json);
        check("application/json, */*", Form::Json);
        check("application/json, text/plain, */*", Form::Json);
        check("text/plain, application/json", Form::Table);
        check("application/json;q=0.5, */*", Form::Table);
        check("application/json;q=0.5, text/plain;q=0.4", Form::Json);
        check("application/json;q=0.05, text/plain;q=0.4", Form::Table);
        check("application/json;q=0", Form::Table);
        check("application/json;q=nonsense", Form::Table);
        check("application/*", Form::Json);
        check("text/html, image/png", Form::Table);
        check(";;,,q=,", Form::Table);
    }
}
