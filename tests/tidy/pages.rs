//! Checks what the pages for operators promise: each anchor is a heading, each page that a file names exists, each
//! annotation that the daemon reads has its row, and each link of an installed page leads to an installed file.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::is_word;
use crate::house_rules::{resolve, text};
use crate::tree::{Finding, Source};

const ANNOTATIONS: &str = "docs/annotations.md";

/// Declares the annotations and labels that the daemon reads.
const WIRE: &str = "daemon/objects/src/wire.rs";

/// Where pages are in the repository, and where packages put them.
const FOLDERS: [&str; 2] = ["docs/", "doc/holdfast/"];

/// Each link to a section leads to a heading.
pub(crate) fn anchors_are_headings(sources: &[Source]) -> Vec<Finding> {
    let pages = || sources.iter().filter(|source| source.path.ends_with(".md"));
    let headings: BTreeMap<&str, BTreeSet<String>> =
        pages().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    let is_there = |(_, to, anchor): &(usize, String, &str)| {
        headings.get(to.as_str()).is_some_and(|anchors| anchors.contains(*anchor))
    };
    let lost = |page| section_links(page).filter(|link| !is_there(link)).map(move |link| (page, link));
    let found = pages().flat_map(lost);
    found.map(|(page, (line, to, anchor))| page.finding(line, format!("{to} has no #{anchor}"))).collect()
}

/// Each page that a file names with its folder exists.
pub(crate) fn named_pages_exist(sources: &[Source]) -> Vec<Finding> {
    // The house rules themselves name pages that are none.
    let others = sources.iter().filter(|source| !source.path.starts_with("tests/tidy/"));
    let named = others.flat_map(|source| named_pages(source).map(move |page| (source, page)));
    let lost = named.filter(|(_, (_, page))| !sources.iter().any(|source| source.path == *page));
    lost.map(|(source, (line, page))| source.finding(line, format!("there is no {page}"))).collect()
}

/// The one table of annotations has those that the daemon reads, and no other of holdfast's.
pub(crate) fn annotations_are_listed(sources: &[Source]) -> Vec<Finding> {
    let page = Source::new(ANNOTATIONS, text(sources, ANNOTATIONS));
    let read: BTreeSet<&str> = read_keys(text(sources, WIRE)).collect();
    let silent = read.iter().filter(|key| !page.text.contains(&format!("`{key}`")));
    let silent = silent.map(|key| page.finding(1, format!("`{key}` has a row, because {WIRE} reads it")));
    let rows = page.text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, row_key(line)?)));
    let unread = rows.filter(|(_, key)| !read.contains(key));
    let unread = unread.map(|(line, key)| page.finding(line, format!("{WIRE} does not read `{key}`")));
    silent.chain(unread).collect()
}

/// Line, page and anchor of each relative link to a section.
fn section_links(page: &Source) -> impl Iterator<Item = (usize, String, &str)> {
    let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let own = |to: &str| if to.is_empty() { page.path.clone() } else { resolve(folder, to) };
    let split = targets(&page.text).filter_map(|(line, to)| Some((line, to.split_once('#')?)));
    split.map(move |(line, (to, anchor))| (line, own(to), anchor))
}

/// The targets of the links of a page that lead to no other site, with their lines.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    let targets = lines.flat_map(|(at, line)| line.split("](").skip(1).map(move |rest| (at + 1, rest)));
    let cut = targets.filter_map(|(line, rest)| Some((line, rest.split_once(')')?.0)));
    cut.filter(|(_, to)| !to.contains("://"))
}

/// The anchors that GitHub makes of the headings. A later heading of the same words gets a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut numbered = |anchor: String| {
        let time = times.entry(anchor.clone()).or_default();
        *time += 1;
        if *time == 1 { anchor } else { format!("{anchor}-{}", *time - 1) }
    };
    headings(text).map(|heading| numbered(anchor(heading))).collect()
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    let outside = text.lines().filter(move |line| {
        in_block ^= line.starts_with("```");
        !in_block
    });
    outside.filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim())
}

fn anchor(heading: &str) -> String {
    let lower = heading.to_lowercase();
    lower.chars().filter(|c| is_word(*c) || matches!(c, '-' | ' ')).collect::<String>().replace(' ', "-")
}

