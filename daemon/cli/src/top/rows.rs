//! The services of `top`: what their rows show, in which order, and which of them a filter leaves.
//!
//! Invariant: whatever a process that answers in the daemon's place says, a cell moves no cursor.

use std::cmp::Ordering;

use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::Verdict;
use holdfast_core::str_enum::StrEnum;
use holdfast_status::age::Age;
use holdfast_status::printable::sanitise_line;
use holdfast_status::rfc3339::Millis;
use serde::Deserialize;

/// The answer of `/services`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Services {
    services: Vec<Answer>,
    totals: Totals,
}

#[derive(Debug, Default, Deserialize)]
struct Totals {
    services: u64,
}

#[derive(Debug, Deserialize)]
struct Answer {
    service: String,
    source: String,
    r#type: Option<String>,
    state: String,
    verdict: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    error: Option<String>,
    backends: u64,
    clients: Option<Clients>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Clients {
    connects: u64,
    refused: u64,
    dropped: u64,
}

/// One service, ready to be shown.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) service: String,
    source: String,
    kind: String,
    verdict: String,
    reason: String,
    owner: Option<String>,
    error: Option<String>,
    since: Option<Timestamp>,
    since_text: Option<String>,
    backends: u64,
    clients: Option<Clients>,
    /// All its words in small letters, for the filter.
    haystack: String,
}

/// A column, by which rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Service,
    Verdict,
    Reason,
    Backends,
    Since,
    Sent,
    Refused,
    Dropped,
    Type,
}

impl Column {
    pub(super) const ALL: [Self; 9] = [
        Self::Service,
        Self::Verdict,
        Self::Reason,
        Self::Backends,
        Self::Since,
        Self::Sent,
        Self::Refused,
        Self::Dropped,
        Self::Type,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Service => "SERVICE",
            Self::Verdict => "VERDICT",
            Self::Reason => "REASON",
            Self::Backends => "BACKENDS",
            Self::Since => "SINCE",
            Self::Sent => "SENT",
            Self::Refused => "REFUSED",
            Self::Dropped => "DROPPED",
            Self::Type => "TYPE",
        }
    }

    /// The column that many places to the right, or to the left; it stops at the edge.
    pub(super) fn step(self, by: isize) -> Self {
        let place = Self::ALL.iter().position(|it| *it == self).unwrap_or_default();
        let last = Self::ALL.len() - 1;
        Self::ALL.get(place.saturating_add_signed(by).min(last)).copied().unwrap_or(self)
    }

    /// The order of two rows: what needs a look comes first, and names are in the order of the alphabet.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let clients = |row: &Row, count: fn(Clients) -> u64| row.clients.map(count);
        match self {
            Self::Service => Ordering::Equal,
            Self::Verdict => {
                severity(&b.verdict).cmp(&severity(&a.verdict)).then_with(|| b.since.cmp(&a.since))
            }
            Self::Reason => (a.reason == NONE, &a.reason).cmp(&(b.reason == NONE, &b.reason)),
            Self::Backends => a.backends.cmp(&b.backends),
            Self::Since => b.since.cmp(&a.since),
            Self::Sent => clients(b, |it| it.connects).cmp(&clients(a, |it| it.connects)),
            Self::Refused => clients(b, |it| it.refused).cmp(&clients(a, |it| it.refused)),
            Self::Dropped => clients(b, |it| it.dropped).cmp(&clients(a, |it| it.dropped)),
            Self::Type => a.kind.cmp(&b.kind),
        }
        .then_with(|| (&a.service, &a.source).cmp(&(&b.service, &b.source)))
    }
}

/// What a row shows that has nothing in a column.
const NONE: &str = "-";

/// How bad a verdict is for clients. No verdict harms no client; an unknown one is worst, so that it is not overlooked.
fn severity(verdict: &str) -> u8 {
    match Verdict::from_spelling(verdict) {
        Some(verdict) => verdict.severity(),
        None if verdict == NONE => 0,
        None => u8::MAX,
    }
}

