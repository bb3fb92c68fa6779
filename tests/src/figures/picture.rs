//! Draws results as an SVG chart for a page: a bar for each, next to those of the peers.
//!
//! Invariant: the length of a bar is its result, from zero, in the scale of its row. No row is left out.

use std::fmt::Write as _;

use super::{Figure, each, number};

const WIDTH: f64 = 760.0;
const LABELS: f64 = 250.0;
const BARS: f64 = 400.0;
const BAR: f64 = 13.0;
const GAP: f64 = 9.0;
const TITLE: f64 = 30.0;

/// Readable on white and on black, and with red-green blindness.
const COLOURS: [&str; 6] = ["#999999", "#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#009e73"];

/// The height of a line of the legend.
const LINE: f64 = 18.0;

struct Drawing {
    text: String,
    at: f64,
}

/// The results of these groups as SVG.
pub fn picture(figures: &[Figure], groups: &[&str]) -> String {
    let shown: Vec<&Figure> = figures.iter().filter(|it| groups.contains(&it.group.as_str())).collect();
    let peers = each(shown.iter().map(|it| it.of.as_str()));
    let mut drawing = Drawing { text: String::new(), at: 24.0 };
    drawing.legend(&peers);
    for group in each(shown.iter().map(|it| it.group.as_str())) {
        drawing.title(group);
        for what in each(shown.iter().filter(|it| it.group == group).map(|it| it.what.as_str())) {
            let row: Vec<&Figure> =
                shown.iter().filter(|it| it.group == group && it.what == what).copied().collect();
            drawing.row(what, &row, &peers);
        }
    }
    drawing.finish()
}

impl Drawing {
    fn label(&mut self, (x, y): (f64, f64), more: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(self.text, r#"<text x="{x:.0}" y="{y:.0}"{more}>{text}</text>"#);
    }

    fn bar(&mut self, (y, length): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.text,
            r#"<rect x="{LABELS:.0}" y="{y:.0}" width="{length:.1}" height="{BAR:.0}" fill="{colour}"/>"#
        );
    }

    fn legend(&mut self, peers: &[&str]) {
        let mut x = LABELS;
        for (peer, colour) in peers.iter().zip(COLOURS.iter().cycle()) {
            let width = 40.0 + 7.0 * peer.len() as f64;
            if x > LABELS && x + width > WIDTH {
                x = LABELS;
                self.at += LINE;
            }
            let y = self.at;
            let _ = writeln!(
                self.text,
                r#"<rect x="{x:.0}" y="{:.0}" width="12" height="12" fill="{colour}"/>"#,
                y - 10.0
            );
            self.label((x + 17.0, y), "", peer);
            x += width;
        }
    }

    fn title(&mut self, group: &str) {
        self.at += TITLE;
        self.label((8.0, self.at), r#" font-weight="bold""#, group);
        self.at += 12.0;
    }

    fn row(&mut self, what: &str, figures: &[&Figure], peers: &[&str]) {
        let most = figures.iter().map(|it| it.median).fold(f64::MIN_POSITIVE, f64::max);
        self.label((8.0, self.at + BAR - 2.0), "", what);
        for figure in figures {
            let place = peers.iter().position(|peer| *peer == figure.of).unwrap_or_default();
            let colour = COLOURS.iter().cycle().nth(place).copied().unwrap_or_default();
            let length = (figure.median / most * BARS).max(1.0);
            self.bar((self.at, length), colour);
            self.label((LABELS + length + 6.0, self.at + BAR - 2.0), "", &number(figure.median));
            self.at += BAR + 2.0;
        }
        self.at += GAP;
    }

    fn finish(self) -> String {
        let height = self.at + 8.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#808080\">\n{}</svg>\n",
            self.text
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::some;
    use super::*;

    #[test]
    fn each_figure_has_its_bar_and_its_number() {
        let drawn = picture(&some(), &["of plain", "ms"]);
        let bars: Vec<&str> = drawn.lines().filter(|line| line.contains("height=\"13\"")).collect();
        assert_eq!(bars.len(), some().len());
        assert!(bars[0].contains("width=\"400.0\"") && bars[1].contains("width=\"349.4\""), "{bars:?}");
        for figure in some() {
            assert!(drawn.contains(&format!(">{}<", number(figure.median))), "{figure:?}");
        }
        assert!(!picture(&some(), &["ms"]).contains("connects"));
    }

    #[test]
    fn a_legend_of_many_peers_stays_within_the_picture() {
        let peers =
            |number: usize| Figure { of: format!("a peer with a long name {number}"), ..some().remove(0) };
        let drawn = picture(&[peers(1), peers(2), peers(3), peers(4)], &["of plain"]);
        let places: Vec<f64> = drawn
            .lines()
            .filter(|line| line.contains("a peer"))
            .filter_map(|line| line.split('"').nth(1)?.parse().ok())
            .collect();
        assert_eq!(places.len(), 4);
        assert!(places.iter().all(|x| x + 7.0 * 26.0 < WIDTH), "{places:?}");
    }

    #[test]
    fn markup_in_words_is_escaped_in_the_chart() {
        let figure = Figure { what: "a<b & c".to_owned(), ..some().remove(0) };
        assert!(picture(&[figure], &["of plain"]).contains("a&lt;b &amp; c"));
    }
}
