//! The results of the templates for Consul and Nomad in docs/outside.md, and backends by DNS name.

use crate::{BlocksFile, Config};

const GUIDE: &str = include_str!("../../../../docs/outside.md");

/// The TOML blocks in the chapter about registries, and the templates before them.
fn examples() -> Vec<&'static str> {
    let (_, chapter) = GUIDE.split_once("### From a registry\n").expect("the chapter");
    let (chapter, _) = chapter.split_once("\n## ").expect("its end");
    chapter.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn the_guides_dns_example_is_legal() {
    let (_, chapter) = GUIDE.split_once("### From the DNS\n\n```toml\n").expect("the chapter");
    let (example, _) = chapter.split_once("```").expect("its end");
    let (config, warnings) = Config::parse(example, "x.toml").expect("a legal file");
    let resolved = config.services.iter().filter(|block| block.resolve.is_some()).count();
    assert_eq!((resolved, config.resolver.servers.len(), warnings.len()), (2, 2, 0));
}

#[test]
fn the_results_of_the_templates_are_legal() {
    let found: Vec<_> =
        examples().iter().map(|text| BlocksFile::parse(text, "x.toml").expect("TOML")).collect();
    let counts: Vec<_> =
        found.iter().map(|it| (it.blocks.len(), it.errors.len(), it.warnings.len())).collect();
    // The warning concerns the empty list.
    assert_eq!(counts, [(2, 0, 1), (1, 0, 0)]);
    assert!(found[1].blocks[0].health_check.is_some());
}

/// An address is whatever an instance was registered with: with a quote in it, it would write blocks of its own.
#[test]
fn every_template_validates_addresses() {
    let (_, chapter) = GUIDE.split_once("### From a registry\n").expect("the chapter");
    let (chapter, _) = chapter.split_once("\n## ").expect("its end");
    let looks = r#"{{ if .Address | regexMatch "^[0-9A-Za-z.:-]+$" }}"#;
    let written = chapter.match_indices("\"{{ .Address }}:").map(|(at, _)| &chapter[..at]);
    let looked_at: Vec<_> = written.map(|before| before.trim_end().ends_with(looks)).collect();
    assert_eq!(looked_at, [true, true]);
}

#[test]
fn one_bad_instance_affects_no_other_service() {
    let consul = examples()[0].replace("192.0.2.2:8080", "node-2.example.com:8080");
    let found = BlocksFile::parse(&consul, "x.toml").expect("TOML");
    assert_eq!(found.bad, [("consul".to_owned(), "web".to_owned())]);
    assert_eq!((found.blocks.len(), found.has_nameless, found.errors.len()), (1, false, 1));
    let unnamed = BlocksFile::parse(&examples()[0].replace("\"web\"", "\"Web_1\""), "x.toml").expect("TOML");
    assert!(unnamed.has_nameless && unnamed.blocks.len() == 1);
}
