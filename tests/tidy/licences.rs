//! Checks the licence texts that packages must carry in full.

#[cfg(test)]
mod tests {
    use crate::tree::repository;

    /// The words alone: each file wraps and indents in its own way.
    fn words(text: &str) -> String {
        text.split_whitespace().filter(|word| *word != ".").collect::<Vec<_>>().join(" ")
    }

    fn text(path: &str) -> String {
        repository().unwrap().into_iter().find(|source| source.path == path).unwrap().text
    }

    #[test]
    fn the_copyright_file_has_the_whole_text_of_the_bsd_licence() {
        let licence = words(&text("LICENSE-BPF"));
        let begin = licence.find("Redistribution and use").unwrap();
        let end = licence.find("POSSIBILITY OF SUCH DAMAGE.").unwrap() + "POSSIBILITY OF SUCH DAMAGE.".len();
        let copyright = words(&text("packaging/debian/copyright"));
        assert!(
            copyright.contains(&licence[begin..end]),
            "packaging/debian/copyright shortens the BSD licence"
        );
    }

    #[test]
    fn both_packages_carry_the_licence_of_the_programs() {
        let script = text("scripts/package.sh");
        for (kind, end) in [("deb() {", "rpm() {"), ("rpm() {", "scripts/package-stage.sh \"$binary\"")] {
            let (begin, end) = (script.find(kind).unwrap(), script.find(end).unwrap());
            assert!(script[begin..end].contains("LICENSE-BPF"), "{kind}");
        }
    }
}