fn named_pages(source: &Source) -> impl Iterator<Item = (usize, String)> {
    let lines = source.text.lines().enumerate();
    let rests = |text| FOLDERS.iter().flat_map(move |folder| str::split(text, folder).skip(1));
    let named = lines.flat_map(move |(at, text)| rests(text).map(move |rest| (at + 1, rest)));
    named.filter_map(|(line, rest)| {
        let end = rest.find(|c: char| !is_word(c) && c != '-')?;
        rest[end..].starts_with(".md").then(|| (line, format!("docs/{}.md", &rest[..end])))
    })
}

/// The keys with a domain that the daemon reads by name.
fn read_keys(wire: &str) -> impl Iterator<Item = &str> {
    let renamed = wire.lines().filter_map(|line| line.trim().strip_prefix("#[serde(rename = \""));
    renamed.filter_map(|rest| Some(rest.split_once('"')?.0)).filter(|key| key.contains('/'))
}

fn row_key(line: &str) -> Option<&str> {
    let (key, _) = line.strip_prefix("| `")?.split_once('`')?;
    key.starts_with("holdfast.io/").then_some(key)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::tree::{assert_none, check_tree, repository};

    #[test]
    fn a_link_to_a_section_that_is_none_is_found() {
        let target =
            ("docs/b.md", "# What's `new`, at /b?\n## Same\n## Same\n```\n# no heading\n```\n[x](#same)");
        let links =
            "[a](b.md#whats-new-at-b) [b](b.md#same-1) [w](https://a.b/c#d)\n[c](b.md#no-heading)\n[d](#x)";
        let expected = [("docs/a.md", 2), ("docs/a.md", 3)];
        check_tree(anchors_are_headings, &[("docs/a.md", links), target], &expected);
        assert_none(&anchors_are_headings(&repository().unwrap()));
    }

    #[test]
    fn a_page_that_is_named_and_missing_is_found() {
        let page = ("docs/a-b.md", "");
        let names = "// docs/a-b.md, https://kubernetes.io/docs/concepts\n/* docs/gone.md */\n# /usr/share/doc/holdfast/b.md";
        check_tree(named_pages_exist, &[page, ("a.rs", names)], &[("a.rs", 2), ("a.rs", 3)]);
        assert_none(&named_pages_exist(&repository().unwrap()));
    }

    #[test]
    fn an_annotation_without_a_row_is_found() {
        let wire = (WIRE, "    #[serde(rename = \"holdfast.io/a\")]\n    #[serde(rename = \"type\")]\n");
        check_tree(annotations_are_listed, &[wire, (ANNOTATIONS, "| `holdfast.io/a` | Service |\n")], &[]);
        check_tree(annotations_are_listed, &[wire, (ANNOTATIONS, "")], &[(ANNOTATIONS, 1)]);
        let more = (ANNOTATIONS, "| `holdfast.io/a` |\n| `holdfast.io/b` |\n");
        check_tree(annotations_are_listed, &[wire, more], &[(ANNOTATIONS, 2)]);
        assert_none(&annotations_are_listed(&repository().unwrap()));
    }

    /// The links of a page in the folder of documents that lead to no file of the package.
    fn dead_links<'a>(page: &'a str, is_installed: &dyn Fn(&Path) -> bool) -> Vec<&'a str> {
        let files = targets(page).filter_map(|(_, to)| to.split('#').next()).filter(|to| !to.is_empty());
        files.filter(|to| !is_installed(&Path::new("/usr/share/doc/holdfast").join(to))).collect()
    }

    #[test]
    fn each_link_of_an_installed_page_leads_to_an_installed_file() {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package-docs");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package-docs.sh");
        assert!(Command::new(script).arg(&root).status().unwrap().success());
        let configuration = Path::new("/etc/holdfast/holdfast.toml");
        let is_installed =
            |path: &Path| path == configuration || root.join(path.strip_prefix("/").unwrap()).is_file();
        assert_eq!(
            dead_links("[a](README.md) [b](../x.md) [c](/etc/x#d)", &is_installed),
            ["../x.md", "/etc/x"]
        );
        let pages = fs::read_dir(root.join("usr/share/doc/holdfast")).unwrap().map(|it| it.unwrap().path());
        for page in pages.filter(|page| page.extension().is_some_and(|it| it == "md")) {
            let text = fs::read_to_string(&page).unwrap();
            assert_eq!(dead_links(&text, &is_installed), [""; 0], "{}", page.display());
        }
        fs::remove_dir_all(root).unwrap();
    }
}
