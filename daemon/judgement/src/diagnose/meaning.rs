//! What a check looks at and when it is well, as the page of the checks has it.
//!
//! Invariant: the page is the one place where this is written; every check has its row there, which a test sees to.

/// The page that lists all checks.
const PAGE: &str = include_str!("../../../../docs/diagnose.md");

/// The check of that name, in two lines; none: there is no such check.
pub fn meaning(id: &str) -> Option<String> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut found = rows.filter_map(|row| row.split_once("` | ")).filter(|(name, _)| *name == id);
    let (looks, says) = found.find_map(|(_, row)| row.strip_suffix(" |")?.split_once(" | "))?;
    let looks = looks.replace('`', "");
    Some(format!("{id} looks at: {looks}\nIt is well if, or says: {says}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_told_as_the_page_tells_it() {
        let told = "dns.node looks at: host\n\
                    It is well if, or says: this node's resolv.conf is there and within what pods take\n";
        assert_eq!(meaning("dns.node").as_deref(), Some(told));
        for other in ["dns", "dns.", "", "error", "check", "` | ", "kubectl get endpoints"] {
            assert_eq!(meaning(other), None, "{other}");
        }
    }
}