impl Row {
    fn from_answer(answer: Answer) -> Self {
        let Answer {
            service,
            source,
            r#type,
            state,
            verdict,
            reason,
            since,
            owner,
            error,
            backends,
            clients,
        } = answer;
        let word = |text: Option<String>| text.map_or_else(|| NONE.to_owned(), |text| sanitise_line(&text));
        // A service without a frontend has a state instead.
        let reason = word(reason.or_else(|| verdict.is_none().then_some(state)));
        let (service, source) = (sanitise_line(&service), sanitise_line(&source));
        let [owner, error] = [owner, error].map(|text| text.map(|text| sanitise_line(&text)));
        let (kind, verdict) = (word(r#type), word(verdict));
        let words = [&service, &source, &kind, &verdict, &reason].into_iter().chain(&owner).chain(&error);
        let haystack = words.map(|word| word.to_lowercase()).collect::<Vec<_>>().join(" ");
        let time = since.as_deref().and_then(Millis::parse).map(Millis::seconds);
        let since_text = since.map(|text| sanitise_line(&text));
        Self {
            service,
            source,
            kind,
            verdict,
            reason,
            owner,
            error,
            since: time,
            since_text,
            backends,
            clients,
            haystack,
        }
    }

    /// Whether it has all words of the filter, in small letters.
    fn matches(&self, filter: &str) -> bool {
        filter.split_whitespace().all(|word| self.haystack.contains(word))
    }

    pub(super) fn cell(&self, column: Column, now: Timestamp) -> String {
        let clients = |count: fn(Clients) -> u64| {
            self.clients.map_or_else(|| NONE.to_owned(), |clients| count(clients).to_string())
        };
        match column {
            Column::Service => self.service.clone(),
            Column::Verdict => self.verdict.clone(),
            Column::Reason => self.reason.clone(),
            Column::Backends => self.backends.to_string(),
            Column::Since => self.since.map_or_else(|| NONE.to_owned(), |then| Age { now, then }.to_string()),
            Column::Sent => clients(|it| it.connects),
            Column::Refused => clients(|it| it.refused),
            Column::Dropped => clients(|it| it.dropped),
            Column::Type => self.kind.clone(),
        }
    }

    /// Everything about it, and the command that says more.
    pub(super) fn detail(&self, now: Timestamp) -> Vec<String> {
        let Self { service, source, kind, verdict, reason, owner, error, .. } = self;
        let reason = if reason == NONE { String::new() } else { format!(" ({reason})") };
        let since = self
            .since
            .zip(self.since_text.as_ref())
            .map_or_else(String::new, |(then, text)| format!(" since {text} ({})", Age { now, then }));
        let owner = owner.as_ref().map(|owner| format!("; {owner} has its address")).unwrap_or_default();
        let error = error.as_ref().map(|error| format!("; error: {error}")).unwrap_or_default();
        vec![
            format!("{service} ({kind}, {source}): {verdict}{reason}{since}{owner}{error}"),
            format!("next: holdfast diagnose {service}"),
        ]
    }
}

impl Services {
    /// How many services there are, whatever the filter.
    pub(super) const fn count(&self) -> u64 {
        self.totals.services
    }

    pub(super) fn into_rows(self) -> Vec<Row> {
        self.services.into_iter().map(Row::from_answer).collect()
    }
}

/// The places of the rows that the filter leaves, in the order of a column.
pub(super) fn select_rows(rows: &[Row], filter: &str, (column, is_reversed): (Column, bool)) -> Vec<usize> {
    let filter = filter.to_lowercase();
    let mut left: Vec<(usize, &Row)> =
        rows.iter().enumerate().filter(|(_, row)| row.matches(&filter)).collect();
    left.sort_by(|(_, a), (_, b)| {
        let order = column.compare(a, b);
        if is_reversed { order.reverse() } else { order }
    });
    left.into_iter().map(|(place, _)| place).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// 2026-01-08T11:14:55Z.
    pub(in super::super) const NOW: Timestamp = Timestamp(1_767_870_895);

    pub(in super::super) fn row(
        name: &str,
        verdict: &str,
        reason: Option<&str>,
        (second, connects): (u32, u64),
    ) -> Row {
        let answer = json!({
            "service": format!("demo/{name}"), "source": "kubernetes", "type": "ClusterIP", "state": "served",
            "verdict": verdict, "reason": reason, "since": format!("2026-01-08T11:11:{second:02}Z"),
            "owner": (verdict == "conflict").then_some("demo/first"), "error": null, "backends": connects % 7,
            "clients": { "connects": connects, "refused": 0, "dropped": 0 },
        });
        Row::from_answer(serde_json::from_value(answer).unwrap())
    }

    fn rows() -> Vec<Row> {
        vec![
            row("a", "serving", None, (10, 5)),
            row("b", "refusing", Some("vanished"), (20, 100)),
            row("c", "conflict", Some("claimed"), (30, 20)),
            row("d", "refusing", Some("all-unready"), (40, 0)),
        ]
    }

    fn names(filter: &str, order: (Column, bool)) -> String {
        let rows = rows();
        select_rows(&rows, filter, order)
            .into_iter()
            .map(|place| rows[place].service.replace("demo/", ""))
            .collect()
    }

    #[test]
    fn rows_are_sorted_by_each_column_and_both_ways() {
        for (column, expected) in [
            (Column::Service, "abcd"),
            (Column::Verdict, "dbca"),
            (Column::Reason, "dcba"),
            (Column::Backends, "dbac"),
            (Column::Since, "dcba"),
            (Column::Sent, "bcad"),
            (Column::Refused, "abcd"),
            (Column::Dropped, "abcd"),
            (Column::Type, "abcd"),
        ] {
            assert_eq!(names("", (column, false)), expected, "{column:?}");
            let reversed: String = expected.chars().rev().collect();
            assert_eq!(names("", (column, true)), reversed, "{column:?} reversed");
        }
    }

    #[test]
    fn a_filter_finds_all_its_words_anywhere_in_any_case() {
        for (filter, expected) in [
            ("", "abcd"),
            ("REFUSING", "bd"),
            ("demo/c", "c"),
            ("refusing unready", "d"),
            ("first", "c"),
            ("none", ""),
        ] {
            assert_eq!(names(filter, (Column::Service, false)), expected, "{filter}");
        }
    }

    #[test]
    fn a_step_stops_at_the_edge() {
        assert_eq!(Column::Service.step(-1), Column::Service);
        assert_eq!(Column::Service.step(1), Column::Verdict);
        assert_eq!(Column::Type.step(1), Column::Type);
    }

    #[test]
    fn a_detail_says_everything_and_what_to_type() {
        assert_eq!(
            row("c", "conflict", Some("claimed"), (30, 20)).detail(NOW),
            [
                "demo/c (ClusterIP, kubernetes): conflict (claimed) since 2026-01-08T11:11:30Z (3 min ago); demo/first \
                 has its address",
                "next: holdfast diagnose demo/c"
            ]
        );
    }

    #[test]
    fn no_answer_moves_a_cursor() {
        let row = row("x\u{1b}[2J\u{202e}", "serving\u{9b}K", Some("a\nb"), (10, 5));
        let all = Column::ALL.map(|column| row.cell(column, NOW)).into_iter().chain(row.detail(NOW));
        for text in all {
            assert!(!text.chars().any(holdfast_status::printable::is_unprintable), "{text:?}");
        }
    }
}
