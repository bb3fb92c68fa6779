//! Requirements of a part on the machine.
//!
//! Invariant: an unmet requirement is reported with its remedy; it never counts as a passed test.

use std::path::Path;

/// A word of `needs` in the table, how to check it, and its remedy.
const NEEDS: [(&str, Look, &str); 6] = [
    ("root", Look::Root, "run it as root"),
    ("apt", Look::Program("apt-get"), "run it on Debian or Ubuntu"),
    ("go", Look::Program("go"), "scripts/setup go"),
    ("npm", Look::Program("npm"), "install Node.js with npm"),
    ("browser", Look::Program("chromium"), "scripts/setup page"),
    ("x86_64", Look::Machine("x86_64"), "run it on an x86_64 machine"),
];

#[derive(Clone, Copy, Debug)]
enum Look {
    Root,
    Program(&'static str),
    Machine(&'static str),
}

/// The first unmet requirement with its remedy.
pub(crate) fn unmet(needs: &[String]) -> Option<String> {
    needs.iter().find_map(|need| match NEEDS.iter().find(|(name, _, _)| name == need) {
        Some((_, look, _)) if look.is_met() => None,
        Some((name, _, remedy)) => Some(format!("needs {name}: {remedy}")),
        None => Some(format!("needs {need}, which tests/suite/src/needs.rs does not know")),
    })
}

impl Look {
    fn is_met(self) -> bool {
        match self {
            Self::Root => nix::unistd::geteuid().is_root(),
            Self::Machine(name) => std::env::consts::ARCH == name,
            Self::Program(name) => folders().iter().any(|folder| Path::new(folder).join(name).is_file()),
        }
    }
}

fn folders() -> Vec<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_need_is_reported_with_its_remedy() {
        let met = format!("needs machine {}", std::env::consts::ARCH);
        assert_eq!(unmet(&[]), None, "{met}");
        let unknown = unmet(&["no-such-thing".to_owned()]).unwrap();
        assert!(unknown.contains("no-such-thing"), "{unknown}");
        assert!(!Look::Program("no-such-program").is_met());
        assert!(Look::Program("sh").is_met());
    }
}
